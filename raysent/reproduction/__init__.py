"""The papers' tables and claims as graphs of runs: `papers/*.yaml` -> models, scores beside reported ones, verdicts.

files.py    a paper's file -> its models, tables and claims at one scale
cost.py     the graph before it runs: parameters, steps, hours, dollars
making.py   one model of the graph -> its folder; a finished one is kept
scores.py   models and tables -> scores; arms of a claim -> a verdict
run.py      `reproduce`: all of it, resumable
"""

from __future__ import annotations

from raysent.reproduction.cost import ModelEstimate, estimate
from raysent.reproduction.files import Scale, known_papers, read_paper
from raysent.reproduction.run import Reproduction, claims_page, reproduce, wanted_models
from raysent.reproduction.scores import ClaimResult, TableResult

__all__ = [
    "ClaimResult",
    "ModelEstimate",
    "Reproduction",
    "Scale",
    "TableResult",
    "claims_page",
    "estimate",
    "known_papers",
    "read_paper",
    "reproduce",
    "wanted_models",
]
