"""The papers' tables and claims as graphs of runs: `papers/*.yaml` -> models, scores beside reported ones, verdicts.

files.py    a paper's file -> its models, tables and claims at one scale
making.py   one model of the graph -> its folder; a finished one is kept
scores.py   models and tables -> scores; arms of a claim -> a verdict
run.py      `reproduce`: all of it, resumable; `plan_reproduction`: its parameters, steps, hours and dollars
"""

from raysent.reproduction.files import Scale, known_papers, read_paper
from raysent.reproduction.run import (
    ModelEstimate,
    Reproduction,
    estimate,
    plan_reproduction,
    reproduce,
)
from raysent.reproduction.scores import ClaimResult, TableResult

__all__ = [
    "ClaimResult",
    "ModelEstimate",
    "Reproduction",
    "Scale",
    "TableResult",
    "estimate",
    "known_papers",
    "plan_reproduction",
    "read_paper",
    "reproduce",
]
