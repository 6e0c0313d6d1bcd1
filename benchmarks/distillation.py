"""Students, members, ensemble and the students' encoders trained alone, at equal cost; bag and GRU, two corpora.

Each corpus and seed has four ways to spend the same processor time T on one thread:

- ensemble: four members with T / 4 each; the best of them by validation is the best member;
- student: the same members with T / 10 each, then the targets, then a student with what is left of T, for each encoder;
- taught: the student again, which also learns the log-probabilities that the members, as an ensemble fitted on the
  labels of the tasks' training and validation rows, give to the text; what making the ensemble took is part of T;
- alone: the student's encoder with T, trained on contexts as the members are.

Test scores are accuracies of the `fast` probe on samples of MR, SUBJ and TREC, means over tasks; intervals are 95 %
bootstrap intervals over test rows, paired, of the mean over seeds. Times to encode are processor time on one thread,
warm. Everything is kept in the output folder: the same command continues.

    OMP_NUM_THREADS=1 python -m benchmarks.distillation --books FOLDER --data DIR --output FOLDER [--seconds 30]
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pandas as pd
import torch

from raysent.ensembles.measures import BootstrapEstimate, mean_estimate
from raysent.ensembles.task_ensemble import score_model, task_ensemble
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import load_task, resolve_tasks
from raysent.models import load
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.pipeline import compose, ensemble
from raysent.storage import read_json, write_json
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.run import RunConfig

TASKS = ("MR", "SUBJ", "TREC")
# Rows of a task that train its probe, choose it, and test it.
ROWS = (1000, 500, 1500)
WORDS = {"dim": 100}
ENCODERS: dict[str, dict[str, Any]] = {
    "bag": {"type": "bag", "embedding": {"dim": 200}},
    "cnn": {"type": "cnn", "num_filters": 60, "embedding": WORDS},
    "max": {"type": "linear", "hidden_size": 160, "pooling": "max", "embedding": WORDS},
    "gru": {"type": "gru", "hidden_size": 96, "embedding": WORDS},
}
# One tower.
STUDENTS: dict[str, dict[str, Any]] = {
    "bag": {"type": "bag", "embedding": {"dim": 512}},
    "gru": {"type": "gru", "hidden_size": 192, "embedding": WORDS},
}
SENTENCES, DIM = 20_000, 512
METHOD = "pool"
# Students that learn vectors, students that learn log-probabilities too, and the same encoders without a teacher.
TAUGHT = ("student", "taught")
ARMS = (*TAUGHT, "alone")


def run_config(encoder: dict[str, Any], corpus: str, *, seed: int, steps: int, **changes: Any) -> RunConfig:
    """Return a run of so many steps, on contexts unless `changes` name another objective."""
    values: dict[str, Any] = {
        "corpus": {"path": corpus, "max_sentences": SENTENCES, "max_length": 30},
        "vocabulary": {"size": 10_000, "lowercase": True},
        "encoder": encoder,
        "objective": {"type": "context_prediction"},
        "training": {
            "batch_size": 100, "learning_rate": 1e-3, "schedule": "linear", "epochs": 1000.0, "max_steps": steps,
            "num_reports": 1,
        },
        "validation": {"num_candidates": 500, "num_sentences": 1000},
        "seed": seed,
    }  # fmt: skip
    return RunConfig.model_validate({**values, **changes})


def distilled(
    encoder: dict[str, Any], corpus: str, teacher: Path, *, tasks: Sequence[str] | None, seed: int, steps: int
) -> RunConfig:
    """Return the run of a student; `tasks` are those whose log-probabilities it learns too."""
    objective = {"type": "distillation", "teacher": str(teacher), "dim": DIM, "max_loss": 100.0, "tasks": tasks}
    config = run_config(encoder, corpus, seed=seed, steps=steps, objective=objective)
    training = config.training.model_copy(update={"learning_rate": 8e-3})
    return config.model_copy(update={"training": training})


def processor_seconds(action: Callable[[], object]) -> float:
    """Return the processor time that an action takes."""
    started = time.process_time()
    action()
    return time.process_time() - started


class Bench:
    """One corpus: trainings by processor time, each done once."""

    def __init__(self, name: str, corpus: str, output: Path, seconds: float) -> None:
        self.corpus, self.folder, self.seconds = corpus, output / name, seconds
        self._steps_file = self.folder / "steps.json"

    def seconds_of_step(self, name: str, make: Callable[[int], RunConfig]) -> float:
        """Return the processor time of a step, measured once: that of 100 steps less that of 20."""
        known: dict[str, float] = read_json(self._steps_file) if self._steps_file.exists() else {}
        if name not in known:
            open_training_data(make(10))
            times = []
            for steps in (20, 100):
                place = self.folder / "timed"
                times.append(processor_seconds(lambda steps=steps, place=place: fit(make(steps), place)))  # type: ignore[misc]
                shutil.rmtree(place)
            known[name] = max((times[1] - times[0]) / 80, 1e-4)
            write_json(self._steps_file, known)
        return known[name]

    def trained(self, name: str, place: Path, budget: float, make: Callable[[int], RunConfig]) -> float:
        """Train a run for so much processor time unless it is done, and return what it took."""
        if not (place / "cpu.json").exists():
            steps = max(1, round(budget / self.seconds_of_step(name, make)))
            shutil.rmtree(place, ignore_errors=True)
            took = processor_seconds(lambda: fit(make(steps), place))
            write_json(place / "cpu.json", {"seconds": took, "steps": steps})
            print(f"{place}: {steps} steps, {took:.1f} s", flush=True)
        return float(read_json(place / "cpu.json")["seconds"])

    def members(self, place: Path, seed: int, budget: float) -> float:
        """Train the members with a budget in all, and return what they took."""
        return sum(
            self.trained(
                name,
                place / name,
                budget / len(ENCODERS),
                lambda steps, encoder=encoder: run_config(encoder, self.corpus, seed=seed, steps=steps),  # type: ignore[misc]
            )
            for name, encoder in ENCODERS.items()
        )

    def once(self, file: Path, action: Callable[[], object]) -> float:
        """Do something unless its file says that it was done, and return the processor time that it took."""
        if not file.exists():
            write_json(file, {"seconds": processor_seconds(action)})
        return float(read_json(file)["seconds"])

    def seed(self, seed: int, tasks: Sequence[str]) -> dict[str, Any]:
        """Return scores and costs of every arm of a seed."""
        place = self.folder / f"seed-{seed}"
        if (place / "result.json").exists():
            return dict(read_json(place / "result.json"))
        whole, part = self.seconds, 0.4 * self.seconds
        costs = {"ensemble": self.members(place / "whole", seed, whole)}
        shared = self.members(place / "part", seed, part)
        members = [str(place / "part" / name) for name in ENCODERS]
        teachers = {
            "student": (place / "teacher", None, lambda at: compose(members, output=at)),
            "taught": (
                place / "ensemble",
                list(tasks),
                lambda at: ensemble(members, tasks=tasks, method=METHOD, baselines=False, output=at, progress=False),
            ),
        }
        targets_s: dict[str, float] = {}
        for arm, (teacher, learned, make_teacher) in teachers.items():
            making = self.once(place / f"{arm}-teacher.json", lambda teacher=teacher, do=make_teacher: do(teacher))  # type: ignore[misc]
            for name, encoder in STUDENTS.items():

                def make(
                    steps: int,
                    encoder: dict[str, Any] = encoder,
                    teacher: Path = teacher,
                    learned: list[str] | None = learned,
                ) -> RunConfig:
                    return distilled(encoder, self.corpus, teacher, tasks=learned, seed=seed, steps=steps)

                targets = self.once(place / f"{arm}-targets.json", lambda make=make: open_training_data(make(1)))  # type: ignore[misc]
                targets_s[arm] = making + targets
                spent = shared + making + targets
                left = max(whole - spent, 0.1 * whole)
                costs[f"{arm} {name}"] = spent + self.trained(f"{arm} {name}", place / f"{arm}-{name}", left, make)
        for name, encoder in STUDENTS.items():
            costs[f"alone {name}"] = self.trained(
                f"alone {name}",
                place / f"alone-{name}",
                whole,
                lambda steps, encoder=encoder: run_config(encoder, self.corpus, seed=seed, steps=steps),  # type: ignore[misc]
            )
        found = {"costs": costs, **self.scores(place, tasks), "targets_s": targets_s}
        write_json(place / "result.json", found)
        return found

    def scores(self, place: Path, tasks: Sequence[str]) -> dict[str, Any]:
        """Return estimates of the test scores as value and draws, and the times to encode."""
        arms = {
            **{f"member {name}": place / "whole" / name for name in ENCODERS},
            **{f"{arm} {name}": place / f"{arm}-{name}" for arm in ARMS for name in STUDENTS},
            **{f"teacher's {name}": place / "part" / name for name in ENCODERS},
        }
        evaluator = Evaluator(place / "evaluation")
        records = dict(
            zip(
                arms,
                evaluator.records(expand(list(map(str, arms.values()))), resolve_tasks(tasks)).values(),
                strict=True,
            )
        )
        tests = {name: mean_estimate([score_model(one).test for one in found]) for name, found in records.items()}
        best = {}
        for arm, prefix in (("ensemble", "member "), ("teacher", "teacher's ")):
            names = [name for name in records if name.startswith(prefix)]
            of_tasks = zip(*(records[name] for name in names), strict=True)
            tests[arm] = mean_estimate([task_ensemble(list(one), method=METHOD).ensemble.test for one in of_tasks])
            best[arm] = max(names, key=lambda name: mean(one.validation for one in records[name]))
            tests[f"best of {arm}"] = tests[best[arm]]
        ms = {name: encode_ms(load(folder)) for name, folder in arms.items()}
        ms["ensemble"] = sum(ms[f"member {name}"] for name in ENCODERS)
        ms["teacher"] = sum(ms[f"teacher's {name}"] for name in ENCODERS)
        ms |= {f"best of {arm}": ms[name] for arm, name in best.items()}
        cosines = {
            f"{arm} {name}": read_json(place / f"{arm}-{name}" / "outcome.json")["metrics"]["target_cosine"]
            for arm in TAUGHT
            for name in STUDENTS
        }
        draws = {name: {"value": test.value, "draws": np.asarray(test.draws).tolist()} for name, test in tests.items()}
        return {"tests": draws, "ms": ms, "best": best, "cosines": cosines}


def encode_ms(model: SentenceEncoder) -> float:
    """Return the milliseconds of processor time to encode 1,000 sentences: the median of five, after one."""
    words = np.random.default_rng(0).choice(
        ["the", "of", "and", "was", "he", "she", "house", "river", "saw", "quiet", "went", "street", "night"], (500, 15)
    )
    texts = [" ".join(row) for row in words]
    times = [processor_seconds(lambda: model.encode(texts)) for _ in range(6)]
    return 2000 * median(times[1:])


def write_tasks(data: Path, folder: Path) -> list[str]:
    """Write samples of the tasks as tables, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in TASKS:
        path = folder / f"{name.lower()}.csv"
        files.append(str(path))
        if path.exists():
            continue
        found: TaskData = load_task(name, data)
        rows = np.random.default_rng(0).permutation(len(found.labels))[: sum(ROWS)]
        parts = np.repeat(["train", "validation", "test"], ROWS)[: len(rows)]
        table = {
            "text": [found.sentences[0][row] for row in rows],
            "label": [found.label_names[found.labels[row]] for row in rows],
            "split": parts,
        }
        pd.DataFrame(table).to_csv(path, index=False)
    return files


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a corpus' table."""

    def over_seeds(name: str) -> BootstrapEstimate:
        tests = [one["tests"][name] for one in results]
        return mean_estimate([BootstrapEstimate(test["value"], np.array(test["draws"])) for test in tests])

    lines = [
        "| arm | total cost s | ms per 1,000 | test | minus best member | minus alone | minus ensemble | "
        "minus best member, per seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    best = over_seeds("best of ensemble")
    names = ["best of ensemble", "ensemble", *(f"{arm} {name}" for name in STUDENTS for arm in ARMS)]
    for name in [*names, "teacher", "best of teacher"]:
        test, cost = over_seeds(name), "ensemble" if name == "best of ensemble" else name
        costs = [one["costs"][cost] for one in results if cost in one["costs"]]
        arm, _, encoder = name.partition(" ")
        alone = f"alone {encoder}" if arm in TAUGHT else None
        seeds = [one["tests"][name]["value"] - one["tests"]["best of ensemble"]["value"] for one in results]
        cells = [
            name,
            f"{mean(costs):.0f}" if costs else "",
            f"{mean(one['ms'][name] for one in results):.1f}",
            f"{test.value:.2f}",
            difference(test, best) if name != "best of ensemble" else "",
            "" if alone is None else difference(test, over_seeds(alone)),
            difference(test, over_seeds("ensemble")) if name != "ensemble" else "",
            ", ".join(f"{value:+.2f}" for value in seeds) if name != "best of ensemble" else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    cosines = {name: mean(one["cosines"][name] for one in results) for name in results[0]["cosines"]}
    shown = ", ".join(f"{name} {value:.3f}" for name, value in cosines.items())
    targets = ", ".join(f"{arm} {mean(one['targets_s'][arm] for one in results):.1f} s" for arm in TAUGHT)
    chosen = ", ".join(one["best"]["ensemble"].removeprefix("member ") for one in results)
    return [
        *lines,
        "",
        f"Best member by seed: {chosen}. Teacher and targets: {targets}. Cosine with the target: {shown}.",
    ]


def difference(one: BootstrapEstimate, other: BootstrapEstimate) -> str:
    """Return a paired difference with its interval."""
    found = one.minus(other)
    low, high = found.interval
    return f"{found.value:+.2f} [{low:+.2f}, {high:+.2f}]"


def main() -> None:
    """Train what is missing, and print the tables of what is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", required=True, help="folder of novels")
    parser.add_argument("--data", type=Path, required=True, help="folder in SentEval's layout")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="processor time of each arm")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tasks = write_tasks(options.data, options.output / "tasks")
    corpora = {"books": options.books, "docs": "docs"}
    for seed in range(options.seeds):
        for name, corpus in corpora.items():
            started = time.perf_counter()
            Bench(name, corpus, options.output, options.seconds).seed(seed, tasks)
            print(f"{name}, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)
    for name in corpora:
        done = [read_json(path) for path in sorted((options.output / name).glob("seed-*/result.json"))]
        print(f"\n## {name}, {len(done)} seeds\n\n" + "\n".join(table(done)), flush=True)
    print(json.dumps({"seconds": options.seconds, "seeds": options.seeds, "sentences": SENTENCES, "dim": DIM}))


if __name__ == "__main__":
    main()
