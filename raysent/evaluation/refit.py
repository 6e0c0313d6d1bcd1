"""The last fit of a probe: on every labelled row of a table, once its score is known.

In: a record, whose probe was fitted on the rows that train, and the rows of its task. Out: the same record with a probe
that is fitted on the rows that tested too, at the C that was chosen without them. Its scores and its predictions of
rows stay those of the fits that had not seen these rows.

Rows that a table itself names as its test, and those of a published test, are never fitted: who names them compares on
them again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from raysent.evaluation.probes.features import Encode, task_features
from raysent.evaluation.probes.lexical import lexical_fits
from raysent.evaluation.probes.results import Probe
from raysent.evaluation.protocols.fast import Solver, dense_fits
from raysent.evaluation.records import Record
from raysent.evaluation.task import NO_ROWS, TaskData
from raysent.models.schemes.tfidf import LexicalModel

# Of `Record.about`: the number of rows that fitted its probe.
NUM_FITTED = "num_fitted"


def can_refit(record: Record, data: TaskData) -> bool:
    """Return whether the rows that tested a record may fit its probe.

    Args:
        record: The record.
        data: The rows that it was made of, divided as they were.
    """
    is_of_rows = record.row_hash == data.row_hash and len(record.folds) == 1
    is_plain = not record.score.learned and not record.about.get("own_layer")
    is_whole = not record.about.get("limited")
    has_strength = is_of_rows and record.folds[0].strength is not None
    is_drawn = data.is_drawn or data.has_drawn_test
    return is_drawn and has_strength and is_plain and is_whole


def refit(record: Record, data: TaskData, encoder: LexicalModel | Encode) -> Record:
    """Return a record with a probe that is fitted on all rows; see `can_refit`.

    Args:
        record: The record.
        data: Its rows.
        encoder: What encodes their texts; or TF-IDF, which counts its words on all rows too.
    """
    strength = record.folds[0].strength
    assert strength is not None
    every_row = np.arange(len(data))
    whole = replace(
        data, split="train-test", train=every_row, validation=NO_ROWS, test=NO_ROWS, folds=NO_ROWS
    )
    arrays = record.arrays
    if isinstance(encoder, LexicalModel):
        fits, arrays = lexical_fits(encoder, whole)
        probe = _fitted(fits, len(data), strength)
    else:
        probe = _fitted(dense_fits(task_features(encoder, whole), whole), len(data), strength)
    return replace(
        record,
        probe=probe,
        arrays=arrays,
        about={**record.about, NUM_FITTED: len(data)},
    )


def _fitted(fits: Solver, num_rows: int, strength: float) -> Probe:
    trains = torch.ones(num_rows, 1, dtype=torch.bool)
    solution = fits.solve(trains, torch.tensor([strength]))
    return fits.probe(solution, 0, strength)
