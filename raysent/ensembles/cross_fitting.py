"""Cross-fitting: out-of-fold predictions of a method, the basis of its cross-validated score.

Stratified folds with a fixed seed divide the rows, those that belong together as a whole. A combination that is fitted
on the other folds predicts each fold, so a row is never predicted by a combination that saw it or a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysent.ensembles.methods import FittedMethod, fit
from raysent.ensembles.predictions import (
    MemberPredictions,
    PredictionsLike,
    as_predictions,
    as_targets,
)
from raysent.evaluation.targets import Float64, Int64, Targets
from raysent.evaluation.units import folds_of_units

NUM_FOLDS = 5
FOLD_SEED = 2222


@dataclass(frozen=True)
class CrossFitted:
    """A method on rows that trained no member.

    Attributes:
        fitted: The method, fitted on all rows.
        in_sample: Log-probabilities by the fit on all rows, float64 [rows, classes].
        held_out: Out-of-fold log-probabilities, float64 [rows, classes].
    """

    fitted: FittedMethod
    in_sample: Float64
    held_out: Float64

    def predict(self, log_probabilities: PredictionsLike) -> Float64:
        """Return the combination of all members' log-probabilities [members, rows, classes], [rows, classes]."""
        return self.fitted.combination(as_predictions(log_probabilities))


def cross_fit(
    log_probabilities: PredictionsLike,
    labels: Targets | npt.ArrayLike,
    *,
    method: str = "validation",
) -> CrossFitted:
    """Fit a method on all rows, and predict each row by a fit that did not see it.

    Args:
        log_probabilities: As for `fit`.
        labels: The rows' classes, [rows]; for rated pairs `Targets`.
        method: A name in `METHODS`.

    Raises:
        ConfigError: If the method is unknown.
        DataError: As `fit`.
    """
    predictions = as_predictions(log_probabilities)
    targets = as_targets(labels, predictions)
    fitted = fit(predictions, targets, method=method)
    in_sample = fitted.combination(predictions)
    return CrossFitted(fitted, in_sample, held_out(predictions, targets, method=method))


def held_out(predictions: MemberPredictions, targets: Targets, *, method: str) -> Float64:
    """Return out-of-fold log-probabilities, float64 [rows, classes]; a single unit is predicted by a fit on itself."""
    predicted = np.empty(predictions.shape[1:])
    all_rows = np.arange(len(targets))
    for fold_rows, unseen in list(folds_of(targets)) or [(all_rows, all_rows)]:
        fitted = fit(predictions.take(fold_rows), targets.take(fold_rows), method=method)
        predicted[unseen] = fitted.combination(predictions.take(unseen))
    return predicted


def folds_of(targets: Targets, *, seed: int = FOLD_SEED) -> Iterator[tuple[Int64, Int64]]:
    """Yield per fold the rows to fit on and the rows held out, int64; every row is held out once.

    Args:
        targets: The rows' classes and units. Fewer units than `NUM_FOLDS` make as many folds as units, a single one
            none.
        seed: Of the division; folds within a fold need another seed.
    """
    folds = folds_of_units(targets.labels, NUM_FOLDS, seed=seed, units=targets.units)
    num_folds = int(folds.max(initial=0)) + 1
    if num_folds < 2:
        return
    for fold in range(num_folds):
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
