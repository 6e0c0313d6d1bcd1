"""The two pools of opinions: members' log-probabilities and their weights -> the pool's log-probabilities.

The logarithmic pool: log p(y) is proportional to the sum over members of w_m log p_m(y). The linear pool: p(y) is
the sum over members of w_m p_m(y). Everything stays in log space and is summed in float64, a member at a time.

Source: Logeswaran and Lee, 2018, Table 3 (ensemble); Heskes, 1998 (logarithmic opinion pools).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raysent.ensemble.answers import Answers, Float64, Source, as_answers
from raysent.errors import DataError

# Stands for the logarithm of nought where every class of a row is ruled out by some member.
LOG_OF_NOUGHT = -745.0


def pool(log_probabilities: Answers | Sequence[Source] | np.ndarray, weights: npt.ArrayLike) -> Float64:
    """Return the logarithmic pool's log-probabilities, float64 [rows, classes].

    A class that a member with weight rules out (-inf) stays ruled out. Where that leaves a row without classes, each
    -inf counts as the logarithm of the smallest number instead, so that the class least ruled out wins.

    Args:
        log_probabilities: [members, rows, classes]; -inf is a probability of nought.
        weights: Not negative, [members]; their sum sharpens (above 1) or flattens the pool. All 0 leaves every class
            equally likely.

    Raises:
        DataError: If the shapes do not fit, a value is NaN or a weight negative, NaN or infinite.
    """
    answers = as_answers(log_probabilities)
    shares = checked_weights(weights, answers)
    total = _weighted(answers, shares, lowest=-np.inf)
    lost = np.isneginf(total).all(axis=1)
    if lost.any():
        total[lost] = _weighted(answers.take(lost), shares, lowest=LOG_OF_NOUGHT)
    return normalize(total)


def linear_pool(log_probabilities: Answers | Sequence[Source] | np.ndarray, weights: npt.ArrayLike) -> Float64:
    """Return the log-probabilities of the weighted arithmetic mean, float64 [rows, classes]; arguments as for `pool`.

    Raises:
        DataError: As `pool`, and if all weights are 0.
    """
    answers = as_answers(log_probabilities)
    shares = checked_weights(weights, answers)
    if not shares.any():
        raise DataError("weights: must not all be 0 in a mean of probabilities; given only 0")
    total = np.full(answers.shape[1:], -np.inf)
    for member, share in zip(answers.members(), shares, strict=True):
        if share > 0:
            total = np.logaddexp(total, member + np.log(share))
    return normalize(total)


def normalize(scores: Float64) -> Float64:
    """Return scores [rows, classes] moved so that each row's exponentials sum to one; one class at least is finite."""
    highest = scores.max(axis=1, keepdims=True)
    normalized: Float64 = scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
    return normalized


def checked_weights(weights: npt.ArrayLike, answers: Answers) -> Float64:
    """Return weights as float64 [members].

    Raises:
        DataError: If they are not one finite number of at least 0 per member.
    """
    members = answers.shape[0]
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != (members,) or not (np.isfinite(shares) & (shares >= 0)).all():
        raise DataError(f"weights: must be {members} finite numbers of at least 0; given {shares.tolist()}")
    return shares


def _weighted(answers: Answers, shares: Float64, *, lowest: float) -> Float64:
    """Return the weighted sum over members; a member without weight adds nothing, even where it says -inf."""
    total = np.zeros(answers.shape[1:])
    for member, share in zip(answers.members(), shares, strict=True):
        if share > 0:
            total += share * np.maximum(member, lowest)
    return total
