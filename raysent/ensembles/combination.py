"""The two pools of opinions: members' log-probabilities and their weights -> the pool's log-probabilities.

The logarithmic pool: log p(y) is proportional to the sum over members of w_m log p_m(y). The linear pool: p(y) is
the sum over members of w_m p_m(y). Everything stays in log space and is summed in float64, a member at a time.

Source: Logeswaran and Lee, 2018, Table 3 (ensemble); Heskes, 1998 (logarithmic opinion pools).

How members' answers become one: fitted once, kept in `ensemble.json`, the same afterwards.

A kind of combination is a class in `COMBINATIONS`; numbers go through JSON unchanged, so that what is loaded gives
bit for bit what was fitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from raysent.ensembles.predictions import Answers, Float64, Source, as_answers
from raysent.errors import ArtifactError, DataError

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


# Log-probabilities below this are all the same to a stacked regression: one part in 10^13.
LOWEST_FEATURE = -30.0


@dataclass(frozen=True, eq=False)
class Combination(ABC):
    """Members' log-probabilities [members, rows, classes] -> one's [rows, classes]."""

    kind: ClassVar[str]

    @abstractmethod
    def __call__(self, log_probabilities: Answers | Sequence[Source] | np.ndarray) -> Float64:
        """Return the combined log-probabilities, float64 [rows, classes]; each row's exponentials sum to one."""

    @property
    @abstractmethod
    def shares(self) -> Float64:
        """How much each member counts, float64 [members]: not negative, sum to one."""

    def plain(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name).tolist() for field in fields(self)}}


@dataclass(frozen=True, eq=False)
class LogarithmicPool(Combination):
    """The weighted geometric mean, renormalised; see `pool`.

    Attributes:
        weights: Not negative, float64 [members]; their sum is the inverse of a temperature.
    """

    kind = "logarithmic"
    weights: Float64

    def __call__(self, log_probabilities: Answers | Sequence[Source] | np.ndarray) -> Float64:
        """Return the pool's log-probabilities; see `Combination`."""
        return pool(log_probabilities, self.weights)

    @property
    def shares(self) -> Float64:
        """The weights over their sum."""
        return in_shares(self.weights)


@dataclass(frozen=True, eq=False)
class LinearPool(Combination):
    """The weighted arithmetic mean of probabilities; see `linear_pool`.

    Attributes:
        weights: Not negative, not all 0, float64 [members].
    """

    kind = "linear"
    weights: Float64

    def __call__(self, log_probabilities: Answers | Sequence[Source] | np.ndarray) -> Float64:
        """Return the mean's log-probabilities; see `Combination`."""
        return linear_pool(log_probabilities, self.weights)

    @property
    def shares(self) -> Float64:
        """The weights over their sum."""
        return in_shares(self.weights)


@dataclass(frozen=True, eq=False)
class Regression(Combination):
    """A multinomial logistic regression on all members' log-probabilities.

    Attributes:
        coefficients: float64 [members, classes of the member, classes].
        intercepts: float64 [classes].
    """

    kind = "regression"
    coefficients: Float64
    intercepts: Float64

    def __call__(self, log_probabilities: Answers | Sequence[Source] | np.ndarray) -> Float64:
        """Return the regression's log-probabilities; see `Combination`."""
        answers = as_answers(log_probabilities)
        scores = np.tile(self.intercepts, (answers.shape[1], 1))
        for member, coefficients in zip(answers.members(), self.coefficients, strict=True):
            scores += np.maximum(member, LOWEST_FEATURE) @ coefficients
        return normalize(scores)

    @property
    def shares(self) -> Float64:
        """Each member's part of the sum of absolute coefficients."""
        return in_shares(np.abs(self.coefficients).sum(axis=(1, 2)))


COMBINATIONS: Mapping[str, type[Combination]] = {kind.kind: kind for kind in (LogarithmicPool, LinearPool, Regression)}


def in_shares(weights: Float64) -> Float64:
    """Return weights over their sum; equal ones where all are nought."""
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def read_combination(values: Mapping[str, Any], *, source: str) -> Combination:
    """Return the combination of plain values.

    Raises:
        ArtifactError: If they are of no kind of this version; `source` stands at the front.
    """
    try:
        kind = COMBINATIONS[values["kind"]]
        return kind(**{field.name: np.array(values[field.name], dtype=np.float64) for field in fields(kind)})
    except (KeyError, TypeError, ValueError):
        raise ArtifactError(f"{source}: holds no combination of this version of raysent; make it again") from None
