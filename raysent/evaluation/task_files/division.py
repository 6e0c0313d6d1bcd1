"""Rows of a user's table -> train, validation and test, or folds; rows that belong together stay together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raysent.data.same_text import as_label, as_read, words_of
from raysent.data.tables import Table, as_labels
from raysent.errors import DataError, listed, shown
from raysent.evaluation.division import draw_rows, test_share
from raysent.evaluation.task import NO_ROWS, Split
from raysent.evaluation.task_files.columns import Columns
from raysent.evaluation.task_files.settings import Fractions, TaskSettings
from raysent.evaluation.units import by_first_row, num_units, units_of, unless_each_row

# What a value of a split column, a file's key or a `datasets` split is called -> the split.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "development", "trial"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
NUM_FOLDS = 10
_LEAST_UNITS = 2


@dataclass(frozen=True)
class Division:
    """How rows are divided."""

    split: Split
    note: str
    train: np.ndarray = field(default_factory=lambda: NO_ROWS)
    validation: np.ndarray = field(default_factory=lambda: NO_ROWS)
    test: np.ndarray = field(default_factory=lambda: NO_ROWS)
    folds: np.ndarray = field(default_factory=lambda: NO_ROWS)
    units: np.ndarray = field(default_factory=lambda: NO_ROWS)  # as of `TaskData`
    warnings: list[str] = field(default_factory=list)
    has_drawn_validation: bool = False  # as of `TaskData`
    has_drawn_test: bool = False  # as of `TaskData`


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
    numbers = None if groups is None else group_numbers(groups)
    parts = _given_parts(table, columns)
    units = _units(settings, texts, numbers, parts)
    note, is_by_row = "", False
    if parts is None or set(parts) == {"train"}:
        fractions = settings.split if isinstance(settings.split, Fractions) else None
        if fractions is None and is_scored:
            fractions = Fractions(seed=settings.seed)
        drawn_units, whole = units, None if groups is None else "groups"
        if isinstance(settings.folds, str):
            drawn_units, whole = (
                _units(settings, texts, _named_folds(settings.folds, table)),
                "folds",
            )
        draw = _Draw(table, settings, texts, strata, drawn_units, whole, columns.switch("group"))
        parts = _drawn_parts(draw, fractions)
        note = ", drawn" + ("" if whole is None else f" in whole {whole}")
        is_by_row = whole is None and not is_scored
    rows = _Rows(table, settings, texts, labels, units, numbers)
    division = _by_parts(rows, parts, is_scored=is_scored, note=note)
    division = replace(division, units=unless_each_row(units), has_drawn_test=bool(note))
    if not (is_by_row and len(division.validation)):
        return division
    trained = np.concatenate([division.train, division.validation]).tolist()
    copies = units_of(
        [[column[row] for row in trained] for column in texts],
        finds_near_copies=False,
        is_ordered=settings.ordered,
    )
    return replace(division, has_drawn_validation=len(np.unique(copies)) == len(trained))


def _units(
    settings: TaskSettings,
    texts: Sequence[list[str]],
    groups: np.ndarray | None,
    parts: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Return which rows belong together, int64 [rows]; of given parts only those that are divided further."""
    rows = np.arange(len(texts[0]))
    if parts is not None and set(parts) != {"train"}:
        rows = np.concatenate([parts.get(part, NO_ROWS) for part in ("train", "validation")])
    found = units_of(
        [[column[row] for row in rows.tolist()] for column in texts],
        None if groups is None else groups[rows],
        finds_near_copies=settings.copies,
        is_ordered=settings.ordered,
    )
    units = len(rows) + np.arange(len(texts[0]))
    units[rows] = found
    return by_first_row(units)


def tested_alone(settings: TaskSettings, table: Table, columns: Columns) -> Division | None:
    """Return a division in which a table's pairs are all tested, as nothing is fitted to any; None if it has parts.

    Pairs of a part for training, or of fractions that were asked for, are not tested.
    """
    parts = _given_parts(table, columns)
    if isinstance(settings.split, Fractions) or (parts is not None and "train" in parts):
        return None
    if parts is None:
        rows = np.arange(len(table))
    else:
        rows = parts.get("test", parts.get("validation", NO_ROWS))
    return Division(
        "train-test", f"{len(rows):,} pairs are tested, as nothing is fitted", test=rows
    )


def has_train_rows(table: Table, columns: Columns) -> bool:
    """Return whether a table has rows to train on: parts that are given may be test rows alone."""
    parts = _given_parts(table, columns)
    return parts is None or "train" in parts


def known_splits(table: Table) -> tuple[Table, list[str]]:
    """Return a table without the rows of splits that are neither train, validation nor test, and a line about them.

    Raises:
        DataError: If no split is.
    """
    unknown = [split for split in table.parts if split_name(split) is None]
    if not unknown:
        return table, []
    kept = {split: rows for split, rows in table.parts.items() if split not in unknown}
    if not kept:
        raise DataError(
            f"{table.source}: splits must be train, validation or test; given {listed(unknown)}"
        )
    places = np.concatenate(list(kept.values()))
    num_left_out = len(table) - len(places)
    line = f"{num_left_out:,} rows of {listed(unknown)} left out; splits are train, validation and test"
    return replace(table, parts=kept).take(places), [line]


def group_numbers(groups: Sequence[str | None]) -> np.ndarray:
    """Return the number of each row's group, int64 [rows]; a row without a group is one."""
    keys = [
        ("row", str(row)) if group is None else ("group", as_label(group))
        for row, group in enumerate(groups)
    ]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([places[key] for key in keys], dtype=np.int64)


def split_name(value: object) -> str | None:
    """Return the part that a value of a split column, or a name of a part, stands for; None for another value."""
    return SPLIT_NAMES.get(as_read(str(value)))


def _given_parts(table: Table, columns: Columns) -> dict[str, np.ndarray] | None:
    if table.parts:
        parts = dict[str, np.ndarray]()
        for split, places in table.parts.items():
            name = split_name(split)
            if name is None:  # left out, see `known_splits`
                continue
            parts[name] = np.concatenate([parts.get(name, NO_ROWS), places])
        return parts
    if columns.split is None:
        return None
    rows: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for row, value in enumerate(table.column(columns.split, key="split")):
        part = split_name(value)
        if part is None:
            raise DataError(
                f"{table.where(row)}: split '{columns.split}' must be train, validation or test; "
                f"given '{shown(value)}'{columns.switch('split')}"
            )
        rows[part].append(row)
    return {part: np.array(found, dtype=np.int64) for part, found in rows.items() if found}


@dataclass(frozen=True)
class _Draw:
    """Rows to draw parts of: their texts, strata and units; what is drawn whole, and what does not, in words."""

    table: Table
    settings: TaskSettings
    texts: Sequence[list[str]]
    strata: np.ndarray
    units: np.ndarray
    whole: str | None
    switch: str = ""


def _drawn_parts(draw: _Draw, fractions: Fractions | None) -> dict[str, np.ndarray]:
    """Draw rows for test, of which some must be left, and, by fractions, for validation."""
    fractions_of = {"test": test_share(len(draw.strata)), "validation": 0.0}
    if fractions is not None:
        fractions_of = {"test": fractions.test, "validation": fractions.validation}
    left = np.arange(len(draw.strata))
    parts = dict[str, np.ndarray]()
    before = 0.0
    for part, share in fractions_of.items():
        if share <= 0:
            continue
        rows = left[
            draw_rows(
                [[column[row] for row in left] for column in draw.texts],
                draw.strata[left],
                draw.units[left],
                share=min(1.0, share / (1 - before)),
                seed=0 if fractions is None else fractions.seed,
            )
        ]
        if not len(rows):
            raise _indivisible(draw, part)
        parts[part] = rows
        before += share
        left = np.setdiff1d(left, rows)
    return {**parts, "train": left}


def _indivisible(draw: _Draw, part: str) -> DataError:
    whole = draw.whole or "rows"
    given = f"given {len(draw.strata)} rows"
    cure = f"name a split, or give more {whole}{draw.switch}"
    num_others = num_units(draw.units, np.arange(len(draw.strata)))
    if draw.whole is None and num_others < len(draw.strata):
        given += f", of which {num_others} are no copies or near-copies of others"
        cure = copies_cure(draw.settings)
    return DataError(
        f"{draw.table.source}: must have {whole} that can be divided into train and {part}, with rows of every class "
        f"to train on; {given}; {cure}"
    )


def copies_cure(settings: TaskSettings) -> str:
    """Return what a user may do where copies and near-copies leave too little to divide, in words."""
    if settings.copies:
        return "copies=no lets near-copies, such as rows of one template, be divided"
    return "name a split, or give other rows"


@dataclass(frozen=True)
class _Rows:
    """The rows that are divided."""

    table: Table
    settings: TaskSettings
    texts: Sequence[list[str]]
    labels: np.ndarray
    units: np.ndarray
    groups: np.ndarray | None

    def has_groups(self, rows: np.ndarray) -> bool:
        """Return whether some of these rows are in one group."""
        return self.groups is not None and len(np.unique(self.groups[rows])) < len(rows)


def _by_parts(
    rows: _Rows, parts: Mapping[str, np.ndarray], *, is_scored: bool, note: str
) -> Division:
    """Return a division by given or drawn splits; a missing validation split is made of train."""
    source = rows.table.source
    if "train" not in parts:
        given = ", ".join(parts) or "none"
        raise DataError(f"{source}: split: must have train rows; given {given}")
    train = parts["train"]
    test = parts.get("test", NO_ROWS)
    validation = parts.get("validation", NO_ROWS)
    warnings = []
    if not len(test):
        test, validation = validation, NO_ROWS
        warnings.append(
            "no test rows; the validation rows are the test rows, and train alone chooses"
        )
    if is_scored and not len(validation):
        inside = [[column[row] for row in train] for column in rows.texts]
        drawn = draw_rows(
            inside, rows.labels[train], rows.units[train], share=0.15, seed=rows.settings.seed
        )
        if not len(drawn):
            raise DataError(
                f"{source}: score: must have validation rows, or more train rows to draw them of"
            )
        validation, train = train[drawn], np.delete(train, drawn)
        note = ", validation drawn of train"
    sizes = (
        f"{len(train):,} train, {len(validation):,} validation and {len(test):,} test rows{note}"
    )
    if len(validation):
        return Division("train-validation-test", sizes, train, validation, test, warnings=warnings)
    folds = _folds(rows, train)
    return Division("train-test", sizes, train, NO_ROWS, test, folds, warnings=warnings)


def _folds(rows: _Rows, train: np.ndarray) -> np.ndarray:
    """Return the fold of each training row, int64 [rows]; empty if the protocol may draw its own."""
    settings = rows.settings
    folds = np.zeros(len(rows.labels), dtype=np.int64)
    if isinstance(settings.folds, str):
        named = _named_folds(settings.folds, rows.table)
        folds[train] = np.unique(named[train], return_inverse=True)[1]
        if folds.max() < 1:
            where = f"{rows.table.source}: folds '{settings.folds}'"
            raise DataError(
                f"{where}: must name at least 2 folds of the train rows; given 1; divide them into more"
            )
        return folds
    has_groups = rows.has_groups(train)
    if num_units(rows.units, train) < _LEAST_UNITS and not has_groups:
        raise DataError(
            f"{rows.table.source}: must have training rows that are no near-copies of each other, to cross-validate; "
            f"given {len(train)} rows of one text; {copies_cure(settings)}"
        )
    if settings.folds is None and settings.seed == 0 and not has_groups:
        return NO_ROWS
    folds[train] = _grouped_folds(rows, train, settings.folds or NUM_FOLDS)
    return folds


def _named_folds(column: str, table: Table) -> np.ndarray:
    names = [as_label(str(name)) for name in as_labels(table.column(column, key="folds"))]
    if not 3 <= len(set(names)) <= 20:
        raise DataError(
            f"{table.source}: folds '{column}': must name 3 to 20 folds; given {len(set(names))}"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _grouped_folds(rows: _Rows, train: np.ndarray, num_folds: int) -> np.ndarray:
    labels, units = rows.labels[train], rows.units[train]
    num_folds = min(num_folds, len(np.unique(units)), int(np.bincount(labels).max()))
    if num_folds < 2:
        raise DataError(
            f"{rows.table.source}: must have at least 2 groups of training rows, and 2 rows of a class, to "
            f"cross-validate; given {len(np.unique(units))} groups of {len(labels)} rows"
        )
    from sklearn.model_selection import StratifiedGroupKFold  # noqa: PLC0415 - a second that only such tasks need

    splitter = StratifiedGroupKFold(num_folds, shuffle=True, random_state=rows.settings.seed)
    folds = np.zeros(len(labels), dtype=np.int64)
    for fold, (_, held_out) in enumerate(splitter.split(np.zeros(len(labels)), labels, units)):
        folds[held_out] = fold
    # Large groups can leave a fold empty.
    return np.unique(folds, return_inverse=True)[1].astype(np.int64)


def division_warnings(
    settings: TaskSettings,
    texts: Sequence[list[str]],
    division: Division,
    labels: np.ndarray,
    groups: Sequence[str | None] | None,
    names: Sequence[str],
    *,
    is_scored: bool,
) -> list[str]:
    """Return warnings of rows that are in two splits, and of classes that are not tested."""
    found = []
    if division.split == "train-test":
        counts = np.bincount(labels, minlength=len(names))
        rare = [name for name, count in zip(names, counts, strict=True) if count < NUM_FOLDS]
        if rare:
            found.append(
                f"fewer than {NUM_FOLDS} rows of {', '.join(rare[:5])}: not every fold has one"
            )
    untested = np.setdiff1d(np.unique(labels), labels[division.test])
    if len(untested) and not is_scored:
        shown = ", ".join(names[label] for label in untested[:5])
        why = "" if groups is not None else _why_untested(settings, division, labels, untested)
        found.append(f"no test row of {shown}: scores say nothing of it{why}")
    rows = [tuple(map(words_of, row)) for row in zip(*texts, strict=True)]
    trained = {rows[row] for row in (*division.train, *division.validation)}
    num_shared = sum(rows[row] in trained for row in division.test)
    if num_shared:
        found.append(
            f"{num_shared} test rows have the text of a train or validation row; test scores are too high"
        )
    if groups is not None:
        numbers = group_numbers(groups)
        trained_groups = numbers[[*division.train, *division.validation]]
        num_both = len(np.intersect1d(numbers[division.test], trained_groups))
        if num_both:
            found.append(f"{num_both} groups are in test and in train or validation; see split")
    return found


def _why_untested(
    settings: TaskSettings, division: Division, labels: np.ndarray, untested: np.ndarray
) -> str:
    """Return why classes have no test row where near-copies are the reason, and what divides them, in words."""
    if not settings.copies or not len(division.units):
        return ""
    rows_of = [np.flatnonzero(labels == label) for label in untested]
    if not any(len(rows) > 1 and num_units(division.units, rows) == 1 for rows in rows_of):
        return ""
    return ", as its rows are near-copies of each other and stay together; copies=no divides them"
