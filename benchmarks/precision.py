"""bfloat16 products and torch's own cell against float32: the loss after equal steps, and its spread over seeds.

Runs of one model on one corpus with the step of `raysent train`, with the same seeds: in float32, in bfloat16, in
float32 with torch's recurrence in place of raysent's, and in float32 from initial values that are moved by a relative
1e-6, which shows how far rounding alone takes a run. The losses of each run's last steps are compared seed by seed. The
process memory after each run shows whether runs leak.

    python -m benchmarks.precision [--encoder gru|lstm] [--corpus PATH] [--steps 500] [--seeds 2] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
from pathlib import Path
from statistics import mean, stdev

import torch

from benchmarks.training_step import step_of
from raysent.data.batches import BatchStream
from raysent.data.corpus import Corpus, CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig
from raysent.kernels.devices import set_matmul_precision
from raysent.models import ModelConfig, SentenceModel
from raysent.models.embeddings import EmbeddingConfig
from raysent.models.encoders.gru import Config as Gru
from raysent.models.encoders.lstm import Config as Lstm
from raysent.models.objectives.context_prediction import Config as ContextPrediction
from raysent.training.run import TrainingConfig

_BATCH, _WORD_DIM, _HIDDEN = 100, 64, 128
_LAST = 100  # the last steps, whose loss is compared
_ENCODERS = {"gru": Gru, "lstm": Lstm}
# The recurrence, whether products are bfloat16, and how far initial values are moved.
_RUNS = {
    "float32": ("auto", False, 0.0),
    "bfloat16": ("auto", True, 0.0),
    "torch": ("torch", False, 0.0),
    "moved": ("auto", False, 1e-6),
}
_RATE = 5e-3  # ten times the default, so that the loss falls within 500 steps


def losses(corpus: Corpus, encoder_type: str, *, run: str, seed: int, num_steps: int) -> list[float]:
    """Return the loss of every step of one run."""
    implementation, bfloat16, moved_by = _RUNS[run]
    encoder = _ENCODERS[encoder_type](
        hidden_size=_HIDDEN, embedding=EmbeddingConfig(dim=_WORD_DIM), implementation=implementation
    )
    config = ModelConfig(encoder=encoder, objective=ContextPrediction())
    model = SentenceModel.build(config, corpus.vocabulary, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.mul_(1 + moved_by * torch.randn(parameter.shape, generator=generator))
    step = step_of(model, TrainingConfig(batch_size=_BATCH, learning_rate=_RATE), bfloat16=bfloat16)
    # The same batches for all seeds: only the initial values differ.
    stream = BatchStream(corpus.train, batch_size=_BATCH, candidates="contiguous", context_size=1, seed=0)
    return [step(stream.batch(number)) for number in range(num_steps)]


def memory_mib() -> float:
    """Return the resident memory of the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def compare(corpus_path: str, encoder_type: str, *, num_steps: int, num_seeds: int) -> dict[str, object]:
    """Return the final losses, their differences from float32 by seed, and the memory after each run."""
    corpus = prepare(CorpusConfig(path=corpus_path, max_length=30), VocabularyConfig(size=20_000))
    ends: dict[str, list[float]] = {name: [] for name in _RUNS}
    memory = []
    for seed in range(num_seeds):
        for name, end in ends.items():
            found = losses(corpus, encoder_type, run=name, seed=seed, num_steps=num_steps)
            end.append(mean(found[-_LAST:]))
            gc.collect()
            memory.append(round(memory_mib()))
    differences = {
        f"{name}_minus_float32": [round(one - exact, 5) for one, exact in zip(end, ends["float32"], strict=True)]
        for name, end in ends.items()
        if name != "float32"
    }
    return {
        "steps": num_steps,
        "loss_of_chance": round(math.log(_BATCH - 1), 4),
        **{f"{name}_loss": [round(value, 4) for value in values] for name, values in ends.items()},
        **differences,
        "spread_over_seeds": round(stdev(ends["float32"]), 5) if num_seeds > 1 else None,
        "memory_mib_after_each_run": memory,
    }


def main() -> None:
    """Train all runs and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", choices=sorted(_ENCODERS), default="gru", help="the recurrence")
    parser.add_argument("--corpus", default="docs", help="text to draw batches from")
    parser.add_argument("--steps", type=int, default=500, help="steps of each run")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each kind")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_matmul_precision()
    result = compare(options.corpus, options.encoder, num_steps=options.steps, num_seeds=options.seeds)
    print(json.dumps(result) if options.json else "\n".join(f"{key:28} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
