"""Methods that fit next to nothing: pools weighted by members' validation scores alone, and the most frequent class.

Source: Logeswaran and Lee, 2018, Table 3 (the base rule, `validation`).
"""

from __future__ import annotations

import numpy as np

from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.pools import LogarithmicPool, Regression, normalized_weights
from raysent.ensembles.predictions import MemberPredictions
from raysent.evaluation.targets import Targets


def _weigh_by_score(
    predictions: MemberPredictions, targets: Targets
) -> tuple[LogarithmicPool, Diagnostics]:
    """Weights proportional to validation scores, w_m = s_m / sum of s; equal if all scores are zero."""
    return LogarithmicPool(normalized_weights(predictions.member_scores(targets))), {}


def _weigh_equally(
    predictions: MemberPredictions, targets: Targets
) -> tuple[LogarithmicPool, Diagnostics]:
    """Equal weights."""
    del targets
    members = predictions.shape[0]
    return LogarithmicPool(np.full(members, 1 / members)), {}


def _select_best(
    predictions: MemberPredictions, targets: Targets
) -> tuple[LogarithmicPool, Diagnostics]:
    """All weight on the member of the best validation score, the first of equals."""
    scores = predictions.member_scores(targets)
    weights = np.zeros(len(scores))
    weights[scores.argmax()] = 1.0
    return LogarithmicPool(weights), {}


def most_frequent(
    predictions: MemberPredictions, targets: Targets
) -> tuple[Regression, Diagnostics]:
    """The classes' parts of the rows as probabilities, each with half a row more, so that none is 0.

    Where no model is better, nothing else is worth its time.
    """
    members, _, classes = predictions.shape
    counts = np.bincount(targets.labels, minlength=classes) + 0.5
    return Regression(np.zeros((members, classes, classes)), np.log(counts / counts.sum())), {}


METHODS = {
    "validation": _weigh_by_score,
    "uniform": _weigh_equally,
    "best": _select_best,
    "majority": most_frequent,
}
