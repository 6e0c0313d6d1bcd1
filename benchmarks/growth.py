"""Growth of time: of a training step with its sizes, and of a sweep with its trials and machines; fitted exponents.

Each curve changes one size of a step: `width` of the states, `word_dim`, `batch` in sentences, `vocabulary` in words,
`length` in words to which a sentence is cut. The naive step and raysent's are those of `training_step`, alternately on
the same batches, in processor time. A sweep's time is that of the simulator, with the real controller and scheduler, as
a median over seeds. The exponent e of time = a * size^e is the slope of a line through the logarithms.

    python -m benchmarks.growth [--corpus PATH] [--steps 3] [--json]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch

from benchmarks import textbook
from benchmarks.common import parsed, show
from benchmarks.simulation import Simulator
from benchmarks.simulation.workload import Scenario
from benchmarks.training_step import Size, encoders, measure, our_step
from raysent.config import parse_yaml
from raysent.cost import Budget, CostConfig
from raysent.data.batches import BatchStream
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig
from raysent.sweeps.space import parse_space

# Size of a step -> the values of its curve.
AXES = {
    "width": (64, 128, 256, 512),
    "word_dim": (64, 128, 256, 512),
    "batch": (64, 128, 256, 512),
    "vocabulary": (2000, 5000, 12000, 30000),
    "length": (8, 15, 30, 60),
}
NUM_TRIALS, NUM_NODES = (12, 25, 50, 100, 200), (1, 2, 4, 8, 16)
NUM_SEEDS = 5
NUM_WARM_UP = 3  # which `measure` leaves out
SPACE = """
base: {{encoder: {{type: bag}}, objective: {{type: context_prediction}}}}
search: {{training.learning_rate: {{loguniform: [1.0e-4, 1.0e-2]}}}}
limits: {{trials: {trials}}}
"""


@dataclass(frozen=True)
class Sizes:
    """All sizes of a step, at the values that a curve keeps."""

    width: int = 256
    word_dim: int = 128
    batch: int = 128
    vocabulary: int = 5000
    length: int = 30


@dataclass(frozen=True)
class Curve:
    """Seconds of each step at each value of one size."""

    name: str
    values: tuple[int, ...]
    seconds: dict[str, list[float]]

    @property
    def exponents(self) -> dict[str, float]:
        """The exponent of each step's time in the size."""
        return {way: exponent(self.values, found) for way, found in self.seconds.items()}


def exponent(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the logarithms of both."""
    return round(float(np.polyfit(np.log(values), np.log(seconds), 1)[0]), 2)


def step_seconds(sizes: Sizes, corpus_path: str, *, num_steps: int) -> tuple[Sizes, dict[str, float]]:
    """Return the sizes that the text allows, and the median seconds of each step."""
    corpus = prepare(CorpusConfig(path=corpus_path, max_length=sizes.length), VocabularyConfig(size=sizes.vocabulary))
    sizes = replace(sizes, vocabulary=len(corpus.vocabulary))
    size = Size(sizes.vocabulary, sizes.word_dim, sizes.width, sizes.batch)
    stream = BatchStream(corpus.train, batch_size=sizes.batch, candidates="contiguous", context_size=1, seed=0)
    count = num_steps + NUM_WARM_UP
    batches = [stream.batch(number * max(1, stream.num_batches // count)) for number in range(count)]
    words = corpus.vocabulary
    steps = {
        "naive": textbook.step("gru", num_words=len(words), word_dim=size.word_dim, dim=size.dim),
        "ours": our_step(encoders("gru", size), size, words, bfloat16=False),
    }
    return sizes, {way: median(times) for way, times in measure(steps, batches).items()}


def step_curve(axis: str, corpus_path: str, *, num_steps: int) -> Curve:
    """Return the curve of a step's time over one of its sizes."""
    values, seconds = [], {"naive": [], "ours": []}
    for value in AXES[axis]:
        sizes, found = step_seconds(replace(Sizes(), **{axis: value}), corpus_path, num_steps=num_steps)
        if getattr(sizes, axis) in values:
            continue  # the text has no more words
        values.append(getattr(sizes, axis))
        for way, each in found.items():
            seconds[way].append(each)
    return Curve(axis, tuple(values), seconds)


def sweep_seconds(num_trials: int, num_nodes: int) -> float:
    """Return the median time of a simulated sweep with early stopping on own machines."""
    space = parse_space(parse_yaml(SPACE.format(trials=num_trials)), name="growth")
    scenario = Scenario(
        0.526, num_nodes, "own", num_reports=9, trial_s=1800.0, cost=CostConfig(usd_per_hour=0.526), kill_share=0.0
    )
    return median(Simulator(space, scenario, Budget(), seed=seed).run().seconds for seed in range(NUM_SEEDS))


def curves(corpus_path: str, *, num_steps: int) -> list[Curve]:
    """Return every curve."""
    of_steps = [step_curve(axis, corpus_path, num_steps=num_steps) for axis in AXES]
    by_trials = Curve("trials on 8 machines", NUM_TRIALS, {"sweep": [sweep_seconds(many, 8) for many in NUM_TRIALS]})
    by_nodes = Curve("machines, 100 trials", NUM_NODES, {"sweep": [sweep_seconds(100, many) for many in NUM_NODES]})
    return [*of_steps, by_trials, by_nodes]


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, corpus="docs", steps=3)
    torch.set_num_threads(1)
    found = curves(options.corpus, num_steps=options.steps)
    show([{**curve.__dict__, "exponents": curve.exponents} for curve in found], options)


if __name__ == "__main__":
    main()
