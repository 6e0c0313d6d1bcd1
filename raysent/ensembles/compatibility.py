"""Which members may be mixed: only those whose log-probabilities mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raysent.errors import ArtifactError
from raysent.evaluation.records import Record

# What must be equal, in the order of asking, and the word for it.
ALIKE = {"task": "task", "protocol": "protocol", "label_names": "classes", "row_hash": "rows", "kind": "kind of row"}


def check_compatible(records: Sequence[Record]) -> None:
    """Check that members were judged alike on one task, row by row.

    Raises:
        ArtifactError: If they were not, naming the first two members that differ and in what; or if a member's
            protocol keeps no log-probabilities.
    """
    first = records[0]
    for other in records[1:]:
        for attribute, word in ALIKE.items():
            _check_same(first, other, word, (getattr(first, attribute), getattr(other, attribute)))
    for record in records:
        _check_complete(record)
    for other in records[1:]:
        _check_same(first, other, "number of folds", (len(first.folds), len(other.folds)))
        if not all(map(_are_same_rows, first.folds, other.folds)):
            raise ArtifactError(
                f"{first.task}: members must be judged on the same folds; '{first.model}' and '{other.model}' "
                "differ; evaluate them together"
            )


def check_candidates(pools: Mapping[str, str]) -> None:
    """Check that members' context predictions are over the same candidates.

    Args:
        pools: Member -> the hash of the validation pool whose candidates it was asked about.

    Raises:
        ArtifactError: If two members had different pools.
    """
    (first, pool), *others = pools.items()
    for other, theirs in others:
        if theirs != pool:
            raise ArtifactError(
                f"context prediction: members must be asked about the same candidates; '{first}' has pool {pool}, "
                f"'{other}' has {theirs}; give both the same corpus and validation settings"
            )


def _check_same(first: Record, other: Record, word: str, values: tuple[object, object]) -> None:
    if values[0] != values[1]:
        raise ArtifactError(
            f"{first.task}: members must be judged on the same {word}; '{first.model}' has {_short(values[0])}, "
            f"'{other.model}' has {_short(values[1])}; evaluate them together"
        )


def _check_complete(record: Record) -> None:
    """Check that every row has its log-probabilities: some protocols keep scores alone."""
    classes = len(record.label_names)
    for fold in record.folds or (None,):
        pairs = (
            []
            if fold is None
            else [
                (fold.validation_rows, fold.validation_log_probabilities),
                (fold.test_rows, fold.test_log_probabilities),
            ]
        )
        if not pairs or any(np.shape(answers) != (len(rows), classes) for rows, answers in pairs):
            raise ArtifactError(
                f"{record.task}: an ensemble needs log-probabilities of every row; '{record.model}', judged by "
                f"protocol {record.protocol}, has none; judge it by protocol fast"
            )


def _are_same_rows(one: object, other: object) -> bool:
    names = ("validation_rows", "test_rows")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def _short(value: object) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
