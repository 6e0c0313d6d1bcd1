"""The training step against a naive PyTorch one: `ratio_over_naive`, by interleaved medians on one thread.

Naive is what a textbook writes: `nn.Embedding`, padded `nn.GRU`, the state at the last word, dense `torch.optim.Adam`
over everything, in float32. Ours is the very step of `raysent train`. Both take the same batches of the same corpus,
turn by turn in one process; the time is the process' own, so that other work on the machine counts for little.

    python benchmarks/training_step.py [--corpus PATH] [--sizes S,M] [--precision float32] [--steps 7] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from raysent.batches import Batch, BatchStream
from raysent.corpus import CorpusConfig, prepare
from raysent.embeddings import EmbeddingConfig
from raysent.encoders.gru import Config as Gru
from raysent.matmul import set_matmul_precision
from raysent.model import ModelConfig, SentenceModel
from raysent.objectives.context_prediction import Config as ContextPrediction
from raysent.run import TrainingConfig
from raysent.trainer.optimization import Optimizer
from raysent.vocabulary import VocabularyConfig

Step = Callable[[Batch], float]


@dataclass(frozen=True)
class Size:
    """One setting of the comparison."""

    vocabulary: int
    word_dim: int
    hidden_size: int
    batch_size: int


SIZES = {"S": Size(20_000, 128, 256, 256), "M": Size(50_000, 300, 600, 400)}


class NaiveTower(nn.Module):
    """Padded ids -> state at the last word."""

    def __init__(self, size: Size, num_words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, size.word_dim)
        self.gru = nn.GRU(size.word_dim, size.hidden_size, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors [batch, hidden] of padded ids [batch, time]."""
        states, _ = self.gru(self.words(ids))
        return states[torch.arange(len(ids)), lengths - 1]


def naive_step(size: Size, num_words: int) -> Step:
    """Return a function that trains the naive model by one batch."""
    torch.manual_seed(0)
    f, g = NaiveTower(size, num_words), NaiveTower(size, num_words)
    optimizer = torch.optim.Adam([*f.parameters(), *g.parameters()], lr=5e-4)

    def step(batch: Batch) -> float:
        torch.set_float32_matmul_precision("highest")
        rows = torch.from_numpy(batch.sentences.ids).long().split(batch.sentences.lengths.tolist())
        ids, lengths = (
            nn.utils.rnn.pad_sequence(list(rows), batch_first=True),
            torch.from_numpy(batch.sentences.lengths),
        )
        place, document = torch.from_numpy(batch.positions), torch.from_numpy(batch.documents)
        target = ((place[:, None] - place).abs() == 1) & (document[:, None] == document)
        sources = target.any(dim=1)
        scores = (f(ids, lengths) @ g(ids, lengths).T).masked_fill(torch.eye(len(ids), dtype=torch.bool), -1e9)
        share = target[sources].float() / target[sources].sum(dim=1, keepdim=True)
        loss = nn.functional.cross_entropy(scores[sources], share)
        optimizer.zero_grad()
        loss.backward()
        for parameter in [*f.parameters(), *g.parameters()]:
            nn.utils.clip_grad_norm_([parameter], 5.0)
        optimizer.step()
        return loss.item()

    return step


def our_step(size: Size, model: SentenceModel, *, bfloat16: bool) -> Step:
    """Return a function that trains our model by one batch."""
    optimizer = Optimizer(model, TrainingConfig(batch_size=size.batch_size), num_steps=1_000_000)
    number = 0

    def step(batch: Batch) -> float:
        nonlocal number
        set_matmul_precision()
        packed = model.pack(batch.sentences)
        optimizer.catch_up(packed.words)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            loss = model.loss(batch, packed=packed)
        loss.backward()
        optimizer.step(number)
        number += 1
        return loss.item()

    return step


def measure(steps: dict[str, Step], batches: list[Batch]) -> dict[str, float]:
    """Return each step's median time in seconds; all take the same batches, turn by turn, the first unmeasured."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for batch in batches:
        for name, step in steps.items():
            started = time.process_time()
            step(batch)
            times[name].append(time.process_time() - started)
    return {name: median(values[1:]) for name, values in times.items()}


def compare(size: Size, corpus_path: str, *, num_steps: int, bfloat16: bool) -> dict[str, float]:
    """Return both steps' sentences per second and their ratio."""
    corpus = prepare(CorpusConfig(path=corpus_path, max_length=30), VocabularyConfig(size=size.vocabulary))
    encoder = Gru(hidden_size=size.hidden_size, embedding=EmbeddingConfig(dim=size.word_dim))
    config = ModelConfig(encoder=encoder, objective=ContextPrediction())
    model = SentenceModel.build(config, corpus.vocabulary, seed=0)
    stream = BatchStream(corpus.train, batch_size=size.batch_size, candidates="contiguous", context_size=1, seed=0)
    # Spread over the corpus, as a short run at its head would meet one author only.
    stride = max(1, stream.num_batches // (num_steps + 1))
    batches = [stream.batch(step * stride) for step in range(num_steps + 1)]
    steps = {"naive": naive_step(size, len(corpus.vocabulary)), "ours": our_step(size, model, bfloat16=bfloat16)}
    seconds = measure(steps, batches)
    return {
        "ratio_over_naive": round(seconds["naive"] / seconds["ours"], 2),
        "naive_sentences_per_s": round(size.batch_size / seconds["naive"], 1),
        "ours_sentences_per_s": round(size.batch_size / seconds["ours"], 1),
    }


def main() -> None:
    """Measure the sizes that are asked for, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="docs", help="text to draw batches from")
    parser.add_argument("--sizes", default="S,M", help="of S, M")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of our products")
    parser.add_argument("--steps", type=int, default=7, help="steps of each that are measured")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        name: compare(SIZES[name], options.corpus, num_steps=options.steps, bfloat16=options.precision == "bfloat16")
        for name in options.sizes.split(",")
    }
    if options.json:
        print(json.dumps({"precision": options.precision, "matmul": set_matmul_precision(), "sizes": results}))
        return
    for name, result in results.items():
        print(f"{name} ({options.precision}): " + ", ".join(f"{key} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
