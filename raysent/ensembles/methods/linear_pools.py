"""Arithmetic means of members' probabilities, weighted by greedy selection.

Greedy selection adds members with replacement, each time the one that lowers the pool's NLL most. The NLL needs only
the probability that each member gives the right class, [members, rows]. Three guards against overfitting:

- sorted start: the selection begins with the best members, as many of them as minimise the NLL;
- bagging: the selection runs on many random halves of the members, and their counts are averaged;
- at most 25 members, of which the best size along the way is kept.

Source: Caruana, Niculescu-Mizil, Crew and Ksikes, 2004, sections 2.1 to 2.3.
Differs: they optimise any measure; this one always uses the NLL, which has no ties.
"""

from __future__ import annotations

import numpy as np

from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.pools import LinearPool
from raysent.ensembles.predictions import MemberPredictions
from raysent.evaluation.targets import Float64, Targets

MAX_SIZE = 25
_NUM_BAGS = 20
_BAG_FRACTION = 0.5
SEED = 4444
_SMALLEST = np.finfo(np.float64).tiny


def greedy(predictions: MemberPredictions, targets: Targets) -> tuple[LinearPool, Diagnostics]:
    """Weights by how often greedy selection takes each member, averaged over bags."""
    right = np.exp(predictions.of_labels(targets.labels))
    # Bags are drawn from members sorted by NLL, so the order in which members are given has no effect.
    order = np.argsort(_nll(right), kind="stable")
    weights = np.zeros(len(right))
    sizes = []
    for bag in bags(len(right)):
        counts = select(right[order[bag]])
        weights[order[bag]] += counts / counts.sum()
        sizes.append(counts.sum())
    return LinearPool(weights / weights.sum()), {
        "num_bags": float(len(sizes)),
        "mean_size": float(np.mean(sizes)),
    }


METHODS = {"greedy": greedy}


def bags(members: int) -> list[np.ndarray]:
    """Return the members of every bag: random halves with a fixed seed, or all members if there are at most two."""
    if members <= 2:
        return [np.arange(members)]
    generator = np.random.default_rng(SEED)
    size = int(np.ceil(_BAG_FRACTION * members))
    return [np.sort(generator.choice(members, size, replace=False)) for _ in range(_NUM_BAGS)]


def select(right: Float64) -> np.ndarray:
    """Return how often each member is selected, int64 [members].

    Args:
        right: Probabilities of the right class, [members, rows], with the members sorted by NLL.
    """
    path, nlls = _sorted_start(right)
    total = right[path].sum(axis=0)
    while len(path) < MAX_SIZE:
        # Of the mean with each member once more.
        member_nlls = _nll((total + right) / (len(path) + 1))
        path.append(int(member_nlls.argmin()))
        nlls.append(float(member_nlls.min()))
        total += right[path[-1]]
    # The first NLL is that of the whole sorted start, not of its first member.
    first = len(path) - len(nlls) + 1
    best = first + int(np.argmin(nlls))
    return np.bincount(path[:best], minlength=len(right))


def _sorted_start(right: Float64) -> tuple[list[int], list[float]]:
    """Return the best members, as many as minimise the NLL of their mean, and that NLL."""
    most = min(MAX_SIZE, len(right))
    means = np.cumsum(right[:most], axis=0) / np.arange(1, most + 1)[:, None]
    nlls = _nll(means)
    best = int(nlls.argmin())
    return list(range(best + 1)), [float(nlls[best])]


def _nll(right: Float64) -> Float64:
    """Return the NLL per row of probabilities of the right class [..., rows]."""
    nll: Float64 = -np.log(np.maximum(right, _SMALLEST)).mean(axis=-1)
    return nll
