"""How members' answers become one: fitted once, kept in `ensemble.json`, the same afterwards.

A kind of combination is a class in `COMBINATIONS`; numbers go through JSON unchanged, so that what is loaded gives
bit for bit what was fitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from raysent.ensemble.answers import Answers, Float64, Source, as_answers
from raysent.ensemble.pooling import linear_pool, normalize, pool
from raysent.errors import ArtifactError

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
