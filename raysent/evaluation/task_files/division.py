"""Rows of a user's table -> train, validation and test, or folds; whole groups stay together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raysent.data.tables import Table, as_labels
from raysent.errors import DataError
from raysent.evaluation.division import draw_rows, test_share
from raysent.evaluation.task import NO_ROWS, Split
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
    has_drawn_validation: bool = False  # as of `TaskData`


def divide(
    settings: TaskSettings,
    table: Table,
    columns: Columns,
    *,
    texts: Sequence[list[str]],
    labels: np.ndarray,
    strata: np.ndarray,
    is_scored: bool,
    groups: Sequence[str | None] | None,
) -> Division:
    """Divide rows by parts, by a column, by fractions, or as every table without these; see `evaluation.division`.

    Raises:
        DataError: If there are too few rows or groups.
    """
    numbers = group_numbers(groups, len(labels))
    parts = _given_parts(table, columns)
    how, is_by_row = "", False
    if parts is None or set(parts) == {"train"}:
        fractions = settings.split if isinstance(settings.split, Fractions) else None
        if fractions is None and is_scored:
            fractions = Fractions(seed=settings.seed)
        drawn_with = None if groups is None else numbers
        if isinstance(settings.folds, str):
            drawn_with = _named_folds(settings.folds, table)
        parts = _drawn_parts(table, texts, strata, drawn_with, fractions)
        whole = "folds" if isinstance(settings.folds, str) else "groups"
        how = ", drawn" + ("" if drawn_with is None else f" in whole {whole}")
        is_by_row = drawn_with is None and not is_scored
    found = _by_parts(table, parts, settings, texts, labels, numbers, is_scored=is_scored, how=how)
    if not (is_by_row and len(found.validation)):
        return found
    rows = np.concatenate([found.train, found.validation]).tolist()
    distinct = {tuple(column[row] for column in texts) for row in rows}
    # A copy in another fold would give a row's label away.
    return replace(found, has_drawn_validation=len(distinct) == len(rows))


def known_splits(table: Table) -> tuple[Table, list[str]]:
    """Return a table without the rows of splits that are neither train, validation nor test, and a line about them.

    Raises:
        DataError: If no split is.
    """
    unknown = [split for split in table.parts if split.lower() not in SPLIT_NAMES]
    if not unknown:
        return table, []
    kept = {split: rows for split, rows in table.parts.items() if split not in unknown}
    if not kept:
        raise DataError(
            f"{table.source}: splits must be train, validation or test; given {', '.join(unknown)}"
        )
    places = np.concatenate(list(kept.values()))
    num_left_out = len(table) - len(places)
    line = f"{num_left_out:,} rows of {', '.join(unknown)} left out; splits are train, validation and test"
    return replace(table, parts=kept).take(places), [line]


def group_numbers(groups: Sequence[str | None] | None, num_rows: int) -> np.ndarray:
    """Return the number of each row's group, int64 [rows]; a row without a group is one."""
    if groups is None:
        return np.arange(num_rows)
    keys = [
        ("row", str(row)) if group is None else ("group", group) for row, group in enumerate(groups)
    ]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([places[key] for key in keys], dtype=np.int64)


def _given_parts(table: Table, columns: Columns) -> dict[str, np.ndarray] | None:
    if table.parts:
        parts = dict[str, np.ndarray]()
        for split, places in table.parts.items():
            name = SPLIT_NAMES[split.lower()]
            parts[name] = np.concatenate([parts.get(name, NO_ROWS), places])
        return parts
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


def _drawn_parts(
    table: Table,
    texts: Sequence[list[str]],
    strata: np.ndarray,
    groups: np.ndarray | None,
    fractions: Fractions | None,
) -> dict[str, np.ndarray]:
    """Draw rows for test, of which some must be left, and, by fractions, for validation."""
    fractions_of = {"test": test_share(len(strata)), "validation": 0.0}
    if fractions is not None:
        fractions_of = {"test": fractions.test, "validation": fractions.validation}
    left, parts, before = np.arange(len(strata)), dict[str, np.ndarray](), 0.0
    for part, share in fractions_of.items():
        if share <= 0:
            continue
        rows = left[
            draw_rows(
                [[column[row] for row in left] for column in texts],
                strata[left],
                None if groups is None else groups[left],
                share=min(1.0, share / (1 - before)),
                seed=0 if fractions is None else fractions.seed,
            )
        ]
        if not len(rows):
            what = "rows" if groups is None else "groups"
            raise DataError(
                f"{table.source}: must have {what} that can be divided into train and {part}, with rows of every class "
                f"to train on; given {len(strata)} rows; name a split, or give more {what}"
            )
        parts[part], before = rows, before + share
        left = np.setdiff1d(left, rows)
    return {**parts, "train": left}


def _by_parts(
    table: Table,
    parts: Mapping[str, np.ndarray],
    settings: TaskSettings,
    texts: Sequence[list[str]],
    labels: np.ndarray,
    groups: np.ndarray,
    *,
    is_scored: bool,
    how: str,
) -> Division:
    """Return a division by given or drawn splits; a missing validation split is made of train."""
    if "train" not in parts:
        raise DataError(
            f"{table.source}: split: must have train rows; given {', '.join(parts) or 'none'}"
        )
    train, test = parts["train"], parts.get("test", NO_ROWS)
    validation = parts.get("validation", NO_ROWS)
    warnings = []
    if not len(test):
        test, validation = validation, NO_ROWS
        warnings.append(
            "no test rows; the validation rows are the test rows, and train alone chooses"
        )
    if is_scored and not len(validation):
        inside = [[column[row] for row in train] for column in texts]
        drawn = draw_rows(inside, labels[train], groups[train], share=0.15, seed=settings.seed)
        if not len(drawn):
            raise DataError(
                f"{table.source}: score: must have validation rows, or more train rows to draw them of"
            )
        validation, train = train[drawn], np.delete(train, drawn)
        how = ", validation drawn of train"
    sizes = f"{len(train):,} train, {len(validation):,} validation and {len(test):,} test rows{how}"
    if len(validation):
        return Division("train-validation-test", sizes, train, validation, test, warnings=warnings)
    return Division(
        "train-test",
        sizes,
        train,
        NO_ROWS,
        test,
        _folds(settings, table, labels, groups, train),
        warnings,
    )


def _folds(
    settings: TaskSettings, table: Table, labels: np.ndarray, groups: np.ndarray, train: np.ndarray
) -> np.ndarray:
    """Return the fold of each training row, int64 [rows]; empty if the protocol may draw its own."""
    folds = np.zeros(len(labels), dtype=np.int64)
    if isinstance(settings.folds, str):
        folds[train] = np.unique(_named_folds(settings.folds, table)[train], return_inverse=True)[1]
        if folds.max() < 1:
            where = f"{table.source}: folds '{settings.folds}'"
            raise DataError(
                f"{where}: must name at least 2 folds of the train rows; given 1; divide them into more"
            )
        return folds
    if (
        settings.folds is None
        and settings.seed == 0
        and len(np.unique(groups[train])) == len(train)
    ):
        return NO_ROWS
    num_folds = settings.folds or NUM_FOLDS
    folds[train] = _grouped_folds(table, labels[train], groups[train], num_folds, settings.seed)
    return folds


def _named_folds(column: str, table: Table) -> np.ndarray:
    names = [str(name) for name in as_labels(table.column(column, key="folds"))]
    if not 3 <= len(set(names)) <= 20:
        raise DataError(
            f"{table.source}: folds '{column}': must name 3 to 20 folds; given {len(set(names))}"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _grouped_folds(
    table: Table, labels: np.ndarray, groups: np.ndarray, num_folds: int, seed: int
) -> np.ndarray:
    num_folds = min(num_folds, len(np.unique(groups)), int(np.bincount(labels).max()))
    if num_folds < 2:
        raise DataError(
            f"{table.source}: must have at least 2 groups of training rows, and 2 rows of a class, to cross-validate; "
            f"given {len(np.unique(groups))} groups of {len(labels)} rows"
        )
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
    *,
    is_scored: bool,
) -> list[str]:
    """Return warnings of rows that are in two splits, or repeated."""
    found = []
    rows = list(zip(*texts, strict=True))
    if division.split == "train-test":
        trained_rows = [rows[row] for row in division.train]
        num_repeated = len(trained_rows) - len(set(trained_rows))
        if num_repeated and not len(division.folds):
            found.append(
                f"{num_repeated} training rows repeat the text of another one and may be in another fold; see group"
            )
        counts = np.bincount(labels, minlength=len(names))
        rare = [name for name, count in zip(names, counts, strict=True) if count < NUM_FOLDS]
        if rare:
            found.append(
                f"fewer than {NUM_FOLDS} rows of {', '.join(rare[:5])}: not every fold has one"
            )
    untested = [names[label] for label in np.setdiff1d(np.unique(labels), labels[division.test])]
    if untested and not is_scored:
        found.append(f"no test row of {', '.join(untested[:5])}: scores say nothing of it")
    trained = {rows[row] for row in (*division.train, *division.validation)}
    num_shared = sum(rows[row] in trained for row in division.test)
    if num_shared:
        found.append(
            f"{num_shared} test rows have the text of a train or validation row; test scores are too high"
        )
    if groups is not None:
        both = {groups[row] for row in division.test} & {
            groups[row] for row in (*division.train, *division.validation)
        }
        if both - {None}:
            found.append(
                f"{len(both - {None})} groups are in test and in train or validation; see split"
            )
    return found
