"""The papers' tables and claims as graphs of runs: `papers/*.yaml` -> models, scores beside reported ones, verdicts.

files.py    a paper's file -> its models, tables and claims at one scale
making.py   one model of the graph -> its folder; a finished one is kept
scores.py   models and tables -> scores; arms of a claim -> a verdict
scale.py    the scale `paper` of sweeps
commands.py the command `reproduce`
protocols/  the protocols of the papers and of SentEval; tasks/ those of SentEval's folder layout
run.py      `reproduce`: all of it, resumable; `plan_reproduction`: its parameters, steps, hours and dollars
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
