"""Whether a search can end itself, and whether it gains by pausing trials: a study on the table with predictions.

Ends: at the first finished trial, from the twelfth, after which the estimated gain of the answer by one more trial,
over the mean cost of a trial so far in percent of the budget, is below a worth. The gain is that of the mean of the
best three scores by the last of the trials, the mean over their orders: each of the best three gave a third of its
lead over the fourth. (Xie et al. 2025 end when the expected improvement a dollar is below 1; here the sample itself
takes the place of their Gaussian process.) Pauses: every trial is paused after its first report; of the paused trials
one is finished for every two begun, that of the highest value a second: of expected improvement over the third best
score, by a curve that rises as those of finished trials did; or the cheapest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import norm

from benchmarks.search.compare import CORPORA, METRIC, PART, POLICIES, UNSTOPPED, interval, read, seconds_to, shown
from benchmarks.search.replay import Answers, Replayed, TableTrial, replay

WORTHS, NEAR, TOP, FEWEST, BEGUN = (0.02, 0.05, 0.1), 0.2, 3, 12, 2
Value = Callable[[Sequence[TableTrial], int, Sequence[int]], float]


def gain(scores: np.ndarray) -> float:
    """Return what the last of trials in random order adds to the mean of the best three, in the mean over orders."""
    best = np.sort(scores)[::-1]
    return float((best[:TOP] - best[TOP]).sum() / TOP / len(scores))


def end(trials: Sequence[TableTrial], found: Replayed, budget: float, worth: float) -> int:
    """Return after how many trials a search ends."""
    scores = np.array([trials[place].values[METRIC][-1] for _, place in found.finished])
    for number in range(FEWEST, len(scores)):
        each = 100 * found.finished[number - 1][0] / number / budget
        if gain(scores[:number]) / each < worth:
            return number
    return len(scores)


def left(trial: TableTrial) -> float:
    """Return the seconds of a trial after its first report."""
    return float(trial.seconds[-1] - trial.seconds[0])


def expected(trials: Sequence[TableTrial], place: int, done: Sequence[int]) -> float:
    """Return the expected improvement a second of finishing a paused trial."""
    if len(done) < TOP:
        return 1 / left(trials[place])
    values = np.array([trials[one].values[METRIC] for one in done])
    rises = values[:, -1] - values[:, 0]
    spread = max(float(rises.std(ddof=1)), 0.5)
    lead = (trials[place].values[METRIC][0] + rises.mean() - np.sort(values[:, -1])[-TOP]) / spread
    return float(spread * (norm.pdf(lead) + lead * norm.cdf(lead)) + 1e-9) / left(trials[place])


def paused(trials: Sequence[TableTrial], order: Sequence[int], value: Value) -> Replayed:
    """Return a search that pauses trials; they are begun in an order."""
    waiting, to_begin, spent = [], list(order), 0.0
    finished: list[tuple[float, int]] = []
    while to_begin or waiting:
        if waiting and (not to_begin or len(finished) < (len(waiting) + len(finished)) // BEGUN):
            done = [place for _, place in finished]
            best = max(waiting, key=lambda place: value(trials, place, done))
            waiting.remove(best)
            spent += left(trials[best])
            finished.append((spent, best))
        else:
            waiting.append(to_begin.pop(0))
            spent += float(trials[waiting[-1]].seconds[0])
    return Replayed(finished, spent, len(order))


def lines_of(folder: Path, corpus: str, orders: int) -> list[str]:
    """Return what was found on a corpus."""
    trials = read(folder, corpus)
    answers, every = Answers(trials, folder), range(len(trials))
    (policy,) = (one for one in POLICIES if one.name == UNSTOPPED)
    random = [replay(trials, policy, order=order, places=every) for order in range(orders)]
    budget, whole = random[0].seconds, answers.test(every)
    single = float(np.mean([answers.test([place]) for place in every]))
    curves = [
        [answers.test([place for _, place in found.finished[:number]]) for number in range(1, len(trials) + 1)]
        for found in random
    ]
    shares = [np.array([spent for spent, _ in found.finished]) / budget for found in random]
    is_near = np.array(curves) >= whole - NEAR
    is_half = np.array(shares) <= 0.5
    rows = np.arange(orders)
    lines = [
        f"within {NEAR} of {whole:.2f} at half of the cost: {is_near[rows, is_half.sum(axis=1) - 1].mean():.2f}; "
        f"at any point up to there, by test rows: {(is_near & is_half).any(axis=1).mean():.2f}"
    ]
    for worth in WORTHS:
        ends = np.array([end(trials, found, budget, worth) for found in random]) - 1
        fixed = round(float(ends.mean()))
        scores = np.array(curves)[rows, ends] - np.array(curves)[:, fixed]
        lines.append(
            f"worth {worth}: after {ends.mean() + 1:.1f} trials, {np.array(shares)[rows, ends].mean():.2f} of cost; "
            f"within {NEAR}: {is_near[rows, ends].mean():.2f}, by half: {(is_near & is_half)[rows, ends].mean():.2f}; "
            f"− a fixed number of trials: {shown(interval(scores))}"
        )
    rivals: dict[str, list[Replayed]] = {
        "thawed by expected improvement": [
            paused(trials, [place for _, place in found.finished], expected) for found in random
        ],
        "thawed by cost alone": [
            paused(trials, [place for _, place in found.finished], lambda all_, place, _: 1 / left(all_[place]))
            for found in random
        ],
    }
    goals = (PART * whole, single + PART * (whole - single))
    costs = {
        name: np.array([[min(1.0, seconds_to(answers, one, goal) / budget) for goal in goals] for one in found])
        for name, found in {"random": random, **rivals}.items()
    }
    for name, cost in costs.items():
        cells = [
            f"{one.mean():.2f}, − random {shown(interval(one - two))}"
            for one, two in zip(cost.T, costs["random"].T, strict=True)
        ]
        lines.append(f"{name}: cost to {100 * PART:g} % of the score {cells[0]}; of the distance {cells[1]}")
    return lines


def main(options: argparse.Namespace) -> None:
    """Print what was found."""
    for corpus in CORPORA:
        print(f"\n### {corpus}\n\n" + "\n".join(lines_of(options.output, corpus, options.orders)), flush=True)
