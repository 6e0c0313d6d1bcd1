"""How searches compare on the table: test score at shares of the whole table's cost, and cost to 99 % of its score.

In: the folder of a build. Out: a table for each corpus, and a plot. Replays are paired: an order has the same seed for
every policy, and the same trial of each configuration. Intervals are 95 % bootstrap intervals over orders; they do not
contain the choice of the table's configurations. Defaults are chosen on one corpus and evaluated on the other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.plots import Line, curves
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
from raysent.storage import append_json_line, content_key

BUDGETS = (0.1, 0.2, 0.4)
ALL_BUDGETS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
MEMBERS = 6
PART = 0.99
NUM_RESAMPLES = 2000
METRIC = "probe_200"
OLD_METRIC = "context_accuracy_1000"
# Reduction and the first rung, of eight reports: rungs at 1, 2, 4; 1, 3; 1, 4; 2, 6; 4 alone.
RUNGS = ((2, 1), (3, 1), (4, 1), (3, 2), (2, 4))
NO_STOPPING: dict[str, object] = {"scheduler": "none"}
PLAIN_ASHA = {"scheduler": {"type": "tune", "name": "ASHAScheduler"}}
BASELINE = "Tune + Optuna + ASHA"


def asha(reduction: int, grace: int) -> dict[str, object]:
    """Return the setting of the project's scheduler."""
    return {"scheduler": {"type": "asha", "reduction_factor": reduction, "grace_reports": grace}}


def policies(metric: str = METRIC) -> list[Policy]:
    """Return what is compared."""
    turn = {"stratified": False, "sampler": lambda space, seed: InTurn(space, seed=seed)}
    return [
        Policy("random", metric, {"sampler": "random", **NO_STOPPING}, stratified=False),
        Policy("families in turn", metric, NO_STOPPING, **turn),
        Policy(BASELINE, metric, PLAIN_ASHA, stratified=False, sampler=PlainOptuna),
        Policy("raysent", metric, {"sampler": "tpe", **asha(3, 1)}),
        Policy("raysent without stopping", metric, {"sampler": "tpe", **NO_STOPPING}),
        Policy(f"raysent by {OLD_METRIC}", OLD_METRIC, {"sampler": "tpe", **asha(3, 1)}),
    ]


def variants(metric: str = METRIC) -> list[Policy]:
    """Return the settings that defaults are chosen among."""
    stopping = {f"factor {reduction}, grace {grace}": asha(reduction, grace) for reduction, grace in RUNGS}
    stopping["no stopping"] = NO_STOPPING
    found = []
    for sampler, stratified, (name, scheduler) in product(("tpe", "random"), (True, False), stopping.items()):
        label = f"{sampler}, {'stratified' if stratified else 'plain'}, {name}"
        found.append(Policy(label, metric, {"sampler": sampler, **scheduler}, stratified=stratified))
    return found


@dataclass(frozen=True)
class Outcome:
    """What one replay reached.

    Attributes:
        scores: Final rule -> test score at each of `ALL_BUDGETS`.
        cost_to: Final rule -> share of the whole table's cost after which 99 % of its score is reached; 1 where the
            search ends before, since the rest has to be trained then.
        has_reached: Final rule -> whether the search reached it.
        seconds: Share of the whole table's cost that the replay used.
        num_trials: Trials begun.
    """

    scores: Mapping[str, Sequence[float | None]]
    cost_to: Mapping[str, float]
    has_reached: Mapping[str, bool]
    seconds: float
    num_trials: int


RULES = ("top 6", "top 6, weighted", "greedy")
# Greedy selection takes most of a replay's time, so its score is read at these budgets alone.
GREEDY_BUDGETS = (0.2, 0.4)


class Study:
    """The replays of one corpus; order `n` has the same table for every policy."""

    def __init__(self, folder: Path, corpus: str, *, orders: int) -> None:
        self.trials = read_replayed(folder, corpus)
        self.pools = Pools(self.trials, labels_of(folder))
        self.orders = range(orders)
        # Replays are kept, so that more orders continue.
        size = "-".join(str(trial.number) for trial in self.trials)
        self._file = folder / f"replays-{corpus}-{content_key(size)}.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._known = {tuple(key): Outcome(**values) for key, values in map(json.loads, lines)}

    def table(self, order: int) -> list[int]:
        """Return the places of an order's trials, one of each configuration."""
        return drawn_table(self.trials, order=order)

    def whole(self, order: int, rule: str, metric: str = METRIC) -> float:
        """Return the test score of the whole table of an order."""
        return score(self.pools, self.table(order), rule, metric)

    def cost(self, order: int) -> float:
        """Return the processor seconds of training of all trials of an order's table."""
        return float(sum(self.trials[place].seconds[-1] for place in self.table(order)))

    def outcomes(self, policy: Policy, *, orders: int | None = None) -> list[Outcome]:
        """Return the outcome of each order, or of the first ones."""
        return [self.outcome(policy, order) for order in self.orders[:orders]]

    def scores(self, policy: Policy, rule: str, *, orders: int | None = None) -> np.ndarray:
        """Return the test scores at each of `BUDGETS`, [orders, budgets]."""
        places = [ALL_BUDGETS.index(budget) for budget in BUDGETS]
        found = [one.scores[rule] for one in self.outcomes(policy, orders=orders)]
        return np.array(found, dtype=float)[:, places]

    def outcome(self, policy: Policy, order: int) -> Outcome:
        """Return the outcome of an order; it is computed once."""
        key = (policy.name, policy.metric, str(policy.limits), order)
        if key not in self._known:
            self._known[key] = self._outcome(policy, order)
            append_json_line(self._file, [key, asdict(self._known[key])])
        return self._known[key]

    def _outcome(self, policy: Policy, order: int) -> Outcome:
        cost, pools = self.cost(order), self.pools
        found = replay(self.trials, policy, order=order, places=self.table(order))
        scores, cost_to, has_reached = {}, {}, {}
        for rule in RULES:
            is_read = [rule != "greedy" or share in GREEDY_BUDGETS for share in ALL_BUDGETS]
            scores[rule] = [
                score_at(pools, found, rule, policy.metric, share * cost) if reads else None
                for share, reads in zip(ALL_BUDGETS, is_read, strict=True)
            ]
            if rule == "greedy":
                continue
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
    baseline = next(policy for policy in policies() if policy.name == BASELINE)
    base_scores = study.scores(baseline, rule)
    base_cost = np.array([one.cost_to[rule] for one in study.outcomes(baseline)])
    for policy in policies():
        found, scores = study.outcomes(policy), study.scores(policy, rule)
        cost = np.array([one.cost_to[rule] for one in found])
        is_base = policy.name == BASELINE
        cells = [f"{value:.2f}" for value in scores.mean(axis=0)]
        cells += ["" if is_base else shown(interval(column)) for column in (scores - base_scores).T]
        reached = np.mean([one.has_reached[rule] for one in found])
        cells += [f"{100 * cost.mean():.0f} %", f"{100 * reached:.0f} %"]
        cells += ["" if is_base else shown(ratio(cost, base_cost), sign=False)]
        cells += [f"{100 * np.mean([one.seconds for one in found]):.0f} %"]
        lines.append(f"| {policy.name} | {' | '.join(cells)} |")
    return lines


def greedy_lines(study: Study) -> list[str]:
    """Return the scores of members chosen greedily, beside those of the best six, at `GREEDY_BUDGETS`."""
    heads = [f"{name}, {100 * budget:g} %" for budget in GREEDY_BUDGETS for name in ("greedy", "greedy − top 6")]
    lines = [f"| search | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    places = [BUDGETS.index(budget) for budget in GREEDY_BUDGETS]
    for policy in policies():
        greedy, top = (study.scores(policy, rule)[:, places] for rule in ("greedy", "top 6"))
        columns = zip(greedy.T, (greedy - top).T, strict=True)
        cells = [f"{values.mean():.2f} | {shown(interval(difference))}" for values, difference in columns]
        lines.append(f"| {policy.name} | {' | '.join(cells)} |")
    return lines


def choice(studies: Mapping[str, Study], rule: str, *, orders: int) -> list[str]:
    """Return the settings that are best on one corpus, evaluated on the other with other orders."""
    lines = [
        f"| chosen on | tried on | setting | 20 % | 40 % | − raysent's, 20 % | 40 % | − {BASELINE}'s, 20 % | 40 % |",
        f"|{'---|' * 9}",
    ]
    named = {policy.name: policy for policy in policies()}
    for chosen_on, evaluated_on in ((a, b) for a in studies for b in studies if a != b):
        best = max(variants(), key=lambda policy: studies[chosen_on].scores(policy, rule, orders=orders)[:, 1:].mean())
        study = studies[evaluated_on]
        ours, now, base = (study.scores(policy, rule) for policy in (best, named["raysent"], named[BASELINE]))
        cells = [chosen_on, evaluated_on, best.name, *(f"{value:.2f}" for value in ours.mean(axis=0)[1:])]
        cells += [shown(interval((ours - other)[:, place])) for other in (now, base) for place in (1, 2)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def variant_lines(studies: Mapping[str, Study], rule: str, *, orders: int) -> list[str]:
    """Return the scores of every setting that is chosen among."""
    heads = " | ".join(f"{corpus}, {100 * budget:g} %" for corpus in studies for budget in BUDGETS)
    lines = [f"| setting | {heads} |", f"|{'---|' * (1 + len(studies) * len(BUDGETS))}"]
    for policy in variants():
        means = [study.scores(policy, rule, orders=orders).mean(axis=0) for study in studies.values()]
        lines.append(f"| {policy.name} | {' | '.join(f'{value:.2f}' for value in np.concatenate(means))} |")
    return lines


def plot(studies: Mapping[str, Study], rule: str) -> str:
    """Return test scores over the share of the cost."""
    panels = []
    for corpus, study in studies.items():
        lines = []
        for policy in policies():
            scores = np.array([one.scores[rule] for one in study.outcomes(policy)])
            found = [interval(scores[:, place]) for place in range(len(ALL_BUDGETS))]
            x = [100 * budget for budget in ALL_BUDGETS]
            lines.append(Line(policy.name, x, [one[0] for one in found], [one[1:] for one in found]))
        panels.append((f"{corpus}, {rule}", lines))
    return curves(panels, x="% of the whole table's cost", y="mean test accuracy")


def main(options: argparse.Namespace) -> None:
    """Print the tables, and write the plot."""
    studies = {corpus: Study(options.output, corpus, orders=options.orders) for corpus in ("novels", "docs")}
    for corpus, study in studies.items():
        for rule in RULES[:2]:
            whole = np.mean([study.whole(order, rule) for order in study.orders])
            sizes = f"{len(study.trials)} trials of {len(study.table(0))} configurations"
            print(f"\n### {corpus}, {rule}: {sizes}, whole table {whole:.2f}\n", flush=True)
            print("\n".join(lines_of(study, rule)), flush=True)
        print("\n" + "\n".join(greedy_lines(study)), flush=True)
    if options.choice_orders:
        rule, orders = "top 6", options.choice_orders
        print("\n### Settings\n\n" + "\n".join(variant_lines(studies, rule, orders=orders)), flush=True)
        print("\n" + "\n".join(choice(studies, rule, orders=orders)), flush=True)
    if options.svg is not None:
        options.svg.write_text(plot(studies, "top 6"))
