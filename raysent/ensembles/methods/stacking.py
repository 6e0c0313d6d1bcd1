"""Stacking: a logistic regression on all members' log-probabilities, also called the super learner.

Cross-fitted NLL chooses the strength of its L2 penalty; of equals, the strongest. -inf counts as `LOWEST_FEATURE`.

Source: Wolpert, 1992; van der Laan, Polley and Hubbard, 2007.
"""

from __future__ import annotations

import numpy as np

from raysent.ensembles.cross_fitting import folds_of
from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.pools import LOG_ZERO, LOWEST_FEATURE, Regression
from raysent.ensembles.predictions import MemberPredictions
from raysent.errors import ConfigError
from raysent.evaluation.targets import Float64, Targets

COSTS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
MAX_STEPS = 100
# A Newton step solves a linear system in this many unknowns.
MAX_COEFFICIENTS = 4000
SEED = 3333


def stack(predictions: MemberPredictions, targets: Targets) -> tuple[Regression, Diagnostics]:
    """Logistic regression of the classes on all members' log-probabilities.

    Raises:
        ConfigError: If there are too many coefficients to fit, members x classes x classes.
    """
    members, rows, classes = predictions.shape
    if members * classes**2 > MAX_COEFFICIENTS:
        raise ConfigError(
            f"method stack: must fit members x classes x classes coefficients, at most {MAX_COEFFICIENTS:,}; given "
            f"{members} x {classes} x {classes}; use method pool"
        )
    features = np.stack([np.maximum(member, LOWEST_FEATURE) for member in predictions.members()], axis=1)
    flat = features.reshape(rows, members * classes)
    cost = _choose_cost(flat, targets.labels, classes)
    coefficients, intercepts = _regression(flat, targets.labels, classes, cost)
    return Regression(coefficients.reshape(members, classes, classes), intercepts), {"cost": cost}


METHODS = {"stack": stack}


def _choose_cost(features: Float64, labels: np.ndarray, classes: int) -> float:
    totals = np.zeros(len(COSTS))
    for training, held_out in folds_of(labels, seed=SEED):
        for index, cost in enumerate(COSTS):
            coefficients, intercepts = _regression(features[training], labels[training], classes, cost)
            scores = features[held_out] @ coefficients + intercepts
            right = scores[np.arange(len(held_out)), labels[held_out]]
            totals[index] += float((np.logaddexp.reduce(scores, axis=1) - right).sum())
    return COSTS[int(totals.argmin())]


def _regression(features: Float64, labels: np.ndarray, classes: int, cost: float) -> tuple[Float64, Float64]:
    """Return coefficients [features, classes] and intercepts [classes]; a class without rows gets `LOG_ZERO`."""
    present = np.unique(labels)
    coefficients, intercepts = np.zeros((features.shape[1], classes)), np.full(classes, LOG_ZERO)
    intercepts[present] = 0.0
    if len(present) == 1:
        return coefficients, intercepts
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - it takes seconds to import, and most commands do without

    fitted = LogisticRegression(C=cost, max_iter=MAX_STEPS, solver="newton-cholesky").fit(features, labels)
    if len(present) == 2:  # scikit-learn fits one output, of the second class
        coefficients[:, present[1]], intercepts[present[1]] = fitted.coef_[0], fitted.intercept_[0]
    else:
        coefficients[:, present], intercepts[present] = fitted.coef_.T, fitted.intercept_
    return coefficients, intercepts
