"""Ways to combine members' log-probabilities [members, rows, classes] into one prediction [rows, classes].

The logarithmic pool: log p(y) is proportional to the sum over members of w_m log p_m(y). The linear pool: p(y) is
the sum over members of w_m p_m(y). Both stay in log space and accumulate in float64, one member at a time.

A `Combination` holds fitted parameters. `ensemble.json` stores them as JSON numbers, which keep every bit, so a loaded
combination returns exactly what the fitted one did.

Source: Logeswaran and Lee, 2018, Table 3 (ensemble); Heskes, 1998 (logarithmic opinion pools).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from raysent.ensembles.predictions import MemberPredictions, PredictionsLike, as_predictions
from raysent.errors import ArtifactError, DataError
from raysent.evaluation.targets import Float64

# Logarithm of the smallest positive number, in place of log 0 where -inf would leave no class.
LOG_ZERO = -745.0
# A stacked regression does not distinguish log-probabilities below this: they are one part in 10^13.
LOWEST_FEATURE = -30.0


def pool(log_probabilities: PredictionsLike, weights: npt.ArrayLike) -> Float64:
    """Return the logarithmic pool's log-probabilities, float64 [rows, classes].

    A class that any member of positive weight excludes (-inf) stays excluded. If that excludes all classes of a row,
    each -inf of the row counts as `LOG_ZERO`, so the class with the least weight against it wins.

    Args:
        log_probabilities: [members, rows, classes]; -inf is a probability of zero.
        weights: Non-negative, [members]. A sum above 1 sharpens the pool and a sum below 1 flattens it. If all are 0,
            every class is equally likely.

    Raises:
        DataError: If the shapes do not fit, a value is NaN, or a weight is negative, NaN or infinite.
    """
    predictions = as_predictions(log_probabilities)
    checked = _checked_weights(weights, predictions)
    total = _weighted_sum(predictions, checked, lowest=-np.inf)
    lost = np.isneginf(total).all(axis=1)
    if lost.any():
        total[lost] = _weighted_sum(predictions.take(lost), checked, lowest=LOG_ZERO)
    return normalize(total)


def linear_pool(log_probabilities: PredictionsLike, weights: npt.ArrayLike) -> Float64:
    """Return log-probabilities of the weighted arithmetic mean, float64 [rows, classes]; arguments as for `pool`.

    Raises:
        DataError: As `pool`, and if all weights are 0.
    """
    predictions = as_predictions(log_probabilities)
    checked = _checked_weights(weights, predictions)
    if not checked.any():
        raise DataError("weights: must not all be 0 in a mean of probabilities; given only 0")
    total = np.full(predictions.shape[1:], -np.inf)
    for member, weight in zip(predictions.members(), checked, strict=True):
        if weight > 0:
            total = np.logaddexp(total, member + np.log(weight))
    return normalize(total)


def normalize(scores: Float64) -> Float64:
    """Return log-probabilities proportional to scores [rows, classes], which have a finite value in every row."""
    highest = scores.max(axis=1, keepdims=True)
    normalized: Float64 = (
        scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
    )
    return normalized


def _checked_weights(weights: npt.ArrayLike, predictions: MemberPredictions) -> Float64:
    """Return weights as float64 [members].

    Raises:
        DataError: If they are not one finite number of at least 0 per member.
    """
    members = predictions.shape[0]
    checked = np.asarray(weights, dtype=np.float64)
    if checked.shape != (members,) or not (np.isfinite(checked) & (checked >= 0)).all():
        raise DataError(
            f"weights: must be {members} finite numbers of at least 0; given {checked.tolist()}"
        )
    return checked


def normalized_weights(weights: Float64) -> Float64:
    """Return weights [members] over their sum; equal weights if all are zero."""
    total = weights.sum()
    if total > 0:
        shares: Float64 = weights / total
        return shares
    return np.full(len(weights), 1 / len(weights))


def _weighted_sum(predictions: MemberPredictions, weights: Float64, *, lowest: float) -> Float64:
    """Return the weighted sum over members; a member of weight 0 adds nothing, even where it is -inf."""
    total = np.zeros(predictions.shape[1:])
    for member, weight in zip(predictions.members(), weights, strict=True):
        if weight > 0:
            total += weight * np.maximum(member, lowest)
    return total


@dataclass(frozen=True, eq=False)
class Combination(ABC):
    """A fitted way to combine members' log-probabilities."""

    kind: ClassVar[str]

    @abstractmethod
    def __call__(self, log_probabilities: PredictionsLike) -> Float64:
        """Return combined log-probabilities, float64 [rows, classes], for [members, rows, classes]."""

    @property
    @abstractmethod
    def member_weights(self) -> Float64:
        """How much each member counts, float64 [members]: non-negative, with sum 1."""

    def plain(self) -> dict[str, Any]:
        """Return its kind and parameters as plain values for JSON."""
        return {
            "kind": self.kind,
            **{field.name: getattr(self, field.name).tolist() for field in fields(self)},
        }


@dataclass(frozen=True, eq=False)
class _WeightedPool(Combination):
    """A mean of members.

    Attributes:
        weights: Non-negative, float64 [members].
    """

    weights: Float64

    @property
    def member_weights(self) -> Float64:
        """The weights over their sum."""
        return normalized_weights(self.weights)


class LogarithmicPool(_WeightedPool):
    """The weighted geometric mean, renormalised; see `pool`. The weights' sum is the inverse of a temperature."""

    kind = "logarithmic"

    def __call__(self, log_probabilities: PredictionsLike) -> Float64:
        """Return the pool's log-probabilities; see `Combination`."""
        return pool(log_probabilities, self.weights)


class LinearPool(_WeightedPool):
    """The weighted arithmetic mean of probabilities; see `linear_pool`. The weights must not all be 0."""

    kind = "linear"

    def __call__(self, log_probabilities: PredictionsLike) -> Float64:
        """Return the mean's log-probabilities; see `Combination`."""
        return linear_pool(log_probabilities, self.weights)


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

    def __call__(self, log_probabilities: PredictionsLike) -> Float64:
        """Return the regression's log-probabilities; see `Combination`."""
        predictions = as_predictions(log_probabilities)
        scores = np.tile(self.intercepts, (predictions.shape[1], 1))
        for member, coefficients in zip(predictions.members(), self.coefficients, strict=True):
            scores += np.maximum(member, LOWEST_FEATURE) @ coefficients
        return normalize(scores)

    @property
    def member_weights(self) -> Float64:
        """Each member's part of the sum of absolute coefficients."""
        return normalized_weights(np.abs(self.coefficients).sum(axis=(1, 2)))


# The kinds that `ensemble.json` can store.
COMBINATIONS: Mapping[str, type[Combination]] = {
    kind.kind: kind for kind in (LogarithmicPool, LinearPool, Regression)
}


def read_combination(values: Mapping[str, Any], *, source: str) -> Combination:
    """Return the combination that `Combination.plain` described.

    Args:
        values: Its kind and parameters.
        source: Where they come from, for the error message.

    Raises:
        ArtifactError: If the kind is unknown or a parameter is missing or malformed.
    """
    try:
        kind = COMBINATIONS[values["kind"]]
        return kind(
            **{field.name: np.array(values[field.name], dtype=np.float64) for field in fields(kind)}
        )
    except (KeyError, TypeError, ValueError):
        raise ArtifactError(
            f"{source}: holds no combination of this version of raysent; make it again"
        ) from None
