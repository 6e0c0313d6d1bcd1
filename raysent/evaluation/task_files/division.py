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
_SPLIT_NAMES = {
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
    numbers: np.ndarray | None = None
    if groups is not None:
        numbers = _group_numbers(groups)
    parts = _named_parts(table, columns)
    units = _units(settings, texts, numbers, parts)
    is_drawn = parts is None or set(parts) == {"train"}
    note = ""
    is_by_row = False
    if is_drawn:
        draw = _Draw(table, settings, texts, strata, units, None, columns.switch("group"))
        if isinstance(settings.folds, str):
            folds = _named_folds(settings.folds, table)
            draw = replace(draw, units=_units(settings, texts, folds), wholes="folds")
        elif groups is not None:
            draw = replace(draw, wholes="groups")
        parts = _drawn_parts(draw, _fractions(settings, is_scored=is_scored))
        note = ", drawn"
        if draw.wholes is not None:
            note += f" in whole {draw.wholes}"
        is_by_row = draw.wholes is None and not is_scored
    assert parts is not None
    rows = _Rows(table, settings, texts, labels, units, numbers)
    division = _by_parts(rows, parts, is_scored=is_scored, note=note)
    division = replace(division, units=unless_each_row(units), has_drawn_test=is_drawn)
    if not is_by_row or not len(division.validation):
        return division
    # Only where no row that trains is a copy of one that validates, a probe may be fitted to both.
    fitted_rows = np.concatenate([division.train, division.validation]).tolist()
    copies = units_of(
        [[column[row] for row in fitted_rows] for column in texts],
        finds_near_copies=False,
        is_ordered=settings.ordered,
    )
    return replace(division, has_drawn_validation=len(np.unique(copies)) == len(fitted_rows))


def _fractions(settings: TaskSettings, *, is_scored: bool) -> Fractions | None:
    """Return the fractions that are drawn; None where a part that is the same for every table tests."""
    if isinstance(settings.split, Fractions):
        return settings.split
    if is_scored:
        return Fractions(seed=settings.seed)
    return None


def _units(
    settings: TaskSettings,
    texts: Sequence[list[str]],
    groups: np.ndarray | None,
    parts: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Return which rows belong together, int64 [rows]; of parts that are given, only in what is divided further."""
    num_rows = len(texts[0])
    rows = np.arange(num_rows)
    if parts is not None and set(parts) != {"train"}:
        rows = np.concatenate([parts.get(part, NO_ROWS) for part in ("train", "validation")])
    if groups is not None:
        groups = groups[rows]
    # Every other row is a unit of its own, with a number that none of these has.
    units = len(rows) + np.arange(num_rows)
    units[rows] = units_of(
        [[column[row] for row in rows.tolist()] for column in texts],
        groups,
        finds_near_copies=settings.copies,
        is_ordered=settings.ordered,
    )
    return by_first_row(units)


def tested_alone(settings: TaskSettings, table: Table, columns: Columns) -> Division | None:
    """Return a division in which a table's pairs are all tested, as nothing is fitted to any; None if it has parts.

    Pairs of a part for training, or of fractions that were asked for, are not tested.
    """
    parts = _named_parts(table, columns)
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
    parts = _named_parts(table, columns)
    return parts is None or "train" in parts


def known_splits(table: Table) -> tuple[Table, list[str]]:
    """Return a table without the rows of splits that are neither train, validation nor test, and a line about them.

    Raises:
        DataError: If no split is.
    """
    unknown = [split for split in table.parts if split_name(split) is None]
    if not unknown:
        return table, []
    parts = {split: rows for split, rows in table.parts.items() if split not in unknown}
    if not parts:
        raise DataError(
            f"{table.source}: splits must be train, validation or test; given {listed(unknown)}"
        )
    rows = np.concatenate(list(parts.values()))
    num_left_out = len(table) - len(rows)
    line = f"{num_left_out:,} rows of {listed(unknown)} left out; splits are train, validation and test"
    return replace(table, parts=parts).take(rows), [line]


def _group_numbers(groups: Sequence[str | None]) -> np.ndarray:
    """Return the number of each row's group, int64 [rows]; a row without a group is one."""
    numbers: dict[tuple[str, str], int] = {}
    row_numbers = []
    for row, group in enumerate(groups):
        # Marked, because a group may have the name of a row's number.
        if group is None:
            key = ("row", str(row))
        else:
            key = ("group", as_label(group))
        row_numbers.append(numbers.setdefault(key, len(numbers)))
    return np.array(row_numbers, dtype=np.int64)


def split_name(value: object) -> str | None:
    """Return the part that a value of a split column, or a name of a part, stands for; None for another value."""
    return _SPLIT_NAMES.get(as_read(str(value)))


def _named_parts(table: Table, columns: Columns) -> dict[str, np.ndarray] | None:
    """Return the rows of each part that the table's files, splits or column name; None where nothing names parts."""
    parts = dict[str, np.ndarray]()
    if table.parts:
        for split, rows in table.parts.items():
            name = split_name(split)
            # Rows of other splits were left out by `known_splits`.
            if name is not None:
                parts[name] = np.concatenate([parts.get(name, NO_ROWS), rows])
        return parts
    if columns.split is None:
        return None
    rows_of: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for row, cell in enumerate(table.column(columns.split, key="split")):
        part = split_name(cell)
        if part is None:
            raise DataError(
                f"{table.where(row)}: split '{columns.split}' must be train, validation or test; "
                f"given '{shown(cell)}'{columns.switch('split')}"
            )
        rows_of[part].append(row)
    for part, part_rows in rows_of.items():
        if part_rows:
            parts[part] = np.array(part_rows, dtype=np.int64)
    return parts


@dataclass(frozen=True)
class _Draw:
    """Rows to draw parts of.

    Attributes:
        table: Their table.
        settings: The task's settings.
        texts: Their texts, a list [rows] a column.
        strata: What parts are drawn evenly of, int64 [rows].
        units: Which rows are drawn together, int64 [rows].
        wholes: What the user has named that is drawn whole, `groups` or `folds`; None for rows.
        switch: In words, how a column of groups is left out that was found by its name.
    """

    table: Table
    settings: TaskSettings
    texts: Sequence[list[str]]
    strata: np.ndarray
    units: np.ndarray
    wholes: str | None
    switch: str = ""


def _drawn_parts(draw: _Draw, fractions: Fractions | None) -> dict[str, np.ndarray]:
    """Draw rows for test, of which there must be some, and, by fractions, for validation; the others train."""
    shares = {"test": test_share(len(draw.strata)), "validation": 0.0}
    seed = 0
    if fractions is not None:
        shares = {"test": fractions.test, "validation": fractions.validation}
        seed = fractions.seed
    undrawn = np.arange(len(draw.strata))
    parts = dict[str, np.ndarray]()
    drawn_share = 0.0
    for part, share in shares.items():
        if share <= 0:
            continue
        drawn = draw_rows(
            [[column[row] for row in undrawn] for column in draw.texts],
            draw.strata[undrawn],
            draw.units[undrawn],
            # A share of all rows is more of those that are not drawn yet.
            share=min(1.0, share / (1 - drawn_share)),
            seed=seed,
        )
        if not len(drawn):
            raise _indivisible(draw, part)
        parts[part] = undrawn[drawn]
        drawn_share += share
        undrawn = np.setdiff1d(undrawn, parts[part])
    return {**parts, "train": undrawn}


def _indivisible(draw: _Draw, part: str) -> DataError:
    """Return the error of rows of which a part cannot be drawn, with what may be done about it."""
    wholes = draw.wholes or "rows"
    num_rows = f"given {len(draw.strata)} rows"
    cure = f"name a split, or give more {wholes}{draw.switch}"
    num_distinct = num_units(draw.units, np.arange(len(draw.strata)))
    if draw.wholes is None and num_distinct < len(draw.strata):
        num_rows += f", of which {num_distinct} are no copies or near-copies of others"
        cure = _copies_cure(draw.settings)
    return DataError(
        f"{draw.table.source}: must have {wholes} that can be divided into train and {part}, with rows of every class "
        f"to train on; {num_rows}; {cure}"
    )


def _copies_cure(settings: TaskSettings) -> str:
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
        part_names = ", ".join(parts) or "none"
        raise DataError(f"{source}: split: must have train rows; given {part_names}")
    train = parts["train"]
    test = parts.get("test", NO_ROWS)
    validation = parts.get("validation", NO_ROWS)
    warnings = []
    if not len(test):
        test = validation
        validation = NO_ROWS
        warnings.append(
            "no test rows; the validation rows are the test rows, and train alone chooses"
        )
    if is_scored and not len(validation):
        # Probes of scores choose by validation rows alone; they are not cross-validated.
        texts = [[column[row] for row in train] for column in rows.texts]
        drawn = draw_rows(
            texts, rows.labels[train], rows.units[train], share=0.15, seed=rows.settings.seed
        )
        if not len(drawn):
            raise DataError(
                f"{source}: score: must have validation rows, or more train rows to draw them of"
            )
        validation = train[drawn]
        train = np.delete(train, drawn)
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
        named_folds = _named_folds(settings.folds, rows.table)
        # Numbered again, because the rows that test may have folds of their own.
        folds[train] = np.unique(named_folds[train], return_inverse=True)[1]
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
            f"given {len(train)} rows of one text; {_copies_cure(settings)}"
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
    labels = rows.labels[train]
    units = rows.units[train]
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
    warnings = []
    if division.split == "train-test":
        counts = np.bincount(labels, minlength=len(names))
        rare = [name for name, count in zip(names, counts, strict=True) if count < NUM_FOLDS]
        if rare:
            warnings.append(
                f"fewer than {NUM_FOLDS} rows of {', '.join(rare[:5])}: not every fold has one"
            )
    untested = np.setdiff1d(np.unique(labels), labels[division.test])
    if len(untested) and not is_scored:
        untested_names = ", ".join(names[label] for label in untested[:5])
        reason = ""
        if groups is None:
            reason = _why_untested(settings, division, labels, untested)
        warnings.append(f"no test row of {untested_names}: scores say nothing of it{reason}")
    words_of_rows = [tuple(map(words_of, row_texts)) for row_texts in zip(*texts, strict=True)]
    fitted_words = {words_of_rows[row] for row in (*division.train, *division.validation)}
    num_shared = sum(words_of_rows[row] in fitted_words for row in division.test)
    if num_shared:
        warnings.append(
            f"{num_shared} test rows have the text of a train or validation row; test scores are too high"
        )
    if groups is not None:
        numbers = _group_numbers(groups)
        fitted_groups = numbers[[*division.train, *division.validation]]
        num_both = len(np.intersect1d(numbers[division.test], fitted_groups))
        if num_both:
            warnings.append(f"{num_both} groups are in test and in train or validation; see split")
    return warnings


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
