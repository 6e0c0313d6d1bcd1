"""Several encoders as one. In: models or a sweep. Out: per-task combinations and scores, and `ensemble.json`.

The base rule: on each task every member fits its own probe, its weight is its validation score over the sum of all
members' scores, and log-probabilities are averaged with these weights. Other methods are files in `methods/`. Equal
shares and the best single member are always reported beside whatever was asked for, and every method's score is
cross-fitted. Importing this module lets `raysent.models.load` read ensembles.
"""

from __future__ import annotations

from raysent.ensembles.combination import linear_pool, pool
from raysent.ensembles.combine import ALL, combine
from raysent.ensembles.combined import EnsembleResult
from raysent.ensembles.compatibility import check_candidates, check_compatible
from raysent.ensembles.cost import Choice, Cost
from raysent.ensembles.cross_fitting import CrossFitted, cross_fit
from raysent.ensembles.methods import METHODS, Fit, check_method, fit
from raysent.ensembles.outcomes import Outcome, TaskOutcome, task_outcome
from raysent.ensembles.predictions import Truth
from raysent.ensembles.saved import SentenceEnsemble, load_ensemble
from raysent.models import register_loader
from raysent.storage.layout import ENSEMBLE_FILE

__all__ = [
    "ALL",
    "METHODS",
    "Choice",
    "Cost",
    "CrossFitted",
    "EnsembleResult",
    "Fit",
    "Outcome",
    "SentenceEnsemble",
    "TaskOutcome",
    "Truth",
    "check_candidates",
    "check_compatible",
    "check_method",
    "combine",
    "cross_fit",
    "fit",
    "linear_pool",
    "load_ensemble",
    "pool",
    "task_outcome",
]

register_loader(ENSEMBLE_FILE, load_ensemble)
