"""Rows of a user's table -> train, validation and test, or folds; whole groups stay together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raysent.data.tables import Table, as_labels
from raysent.errors import DataError
from raysent.evaluation.task import (
    NO_ROWS,
    Split,
)
from raysent.evaluation.task_files.columns import Columns
from raysent.evaluation.task_files.settings import Fractions, TaskSettings

# What a value of a split column, a file's key or a `datasets` split is called -> the split.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "development", "trial"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
NUM_FOLDS = 10


@dataclass(frozen=True)
class Division:
    """How rows are divided."""

    split: Split
    note: str
    train: np.ndarray = field(default_factory=lambda: NO_ROWS)
    validation: np.ndarray = field(default_factory=lambda: NO_ROWS)
    test: np.ndarray = field(default_factory=lambda: NO_ROWS)
    folds: np.ndarray = field(default_factory=lambda: NO_ROWS)
    warnings: list[str] = field(default_factory=list)


def divide(
    settings: TaskSettings,
    table: Table,
    columns: Columns,
    *,
    labels: np.ndarray,
    is_scored: bool,
    groups: Sequence[str | None] | None,
) -> Division:
    """Divide rows by parts, by a column, by fractions, or into folds."""
    numbers = group_numbers(groups, len(labels))
    parts = _given_parts(table, columns)
    if parts is not None and "test" not in parts and "validation" not in parts:
        parts = None
    if parts is None and (isinstance(settings.split, Fractions) or is_scored):
        fractions = settings.split if isinstance(settings.split, Fractions) else Fractions(seed=settings.seed)
        parts = _drawn_parts(labels, numbers, fractions)
        drawn = " in whole groups" if groups is not None else ""
        return _by_parts(table, parts, settings, labels, numbers, is_scored=is_scored, how=f", drawn{drawn}")
    if parts is not None:
        return _by_parts(table, parts, settings, labels, numbers, is_scored=is_scored, how="")
    folds = _folds(settings, table, labels, numbers, has_groups=groups is not None)
    how = ", given" if isinstance(settings.folds, str) else " in whole groups" if groups is not None else ""
    num_folds = int(folds.max()) + 1 if len(folds) else NUM_FOLDS
    return Division("nested", f"nested cross-validation, {num_folds} folds{how}", folds=folds)


def group_numbers(groups: Sequence[str | None] | None, num_rows: int) -> np.ndarray:
    """Return the number of each row's group, int64 [rows]; a row without a group is one."""
    if groups is None:
        return np.arange(num_rows)
    keys = [("row", str(row)) if group is None else ("group", group) for row, group in enumerate(groups)]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([places[key] for key in keys], dtype=np.int64)


def _given_parts(table: Table, columns: Columns) -> dict[str, np.ndarray] | None:
    """Return the rows of each given split, or None."""
    if table.parts:
        named = {split: SPLIT_NAMES.get(split.lower()) for split in table.parts}
        found = {part: table.parts[split] for split, part in named.items() if part is not None}
        return found or None
    if columns.split is None:
        return None
    rows: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for row, value in enumerate(table.column(columns.split, key="split")):
        part = SPLIT_NAMES.get(str(value).strip().lower())
        if part is None:
            raise DataError(
                f"{table.where(row)}: split '{columns.split}' must be train, validation or test; given '{value}'"
            )
        rows[part].append(row)
    return {part: np.array(found, dtype=np.int64) for part, found in rows.items() if found}


def _drawn_parts(labels: np.ndarray, groups: np.ndarray, fractions: Fractions) -> dict[str, np.ndarray]:
    """Draw whole groups for test and validation, class by class where every row is its own group."""
    generator = np.random.default_rng(fractions.seed)
    if len(np.unique(groups)) == len(groups):
        order = np.concatenate([generator.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)])
        # Of each class, the ranks spread evenly over [0, 1).
        counts = Counter(labels.tolist())
        ranks = np.concatenate([(np.arange(counts[label]) + 0.5) / counts[label] for label in np.unique(labels)])
    else:
        shuffled = generator.permutation(np.unique(groups))
        order = np.concatenate([np.flatnonzero(groups == group) for group in shuffled])
        sizes = np.array([np.sum(groups == group) for group in shuffled])
        ranks = np.repeat(np.cumsum(sizes) / len(groups) - 1e-9, sizes)
    limits = {"test": fractions.test, "validation": fractions.test + fractions.validation, "train": 1.0}
    parts, before = {}, 0.0
    for part, limit in limits.items():
        rows = np.sort(order[(ranks >= before) & (ranks < limit)])
        before = limit
        if len(rows):
            parts[part] = rows
    return parts


def _by_parts(
    table: Table,
    parts: Mapping[str, np.ndarray],
    settings: TaskSettings,
    labels: np.ndarray,
    groups: np.ndarray,
    *,
    is_scored: bool,
    how: str,
) -> Division:
    """Return a division by given or drawn splits; a missing validation split is made of train."""
    if "train" not in parts:
        raise DataError(f"{table.source}: split: must have train rows; given {', '.join(parts) or 'none'}")
    train, test = parts["train"], parts.get("test", NO_ROWS)
    validation = parts.get("validation", NO_ROWS)
    warnings = []
    if not len(test):
        test, validation = validation, NO_ROWS
        warnings.append("no test rows; the validation rows are the test rows, and train alone chooses")
    if is_scored and not len(validation):
        drawn = _drawn_parts(labels[train], groups[train], Fractions(validation=0, test=0.15, seed=settings.seed))
        if "train" not in drawn or "test" not in drawn:
            raise DataError(f"{table.source}: score: must have validation rows, or more train rows to draw them of")
        train, validation = train[drawn["train"]], train[drawn["test"]]
        how = ", validation drawn of train"
    sizes = f"{len(train):,} train, {len(validation):,} validation and {len(test):,} test rows{how}"
    if len(validation):
        return Division("train-validation-test", sizes, train, validation, test, warnings=warnings)
    folds = NO_ROWS
    if len(np.unique(groups[train])) < len(train):
        folds = np.zeros(len(labels), dtype=np.int64)
        folds[train] = _grouped_folds(table, labels[train], groups[train], NUM_FOLDS, settings.seed)
    return Division("train-test", sizes, train, NO_ROWS, test, folds, warnings)


def _folds(
    settings: TaskSettings, table: Table, labels: np.ndarray, groups: np.ndarray, *, has_groups: bool
) -> np.ndarray:
    """Return the fold of each row, int64 [rows]; empty if the protocol may draw its own."""
    if isinstance(settings.folds, str):
        names = as_labels(table.column(settings.folds, key="folds"))
        places = {name: place for place, name in enumerate(sorted({str(name) for name in names}))}
        if not 3 <= len(places) <= 20:
            raise DataError(f"{table.source}: folds '{settings.folds}': must name 3 to 20 folds; given {len(places)}")
        return np.array([places[str(name)] for name in names], dtype=np.int64)
    num_folds = settings.folds or NUM_FOLDS
    if not has_groups and settings.folds is None and settings.seed == 0 and len(labels) >= NUM_FOLDS:
        return NO_ROWS
    return _grouped_folds(table, labels, groups, num_folds, settings.seed)


def _grouped_folds(table: Table, labels: np.ndarray, groups: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """Return seeded stratified folds of whole groups, int64 [rows]."""
    num_folds = min(num_folds, len(np.unique(groups)))
    if num_folds < 3:
        raise DataError(f"{table.source}: must have at least 3 groups of rows for cross-validation; given {num_folds}")
    from sklearn.model_selection import StratifiedGroupKFold  # noqa: PLC0415 - a second that only such tasks need

    splitter = StratifiedGroupKFold(num_folds, shuffle=True, random_state=seed)
    folds = np.zeros(len(labels), dtype=np.int64)
    for fold, (_, rows) in enumerate(splitter.split(np.zeros(len(labels)), labels, groups)):
        folds[rows] = fold
    # Large groups can leave a fold empty.
    return np.unique(folds, return_inverse=True)[1].astype(np.int64)


def division_warnings(
    texts: Sequence[list[str]],
    division: Division,
    labels: np.ndarray,
    groups: Sequence[str | None] | None,
    names: Sequence[str],
) -> list[str]:
    """Return warnings of rows that are in two splits, or repeated."""
    found = []
    rows = list(zip(*texts, strict=True))
    if division.split == "nested":
        num_repeated = len(rows) - len(set(rows))
        if num_repeated:
            found.append(f"{num_repeated} rows repeat the text of another row and may be in another fold; see group")
        counts = np.bincount(labels, minlength=len(names))
        rare = [name for name, count in zip(names, counts, strict=True) if count < NUM_FOLDS]
        if rare:
            found.append(f"fewer than {NUM_FOLDS} rows of {', '.join(rare[:5])}: not every fold has one")
        return found
    trained = {rows[row] for row in (*division.train, *division.validation)}
    num_shared = sum(rows[row] in trained for row in division.test)
    if num_shared:
        found.append(f"{num_shared} test rows have the text of a train or validation row; test scores are too high")
    if groups is not None:
        both = {groups[row] for row in division.test} & {groups[row] for row in (*division.train, *division.validation)}
        if both - {None}:
            found.append(f"{len(both - {None})} groups are in test and in train or validation; see split")
    return found
