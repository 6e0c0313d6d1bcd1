"""Cross-fitting: out-of-fold predictions of a method, the basis of its cross-validated score.

Stratified folds with a fixed seed divide the rows. A combination that is fitted on the other folds predicts each fold,
so a row is never predicted by a combination that saw it. Where members are selected too, they are selected again on the
rows of each fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysent.ensembles.methods import FittedMethod, fit
from raysent.ensembles.predictions import MemberPredictions, PredictionsLike, as_predictions, as_targets
from raysent.evaluation.protocols.fast import stratified_folds
from raysent.evaluation.targets import Float64, Int64, Targets

NUM_FOLDS = 5
FOLD_SEED = 2222

Select = Callable[[Int64], Sequence[int]]
"""Rows, as places among those given -> the members that are selected on them."""


@dataclass(frozen=True)
class CrossFitted:
    """A method on rows that trained no member.

    Attributes:
        fitted: The method, fitted on all rows.
        in_sample: Log-probabilities by the fit on all rows, float64 [rows, classes].
        held_out: Out-of-fold log-probabilities, float64 [rows, classes].
        members: Places of the members that it was fitted to; None for all.
    """

    fitted: FittedMethod
    in_sample: Float64
    held_out: Float64
    members: Sequence[int] | None = None

    def predict(self, log_probabilities: PredictionsLike) -> Float64:
        """Return the combination of all members' log-probabilities [members, rows, classes], [rows, classes]."""
        return self.fitted.combination(_selected(as_predictions(log_probabilities), self.members))

    @property
    def is_replaced(self) -> bool:
        """Whether the method is `guarded` and is the best member, because the rule that it guards scores lower."""
        return bool(self.fitted.diagnostics.get("is_replaced", 0.0))


def cross_fit(
    log_probabilities: PredictionsLike,
    labels: Targets | npt.ArrayLike,
    *,
    method: str = "validation",
    select: Select | None = None,
) -> CrossFitted:
    """Fit a method on all rows, and predict each row by a fit that did not see it.

    Args:
        log_probabilities: As for `fit`.
        labels: The rows' classes, [rows]; for rated pairs `Targets`.
        method: A name in `METHODS`.
        select: Selects the members that the method is fitted to; None for all.

    Raises:
        ConfigError: If the method is unknown.
        DataError: As `fit`.
    """
    predictions = as_predictions(log_probabilities)
    targets = as_targets(labels, predictions)
    members = None if select is None else select(np.arange(len(targets)))
    kept = _selected(predictions, members)
    fitted = fit(kept, targets, method=method)
    out_of_fold = held_out(predictions, targets, method=method, select=select)
    return CrossFitted(fitted, fitted.combination(kept), out_of_fold, members)


def held_out(predictions: MemberPredictions, targets: Targets, *, method: str, select: Select | None = None) -> Float64:
    """Return out-of-fold log-probabilities, float64 [rows, classes]; a single row is predicted by a fit on itself."""
    predicted = np.empty(predictions.shape[1:])
    single = np.arange(len(targets))
    for training, unseen in list(folds_of(targets.labels)) or [(single, single)]:
        kept = _selected(predictions, None if select is None else select(training))
        combination = fit(kept.take(training), targets.take(training), method=method).combination
        predicted[unseen] = combination(kept.take(unseen))
    return predicted


def _selected(predictions: MemberPredictions, members: Sequence[int] | None) -> MemberPredictions:
    """Return the predictions of some members; of all for None."""
    return predictions if members is None else predictions.select(members)


def folds_of(labels: np.ndarray, *, seed: int = FOLD_SEED) -> Iterator[tuple[Int64, Int64]]:
    """Yield per fold the rows to fit on and the rows held out, int64; every row is held out once.

    Args:
        labels: The rows' classes, [rows]. Fewer rows than `NUM_FOLDS` make as many folds as rows, a single row none.
        seed: Of the division; folds within a fold need another seed.
    """
    num_folds = min(NUM_FOLDS, len(labels))
    if num_folds < 2:
        return
    folds = stratified_folds(labels, num_folds, seed=seed)
    for fold in range(num_folds):
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
