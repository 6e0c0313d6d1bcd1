"""Ensembles of sentence encoders.

`combine` evaluates models, fits a combination of their predictions on each task, scores it beside other methods and
each member alone, and saves `ensemble.json`. `load_ensemble` reads it back as an encoder that also predicts.

The base rule: on each task every member has its own probe, its weight is its validation score over the sum of all
members' scores, and the ensemble averages log-probabilities with these weights. Other methods are files in `methods/`.
Every method's score is cross-validated and stands beside those of the base rule, of equal weights, and of the best
single member. A row follows its rule and no other.

predictions.py      members' log-probabilities and their targets
pools.py            pools and regressions: [members, rows, classes] -> [rows, classes]
methods/            how a combination is fitted; one file per family
cross_fitting.py    out-of-fold predictions
calibration.py      temperatures, and thresholds below which a row stays unanswered
measures.py         scores with intervals, calibration, diversity
task_ensemble.py    members' records of one task -> the ensemble on it
costs.py            what members cost
combine.py          all of it, for models on several tasks
best.py             the one model to take on a task, chosen among everything that was scored
answer.py           what it is worth, and what simpler things give, in sentences
result.py           ensemble.json
label_curves.py     scores against the number of labels
labelling.py        which rows to label next, and which labels are suspected
front.py            score against the time to encode: a student beside its teachers, an ensemble and its members
ensemble.py         the saved ensemble as an encoder
fusion.py           encoders and words that rank the passages of a task together, as a saved model
predictor.py        what predicts new rows of a task: an ensemble, or a single model by its record
"""

from __future__ import annotations

from raysent.ensembles.answer import Answer, Candidate, answer_lines, answer_values, commands
from raysent.ensembles.best import Prefer, choose, save_best, save_encoder
from raysent.ensembles.combine import ALL, combine, default_folder
from raysent.ensembles.costs import MemberCost, total_cost
from raysent.ensembles.cross_fitting import CrossFitted, cross_fit
from raysent.ensembles.ensemble import Ensemble, load_ensemble
from raysent.ensembles.front import FrontRow, student_front, write_front
from raysent.ensembles.fusion import FusedModel, FusionResult, read_answers, save_fusion
from raysent.ensembles.label_curves import (
    DEFAULT_SIZES,
    LabelCurve,
    label_curve,
    parse_sizes,
    read_curves,
    write_curves,
)
from raysent.ensembles.methods import ENSEMBLE, METHODS, EnsembleMethod, FittedMethod, check_method, fit
from raysent.ensembles.pools import Combination, linear_pool, pool
from raysent.ensembles.predictions import MemberPredictions
from raysent.ensembles.result import EnsembleResult, read_result
from raysent.evaluation.targets import Targets

__all__ = [
    "ALL",
    "DEFAULT_SIZES",
    "ENSEMBLE",
    "METHODS",
    "Answer",
    "Candidate",
    "Combination",
    "CrossFitted",
    "Ensemble",
    "EnsembleMethod",
    "EnsembleResult",
    "FittedMethod",
    "FrontRow",
    "FusedModel",
    "FusionResult",
    "LabelCurve",
    "MemberCost",
    "MemberPredictions",
    "Prefer",
    "Targets",
    "answer_lines",
    "answer_values",
    "check_method",
    "choose",
    "combine",
    "commands",
    "cross_fit",
    "default_folder",
    "fit",
    "label_curve",
    "linear_pool",
    "load_ensemble",
    "parse_sizes",
    "pool",
    "read_answers",
    "read_curves",
    "read_result",
    "save_best",
    "save_encoder",
    "save_fusion",
    "student_front",
    "total_cost",
    "write_curves",
    "write_front",
]
