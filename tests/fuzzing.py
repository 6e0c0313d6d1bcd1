"""Random and damaged input for readers and `encode`, and many trainings of mixed sizes in one process."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.config import Document, validate
from raysent.data.batches import Batch
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.pairs import PairsConfig, read_pairs
from raysent.data.vocabulary import (
    PAD_WORD,
    UNK_WORD,
    Sentences,
    Vocabulary,
    VocabularyConfig,
    read_word_vectors,
)
from raysent.errors import RaysentError
from raysent.models import ModelConfig, SentenceModel
from raysent.platforms import trim_heap
from raysent.training.memory import limit_primitive_cache, resident_bytes

NUM_WORDS = 20_000
WORDS = [f"w{number}" for number in range(NUM_WORDS)]
GRU: dict[str, Any] = {"type": "gru", "hidden_size": 64, "embedding": {"dim": 50}}


def build(encoder: dict[str, Any]) -> SentenceModel:
    """Return an untrained model."""
    config = validate(
        ModelConfig, Document({"encoder": encoder, "objective": {"type": "context_prediction"}})
    )
    return SentenceModel.build(config, Vocabulary([PAD_WORD, UNK_WORD, *WORDS]), seed=0).eval()


def sentences(number: int, seed: int = 0) -> list[str]:
    """Return random sentences, with punctuation, clitics and unknown words."""
    draw = random.Random(seed)
    ends = [".", "!", "'s", "n't", "", "", "", "?x", "-y"]
    return [
        " ".join(draw.choice(WORDS) + draw.choice(ends) for _ in range(draw.randint(0, 25)))
        for _ in range(number)
    ]


# -- fuzz -----------------------------------------------------------------------------------------------------------

_PIECES = (
    *("\ud83d", "\udc00", "\0", "\ufeff", "\u0301", "\u2028", "\x85", "字", "😀", "…", "``"),
    *(
        "n't",
        "'s",
        "cannot",
        "Mr.",
        "U.S.",
        "-LRB-",
        "<unk>",
        "w1",
        " ",
        "\t",
        ".",
        "!",
        "-",
        "x" * 500,
    ),
)
_VALUES = (
    None,
    True,
    -1,
    0,
    1e400,
    10**30,
    "",
    "a",
    "\ud800",
    [],
    {},
    [[]],
    {"a": [1]},
    ["a", 2],
    "9" * 400,
)


class Fuzzer:
    """Draws input, runs one reader on it, and keeps what is neither a value nor one line."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.failures: list[str] = []
        self._folder = folder
        self._model = build({**GRU, "hidden_size": 8, "embedding": {"dim": 6}})
        self._model.save(self._folder / "model")
        self._whole = {path.name: path.read_bytes() for path in (self._folder / "model").iterdir()}
        self._text = ["w1 w2 w3", "w4n't w5.", ""]
        self._expected = self._model.encode(self._text)
        self._kinds: dict[str, Callable[[], None]] = {
            "encode": self.encode,
            "encode in threads": self.encode_in_threads,
            "model folder": self.model,
            "corpus": self.corpus,
            "corpus, JSON lines": self.json_corpus,
            "pairs": self.pairs,
            "word vectors": self.vectors,
        }

    def once(self) -> None:
        """Try one input."""
        kind = self.draw.choice(list(self._kinds))
        try:
            self._kinds[kind]()
        except RaysentError as error:
            if "\n" in str(error):
                self.failures.append(f"{kind}: several lines: {error!r}")
        except Exception as error:
            self.failures.append(f"{kind}: {type(error).__name__}: {str(error)[:200]!r}")

    def sentence(self) -> str:
        """Return random text."""
        if self.draw.random() < 0.3:
            return "".join(
                chr(self.draw.randrange(0x11000)) for _ in range(self.draw.randrange(40))
            )
        return "".join(self.draw.choices(_PIECES, k=self.draw.randrange(60)))

    def encode(self) -> None:
        """Encode random text alone and in company; both must agree, and others' vectors stay."""
        request = [self.sentence() for _ in range(self.draw.randint(1, 5))]
        vectors = self._model.encode(request)
        if not np.isfinite(vectors).all() or not np.array_equal(
            vectors[-1:], self._model.encode(request[-1:])
        ):
            raise AssertionError(f"wrong vector of {request!r}")
        if not np.array_equal(self._model.encode(self._text), self._expected):
            raise AssertionError(f"wrong afterwards: {request!r}")

    def encode_in_threads(self) -> None:
        """Encode random text in several threads."""
        requests = [[self.sentence() for _ in range(3)] for _ in range(8)]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(self._model.encode, requests))
        if not all(
            np.array_equal(self._model.encode(one), v)
            for one, v in zip(requests, found, strict=True)
        ):
            raise AssertionError(f"wrong vectors of {requests!r}")

    def damaged(self, whole: bytes) -> bytes:
        """Return bytes with flips, cuts, doubled, swapped or removed parts."""
        data = bytearray(whole)
        first, last = sorted(self.draw.randrange(len(data) + 1) for _ in range(2))
        match self.draw.randrange(5):
            case 0 if data:
                data[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)
            case 1:
                del data[first:]
            case 2:
                data[first:first] = data[first:last][:10_000]
            case 3:
                del data[first:last]
            case _:
                data[first:last] = self.draw.randbytes(min(last - first, 1000))
        return bytes(data)

    def model(self) -> None:
        """Read a model of which a file is damaged; it must be refused, unless the file still means the same."""
        folder, name = self._folder / "model", self.draw.choice(list(self._whole))
        damaged = self.damaged(self._whole[name])
        (folder / name).write_bytes(damaged)
        try:
            SentenceModel.load(folder)
        finally:
            (folder / name).write_bytes(self._whole[name])
        if damaged != self._whole[name] and not _is_same_json(damaged, self._whole[name]):
            raise AssertionError(f"damaged {name} was read")

    def corpus(self) -> None:
        """Prepare random text."""
        lines = [self.sentence() for _ in range(self.draw.randrange(40))]
        data = "\n".join(lines).encode("utf-8", self.draw.choice(["replace", "surrogatepass"]))
        self._prepare("text.txt", data if self.draw.random() < 0.5 else data.replace(b"\0", b" "))

    def json_corpus(self) -> None:
        """Prepare random JSON lines."""
        lines = []
        for _ in range(self.draw.randrange(12)):
            name = self.draw.choice(["text", "sentences", "paragraphs", "other"])
            good = [self.sentence() for _ in range(4)]
            lines.append(
                json.dumps({name: good if self.draw.random() < 0.6 else self.draw.choice(_VALUES)})
            )
        data = "\n".join(lines).encode()
        self._prepare("text.jsonl", data if self.draw.random() < 0.6 else self.damaged(data))

    def _prepare(self, name: str, data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            path = Path(scratch) / name
            path.write_bytes(data)
            config = CorpusConfig(path=str(path), cache_dir=f"{scratch}/cache", num_processes=1)
            prepare(config, VocabularyConfig())

    def pairs(self) -> None:
        """Read random pairs."""
        name, separator = self.draw.choice([("p.tsv", "\t"), ("p.txt", "|||"), ("p.jsonl", "\t")])
        rows = [
            separator.join(
                [self.sentence(), self.sentence(), self.draw.choice(["1", "nan", "", "x", "1e999"])]
            )
            for _ in range(9)
        ]
        path = self._folder / name
        path.write_bytes(self.damaged("\n".join(rows).encode("utf-8", "replace")))
        read_pairs(
            PairsConfig(path=str(path), first=0, second=1, score=self.draw.choice([None, 2]))
        )

    def vectors(self) -> None:
        """Read random word vectors."""
        path = self._folder / self.draw.choice(["v.txt", "v.bin", "v.vec", "v.txt.gz"])
        rows = "".join(f"w{row} {row} 1 2.5 -3e-2\n" for row in range(5))
        path.write_bytes(self.damaged(f"{self.draw.choice([5, '9' * 400])} 4\n{rows}".encode()))
        read_word_vectors(path)


def _is_same_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


# -- soak -----------------------------------------------------------------------------------------------------------


def families(draw: random.Random, *, largest: int) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield an encoder and whether products are in bfloat16, of mixed sizes."""
    while True:
        kind, hidden = (
            draw.choice(["gru", "gru", "lstm", "cnn", "bag"]),
            draw.choice([64, 128, 256, 512, 1024]),
        )
        hidden, dim = min(hidden, largest), draw.choice([50, 100, 300])
        encoder: dict[str, Any] = {"type": kind, "embedding": {"dim": dim}}
        if kind in ("gru", "lstm"):
            encoder |= {"hidden_size": hidden, "bidirectional": draw.random() < 0.5}
        yield encoder, draw.random() < 0.4


def train_once(encoder: dict[str, Any], *, is_low: bool, num_steps: int, seed: int) -> None:
    """Train a few steps on random sentences, then encode."""
    generator = np.random.default_rng(seed)
    model = build(encoder).train()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(num_steps):
        size = int(generator.integers(60, 200))
        lengths = generator.integers(3, 30, size)
        ids = generator.integers(2, NUM_WORDS, int(lengths.sum())).astype(np.int32)
        batch = Batch(Sentences(ids, lengths), np.arange(size), np.zeros(size, dtype=np.int64))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_low):
            loss = model.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.encode(sentences(200, seed), bfloat16=is_low)


def soak(*, num_trials: int, largest: int, seed: int = 0) -> Iterator[int]:
    """Yield the resident memory after each trial, in MiB."""
    limit_primitive_cache()
    for number, (encoder, is_low) in enumerate(families(random.Random(seed), largest=largest)):
        if number == num_trials:
            return
        train_once(encoder, is_low=is_low, num_steps=4, seed=number)
        trim_heap()
        yield resident_bytes() >> 20
