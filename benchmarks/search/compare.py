"""How searches compare on the table: test score at shares of the whole table's cost, and cost to 99 % of its score.

In: the folder of a build, where a search is worth its answer: the greedy pool of all trials that have finished. Without
it, the repository's scalars, where the mean test score of the six best trials stands for that. Out: a table for each
corpus. Replays are paired: an order has the same seed for every policy, and the same trial of each configuration.
Differences are to random draws with families in turn and the same stopping, none or a factor of 3. Intervals are 95 %
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

BUDGETS = (0.05, 0.1, 0.2, 0.4)
MEMBERS, PART, METRIC, NUM_RESAMPLES = 6, 0.99, "probe_200", 2000


def asha(factor: int) -> dict[str, Any]:
    """Return the limits of a search that stops trials by a reduction factor."""
    return {"scheduler": {"type": "asha", "reduction_factor": factor}}


BASELINE, UNSTOPPED = "random, families in turn, factor 3", "random, families in turn, no stopping"
POLICIES = (
    Policy("random, no stopping", METRIC, {"sampler": "random", "scheduler": "none"}, stratified=False),
    Policy(UNSTOPPED, METRIC, {"sampler": "random", "scheduler": "none"}),
    Policy("random, factor 3", METRIC, {"sampler": "random", **asha(3)}, stratified=False),
    Policy(BASELINE, METRIC, {"sampler": "random", **asha(3)}),
    Policy("Optuna's defaults, factor 4", METRIC, asha(4), stratified=False, sampler=PlainOptuna),
    Policy("Optuna's defaults, factor 3", METRIC, asha(3), stratified=False, sampler=PlainOptuna),
    Policy("raysent, factor 4", METRIC, {"sampler": "tpe", **asha(4)}),
    Policy("raysent, factor 3", METRIC, {"sampler": "tpe", **asha(3)}),
    Policy(
        "taught by the other texts, no stopping", METRIC, {"sampler": "random", "scheduler": "none"}, is_taught=True
    ),
    Policy("taught by the others, factor 3", METRIC, {"sampler": "random", **asha(3)}, is_taught=True),
)
CORPORA = ("novels", "docs", "news")


def members(pools: Pools, places: Sequence[int]) -> Sequence[int]:
    """Return of finished trials those that are pooled: all for an answer, which chooses for itself."""
    return places if isinstance(pools, Answers) else top_members(pools.trials, places, METRIC, MEMBERS)


def score_at(pools: Pools, found: Replayed, seconds: float) -> float:
    """Return the test score after so many seconds; before the first trial has finished, that of the first."""
    finished = [place for spent, place in found.finished if spent <= seconds] or [found.finished[0][1]]
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
    """Return the trials of a corpus, of a build or the repository's."""
    return read_scalars(corpus) if folder is None else read_replayed(folder, corpus)


def lines_of(folder: Path | None, corpus: str, orders: Sequence[int]) -> list[str]:
    """Return the Markdown table of a corpus."""
    trials = read(folder, corpus)
    taught = taught_by([read(folder, other) for other in CORPORA if other != corpus], METRIC)
    pools = Pools(trials, None) if folder is None else Answers(trials, folder)
    tables = {order: drawn_table(trials, order=order) for order in orders}
    costs = {order: float(sum(trials[place].seconds[-1] for place in table)) for order, table in tables.items()}
    goals = {order: PART * pools.test(members(pools, table)) for order, table in tables.items()}
    scores, shares = {}, {}
    for policy in POLICIES:
        replays = {
            order: replay(trials, policy, order=order, places=table, taught=taught) for order, table in tables.items()
        }
        scores[policy.name] = np.array(
            [[score_at(pools, found, b * costs[order]) for b in BUDGETS] for order, found in replays.items()]
        )
        # A search that ends before has to train the rest.
        shares[policy.name] = np.array(
            [min(1.0, seconds_to(pools, found, goals[order]) / costs[order]) for order, found in replays.items()]
        )
    heads = [f"{100 * budget:g} %" for budget in BUDGETS]
    heads += [f"− random: {head}" for head in heads] + ["cost to 99 %", "− random"]
    # A mean of members' scores falls with more members, so its costs to a goal say nothing.
    heads = heads if folder is not None else heads[:-2]
    lines = [f"| search | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    for policy in POLICIES:
        name = policy.name
        rival = UNSTOPPED if policy.limits.get("scheduler") == "none" else BASELINE
        cells = [f"{value:.2f}" for value in scores[name].mean(axis=0)]
        cells += [shown(interval(column)) for column in (scores[name] - scores[rival]).T]
        cells += [f"{shares[name].mean():.2f}", shown(interval(shares[name] - shares[rival]))]
        lines.append(f"| {name} | {' | '.join(cells[: len(heads)])} |")
    return lines


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    for corpus in CORPORA:
        lines = lines_of(options.output, corpus, range(options.orders))
        print(f"\n### {corpus}\n\n" + "\n".join(lines), flush=True)
