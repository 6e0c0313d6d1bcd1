"""Run folders for tests of the report, with every file written by the package that owns it and values by a formula."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysent.config import parse_yaml
from raysent.ensembles import EnsembleResult, MemberCost
from raysent.ensembles.label_curves import Curve, LabelCurve, write_curves
from raysent.ensembles.measures import CalibrationBin, Diversity, MeanScores, TaskScores
from raysent.ensembles.result import MeanOverTasks, write_result
from raysent.ensembles.task_ensemble import TaskEnsemble
from raysent.evaluation.bootstrap import BootstrapEstimate
from raysent.storage import Lines, write_json
from raysent.storage.layout import EVALUATION_FOLDER, JOURNAL_FILE
from raysent.sweeps import SweepController, SweepRecord, Trial
from raysent.sweeps.journal import finite
from raysent.sweeps.record import save_record
from raysent.sweeps.space import parse_space

STARTED = 1_795_000_000.0
NUM_REPORTS = 10
CHANCE = 0.002
POOL = {
    "hash": "0a1b2c3d4e5f6071",
    "num_blocks": 4,
    "num_candidates": 1000,
    "num_sources": 4000,
    "chance_accuracy": CHANCE,
    "chance_nll": math.log(999),
}
CORPUS = {
    "path": "docs",
    "key": "6f1c0a2be4d97a35",
    "num_sentences": 61_204,
    "num_tokens": 1_102_400,
}
COMMAND = ["raysent", "sweep", "search_spaces/quick_thoughts.yaml", "--trials", "20"]
SPACE = """
base:
  encoder: {type: gru, hidden_size: 8}
  objective: {type: context_prediction}
search:
  training.learning_rate: {loguniform: [1e-4, 1e-2]}
  training.batch_size: {choice: [100, 200, 400]}
  objective.context_size: {choice: [1, 2, 3]}
  encoder: {choice: {uni: {type: gru}, bi: {type: gru, bidirectional: true}, bag: {type: bag}}}
  encoder.hidden_size: {quniform: [64, 512, 2]}
when: {encoder.hidden_size: {encoder: [uni, bi]}}
limits: {trials: %d, sampler: random, scheduler: {type: none}}
"""


class RecordedDriver:
    """A sweep's controller and its journal, on a clock that the test sets."""

    def __init__(
        self, folder: Path, text: str, *, name: str = "quick_thoughts", seed: int = 7
    ) -> None:
        """Write `sweep.json`, and start a session."""
        self.now = STARTED
        self.space = parse_space(
            parse_yaml(text, source="search_spaces/quick_thoughts.yaml"), name=name
        )
        facts = {"corpus": CORPUS, "pool": POOL}
        save_record(folder, SweepRecord(self.space, seed, COMMAND, started=STARTED, facts=facts))
        self._journal = Lines(folder / JOURNAL_FILE)
        self.write("session", trials=self.space.limits.trials, concurrent=1)
        self.controller = SweepController(self.space, seed=seed, write=self.write)

    def write(self, event: str, **values: Any) -> None:
        """Append an event to the journal."""
        self._journal.append({"event": event, "time": self.now, **finite(values)})


def write_sweep(folder: Path, *, num_trials: int) -> Path:
    """Write the folder of a sweep: trial 3 fails, trial 11 diverges, good trials finish and others stop early."""
    folder.mkdir(parents=True, exist_ok=True)
    driver = RecordedDriver(folder, SPACE % num_trials)
    generator = random.Random(0)
    while (trial := driver.controller.suggest()) is not None:
        _train(driver, trial, generator)
    driver.write("completed", reason="")
    return folder


def _train(driver: RecordedDriver, trial: Trial, generator: random.Random) -> None:
    rate = math.log10(trial.params["training.learning_rate"])
    top = 0.11 - 0.05 * (rate + 2.8) ** 2 + 0.02 * (trial.params["encoder"] == "bi")
    status = {3: "failed", 11: "nan"}.get(
        trial.number, "finished" if top > 0.085 or trial.number < 2 else "stopped"
    )
    num_reports = {"failed": 2, "nan": 3, "stopped": generator.choice([2, 4])}.get(
        status, NUM_REPORTS
    )
    for index in range(1, num_reports + 1):
        value = CHANCE + max(top, 0.01) * (1 - math.exp(-0.4 * index)) + generator.gauss(0, 0.001)
        metrics = {
            "context_accuracy": value,
            "context_nll": 6.9 - 20 * value,
            "loss": 5.0 - index / 5,
        }
        if status == "nan" and index == num_reports:
            metrics = dict.fromkeys(metrics, math.nan)
        driver.now += 5.5
        driver.controller.report(
            trial.name, index=index, num_reports=NUM_REPORTS, metrics=metrics, seconds=5.5 * index
        )
    error = "MemoryError: the worker ran out of memory at step 412" if status == "failed" else None
    driver.controller.end(trial.name, status=status, error=error)


def write_evaluation(folder: Path, members: Sequence[str]) -> None:
    """Write scores on five tasks and an ensemble, with a gain of 0.83 points."""
    generator = random.Random(1)
    tasks = {"docs_library": 71.0, "docs_order": 58.0, "MR": 74.0, "SUBJ": 90.0, "TREC": 83.0}
    by_task = {
        task: {name: level + generator.gauss(0, 1.2) for name in members}
        for task, level in tasks.items()
    }
    for task, scores in by_task.items():
        for name, test in scores.items():
            score = {
                "model": name,
                "task": task,
                "protocol": "fast",
                "validation": test + 0.4,
                "test": test,
            }
            write_json(
                folder / EVALUATION_FOLDER / name / f"{task}.json",
                {**score, "interval": [test - 1.1, test + 1.1]},
            )
    write_result(folder, _ensemble(members, by_task, generator))


def _ensemble(
    members: Sequence[str], by_task: dict[str, dict[str, float]], generator: random.Random
) -> EnsembleResult:
    names = ["ensemble", "uniform", "best", *members]
    found = {}
    for task, scores in by_task.items():
        best = max(scores.values())
        tests = {"ensemble": best + 0.9, "uniform": best + 0.7, "best": best, **scores}
        bins = tuple(CalibrationBin(0.1 * step, 0.1 * step - 0.02, 50) for step in range(4, 10))
        found[task] = TaskEnsemble(
            weights={name: 1 / len(members) + generator.gauss(0, 0.02) for name in members},
            fold_weights=((1 / len(members),) * len(members),),
            diagnostics={},
            diversity=Diversity({name: 0.1 * place for place, name in enumerate(members)}),
            scores={
                name: TaskScores(**_scores(test, 1.1), reliability=bins)
                for name, test in tests.items()
            },
            combination={},
            keys=dict.fromkeys(members, "key"),
            row_hash="rows",
            metric="accuracy",
            label_names=("no", "yes"),
        )
    means = {
        name: sum(one.scores[name].test for one in found.values()) / len(found) for name in names
    }
    costs = {
        name: MemberCost(encode_ms=200.0 * (place + 1), num_bytes=2**24, training_s=60.0)
        for place, name in enumerate(members)
    }
    return EnsembleResult(
        paths={name: f"trials/{name}" for name in members},
        keys=dict.fromkeys(members, "key"),
        method="validation",
        protocol="fast",
        members=tuple(members),
        best_member=members[0],
        costs=costs,
        tasks=found,
        mean=MeanOverTasks(
            scores={name: MeanScores(**_scores(mean, 0.5)) for name, mean in means.items()},
            difference=BootstrapEstimate(value=0.83, interval=(0.31, 1.36)),
        ),
    )


def _scores(test: float, half: float) -> dict[str, Any]:
    interval = (test - half, test + half)
    return {
        "validation": test + 0.4,
        "cross_fitted": BootstrapEstimate(value=test + 0.2, interval=interval),
        "optimism": 0.2,
        "test": test,
        "interval": interval,
        "measures": {
            name: BootstrapEstimate(value=value, interval=(value - 0.1, value + 0.1))
            for name, value in {"nll": 0.6, "brier": 0.4, "ece": 5.0}.items()
        },
    }


def write_labels(folder: Path, members: Sequence[str]) -> None:
    """Write scores on TREC against the number of labels: the ensemble is ahead of TF-IDF at 100 labels alone."""
    sizes, kinds = (
        (32, 100, 1000),
        {"ensemble": "ensemble", "ensemble + tfidf": "ensemble", "tfidf": "baseline"},
    )
    levels = {"ensemble": 62.0, "ensemble + tfidf": 63.0, "tfidf": 55.0, "chance": 22.0}
    levels |= {name: 58.0 + place for place, name in enumerate(members)}
    curves = {
        name: Curve(
            kind=kinds.get(name, "baseline" if name == "chance" else "member"),
            points=tuple(
                _point(level + (name != "chance") * 9 * place, 1.5) for place in range(len(sizes))
            ),
            validation=(level, level, level),
        )
        for name, level in levels.items()
    }
    sentence = "TREC: best by an interval is ensemble + tfidf from 32 labels on"
    curve = LabelCurve(
        task="TREC",
        metric="accuracy",
        sizes=sizes,
        num_draws=(5, 5, 1),
        num_test=500,
        chance=22.0,
        curves=curves,
        sentence=sentence,
    )
    write_curves(folder, [curve])


def _point(value: float, half: float) -> BootstrapEstimate:
    return BootstrapEstimate(value=value, interval=(value - half, value + half))
