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
combining.py        all of it, for models on several tasks
soup.py             the mean of the weights of trainings that began with one model
best.py             the one model to take on a task, chosen among everything that was scored
kinds.py            the best model of each kind of encoder together, and what each adds
answer.py           what it is worth, and what simpler things give, in sentences
result.py           ensemble.json, what members cost, and the front of a student beside its teachers
label_curves.py     scores against the number of labels
ensemble.py         the saved ensemble as an encoder
fusion.py           encoders and words that rank the passages of a task together, as a saved model
predictor.py        what predicts the tasks of a saved model, by their names
task_predictor.py   what predicts new rows of one task: an ensemble, or a single model by its record
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
