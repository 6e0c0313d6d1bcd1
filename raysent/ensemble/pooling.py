"""The logarithmic opinion pool. In: members' log-probabilities. Out: weights, and the pooled log-probabilities.

For each task every member fits its own probe; log p(y) is proportional to the sum over members of w_m log p_m(y).
Everything stays in log space and is summed in float64.

Source: Logeswaran and Lee, 2018, Table 3 (ensemble); Heskes, 1998 (logarithmic opinion pools).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysent.errors import ConfigError, DataError, did_you_mean

Float64 = npt.NDArray[np.float64]
Rule = Callable[[Float64], Float64]

# Stands for the logarithm of nought where every class of a row is ruled out by some member.
LOG_OF_NOUGHT = -745.0


@dataclass(frozen=True)
class Weights:
    """Every member's share.

    Attributes:
        values: Not negative, sum to one, float64 [members].
        scores: Members' accuracies on the rows given, from 0 to 1, float64 [members].
        method: The rule that made the values.
    """

    values: Float64
    scores: Float64
    method: str


def share_by_score(scores: Float64) -> Float64:
    """Return weights in proportion to the scores, w_m = s_m / sum of s; equal ones where all scores are nought."""
    total = scores.sum()
    return scores / total if total > 0 else share_equally(scores)


def share_equally(scores: Float64) -> Float64:
    """Return equal weights."""
    return np.full(len(scores), 1 / len(scores))


def take_best(scores: Float64) -> Float64:
    """Return all weight to the best score, the first of equals."""
    weights = np.zeros(len(scores))
    weights[scores.argmax()] = 1.0
    return weights


# The rules by name: a rule turns members' validation accuracies [members] into weights [members].
METHODS: dict[str, Rule] = {"validation": share_by_score, "uniform": share_equally, "best": take_best}


def check_method(name: str) -> None:
    """Check that there is a rule of that name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in METHODS:
        raise ConfigError(f"--method {name}: unknown method{did_you_mean(name, METHODS)}")


def fit(log_probabilities: np.ndarray, labels: np.ndarray, *, method: str = "validation") -> Weights:
    """Return the members' weights.

    Args:
        log_probabilities: Of rows that trained no member's probe, [members, rows, classes].
        labels: The rows' classes, [rows].
        method: A name in `METHODS`.

    Raises:
        ConfigError: If the method is unknown.
        DataError: If the shapes do not fit, there is no member or no row, or a value is NaN.
    """
    check_method(method)
    _check(log_probabilities)
    if log_probabilities.shape[1] != len(labels) or len(labels) == 0:
        raise DataError(f"labels: must be one per row, at least one; given {len(labels)} for {log_probabilities.shape}")
    scores = (log_probabilities.argmax(axis=2) == labels).mean(axis=1)
    return Weights(METHODS[method](scores), scores, method)


def pool(log_probabilities: np.ndarray, weights: Weights | npt.ArrayLike) -> Float64:
    """Return the pool's log-probabilities, float64 [rows, classes].

    A class that a member with weight rules out (-inf) stays ruled out. Where that leaves a row without classes, each
    -inf counts as the logarithm of the smallest number instead, so that the class least ruled out wins.

    Args:
        log_probabilities: [members, rows, classes]; -inf is a probability of nought.
        weights: Not negative, [members].

    Raises:
        DataError: If the shapes do not fit, a value is NaN or a weight negative, NaN or infinite.
    """
    _check(log_probabilities)
    shares = np.asarray(weights.values if isinstance(weights, Weights) else weights, dtype=np.float64)
    members = len(log_probabilities)
    if shares.shape != (members,) or not (np.isfinite(shares) & (shares >= 0)).all() or not shares.any():
        raise DataError(f"weights: must be {members} finite numbers of at least 0, not all 0; given {shares.tolist()}")
    total = _weighted(log_probabilities, shares)
    lost = np.isneginf(total).all(axis=1)
    if lost.any():
        total[lost] = _weighted(np.maximum(log_probabilities[:, lost], LOG_OF_NOUGHT), shares)
    return normalize(total)


def normalize(scores: Float64) -> Float64:
    """Return scores [rows, classes] moved so that each row's exponentials sum to one; one class at least is finite."""
    highest = scores.max(axis=1, keepdims=True)
    normalized: Float64 = scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
    return normalized


def _weighted(log_probabilities: np.ndarray, shares: Float64) -> Float64:
    """Return the weighted sum over members; a member without weight adds nothing, even where it says -inf."""
    total = np.zeros(log_probabilities.shape[1:])
    for member, share in zip(log_probabilities, shares, strict=True):
        if share > 0:
            total += share * member.astype(np.float64)
    return total


def _check(log_probabilities: np.ndarray) -> None:
    if log_probabilities.ndim != 3 or 0 in log_probabilities.shape:
        raise DataError(
            f"log_probabilities: must be [members, rows, classes], none of them 0; given {log_probabilities.shape}"
        )
    if np.isnan(log_probabilities).any() or np.isposinf(log_probabilities).any():
        raise DataError("log_probabilities: must be logarithms of probabilities; given NaN or +inf; evaluate again")
