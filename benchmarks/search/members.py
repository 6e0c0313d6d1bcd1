"""Members of the ensemble: greedy selection against the best by a metric; stopping by gain against stopping by score.

In: the folder of a build. Out: three tables for each corpus. Greedy selection reads the validation rows that also give
the validation score of its result, so the first table has both scores: a selection that overfits shows in their gap.

`gain` ranks the trials at a rung by the order in which greedy selection takes them, by their validation predictions at
that report, instead of their scores; everything else is that of `asha` with a factor of 3.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.search.policies import METRIC, Study, asha, interval, score_at, shown
from benchmarks.search.replay import Policy, Pools, TableTrial, greedy_members, labels_of, replay, top_members
from raysent.sweeps.schedulers import CONTINUE, Decision
from raysent.sweeps.trial import Trial

SIZES = (4, 6, 8)
DRAWS = 40
RUNGS = (1, 3)
REDUCTION = 3
BUDGETS = (0.2, 0.4)


class GainASHA:
    """Asynchronous halving by the order in which greedy selection takes the trials of a rung."""

    def __init__(self, labels: dict[str, np.ndarray]) -> None:
        """Know no trial yet; `labels` are those of the validation rows, by task."""
        self._labels = labels
        self._known: dict[str, TableTrial] = {}
        self._rungs: dict[int, list[str]] = {}

    def place(self, name: str, trial: TableTrial) -> None:
        """Take the trial of the table that a name stands for."""
        self._known[name] = trial

    def on_report(self, trial: Trial, *, score: float) -> Decision:
        """Add a trial to its rung, and continue with the third that greedy selection takes first."""
        del score
        if trial.index not in RUNGS:
            return CONTINUE
        rung = self._rungs.setdefault(trial.index, [])
        rung.append(trial.name)
        predictions = [self._predictions(self._known[name], trial.index) for name in rung]
        order = greedy_members(predictions, size=max(1, len(rung) // REDUCTION), repeats=False)
        return CONTINUE if len(rung) - 1 in order else Decision(False, "not among the third that gains most")

    def _predictions(self, trial: TableTrial, index: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return log-probabilities and labels by task at the last report of the table up to this one."""
        known = trial.early[max(report for report in trial.early if report <= index)]
        return [(known[task], labels[: len(known[task])]) for task, labels in self._labels.items()]

    def complete(self, trial: Trial) -> None:
        """Forget nothing."""

    def next_rung(self, index: int) -> int | None:
        """Return the next report at which a trial may be stopped."""
        return next((rung for rung in RUNGS if rung > index), None)


def validation(pools: Pools, members: Sequence[int], labels: dict[str, np.ndarray]) -> float:
    """Return the mean validation accuracy over tasks of an equal logarithmic pool, in percent."""
    scores = []
    for task, truth in labels.items():
        pooled = sum(pools.trials[one].valid[task] for one in members)
        scores.append(100 * float((np.asarray(pooled).argmax(axis=1) == truth).mean()))
    return float(np.mean(scores))


def selection_lines(study: Study, labels: dict[str, np.ndarray]) -> list[str]:
    """Return the table of both rules on random thirds and two thirds of the tables, and on all of them."""
    lines = [
        "| trials | members | top, validation | top, test | greedy, validation | greedy, test | greedy − top, test |",
        f"|{'---|' * 7}",
    ]
    random = np.random.default_rng(0)
    for part in (1 / 3, 2 / 3, 1.0):
        for size in SIZES:
            found = []
            for draw in range(DRAWS):
                pools, table = study.pools, study.table(draw)
                some = sorted(random.permutation(table)[: max(size, round(part * len(table)))].tolist())
                top = top_members(pools.trials, some, METRIC, size)
                greedy = pools.greedy(some, size)
                values = [(validation(pools, one, labels), pools.test(one)) for one in (top, greedy)]
                found.append([*values[0], *values[1]])
            means = np.array(found)
            gain = shown(interval(means[:, 3] - means[:, 1]))
            cells = [f"{value:.2f}" for value in means.mean(axis=0)]
            lines.append(f"| {round(part * len(study.table(0)))} | {size} | {' | '.join(cells)} | {gain} |")
    return lines


def stopping_lines(study: Study, labels: dict[str, np.ndarray]) -> list[str]:
    """Return the table of stopping by gain and by score, both with proposals by TPE and members chosen greedily."""
    lines = ["| budget | by score | by gain | gain − score |", f"|{'---|' * 4}"]
    policy = Policy("tpe", METRIC, {"sampler": "tpe", **asha(REDUCTION, 1)})
    found: dict[str, list[list[float]]] = {"score": [], "gain": []}
    for order in study.orders:
        table, cost = study.table(order), study.cost(order)
        for rule, values in found.items():
            scheduler = GainASHA(labels) if rule == "gain" else None
            replayed = replay(study.trials, policy, order=order, places=table, scheduler=scheduler)
            values.append([score_at(study.pools, replayed, "greedy", METRIC, share * cost) for share in BUDGETS])
    by_score, by_gain = (np.array(found[rule]) for rule in ("score", "gain"))
    for place, budget in enumerate(BUDGETS):
        difference = shown(interval(by_gain[:, place] - by_score[:, place]))
        cells = [f"{100 * budget:g} %", *(f"{values[:, place].mean():.2f}" for values in (by_score, by_gain))]
        lines.append(f"| {' | '.join([*cells, difference])} |")
    return lines


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    folder: Path = options.output
    labels = labels_of(folder)["valid"]
    for corpus in ("novels", "docs"):
        study = Study(folder, corpus, orders=options.orders)
        print(f"\n### {corpus}: members\n\n" + "\n".join(selection_lines(study, labels)), flush=True)
        stopping = stopping_lines(study, labels)
        print(f"\n### {corpus}: stopping by gain\n\n" + "\n".join(stopping), flush=True)
