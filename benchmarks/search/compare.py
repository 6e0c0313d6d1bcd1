"""How searches compare on the table: test score at shares of the whole table's cost, and cost to its answer.

In: a folder of trials, where a search is worth its answer: the greedy pool of all trials that have finished. Without
it, the repository's scalars, where the mean test score of the six best trials stands for that. Out: a table for each
corpus. Replays are paired: an order has the same seed for every policy, and the same trial of each configuration.
Differences are to random draws with families in turn and the same stopping, none or a factor of 3. Costs are those to
99 % of the whole table's score, and to 99 % of the distance to it from the mean of single trials. Intervals are 95 %
bootstrap intervals over orders; the choice of the table's configurations is not in them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.replay import (
    Answers,
    PlainOptuna,
    Policy,
    Pools,
    Replayed,
    TableTrial,
    drawn_table,
    read_replayed,
    read_scalars,
    replay,
    taught_by,
    top_members,
)
from benchmarks.search.table import BASELINE_FILE, NUM_REPORTS, TASKS
from raysent.storage import load_arrays

BUDGETS = (0.05, 0.1, 0.2, 0.4)
MEMBERS, PART, METRIC, NUM_RESAMPLES = 6, 0.99, "probe_200", 2000


def asha(factor: int) -> dict[str, Any]:
    """Return the limits of a search that stops trials by a reduction factor."""
    return {"scheduler": {"type": "asha", "reduction_factor": factor}}


BASELINE, UNSTOPPED = "random, families in turn, factor 3", "random, families in turn, no stopping"
POLICIES = (
    Policy(
        "random, no stopping", METRIC, {"sampler": "random", "scheduler": "none"}, stratified=False
    ),
    Policy(UNSTOPPED, METRIC, {"sampler": "random", "scheduler": "none"}),
    Policy("random, factor 3", METRIC, {"sampler": "random", **asha(3)}, stratified=False),
    Policy(BASELINE, METRIC, {"sampler": "random", **asha(3)}),
    Policy("Optuna's defaults, factor 4", METRIC, asha(4), stratified=False, sampler=PlainOptuna),
    Policy("Optuna's defaults, factor 3", METRIC, asha(3), stratified=False, sampler=PlainOptuna),
    Policy(
        "raysent, families in turn, no stopping", METRIC, {"sampler": "tpe", "scheduler": "none"}
    ),
    Policy("raysent, factor 4", METRIC, {"sampler": "tpe", **asha(4)}),
    Policy("raysent, factor 3", METRIC, {"sampler": "tpe", **asha(3)}),
    Policy(
        "taught by the other texts, no stopping",
        METRIC,
        {"sampler": "random", "scheduler": "none"},
        is_taught=True,
    ),
    Policy(
        "taught by the others, factor 3", METRIC, {"sampler": "random", **asha(3)}, is_taught=True
    ),
)
CORPORA = ("novels", "docs", "news")


def members(pools: Pools, places: Sequence[int]) -> Sequence[int]:
    """Return of finished trials those that are pooled: all for an answer, which chooses for itself."""
    return (
        places if isinstance(pools, Answers) else top_members(pools.trials, places, METRIC, MEMBERS)
    )


def score_at(pools: Pools, found: Replayed, seconds: float) -> float:
    """Return the test score after so many seconds; before the first trial has finished, that of the first."""
    finished = [place for spent, place in found.finished if spent <= seconds] or [
        found.finished[0][1]
    ]
    return pools.test(members(pools, finished))


def seconds_to(pools: Pools, found: Replayed, goal: float) -> float:
    """Return the seconds after which the ensemble reaches a test score; infinity if it never does."""
    places = [place for _, place in found.finished]
    for number, (spent, _) in enumerate(found.finished, start=1):
        if pools.test(members(pools, places[:number])) >= goal:
            return spent
    return float("inf")


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of values [orders] with its 95 % bootstrap interval."""
    draws = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return float(values.mean()), float(low), float(high)


def shown(found: tuple[float, float, float]) -> str:
    """Return a difference with its interval."""
    value, low, high = (f"{one:+.2f}" for one in found)
    return f"{value} [{low}, {high}]"


def read(folder: Path | None, corpus: str) -> list[TableTrial]:
    """Return the trials of a corpus, of a folder or the repository's."""
    return read_scalars(corpus) if folder is None else read_replayed(folder, corpus)


def lines_of(folder: Path | None, corpus: str, orders: Sequence[int], only: str = "") -> list[str]:
    """Return the Markdown table of a corpus, of the policies whose names contain a text."""
    trials = read(folder, corpus)
    taught = taught_by([read(folder, other) for other in CORPORA if other != corpus], METRIC)
    pools = Pools(trials, None) if folder is None else Answers(trials, folder)
    tables = {order: drawn_table(trials, order=order) for order in orders}
    costs = {
        order: float(sum(trials[place].seconds[-1] for place in table))
        for order, table in tables.items()
    }
    goals = {}
    for order, table in tables.items():
        whole, single = (
            pools.test(members(pools, table)),
            float(np.mean([pools.test([place]) for place in table])),
        )
        goals[order] = (PART * whole, single + PART * (whole - single))
    policies = [policy for policy in POLICIES if only in policy.name]
    scores, shares = {}, {}
    for policy in policies:
        replays = {
            order: replay(trials, policy, order=order, places=table, taught=taught)
            for order, table in tables.items()
        }
        scores[policy.name] = np.array(
            [
                [score_at(pools, found, b * costs[order]) for b in BUDGETS]
                for order, found in replays.items()
            ]
        )
        # A search that ends before has to train the rest.
        shares[policy.name] = np.array(
            [
                [min(1.0, seconds_to(pools, found, goal) / costs[order]) for goal in goals[order]]
                for order, found in replays.items()
            ]
        )
    heads = [f"{100 * budget:g} %" for budget in BUDGETS]
    heads += [f"− random: {head}" for head in heads]
    heads += [
        f"{what} {of}"
        for of in ("of the score", "of the distance")
        for what in ("cost to 99 %", "− random: 99 %")
    ]
    # A mean of members' scores falls with more members, so its costs to a goal say nothing.
    heads = heads if folder is not None else heads[: 2 * len(BUDGETS)]
    lines = [f"| search | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    for policy in policies:
        name = policy.name
        rival = UNSTOPPED if policy.limits.get("scheduler") == "none" else BASELINE
        cells = [f"{value:.2f}" for value in scores[name].mean(axis=0)]
        cells += [shown(interval(column)) for column in (scores[name] - scores[rival]).T]
        for mine, random in zip(shares[name].T, shares[rival].T, strict=True):
            cells += [f"{mine.mean():.2f}", shown(interval(mine - random))]
        lines.append(f"| {name} | {' | '.join(cells[: len(heads)])} |")
    return lines


def baseline_line(folder: Path, corpus: str) -> str:
    """Return what TF-IDF of words scores on the same rows, and the whole table's answer without it and with it."""
    arrays, trials = load_arrays(folder / BASELINE_FILE), read(folder, corpus)
    parts = {
        part: {task: arrays[f"{part}_{task}"].astype(np.float32) for task in TASKS}
        for part in ("test", "valid")
    }
    tfidf = TableTrial(-1, {}, np.zeros(NUM_REPORTS), {}, **parts)
    both, every = Answers(trials, folder, baseline=tfidf), range(len(trials))
    alone = Answers(trials, folder).test(every)
    return f"TF-IDF {both.test([]):.2f}; the whole table's answer {alone:.2f}, with TF-IDF in it {both.test(every):.2f}"


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    for corpus in CORPORA:
        lines = lines_of(options.output, corpus, range(options.orders), options.only)
        lines += ["", baseline_line(options.output, corpus)] if options.output else []
        print(f"\n### {corpus}\n\n" + "\n".join(lines), flush=True)
