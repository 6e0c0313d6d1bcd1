"""Serving and long-lived workers: threads against one, damaged and random input, and memory over many trials.

    python -m benchmarks.serving threads [--requests 1000] [--against CHECKOUT]
    python -m benchmarks.serving fuzz [--seconds 60] [--seed 0]
    python -m benchmarks.serving soak [--seconds 3600] [--keep-freed] [--output soak.csv]
    python -m benchmarks.serving plot GIVEN_BACK.csv KEPT.csv --output memory.svg

`threads` counts wrong and failed answers of 8 threads, asyncio tasks and forked processes, and compares sentences a
second at 1, 2 and 4 threads with one thread of this or of another checkout, by interleaved medians. `fuzz` gives
readers and `encode` random and damaged input; every one must give a value or one line, quickly and in little memory.
`soak` trains models of mixed sizes and families in one process and prints its memory after each, with what training
releases or, with `--keep-freed`, without; `--output` also writes it as a table. `plot` draws two such tables.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.plots import Line, curves
from raysent.config import Document, validate
from raysent.data.batches import Batch
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.pairs import PairsConfig, read_pairs
from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Sentences, Vocabulary, VocabularyConfig, read_word_vectors
from raysent.errors import RaysentError
from raysent.models import ModelConfig, SentenceModel
from raysent.training.allocator import limit_primitive_cache, release_memory, resident_bytes

NUM_WORDS = 20_000
WORDS = [f"w{number}" for number in range(NUM_WORDS)]
GRU: dict[str, Any] = {"type": "gru", "hidden_size": 64, "embedding": {"dim": 50}}


def build(encoder: dict[str, Any]) -> SentenceModel:
    """Return an untrained model."""
    config = validate(ModelConfig, Document({"encoder": encoder, "objective": {"type": "context_prediction"}}))
    return SentenceModel.build(config, Vocabulary([PAD_WORD, UNK_WORD, *WORDS]), seed=0).eval()


def sentences(number: int, seed: int = 0) -> list[str]:
    """Return random sentences, with punctuation, clitics and unknown words."""
    draw = random.Random(seed)
    ends = [".", "!", "'s", "n't", "", "", "", "?x", "-y"]
    return [" ".join(draw.choice(WORDS) + draw.choice(ends) for _ in range(draw.randint(0, 25))) for _ in range(number)]


# -- threads --------------------------------------------------------------------------------------------------------


def count_wrong(num_requests: int) -> dict[str, dict[str, int]]:
    """Return wrong and failed answers of threads, tasks and forked processes to requests of 1 to 10 sentences."""
    text, alone = sentences(4_000), build(GRU)
    draw = random.Random(1)
    starts = [draw.randrange(len(text) - 10) for _ in range(8 * num_requests)]
    requests = [text[start : start + draw.randint(1, 10)] for start in starts]
    expected = [alone.encode(request) for request in requests]
    found = {}
    model = build(GRU)
    sys.setswitchinterval(1e-5)
    with ThreadPoolExecutor(8) as threads:
        found["8 threads"] = _compare(expected, list(threads.map(lambda one: _answer(model, one), requests)))
    model = build(GRU)
    found["asyncio"] = _compare(expected, asyncio.run(_in_tasks(model, requests)))
    found["4 forks while 2 threads encode"] = _in_forks(build(GRU), requests, expected)
    found["alone afterwards"] = _compare(expected, [_answer(model, request) for request in requests[:1000]])
    sys.setswitchinterval(5e-3)
    return found


def _answer(model: SentenceModel, request: list[str]) -> Any:
    try:
        return model.encode(request)
    except Exception as error:  # counted
        return error


async def _in_tasks(model: SentenceModel, requests: list[list[str]]) -> list[Any]:
    return await asyncio.gather(*(asyncio.to_thread(_answer, model, request) for request in requests))


def _in_forks(model: SentenceModel, requests: list[list[str]], expected: list[np.ndarray]) -> dict[str, int]:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def child() -> None:
        queue.put(_compare(expected, [_answer(model, request) for request in requests[:1000]]))

    with ThreadPoolExecutor(2) as threads:
        others = [threads.submit(_answer, model, request) for request in requests[:2000]]
        processes = [context.Process(target=child) for _ in range(4)]
        for process in processes:
            process.start()
        counts = [Counter(queue.get(timeout=300)) for _ in processes]
        for process in processes:
            process.join()
        counts.append(Counter(_compare(expected, [other.result() for other in others])))
    return {name: sum(count[name] for count in counts) for name in ("requests", "wrong", "raised")}


def _compare(expected: list[np.ndarray], found: list[Any]) -> dict[str, int]:
    raised = sum(isinstance(one, Exception) for one in found)
    wrong = sum(
        not isinstance(one, Exception) and not np.array_equal(one, right)
        for one, right in zip(found, expected, strict=False)
    )
    return {"requests": len(found), "wrong": wrong, "raised": raised}


_WORKER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import raysent.models as models
assert models.__file__.startswith(sys.argv[1]), models.__file__
from pathlib import Path
model = models.SentenceModel.load(Path(sys.argv[2]))
text = Path(sys.argv[3]).read_text().split("\\n")
model.encode(text)
print("ready", flush=True)
for line in sys.stdin:
    kind, number = line.split()
    size = {"large": 2000, "small": 20, "single": 1}[kind]
    chosen = text if kind != "single" else text[:400]
    requests = [chosen[first : first + size] for first in range(0, len(chosen), size)]
    started = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(int(number)) as threads:
        list(threads.map(model.encode, requests))
    wall, process = time.perf_counter() - started[0], time.process_time() - started[1]
    print(len(chosen) / wall, len(chosen) / process, flush=True)
"""


def throughput(against: str | None, *, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield sentences a second at 1, 2 and 4 threads, over those of one thread of the other checkout."""
    here = str(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build({**GRU, "hidden_size": 256}).save(folder / "model")
        _downgrade(folder / "model")
        (folder / "text").write_text("\n".join(sentences(4_000)))
        workers = [_start(path, folder) for path in (against or here, here)]
        for kind in ("large", "small", "single"):
            for number in (1, 2, 4):
                rates = []
                for index in range(rounds):
                    asked = [(workers[0], 1), (workers[1], number)]
                    found = {which: _ask(*one, kind) for which, one in list(enumerate(asked))[:: (-1) ** index]}
                    rates.append((found[0], found[1]))
                yield {
                    "requests": kind,
                    "threads": number,
                    "sentences_per_s": round(median(new[0] for _, new in rates)),
                    "ratio_by_wall_clock": round(median(new[0] / old[0] for old, new in rates), 3),
                    "ratio_by_process_time": round(median(new[1] / old[1] for old, new in rates), 3),
                }
        for worker in workers:
            worker.communicate()


def _downgrade(folder: Path) -> None:
    """Write the model as raysent 0.1 does, so that both checkouts read it."""
    about = json.loads((folder / "model.json").read_text())
    kept = {name: value for name, value in about.items() if name not in ("files", "tensors", "sha256")}
    (folder / "model.json").write_text(json.dumps({**kept, "format": 1}))


def _start(checkout: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WORKER, checkout, str(folder / "model"), str(folder / "text")]
    environment = {**os.environ, "PYTHONPATH": checkout}
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout
    )
    assert worker.stdout is not None
    if worker.stdout.readline().strip() != "ready":
        sys.exit(f"serving: the worker of {checkout} did not start")
    return worker


def _ask(worker: subprocess.Popen[str], number: int, kind: str) -> tuple[float, float]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{kind} {number}\n")
    worker.stdin.flush()
    wall, process = map(float, worker.stdout.readline().split())
    return wall, process


# -- fuzz -----------------------------------------------------------------------------------------------------------

_PIECES = (
    *("\ud83d", "\udc00", "\0", "\ufeff", "\u0301", "\u2028", "\x85", "字", "😀", "…", "``"),
    *("n't", "'s", "cannot", "Mr.", "U.S.", "-LRB-", "<unk>", "w1", " ", "\t", ".", "!", "-", "x" * 500),
)
_VALUES = (None, True, -1, 0, 1e400, 10**30, "", "a", "\ud800", [], {}, [[]], {"a": [1]}, ["a", 2], "9" * 400)


class Fuzzer:
    """Draws input, runs one reader on it, and counts what came out."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.worst_s: dict[str, float] = {}
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
            "model folder without manifest": self.old_model,
            "corpus": self.corpus,
            "corpus, JSON lines": self.json_corpus,
            "pairs": self.pairs,
            "word vectors": self.vectors,
        }

    def once(self) -> None:
        """Try one input."""
        kind = self.draw.choice(list(self._kinds))
        started = time.perf_counter()
        try:
            self._kinds[kind]()
        except RaysentError as error:
            self.counts[f"{kind}: one line"] += 1
            if "\n" in str(error):
                self.failures.append(f"{kind}: several lines: {error!r}")
        except Exception as error:
            self.failures.append(f"{kind}: {type(error).__name__}: {str(error)[:200]!r}")
        else:
            self.counts[f"{kind}: read"] += 1
        self.worst_s[kind] = max(self.worst_s.get(kind, 0.0), time.perf_counter() - started)

    def sentence(self) -> str:
        """Return random text."""
        if self.draw.random() < 0.3:
            return "".join(chr(self.draw.randrange(0x11000)) for _ in range(self.draw.randrange(40)))
        return "".join(self.draw.choices(_PIECES, k=self.draw.randrange(60)))

    def encode(self) -> None:
        """Encode random text alone and in company; both must agree, and others' vectors stay."""
        request = [self.sentence() for _ in range(self.draw.randint(1, 5))]
        vectors = self._model.encode(request)
        if not np.isfinite(vectors).all() or not np.array_equal(vectors[-1:], self._model.encode(request[-1:])):
            raise AssertionError(f"wrong vector of {request!r}")
        if not np.array_equal(self._model.encode(self._text), self._expected):
            raise AssertionError(f"wrong afterwards: {request!r}")

    def encode_in_threads(self) -> None:
        """Encode random text in several threads."""
        requests = [[self.sentence() for _ in range(3)] for _ in range(8)]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(self._model.encode, requests))
        if not all(np.array_equal(self._model.encode(one), v) for one, v in zip(requests, found, strict=True)):
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

    def old_model(self) -> None:
        """Read a model without manifest, with other values."""
        folder = self._folder / "model"
        about = json.loads(self._whole["model.json"])
        for name in ("files", "tensors", "sha256"):
            del about[name]
        about["format"] = 1
        where = self.draw.choice([about, about["config"], about["config"]["encoder"]])
        where[self.draw.choice(list(where))] = self.draw.choice(_VALUES)
        (folder / "model.json").write_text(json.dumps(about))
        try:
            SentenceModel.load(folder)
        finally:
            (folder / "model.json").write_bytes(self._whole["model.json"])

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
            lines.append(json.dumps({name: good if self.draw.random() < 0.6 else self.draw.choice(_VALUES)}))
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
            separator.join([self.sentence(), self.sentence(), self.draw.choice(["1", "nan", "", "x", "1e999"])])
            for _ in range(9)
        ]
        path = self._folder / name
        path.write_bytes(self.damaged("\n".join(rows).encode("utf-8", "replace")))
        read_pairs(PairsConfig(path=str(path), first=0, second=1, score=self.draw.choice([None, 2])))

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


def fuzz(seconds: float, seed: int) -> dict[str, Any]:
    """Try input until the time is over."""
    num, started = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(seed, Path(folder))
        while time.monotonic() - started < seconds:
            fuzzer.once()
            num += 1
    return {
        "inputs": num,
        "counts": dict(sorted(fuzzer.counts.items())),
        "failures": fuzzer.failures[:20],
        "num_failures": len(fuzzer.failures),
        "worst_s": {kind: round(worst, 3) for kind, worst in sorted(fuzzer.worst_s.items())},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


# -- soak -----------------------------------------------------------------------------------------------------------


def families(draw: random.Random, *, largest: int) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield a name, an encoder and whether products are in bfloat16, of mixed sizes."""
    while True:
        kind, hidden = draw.choice(["gru", "gru", "lstm", "cnn", "bag"]), draw.choice([64, 128, 256, 512, 1024])
        hidden, dim = min(hidden, largest), draw.choice([50, 100, 300])
        encoder: dict[str, Any] = {"type": kind, "embedding": {"dim": dim}}
        if kind in ("gru", "lstm"):
            encoder |= {"hidden_size": hidden, "bidirectional": draw.random() < 0.5}
        is_low = draw.random() < 0.4
        yield f"{kind} {hidden} {dim}{' bfloat16' if is_low else ''}", encoder, is_low


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


def soak(
    seconds: float, *, num_trials: int | None = None, largest: int = 1024, seed: int = 0, keep_freed: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the memory after each trial, in MiB, and the processor time since the first, in seconds."""
    if not keep_freed:
        limit_primitive_cache()
    started, started_s, draw = time.monotonic(), time.process_time(), random.Random(seed)
    for number, (name, encoder, is_low) in enumerate(families(draw, largest=largest)):
        if time.monotonic() - started > seconds or number == num_trials:
            return
        train_once(encoder, is_low=is_low, num_steps=4, seed=number)
        most = resident_bytes() >> 20
        if not keep_freed:
            release_memory()
        yield {
            "trial": number,
            "seconds": round(time.monotonic() - started, 1),
            "processor_s": round(time.process_time() - started_s, 1),
            "before_mib": most,
            "resident_mib": resident_bytes() >> 20,
            "model": name,
        }


def memory_plot(given_back: Path, kept: Path) -> str:
    """Return resident memory over trials of two soaks, as SVG; the band reaches to what a trial held at its end."""
    lines = []
    for label, path in (("given back", given_back), ("kept", kept)):
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        resident = [float(row["resident_mib"]) for row in rows]
        bands = [(low, float(row["before_mib"])) for low, row in zip(resident, rows, strict=True)]
        lines.append(Line(label, range(1, len(rows) + 1), resident, bands))
    ticks = {place: str(place) for place in (1, *range(20, min(len(line.x) for line in lines), 20))}
    return curves([("One process, mixed models", lines)], x="trials", y="resident memory, MiB", ticks=ticks)


def main() -> None:
    """Run a part and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("threads", "fuzz", "soak", "plot"))
    parser.add_argument("tables", nargs="*", type=Path, help="two tables of soaks: given back, kept")
    parser.add_argument("--requests", type=int, default=1000, help="requests of each thread")
    parser.add_argument("--against", help="another checkout, for the ratio of throughput")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-freed", action="store_true", help="do not release memory after each trial")
    parser.add_argument("--output", help="table of a soak, or the plot")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "threads":
        for name, counts in count_wrong(options.requests).items():
            print(f"{name:32} {counts}", flush=True)
        for row in throughput(options.against, rounds=options.rounds):
            print(row, flush=True)
    elif options.part == "fuzz":
        print(json.dumps(fuzz(options.seconds, options.seed), indent=2))
    elif options.part == "plot":
        Path(options.output).write_text(memory_plot(*options.tables), encoding="utf-8")
    else:
        rows = []
        for row in soak(options.seconds, seed=options.seed, keep_freed=options.keep_freed):
            print(row, flush=True)
            rows.append(row)
        if options.output:
            with Path(options.output).open("w", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
