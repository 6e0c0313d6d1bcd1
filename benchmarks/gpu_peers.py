"""What `benchmarks.gpu` compares raysent's steps with on a GPU: plain PyTorch with cuDNN, and sentence-transformers.

Every peer has the same sentences, sizes and type of products. A plain step is what a user of PyTorch writes:
`nn.Embedding`, padded batches, `nn.GRU`, fused Adam on all parameters, autocast.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import seconds_of
from benchmarks.padding import LONGEST, NUM_WORDS, peer_step, write_model
from benchmarks.textbook.skip_thoughts import NOTHING, SkipThoughts
from benchmarks.training_step import Size, step_of
from raysent.data.batches import Batch, Triplets
from raysent.data.pairs import Pairs
from raysent.data.vocabulary import Sentences, SubwordVocabulary
from raysent.models import ModelConfig, SentenceModel
from raysent.models.backbone import read_tokenizer
from raysent.training.run import TrainingConfig

HAS_PEER = find_spec("sentence_transformers") is not None
_ZIPF = 1.05
_MEAN_LOG, _SIGMA_LOG = 2.5, 0.6


def write_text(folder: Path, *, num_sentences: int, num_words: int, seed: int = 0) -> Path:
    """Write sentences whose words are as frequent as in text, with lengths as in novels, at most 30 words."""
    random = np.random.default_rng(seed)
    lengths = random.lognormal(_MEAN_LOG, _SIGMA_LOG, num_sentences).clip(1, 30).astype(int)
    frequencies = 1 / np.arange(1, num_words + 1) ** _ZIPF
    ids = random.choice(num_words, size=int(lengths.sum()), p=frequencies / frequencies.sum())
    words = [f"w{number}" for number in ids.tolist()]
    ends = np.cumsum(lengths)
    lines = (" ".join(words[end - length : end]) for end, length in zip(ends, lengths, strict=True))
    path = folder / "text.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def alternately(
    ways: dict[str, Callable[[int], object]], device: str, *, steps: int, rounds: int = 3
) -> dict[str, float]:
    """Return the median seconds of a step of each way, in rounds that alternate; a way is called with the step."""
    for way in ways.values():
        for step in range(3):
            way(step)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            counter = iter(range(3 + number * steps, 3 + (number + 1) * steps))
            work = partial(_next, way, counter)
            seconds[name].append(seconds_of(work, device, count=steps))
    return {name: median(values) for name, values in seconds.items()}


def _next(way: Callable[[int], object], counter: Iterator[int]) -> None:
    way(next(counter))


class PlainTowers(nn.Module):
    """Quick-Thoughts as a user of PyTorch writes it: two towers, each an `nn.Embedding` and an `nn.GRU`."""

    def __init__(self, num_words: int, size: Size, hidden: int) -> None:
        super().__init__()
        self.words = nn.ModuleList(nn.Embedding(num_words, size.word_dim) for _ in range(2))
        self.grus = nn.ModuleList(nn.GRU(size.word_dim, hidden, batch_first=True) for _ in range(2))

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the loss of a batch of consecutive sentences."""
        rows = torch.arange(len(ids), device=ids.device)
        f, g = (
            gru(words(ids))[0][rows, lengths - 1].float()
            for words, gru in zip(self.words, self.grus, strict=True)
        )
        scores = (f @ g.T).masked_fill(
            torch.eye(len(ids), dtype=torch.bool, device=ids.device), -torch.inf
        )
        is_near = (rows[:, None] - rows).abs() == 1
        targets = is_near / is_near.sum(dim=1, keepdim=True)
        return nn.functional.cross_entropy(scores, targets.float())


def plain_step(
    size: Size, hidden: int, *, num_words: int, device: torch.device, bfloat16: bool
) -> Callable[[Batch], None]:
    """Return a function that trains the plain towers on one batch."""
    torch.manual_seed(0)
    model = PlainTowers(num_words, size, hidden).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)

    def step(batch: Batch) -> None:
        ids, lengths = padded_ids(batch.sentences, device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            loss = model(ids, lengths)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        adam.step()

    return step


def padded_ids(sentences: Sentences, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids [batch, time] padded with zeros, and lengths [batch], without waiting for a GPU."""
    time = np.arange(sentences.lengths.max())
    ids = np.zeros((len(sentences.lengths), len(time)), dtype=np.int64)
    ids[time < sentences.lengths[:, None]] = sentences.ids
    made = torch.from_numpy(ids), torch.from_numpy(sentences.lengths)
    if device.type != "cuda":
        return made
    return made[0].pin_memory().to(device, non_blocking=True), made[1].pin_memory().to(
        device, non_blocking=True
    )


class PlainSkipThoughts(SkipThoughts):
    """The textbook's Skip-Thoughts on any device."""

    def forward(self, batch: Triplets) -> Tensor:
        """Return the summed loss."""
        device = self.output.weight.device
        ids, lengths = padded_ids(batch.sentences, device)
        vectors = self.encoder(ids, lengths)
        sides = zip(self.decoders, (batch.before, batch.after), strict=True)
        return torch.stack([self.decode(gru, vectors, side) for gru, side in sides]).sum()

    def decode(self, gru: nn.Module, vectors: Tensor, sentences: Sentences) -> Tensor:
        """Return the summed loss of the sentences of one decoder."""
        ids, lengths = padded_ids(sentences, vectors.device)
        words = nn.functional.pad(self.encoder.words(ids), (0, 0, 1, 0))
        repeated = vectors[:, None].expand(-1, words.shape[1], -1)
        states, _ = gru(torch.cat([words, repeated], dim=2))
        is_step = torch.arange(words.shape[1], device=ids.device) <= lengths[:, None]
        targets = nn.functional.pad(ids, (0, 1)).masked_fill(~is_step, NOTHING)
        scores = self.output(states).flatten(0, 1).float()
        return nn.functional.cross_entropy(
            scores, targets.flatten(), ignore_index=NOTHING, reduction="sum"
        )


def plain_decoding_step(
    size: Size, *, num_words: int, device: torch.device, bfloat16: bool
) -> Callable[[Triplets], None]:
    """Return a function that trains the plain Skip-Thoughts on one batch."""
    torch.manual_seed(0)
    model = PlainSkipThoughts(num_words, size.word_dim, size.dim).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=2e-4, fused=True)

    def step(batch: Triplets) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            loss = model(batch)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        adam.step()

    return step


class TransformerPair:
    """A BERT with random weights in raysent and in sentence-transformers, and pairs of mixed lengths."""

    def __init__(self, folder: str, device: torch.device, *, batch: int, batches: int) -> None:
        objective = {"type": "contrast", "positives": "pairs"}
        encoder = {"type": "pretrained", "path": folder}
        config = ModelConfig.model_validate({"encoder": encoder, "objective": objective})
        words = SubwordVocabulary(read_tokenizer(config.encoder.tokenizer))  # type: ignore[arg-type]
        self.device = device
        self.ours = SentenceModel.build(config, words, seed=0, max_length=LONGEST + 2).to(device)
        self.peer = import_module("sentence_transformers").SentenceTransformer(
            folder, device=str(device)
        )
        random = np.random.default_rng(0)
        count = 2 * batch * batches
        sizes = np.clip(random.lognormal(3.0, 0.8, count), 3, LONGEST).astype(int)
        self.text = [
            " ".join(f"w{word}" for word in random.integers(0, NUM_WORDS, one)) for one in sizes
        ]
        sides = [words.ids(self.text[side::2], max_length=LONGEST + 2) for side in (0, 1)]
        self._pairs = Pairs(*sides)
        longest = np.maximum(*(side.lengths for side in sides))
        self._orders = {
            "mixed": np.split(np.arange(len(longest)), batches),
            "grouped": np.split(np.argsort(longest), batches),
        }
        self._batch = batch

    def step_seconds(self, *, bfloat16: bool) -> dict[str, float]:
        """Return the seconds of a step over batches of mixed lengths, and of the peer over those grouped by length."""
        adamw: dict[str, Any] = {
            "optimizer": "adamw", "learning_rate": 5e-5, "clip": 1.0, "clip_per": "global",
        }  # fmt: skip
        training = TrainingConfig(batch_size=self._batch, **adamw)
        ours = step_of(self.ours.train(), training, bfloat16=bfloat16)
        peer = peer_step(self.peer.train(), bfloat16=bfloat16)
        count = len(self._orders["mixed"])

        def way(step: Callable[[Any], object], order: str) -> Callable[[int], object]:
            return lambda number: step(self._pairs.select(self._orders[order][number % count]))

        ways = {"ours": way(ours, "mixed"), "peer": way(peer, "grouped")}
        return alternately(ways, self.device.type, steps=count, rounds=2)

    def encode_seconds(self) -> dict[str, float]:
        """Return the seconds in which each encodes the text."""
        device = str(self.device)
        ways: dict[str, Callable[[int], object]] = {
            "ours": lambda _: self.ours.eval().encode(self.text, device=device),
            "peer": lambda _: self.peer.eval().encode(self.text),
        }
        return alternately(ways, self.device.type, steps=1)


@contextmanager
def transformer_pair(
    device: torch.device, *, layers: int, hidden: int, batch: int, batches: int
) -> Iterator[TransformerPair]:
    """Write a BERT of a size with random weights, and read it twice."""
    with tempfile.TemporaryDirectory() as folder:
        words: Sequence[str] = [f"w{number}" for number in range(NUM_WORDS)]
        write_model(folder, words, layers=layers, hidden=hidden)
        yield TransformerPair(folder, device, batch=batch, batches=batches)
