"""How searches compare on the table: test score at shares of the whole table's cost, and cost to 99 % of its score.

In: the folder of a build. Out: a table for each corpus, and a plot. Replays are paired: an order has the same seed for
every policy, and the same trial of each configuration. Intervals are 95 % bootstrap intervals over orders; they do not
contain the choice of the table's configurations. Defaults are chosen on one corpus and evaluated on the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.search.plots import Line, curves
from benchmarks.search.replay import (
    InTurn,
    PlainOptuna,
    Policy,
    Pools,
    Replayed,
    drawn_table,
    labels_of,
    read_replayed,
    replay,
    top_members,
)

BUDGETS = (0.1, 0.2, 0.4)
PLOTTED_BUDGETS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
MEMBERS = 6
PART = 0.99
NUM_RESAMPLES = 2000
METRIC = "probe_200"
OLD_METRIC = "context_accuracy_1000"
PLAIN_ASHA = {"scheduler": {"type": "tune", "name": "ASHAScheduler"}}
BASELINE = "Tune + Optuna + ASHA"


def asha(reduction: int, grace: int) -> dict[str, object]:
    """Return the setting of the project's scheduler."""
    return {"scheduler": {"type": "asha", "reduction_factor": reduction, "grace_reports": grace}}


def policies(metric: str = METRIC) -> list[Policy]:
    """Return what is compared."""
    none = {"scheduler": "none"}
    return [
        Policy("random", metric, {"sampler": "random", **none}, stratified=False),
        Policy(
            "families in turn", metric, none, stratified=False, sampler=lambda space, seed: InTurn(space, seed=seed)
        ),
        Policy(BASELINE, metric, PLAIN_ASHA, stratified=False, sampler=PlainOptuna),
        Policy("raysent", metric, {"sampler": "tpe", **asha(3, 1)}),
        Policy(f"raysent by {OLD_METRIC}", OLD_METRIC, {"sampler": "tpe", **asha(3, 1)}),
    ]


def variants(metric: str = METRIC) -> list[Policy]:
    """Return the settings that defaults are chosen among."""
    found = []
    for sampler, stratified, reduction, grace in product(("tpe", "random"), (True, False), (2, 3, 4), (1, 2)):
        name = f"{sampler}, {'stratified' if stratified else 'plain'}, factor {reduction}, grace {grace}"
        found.append(Policy(name, metric, {"sampler": sampler, **asha(reduction, grace)}, stratified=stratified))
    return found


@dataclass(frozen=True)
class Outcome:
    """What one replay reached.

    Attributes:
        scores: Final rule -> test score at each budget, [budgets].
        cost_to: Final rule -> share of the whole table's cost after which 99 % of its score is reached; 1 where the
            search ends before, since the rest has to be trained then.
        has_reached: Final rule -> whether the search reached it.
        seconds: Share of the whole table's cost that the replay used.
        num_trials: Trials begun.
    """

    scores: Mapping[str, np.ndarray]
    cost_to: Mapping[str, float]
    has_reached: Mapping[str, bool]
    seconds: float
    num_trials: int


RULES = ("top 6", "top 6, weighted", "greedy")


class Study:
    """The replays of one corpus; order `n` has the same table for every policy."""

    def __init__(self, folder: Path, corpus: str, *, orders: int) -> None:
        self.trials = read_replayed(folder, corpus)
        self.pools = Pools(self.trials, labels_of(folder))
        self.orders = range(orders)
        self._known: dict[tuple[str, str, tuple[float, ...]], list[Outcome]] = {}

    def table(self, order: int) -> list[int]:
        """Return the places of an order's trials, one of each configuration."""
        return drawn_table(self.trials, order=order)

    def whole(self, order: int, rule: str, metric: str = METRIC) -> float:
        """Return the test score of the whole table of an order."""
        return score(self.pools, self.table(order), rule, metric)

    def cost(self, order: int) -> float:
        """Return the processor seconds of training of all trials of an order's table."""
        return float(sum(self.trials[place].seconds[-1] for place in self.table(order)))

    def outcomes(self, policy: Policy, budgets: Sequence[float] = BUDGETS) -> list[Outcome]:
        """Return the outcome of each order."""
        key = (policy.name, policy.metric, tuple(budgets))
        if key not in self._known:
            self._known[key] = [self._outcome(policy, order, budgets) for order in self.orders]
        return self._known[key]

    def _outcome(self, policy: Policy, order: int, budgets: Sequence[float]) -> Outcome:
        cost, pools = self.cost(order), self.pools
        found = replay(self.trials, policy, order=order, places=self.table(order))
        scores, cost_to, has_reached = {}, {}, {}
        for rule in RULES:
            scores[rule] = np.array([score_at(pools, found, rule, policy.metric, share * cost) for share in budgets])
            goal = PART * self.whole(order, rule)
            seconds = seconds_to(pools, found, rule, policy.metric, goal)
            has_reached[rule] = seconds <= found.seconds
            cost_to[rule] = min(1.0, seconds / cost)
        return Outcome(scores, cost_to, has_reached, found.seconds / cost, found.num_trials)


def score(pools: Pools, finished: Sequence[int], rule: str, metric: str) -> float:
    """Return the test score of the ensemble of finished trials by a final rule."""
    if rule == "greedy":
        return pools.test(pools.greedy(tuple(finished), MEMBERS))
    weights = "validation" if rule.endswith("weighted") else "equal"
    return pools.test(top_members(pools.trials, finished, metric, MEMBERS), weights=weights)


def score_at(pools: Pools, found: Replayed, rule: str, metric: str, seconds: float) -> float:
    """Return the test score after so many seconds; before the first trial has finished, that of the first."""
    finished = [place for spent, place in found.finished if spent <= seconds]
    return score(pools, finished or [found.finished[0][1]], rule, metric)


def seconds_to(pools: Pools, found: Replayed, rule: str, metric: str, goal: float) -> float:
    """Return the seconds after which the ensemble reaches a test score; infinity if it never does."""
    for number, (spent, _) in enumerate(found.finished, start=1):
        if score(pools, [place for _, place in found.finished[:number]], rule, metric) >= goal:
            return spent
    return float("inf")


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the mean of values [orders] with its 95 % bootstrap interval."""
    draws = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return float(values.mean()), float(low), float(high)


def ratio(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of two paired means [orders] with its 95 % bootstrap interval."""
    draws = np.random.default_rng(0).integers(len(one), size=(NUM_RESAMPLES, len(one)))
    low, high = np.percentile(one[draws].mean(axis=1) / other[draws].mean(axis=1), (2.5, 97.5))
    return float(one.mean() / other.mean()), float(low), float(high)


def shown(found: tuple[float, float, float], digits: int = 2, *, sign: bool = True) -> str:
    """Return a value with its interval."""
    form = f"{{:{'+' if sign else ''}.{digits}f}}"
    value, low, high = (form.format(one) for one in found)
    return f"{value} [{low}, {high}]"


def lines_of(study: Study, rule: str) -> list[str]:
    """Return the Markdown table of a corpus for one final rule."""
    heads = " | ".join(f"{100 * budget:g} %" for budget in BUDGETS)
    differences = " | ".join(f"− {BASELINE}, {100 * budget:g} %" for budget in BUDGETS)
    lines = [
        f"| search | {heads} | {differences} | cost to 99 % | reached | cost over {BASELINE}'s | whole search |",
        f"|{'---|' * (2 * len(BUDGETS) + 5)}",
    ]
    base = study.outcomes(next(policy for policy in policies() if policy.name == BASELINE))
    base_scores = np.array([one.scores[rule] for one in base])
    base_cost = np.array([one.cost_to[rule] for one in base])
    for policy in policies():
        found = study.outcomes(policy)
        scores = np.array([one.scores[rule] for one in found])
        cost = np.array([one.cost_to[rule] for one in found])
        is_base = policy.name == BASELINE
        cells = [f"{value:.2f}" for value in scores.mean(axis=0)]
        cells += [
            "" if is_base else shown(interval(scores[:, place] - base_scores[:, place]))
            for place in range(len(BUDGETS))
        ]
        reached = np.mean([one.has_reached[rule] for one in found])
        cells += [f"{100 * cost.mean():.0f} %", f"{100 * reached:.0f} %"]
        cells += ["" if is_base else shown(ratio(cost, base_cost), sign=False)]
        cells += [f"{100 * np.mean([one.seconds for one in found]):.0f} %"]
        lines.append(f"| {policy.name} | {' | '.join(cells)} |")
    return lines


def choice(studies: Mapping[str, Study], rule: str) -> list[str]:
    """Return the settings that are best on one corpus, evaluated on the other."""
    lines = [
        f"| chosen on | evaluated on | setting | 20 % | 40 % | − raysent's, 20 % | 40 % | cost over {BASELINE}'s |",
        f"|{'---|' * 8}",
    ]
    for chosen_on, evaluated_on in ((a, b) for a in studies for b in studies if a != b):
        best = max(variants(), key=lambda policy: _mean(studies[chosen_on].outcomes(policy), rule))
        study = studies[evaluated_on]
        now = next(policy for policy in policies() if policy.name == "raysent")
        base = next(policy for policy in policies() if policy.name == BASELINE)
        ours, theirs = (np.array([one.scores[rule] for one in study.outcomes(policy)]) for policy in (best, now))
        cost, other = (np.array([one.cost_to[rule] for one in study.outcomes(policy)]) for policy in (best, base))
        cells = [chosen_on, evaluated_on, best.name, *(f"{ours[:, place].mean():.2f}" for place in (1, 2))]
        cells += [shown(interval(ours[:, place] - theirs[:, place])) for place in (1, 2)]
        lines.append(f"| {' | '.join([*cells, shown(ratio(cost, other), sign=False)])} |")
    return lines


def _mean(outcomes: Sequence[Outcome], rule: str) -> float:
    """Return the mean test score at 20 and 40 % of the cost."""
    return float(np.mean([one.scores[rule][1:] for one in outcomes]))


def plot(studies: Mapping[str, Study], rule: str) -> str:
    """Return test scores over the share of the cost."""
    panels = []
    for corpus, study in studies.items():
        lines = []
        for policy in policies():
            scores = np.array([one.scores[rule] for one in study.outcomes(policy, PLOTTED_BUDGETS)])
            found = [interval(scores[:, place]) for place in range(len(PLOTTED_BUDGETS))]
            x = [100 * budget for budget in PLOTTED_BUDGETS]
            lines.append(Line(policy.name, x, [one[0] for one in found], [one[1:] for one in found]))
        panels.append((f"{corpus}, {rule}", lines))
    return curves(panels, x="% of the whole table's cost", y="mean test accuracy")


def main(options: argparse.Namespace) -> None:
    """Print the tables, and write the plot."""
    studies = {corpus: Study(options.output, corpus, orders=options.orders) for corpus in ("novels", "docs")}
    for corpus, study in studies.items():
        for rule in RULES:
            whole = np.mean([study.whole(order, rule) for order in study.orders])
            sizes = f"{len(study.trials)} trials of {len(study.table(0))} configurations"
            print(f"\n### {corpus}, {rule}: {sizes}, whole table {whole:.2f}\n", flush=True)
            print("\n".join(lines_of(study, rule)), flush=True)
    print("\n### Settings chosen on one corpus\n\n" + "\n".join(choice(studies, "top 6")), flush=True)
    if options.svg is not None:
        options.svg.write_text(plot(studies, "top 6"))
