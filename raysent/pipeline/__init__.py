"""The public API: what the commands do, as functions, and `Sweep`, the result of a sweep.

    sweep -> evaluate the best trials -> combine them -> write a report

Each function takes names, paths and plain values, checks them before anything starts, and returns one object. A wrong
value raises a `RaysentError` with one line. Progress goes to standard error; `progress=False` turns it off.

results.py      what the functions return: plan, trained run, sweep with its trials, models, scores and report; `track`
arguments.py    what the functions are given, read and checked: a space, overrides, tasks, a folder
loading.py      `load`: what a folder holds. It imports nothing that only training or searching needs
sweeps.py       sweeps: planned, run and resumed
health.py       `doctor`: files checked
installed.py    `components`: what is installed
training.py     training of one run: of a space, or of a finished trial again
adapting.py     `adapt`: whether training on a text helps a model
distillation.py `distill`: one model learns what another, or an ensemble, returns
derived.py      models expanded, averaged, composed and whitened, and vectors turned into codes, without training
clusters.py     clusters on AWS, and sweeps submitted to them
vectors.py      files and corpora encoded
file_names.py   names of files that functions are given, checked
predictions.py  `predict`: the labels of the rows of a file, by a model that predicts a task
ray_predictions.py  its blocks of rows on a cluster
labels.py       `label`: the rows of a table to label next, and labels that may be wrong
evaluation.py   models evaluated on tasks, with all labels or few, and combined into ensembles
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
