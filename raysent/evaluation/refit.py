"""The last fit of a probe: on every labelled row of a table, once its score is known.

In: a record, whose probe was fitted on the rows that train, and the rows of its task. Out: the same record with a probe
that is fitted on the rows that tested too, at the C that was chosen without them. Its scores and its predictions of
rows stay those of the fits that had not seen these rows. Digests of all rows that fitted it go along, so that a reader
who predicts them again learns that it has seen them; and the earlier probe stays beside it, for what is compared on the
test rows: `as_scored` returns it.

Rows that a table itself names as its test, and those of a published test, are never fitted: who names them compares on
them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from raysent.data.same_text import words_of
from raysent.evaluation.probes.features import Encode, task_features
from raysent.evaluation.probes.results import Probe
from raysent.evaluation.records import Record
from raysent.evaluation.task import NO_ROWS, TaskData
from raysent.models.schemes.tfidf import LexicalModel

if TYPE_CHECKING:
    from raysent.evaluation.protocols.fast import Solver

# Of `Record.about`: the number of rows that fitted its probe.
NUM_FITTED = "num_fitted"
# Of `Record.arrays`: digests of the rows that fitted its probe, uint64 [rows].
FITTED_ROWS = "fitted_rows"
# Begin the names of what belongs to the probe before the last fit.
_SCORED = "scored_"
_WEIGHTS = f"{_SCORED}probe_weights"
_INTERCEPTS = f"{_SCORED}probe_intercepts"
_DIGEST_BYTES = 8

UInt64 = npt.NDArray[np.uint64]
NO_DIGESTS: UInt64 = np.empty(0, dtype=np.uint64)


def row_digests(columns: Sequence[Sequence[str]]) -> UInt64:
    """Return a digest of each row's words, uint64 [rows]: equal for rows that count as copies of one another.

    Args:
        columns: The texts of each column [columns][rows].
    """
    digests = []
    for texts in zip(*columns, strict=True):
        words = "\n".join(map(words_of, texts)).encode("utf-8", "replace")
        digests.append(hashlib.blake2b(words, digest_size=_DIGEST_BYTES).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8")


def can_refit(record: Record, data: TaskData) -> bool:
    """Return whether the rows that tested a record may fit its probe.

    Args:
        record: The record.
        data: The rows that it was made of, divided as they were.
    """
    is_of_rows = record.row_hash == data.row_hash and len(record.folds) == 1
    is_plain = not record.score.learned and not record.about.get("own_layer")
    is_complete = not record.about.get("limited")
    has_strength = is_of_rows and record.folds[0].strength is not None
    is_drawn = data.is_drawn or data.has_drawn_test
    return is_drawn and has_strength and is_plain and is_complete


def refit(record: Record, data: TaskData, encoder: LexicalModel | Encode) -> Record:
    """Return a record with a probe that is fitted on all rows; see `can_refit`.

    Args:
        record: The record.
        data: Its rows.
        encoder: What encodes their texts; or TF-IDF, which counts its words on all rows too.
    """
    # Late, as PyTorch comes with them, and what predicts by a probe imports this module too.
    from raysent.evaluation.probes.lexical import lexical_fits  # noqa: PLC0415
    from raysent.evaluation.protocols.fast import dense_fits  # noqa: PLC0415

    strength = record.folds[0].strength
    assert strength is not None
    every_row = np.arange(len(data))
    undivided = replace(
        data, split="train-test", train=every_row, validation=NO_ROWS, test=NO_ROWS, folds=NO_ROWS
    )
    arrays = dict(record.arrays)
    fits: Solver
    if isinstance(encoder, LexicalModel):
        fits, arrays = lexical_fits(encoder, undivided)
    else:
        fits = dense_fits(task_features(encoder, undivided), undivided)
    probe = _fitted(fits, len(data), strength)
    scored = {f"{_SCORED}{name}": array for name, array in record.arrays.items()}
    scored |= {_WEIGHTS: record.probe.weights, _INTERCEPTS: record.probe.intercepts}
    return replace(
        record,
        probe=probe,
        arrays={**arrays, **scored, FITTED_ROWS: row_digests(data.sentences)},
        about={**record.about, NUM_FITTED: len(data)},
    )


def as_scored(record: Record) -> Record:
    """Return a record with the probe that its score is of, which no test row has fitted."""
    if _WEIGHTS not in record.arrays:
        return record
    probe = Probe(record.arrays[_WEIGHTS], record.arrays[_INTERCEPTS], record.probe.strength)
    arrays = {
        name.removeprefix(_SCORED): array
        for name, array in record.arrays.items()
        if name.startswith(_SCORED) and name not in (_WEIGHTS, _INTERCEPTS)
    }
    about = dict(record.about)
    about.pop(NUM_FITTED, None)
    return replace(record, probe=probe, arrays=arrays, about=about)


def _fitted(fits: Solver, num_rows: int, strength: float) -> Probe:
    """Return the probe of a fit to all rows at one strength."""
    import torch  # noqa: PLC0415 - late, as above

    trains = torch.ones(num_rows, 1, dtype=torch.bool)
    solution = fits.solve(trains, torch.tensor([strength]))
    return fits.probe(solution, 0, strength)
