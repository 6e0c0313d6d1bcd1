"""Several encoders as one. In: models or a sweep. Out: per-task combinations and scores, and `ensemble.json`.

The base rule: on each task every member fits its own probe, its weight is its validation score over the sum of all
members' scores, and log-probabilities are averaged with these weights. Other methods are files in `methods/`. Equal
shares and the best single member are always reported beside whatever was asked for, and every method's score is
cross-fitted. Importing this module lets `raysent.model.load` read ensembles.
"""

from __future__ import annotations

from raysent.ensemble.combined import Combined
from raysent.ensemble.combining import ALL, combine
from raysent.ensemble.cost import Choice, Cost
from raysent.ensemble.cross_fitting import CrossFitted, cross_fit
from raysent.ensemble.methods import METHODS, Fit, check_method, fit
from raysent.ensemble.mixing import check_candidates, check_mixable
from raysent.ensemble.outcomes import Outcome, TaskOutcome, task_outcome
from raysent.ensemble.pooling import linear_pool, pool
from raysent.ensemble.saved import SentenceEnsemble, load_ensemble
from raysent.ensemble.truth import Truth
from raysent.evaluate.members import ENSEMBLE_FILE
from raysent.model import register_loader

__all__ = [
    "ALL",
    "METHODS",
    "Choice",
    "Combined",
    "Cost",
    "CrossFitted",
    "Fit",
    "Outcome",
    "SentenceEnsemble",
    "TaskOutcome",
    "Truth",
    "check_candidates",
    "check_method",
    "check_mixable",
    "combine",
    "cross_fit",
    "fit",
    "linear_pool",
    "load_ensemble",
    "pool",
    "task_outcome",
]

register_loader(ENSEMBLE_FILE, load_ensemble)
