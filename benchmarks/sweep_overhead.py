"""What a sweep adds beside training: a proposal and a decision after 10,000 trials, and the start of the command.

    python -m benchmarks.sweep_overhead [--history 10000] [--samplers tpe,random,qmc] [--json]

The time of a trial on Ray beside Optuna and Ray Tune is in `benchmarks/results/sweep_overhead.md`, with its code.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import optuna

from benchmarks.common import parsed, show
from raysent.config import parse_yaml
from raysent.sweeps import SweepController
from raysent.sweeps.space import SearchSpace, parse_space

SPACE = """
base: {{encoder: {{type: gru, hidden_size: 300}}, objective: {{type: context_prediction}}}}
search:
  encoder.hidden_size: {{choice: [150, 300, 600, 1200]}}
  training.batch_size: {{choice: [100, 200, 400]}}
  training.learning_rate: {{loguniform: [1.0e-4, 1.0e-2]}}
limits: {{trials: {trials}, sampler: {sampler}, scheduler: {{type: asha}}}}
cost: {{usd_per_hour: 0.5}}
"""
LAST = 20


def decision_ms(sampler: str, history: Sequence[int]) -> dict[int, dict[str, float]]:
    """Return the median CPU milliseconds of a proposal, and of the decision on a report, after this many trials."""
    text = SPACE.format(trials=10 * max(history), sampler=sampler)
    space = parse_space(parse_yaml(text), name=sampler)
    controller = SweepController(space, seed=1, write=_forget)
    chance = random.Random(1)
    found: dict[int, dict[str, float]] = {}
    times = [_one_trial(controller, space, chance) for _ in range(min(history) - LAST)]
    for size in sorted(history):
        times = [_one_trial(controller, space, chance) for _ in range(size - len(controller.trials))][-LAST:]
        found[size] = {
            "proposal": round(1e3 * median(ask for ask, _ in times), 3),
            "decision": round(1e3 * median(decide for _, decide in times), 3),
        }
    return found


def _forget(*_: Any, **__: Any) -> None:
    """Discard an event."""


def _one_trial(controller: SweepController, space: SearchSpace, chance: random.Random) -> tuple[float, float]:
    """Run one trial; return the CPU seconds of its proposal and of a decision."""
    begun = time.process_time()
    trial = controller.suggest()
    proposed = time.process_time()
    assert trial is not None
    quality, index, should_continue = chance.gauss(0, 1), 0, True
    while should_continue and index < 9:
        index += 1
        metrics = {space.metric: quality - 1 / index}
        values = {"metrics": metrics, "seconds": 10.0 * index, "usd": 0.01 * index}
        should_continue = controller.report(trial.name, index=index, num_reports=9, **values)
    controller.end(trial.name, status="finished" if should_continue else "stopped")
    return proposed - begun, (time.process_time() - proposed) / index


def help_s(rounds: int = 5) -> float:
    """Return the median seconds of `raysent --help`."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "raysent", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    return round(median(times), 3)


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, history=10_000, samplers="tpe,random,qmc")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    history = sorted({100, 1000, options.history})
    found: dict[str, Any] = {
        "help_s": help_s(),
        "decision_ms": {sampler: decision_ms(sampler, history) for sampler in options.samplers.split(",")},
    }
    show(found, options)


if __name__ == "__main__":
    main()
