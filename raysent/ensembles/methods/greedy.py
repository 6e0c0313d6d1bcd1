"""Greedy selection with replacement: members join one by one, each the one that helps the mean most.

The pool is linear and its figure is the NLL, which needs only what members give the right class, [members, rows].
Three guards against fitting the rows too well, all of them Caruana's: the first members are the best ones by
themselves, as many of them as is best (sorted start); the selection is made in many random halves of the members and
the counts are averaged (bagged library); and no selection passes 25 members, the best size on the way being kept.

Source: Caruana, Niculescu-Mizil, Crew and Ksikes, 2004, sections 2.1 to 2.3.
Differs: they climb any figure; ours is the NLL, which has no ties.
"""

from __future__ import annotations

import numpy as np

from raysent.ensembles.combination import LinearPool
from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.predictions import Answers, Float64, Truth

MAX_SIZE = 25
NUM_BAGS = 20
BAG_SHARE = 0.5
SEED = 4444
SMALLEST = np.finfo(np.float64).tiny


def greedy(answers: Answers, truth: Truth) -> tuple[LinearPool, Diagnostics]:
    """Return the linear pool of members by how often they were selected, over bags."""
    right = np.exp(answers.of_labels(truth.labels))
    # Bags are drawn among members sorted by their own NLL, so that the order they were given in counts for nothing.
    order = np.argsort(_nll(right), kind="stable")
    shares = np.zeros(len(right))
    sizes = []
    for bag in bags(len(right)):
        counts = select(right[order[bag]])
        shares[order[bag]] += counts / counts.sum()
        sizes.append(counts.sum())
    return LinearPool(shares / shares.sum()), {"num_bags": float(len(sizes)), "mean_size": float(np.mean(sizes))}


METHODS = {"greedy": greedy}


def bags(members: int) -> list[np.ndarray]:
    """Return the members of every bag: random halves, drawn with a fixed seed; all of two or fewer."""
    if members <= 2:
        return [np.arange(members)]
    generator = np.random.default_rng(SEED)
    size = int(np.ceil(BAG_SHARE * members))
    return [np.sort(generator.choice(members, size, replace=False)) for _ in range(NUM_BAGS)]


def select(right: Float64) -> np.ndarray:
    """Return how often each member is selected, int64 [members].

    Args:
        right: Probabilities of the right class, the members sorted by their own NLL, [members, rows].
    """
    path, nlls = _sorted_start(right)
    total = right[path].sum(axis=0)
    while len(path) < MAX_SIZE:
        found = _nll((total + right) / (len(path) + 1))
        path.append(int(found.argmin()))
        nlls.append(float(found.min()))
        total += right[path[-1]]
    first = len(path) - len(nlls) + 1
    best = first + int(np.argmin(nlls))
    return np.bincount(path[:best], minlength=len(right))


def _sorted_start(right: Float64) -> tuple[list[int], list[float]]:
    """Return the best members by themselves, as many as give the least NLL, and that NLL."""
    most = min(MAX_SIZE, len(right))
    means = np.cumsum(right[:most], axis=0) / np.arange(1, most + 1)[:, None]
    nlls = _nll(means)
    best = int(nlls.argmin())
    return list(range(best + 1)), [float(nlls[best])]


def _nll(right: Float64) -> Float64:
    """Return the NLL per row of probabilities of the right class [..., rows]."""
    nll: Float64 = -np.log(np.maximum(right, SMALLEST)).mean(axis=-1)
    return nll
