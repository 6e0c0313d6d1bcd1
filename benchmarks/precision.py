"""bfloat16 products against float32: the loss after the same number of steps, and its spread over seeds.

Runs of one model on one corpus with the step of `raysent train`: float32 and bfloat16 with the same seeds. The losses
of each run's last steps are compared seed by seed; the spread over seeds is the noise. The process memory after each
run shows whether runs leak.

    python -m benchmarks.precision [--corpus PATH] [--steps 500] [--seeds 2] [--json]
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
from raysent.models.objectives.context_prediction import Config as ContextPrediction
from raysent.training.run import TrainingConfig

_BATCH, _WORD_DIM, _HIDDEN = 100, 64, 128
_LAST = 100  # the last steps, whose loss is compared
_RATE = 5e-3  # ten times the default, so that the loss falls within 500 steps


def losses(corpus: Corpus, *, seed: int, num_steps: int, bfloat16: bool) -> list[float]:
    """Return the loss of every step of one run."""
    encoder = Gru(hidden_size=_HIDDEN, embedding=EmbeddingConfig(dim=_WORD_DIM))
    config = ModelConfig(encoder=encoder, objective=ContextPrediction())
    model = SentenceModel.build(config, corpus.vocabulary, seed=seed)
    step = step_of(model, TrainingConfig(batch_size=_BATCH, learning_rate=_RATE), bfloat16=bfloat16)
    # The same batches for all seeds: only the initial values differ.
    stream = BatchStream(corpus.train, batch_size=_BATCH, candidates="contiguous", context_size=1, seed=0)
    return [step(stream.batch(number)) for number in range(num_steps)]


def memory_mib() -> float:
    """Return the resident memory of the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def compare(corpus_path: str, *, num_steps: int, num_seeds: int) -> dict[str, object]:
    """Return the final losses, their differences by precision and by seed, and the memory after each run."""
    corpus = prepare(CorpusConfig(path=corpus_path, max_length=30), VocabularyConfig(size=20_000))
    ends: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    memory = []
    for seed in range(num_seeds):
        for name, end in ends.items():
            run = losses(corpus, seed=seed, num_steps=num_steps, bfloat16=name == "bfloat16")
            end.append(mean(run[-_LAST:]))
            gc.collect()
            memory.append(round(memory_mib()))
    pairs = zip(ends["bfloat16"], ends["float32"], strict=True)
    return {
        "steps": num_steps,
        "loss_of_chance": round(math.log(_BATCH - 1), 4),
        **{f"{name}_loss": [round(value, 4) for value in values] for name, values in ends.items()},
        "bfloat16_minus_float32": [round(low - exact, 5) for low, exact in pairs],
        "spread_over_seeds": round(stdev(ends["float32"]), 5) if num_seeds > 1 else None,
        "memory_mib_after_each_run": memory,
    }


def main() -> None:
    """Train all runs and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="docs", help="text to draw batches from")
    parser.add_argument("--steps", type=int, default=500, help="steps of each run")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each precision")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_matmul_precision()
    result = compare(options.corpus, num_steps=options.steps, num_seeds=options.seeds)
    print(json.dumps(result) if options.json else "\n".join(f"{key:28} {value}" for key, value in result.items()))


if __name__ == "__main__":
    main()
