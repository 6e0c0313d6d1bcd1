"""The honest score of a method: whatever it chooses, it chooses without the rows it is scored on.

The rows are divided into stratified folds with a fixed seed; each is answered by a combination fitted on the others.
A method that does worse than the best single member, which is chosen within the same folds, is replaced by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysent.ensemble.answers import Answers, Float64, Source, as_answers
from raysent.ensemble.folds import divisions
from raysent.ensemble.methods import Fit, fit
from raysent.ensemble.truth import Truth, as_truth

BEST = "best"


@dataclass(frozen=True)
class CrossFitted:
    """A method on rows that trained no member.

    Attributes:
        fit: Fitted on all rows: by the method, or the best member where `is_replaced`.
        is_replaced: Whether the method did worse than the best single member.
        in_sample: Log-probabilities by the fit on all rows, float64 [rows, classes].
        held_out: Log-probabilities by fits that did not see the row, float64 [rows, classes].
    """

    fit: Fit
    is_replaced: bool
    in_sample: Float64
    held_out: Float64


def cross_fit(
    log_probabilities: Answers | Sequence[Source] | np.ndarray,
    labels: Truth | npt.ArrayLike,
    *,
    method: str = "validation",
) -> CrossFitted:
    """Fit a method and its honest answers; the best member stands in where the method does worse.

    Args:
        log_probabilities: As for `fit`.
        labels: The rows' classes, [rows]; of scored pairs a `Truth`.
        method: A name in `METHODS`.

    Raises:
        ConfigError: If the method is unknown.
        DataError: As `fit`.
    """
    answers = as_answers(log_probabilities)
    truth = as_truth(labels, answers)
    found = _as_it_is(answers, truth, method)
    if method == BEST:
        return found
    best = _as_it_is(answers, truth, BEST)
    is_worse = truth.score(found.held_out) < truth.score(best.held_out)
    return CrossFitted(best.fit, True, best.in_sample, best.held_out) if is_worse else found


def held_out(answers: Answers, truth: Truth, *, method: str) -> Float64:
    """Return the log-probabilities of each row by a fit on the other folds; of a single row, by a fit on itself."""
    answered = np.empty(answers.shape[1:])
    alone = np.arange(len(truth))
    for fitted, unseen in list(divisions(truth.labels)) or [(alone, alone)]:
        combination = fit(answers.take(fitted), truth.take(fitted), method=method).combination
        answered[unseen] = combination(answers.take(unseen))
    return answered


def _as_it_is(answers: Answers, truth: Truth, method: str) -> CrossFitted:
    fitted = fit(answers, truth, method=method)
    return CrossFitted(fitted, False, fitted.combination(answers), held_out(answers, truth, method=method))
