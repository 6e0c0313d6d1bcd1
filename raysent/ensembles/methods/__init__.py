"""Methods that fit a combination of members to labelled rows; one file per family.

The folder is the registry: every file holds a table `METHODS`, name -> `EnsembleMethod`. Another package adds methods
by an entry point of the group `raysent.ensemble_methods` that names a module with such a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy.typing as npt

from raysent.ensembles.pools import COMBINATIONS, Combination
from raysent.ensembles.predictions import (
    MemberPredictions,
    PredictionsLike,
    as_predictions,
    as_targets,
)
from raysent.errors import ConfigError
from raysent.evaluation.targets import Float64, Targets
from raysent.registry import Registry, by_table

# What a method reports about its fit: numbers by name, such as a chosen penalty.
Diagnostics = Mapping[str, float]


class EnsembleMethod(Protocol):
    """Fits a combination of members.

    `fit` calls a method once with the rows of every cross-fitting fold and once with all rows. No call may depend on
    another one: the same rows give the same combination, so randomness needs a fixed seed.
    """

    def __call__(
        self, predictions: MemberPredictions, targets: Targets, /
    ) -> tuple[Combination, Diagnostics]:
        """Return a combination fitted to labelled rows, and diagnostics.

        Args:
            predictions: Log-probabilities of rows that trained no member's probe, [members, rows, classes]; at least
                one of each, and -inf is allowed.
            targets: The rows' classes; for rated pairs also the ratings. A class may have no row.

        Returns:
            A combination of a kind in `COMBINATIONS`, for the members in the order given; finite diagnostics.

        Raises:
            ConfigError: If the method cannot fit predictions of this size.
        """


# The name of the method that makes the ensemble, among the names of other methods and of members.
ENSEMBLE = "ensemble"
# Methods whose parameters minimise the log loss, whatever metric the task is scored by.
BY_LOG_LOSS = ("pool", "answer", "greedy")
# The method of `RUN/best`: a pool that leans to what is known to be good elsewhere.
ANSWER = "answer"

METHODS: Registry[EnsembleMethod] = Registry(
    "ensemble method",
    package=__name__,
    folders=__path__,
    read=by_table("METHODS"),
    plural="ensemble_methods",
)


@dataclass(frozen=True)
class FittedMethod:
    """A combination and how it was fitted.

    Attributes:
        combination: The fitted combination.
        method: The method that fitted it.
        scores: Members' scores on the same rows, from 0 to 1, float64 [members]: accuracies, or correlations.
        diagnostics: What the method reports, such as the duality gap.
    """

    combination: Combination
    method: str
    scores: Float64
    diagnostics: Diagnostics

    @property
    def weights(self) -> Float64:
        """How much each member counts, float64 [members]: non-negative, with sum 1."""
        return self.combination.member_weights


def check_method(name: str, *, others: Sequence[str] = ()) -> None:
    """Check that a method exists.

    Args:
        name: As the user wrote it.
        others: Names that are valid here without being a method.

    Raises:
        ConfigError: If there is no such method.
    """
    if name not in others:
        METHODS.find(name, where=f"method {name}", others=others)


def fit(
    log_probabilities: PredictionsLike,
    labels: Targets | npt.ArrayLike,
    *,
    method: str = "validation",
) -> FittedMethod:
    """Fit a combination of members.

    Args:
        log_probabilities: Of rows that trained no member's probe, [members, rows, classes]: one array, or one array
            or `.npy` file per member. Files are read one block of rows at a time.
        labels: The rows' classes, [rows]; for rated pairs `Targets`.
        method: A name in `METHODS`.

    Raises:
        ConfigError: If the method is unknown, or returns a combination that cannot be saved.
        DataError: If the shapes do not fit, there is no member or no row, or a value is NaN.
    """
    rule = METHODS.find(method, where=f"method {method}")
    predictions = as_predictions(log_probabilities)
    targets = as_targets(labels, predictions)
    combination, diagnostics = rule(predictions, targets)
    if type(combination) not in COMBINATIONS.values():
        kinds = ", ".join(kind.__name__ for kind in COMBINATIONS.values())
        raise ConfigError(
            f"method {method}: must return one of {kinds}; given {type(combination).__name__}"
        )
    return FittedMethod(combination, method, predictions.member_scores(targets), diagnostics)
