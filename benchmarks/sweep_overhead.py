"""The overhead of a sweep beside training: a decision after 10,000 trials, and the time of a trial on Ray.

Trials sleep, so everything else is overhead. The same trial function runs in three ways, two trials at a time: Optuna
alone (threads of one process), Ray Tune function trainables with Optuna's searcher, and a raysent sweep with journal,
ledger and reused actors. The overhead of a trial is the slope of the wall-clock time over the number of trials, minus
the sleep; the rest is start-up. Both the sleep and the number of trials vary, as overhead must not grow with a trial's
length.

    python -m benchmarks.sweep_overhead [--trials 16] [--rounds 3] [--history 10000] [--samplers tpe,random]
        [--no-ray] [--json]
"""

from __future__ import annotations

import logging
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import optuna
import ray
from ray import tune
from ray.tune.search.optuna import OptunaSearch

from benchmarks.common import parsed, show
from raysent.config import parse_yaml
from raysent.cost import CostConfig
from raysent.sweeps import SweepController, ray_tune
from raysent.sweeps.cost_tracker import CostTracker
from raysent.sweeps.journal import Journal
from raysent.sweeps.machines import Layout
from raysent.sweeps.ray_tune import run_trials
from raysent.sweeps.space import SearchSpace, parse_space
from raysent.sweeps.trainables import Message, ReusedActor
from raysent.training.ray_session import output_to_stderr

SPACE = """
base: {{encoder: {{type: gru, hidden_size: 300}}, objective: {{type: context_prediction}}}}
search:
  encoder.hidden_size: {{choice: [150, 300, 600, 1200]}}
  training.batch_size: {{choice: [100, 200, 400]}}
  training.learning_rate: {{loguniform: [1.0e-4, 1.0e-2]}}
limits: {{trials: {trials}, sampler: {sampler}, scheduler: {{type: none}}}}
cost: {{usd_per_hour: 0.5}}
"""
NUM_REPORTS, CONCURRENT = 4, 2
# How long trials sleep.
LENGTHS_S = (0.2, 2.0)
LAST = 20


# -- decisions ------------------------------------------------------------------------------------------------------


def decision_ms(sampler: str, history: Sequence[int]) -> dict[int, dict[str, float]]:
    """Return the median CPU milliseconds of a proposal, and of the decision on a report, after this many trials."""
    text = SPACE.format(trials=10 * max(history), sampler=sampler).replace("{type: none}", "{type: asha}")
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


# -- trials ---------------------------------------------------------------------------------------------------------


def sleep_and_report(seconds: float, report: Callable[[int], Any]) -> None:
    """The trial: sleep, and report at intervals."""
    for index in range(1, NUM_REPORTS + 1):
        time.sleep(seconds / NUM_REPORTS)
        report(index)


class Sleeper(ReusedActor):
    """Raysent's reused actor, with sleep instead of training."""

    def setup(self, config: dict[str, Any]) -> None:
        """Sleep in a thread, as training runs in one."""
        self._should_continue = True
        self._waits_for_decision = False
        self._error = None
        self._messages: queue.Queue[Message] = queue.Queue()
        self._decisions: queue.Queue[bool] = queue.Queue()
        self._thread = threading.Thread(target=self._sleep, args=(config["seconds"],), daemon=True)
        self._thread.start()

    def _sleep(self, seconds: float) -> None:
        def report(index: int) -> None:
            metrics = {"context_accuracy": 0.1 * index}
            message = {"index": index, "num_reports": NUM_REPORTS, "metrics": metrics, "node": "here"}
            done = {"seconds": seconds * index / NUM_REPORTS, "step": index, "steps_lost": 0}
            self._messages.put({**message, **done})
            self._decisions.get()

        sleep_and_report(seconds, report)
        self._messages.put({"status": "finished", "seconds": seconds, "error": None, "done": True})


def by_raysent(num_trials: int, seconds: float) -> None:
    """Sweep with raysent's controller, journal, ledger and actors."""
    space = parse_space(parse_yaml(SPACE.format(trials=num_trials, sampler="tpe")), name="sleep")
    plan = Layout(CONCURRENT, 1, 1, 0.0, is_nested=False)
    with tempfile.TemporaryDirectory() as name, mock.patch.object(ray_tune, "ReusedActor", Sleeper):
        journal = Journal(Path(name))
        with (
            CostTracker(Path(name), CostConfig(usd_per_hour=0.5), nodes=lambda: {"here": {}}) as cost_tracker,
            output_to_stderr(),
        ):
            controller = SweepController(space, seed=1, write=journal.write)

            def describe(trial: Any) -> dict[str, Any]:
                return {"trial": trial.name, "seconds": seconds}

            run_trials(controller, plan, describe=describe, is_over=lambda: False, cost_tracker=cost_tracker)
        journal.close()
        assert sum(trial.status == "finished" for trial in controller.trials.values()) == num_trials


def _suggest(trial: optuna.Trial) -> None:
    trial.suggest_categorical("hidden_size", [150, 300, 600, 1200])
    trial.suggest_categorical("batch_size", [100, 200, 400])
    trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)


def by_optuna(num_trials: int, seconds: float) -> None:
    """Run the same function with Optuna in threads."""

    def objective(trial: optuna.Trial) -> float:
        _suggest(trial)
        sleep_and_report(seconds, lambda index: trial.report(0.1 * index, index))
        return 0.1 * NUM_REPORTS

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1))
    study.optimize(objective, n_trials=num_trials, n_jobs=CONCURRENT)


def by_tune(num_trials: int, seconds: float) -> None:
    """Run the same function with Ray Tune, in one process for each trial, as its function trainables do."""

    def train(_: dict[str, Any]) -> None:
        sleep_and_report(seconds, lambda index: tune.report({"context_accuracy": 0.1 * index}))

    search = OptunaSearch(_suggest, metric="context_accuracy", mode="max", seed=1)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as name, output_to_stderr():
        config = tune.TuneConfig(search_alg=search, num_samples=num_trials, max_concurrent_trials=CONCURRENT)
        run_config = tune.RunConfig(storage_path=name, name="sleep", verbose=0)
        found = tune.Tuner(tune.with_resources(train, {"CPU": 1}), tune_config=config, run_config=run_config).fit()
        assert len(found) == num_trials


WAYS: dict[str, Callable[[int, float], None]] = {"optuna": by_optuna, "tune": by_tune, "raysent": by_raysent}


def overheads(num_trials: int, rounds: int, *, seconds: float) -> dict[str, dict[str, float]]:
    """Return the median seconds of overhead per trial and of start-up for each way, from interleaved runs."""
    few = CONCURRENT
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            short, long = _wall_s(way, few, seconds), _wall_s(way, num_trials, seconds)
            slot_s = (long - short) / (num_trials - few) * CONCURRENT
            print(f"{name}: {few} trials {short:.2f} s, {num_trials} trials {long:.2f} s", file=sys.stderr, flush=True)
            found[name].append((slot_s - seconds, short - slot_s))
    return {
        name: {
            "overhead_s": round(median(one for one, _ in times), 4),
            "least_s": round(min(one for one, _ in times), 4),
            "most_s": round(max(one for one, _ in times), 4),
            "startup_s": round(median(one for _, one in times), 3),
        }
        for name, times in found.items()
    }


def _wall_s(way: Callable[[int, float], None], num_trials: int, seconds: float) -> float:
    begun = time.perf_counter()
    way(num_trials, seconds)
    return time.perf_counter() - begun


def help_s(rounds: int = 5) -> float:
    """Return the median seconds of `raysent --help`."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "raysent", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    return round(median(times), 3)


def _on_ray(num_trials: int, rounds: int, lengths: Sequence[float]) -> dict[str, Any]:
    """Measure trials of each length in one Ray session."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    ray.init(num_cpus=CONCURRENT, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
    try:
        return {f"{seconds:g} s": overheads(num_trials, rounds, seconds=seconds) for seconds in lengths}
    finally:
        ray.shutdown()


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, trials=16, rounds=3, history=10_000, samplers="tpe,random,qmc", no_ray=False)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    history = sorted({100, 1000, options.history})
    found: dict[str, Any] = {
        "help_s": help_s(),
        "decision_ms": {sampler: decision_ms(sampler, history) for sampler in options.samplers.split(",")},
    }
    if not options.no_ray:
        found["trials"] = _on_ray(options.trials, options.rounds, LENGTHS_S)
    show(found, options)


if __name__ == "__main__":
    main()
