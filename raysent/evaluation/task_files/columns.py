"""The columns of a user's table: texts, classes, scores and labels, named by settings or found by convention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysent.data.column_names import (
    GROUPS,
    LABELS,
    NO_TEXT,
    PAIRS,
    SCORES,
    SPLITS,
    TEXT_COLUMNS,
    USUAL,
    plain_name,
)
from raysent.data.labels import (
    LabelKind,
    alike_warnings,
    is_number,
    joined_names,
    kind_of_labels,
    missing_warnings,
)
from raysent.data.same_text import as_label
from raysent.data.tables import Table, as_labels, data_among
from raysent.errors import DataError, listed, shown
from raysent.evaluation.task_files.settings import TaskSettings, how_to
from raysent.evaluation.task_files.several_labels import check_one_label

NUM_LEVELS = 5
_MAX_LABELS = 100
# Of the rows: the part of one class from which on accuracy says little.
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Columns:
    """The columns of a task.

    Attributes:
        texts: One column of text, or two for pairs.
        label: Column of the class; None for scores and for several columns of labels.
        labels: Several columns of labels.
        score: Column of the score.
        split: Column of the split.
        group: Column of the group.
        is_multilabel: Whether a row may have several labels.
        notes: What was guessed.
        found_by_name: The settings whose column was found by its name, and may be left out.
    """

    texts: tuple[str, ...]
    label: str | None
    labels: tuple[str, ...]
    score: str | None
    split: str | None
    group: str | None
    is_multilabel: bool
    notes: tuple[str, ...]
    found_by_name: frozenset[str] = frozenset()

    def switch(self, key: str) -> str:
        """Return what leaves out the column of a setting that was found by its name; empty if the user named it."""
        if key not in self.found_by_name:
            return ""
        column = {"split": self.split, "group": self.group}[key]
        return f"; the column '{column}' was found by its name, and {key}=no leaves it out"


def find_columns(settings: TaskSettings, table: Table) -> Columns:
    """Return the columns that the settings name, and for the others those of a conventional name.

    Raises:
        DataError: If a column is missing, or the first line of the table looks like a row.
    """
    if not _names_columns(settings):
        _check_header(table, "add :header=no if it is one, or :header=yes")
    guess = _Guess(table)
    label: str | None = None
    labels: tuple[str, ...] = ()
    if isinstance(settings.label, list):
        labels = tuple(settings.label)
    else:
        label = settings.label
    for name in labels:
        table.column(name, key="label")
    score = settings.score
    texts = _text_columns(settings, guess)
    if label is None and not labels and score is None:
        if len(texts) == 2:
            score = guess.find("score", SCORES)
        if score is None:
            label = guess.label(texts)
    if score is not None and len(texts) == 1:
        raise DataError(
            f"{table.source}: score: must be of pairs of texts; given one text a row; name its class with label"
        )
    is_multilabel = bool(labels) or bool(settings.separator)
    if label is not None:
        cells = table.column(label, key="label")
        is_multilabel = is_multilabel or any(isinstance(cell, list) for cell in cells)
        if not is_multilabel and settings.separator is None:
            check_one_label(settings, table, label, cells)
    used = (*texts, label, *labels, score)
    split, group = _division_columns(settings, table, guess, used)
    named_by_user = {"split": settings.split, "group": settings.group}
    by_name = {
        key
        for key, column in (("split", split), ("group", group))
        if column is not None and named_by_user[key] is None
    }
    return Columns(
        texts,
        label,
        labels,
        score,
        split,
        group,
        is_multilabel,
        tuple(guess.notes),
        frozenset(by_name),
    )


def _division_columns(
    settings: TaskSettings, table: Table, guess: _Guess, used: Sequence[str | None]
) -> tuple[str | None, str | None]:
    """Return the columns of the split and of the group; None where there is none, or it is left out."""
    split = None
    if isinstance(settings.split, str):
        split = settings.split
    elif settings.split is None and settings.folds is None and not table.parts:
        split = guess.find("split", SPLITS, used)
    group = settings.group or None
    if settings.group is None:
        group = guess.find("group", GROUPS, used)
    return split, group


def _names_columns(settings: TaskSettings) -> bool:
    """Return whether a user has named a column, or said that there is a header, and so has seen the table's."""
    if settings.header or settings.group:
        return True
    if isinstance(settings.split, str) or isinstance(settings.folds, str):
        return True
    columns = (settings.text, settings.text_a, settings.label, settings.score)
    return any(column is not None for column in columns)


def text_columns(table: Table, num_columns: int) -> tuple[str, ...]:
    """Return the columns of the texts of rows to predict: those of a conventional name, or all that there are.

    Args:
        table: Some of the rows; labels are not needed.
        num_columns: One, or two for pairs.

    Raises:
        DataError: If there are none, or the first line of the table looks like a row.
    """
    _check_header(table, "it is one with header=False; else name the column of the text")
    guess = _Guess(table)
    if num_columns == len(table.columns):
        # Two columns are a pair where no name says what one of them is.
        names_another_kind = USUAL & set(guess.by_plain)
        if num_columns == 1 or not names_another_kind:
            return tuple(table.columns)
    columns = guess.texts(takes_pairs=num_columns == 2, key="column")
    if len(columns) != num_columns:
        names = listed(table.columns)
        raise DataError(
            f"{table.source}: column: must name the two columns of the texts of pairs; it has {names}"
        )
    return columns


def _check_header(table: Table, otherwise: str) -> None:
    """Refuse a first line that no name is known of, and that looks like a row: it would be lost."""
    if not table.has_header or USUAL & {plain_name(name) for name in table.columns}:
        return
    # A label that other rows have too says it as well as a sentence does.
    repeated = (name for name, cells in table.columns.items() if name in cells)
    odd_name = next(repeated, None) or data_among(list(table.columns))
    if odd_name is not None:
        raise DataError(
            f"{table.source}: the first line must name the columns; given '{shown(odd_name)}', which looks like a row; "
            f"{otherwise}"
        )


def _text_columns(settings: TaskSettings, guess: _Guess) -> tuple[str, ...]:
    if settings.text_a is not None and settings.text_b is not None:
        return settings.text_a, settings.text_b
    if isinstance(settings.text, str):
        return (settings.text,)
    if settings.text is not None:
        return tuple(settings.text)
    return guess.texts()


class _Guess:
    """Finds columns by their names; notes what was found."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.notes: list[str] = []
        # Of columns whose plain names are the same, the first counts.
        self.by_plain = {plain_name(name): name for name in reversed(list(table.columns))}

    def find(self, key: str, names: Sequence[str], used: Sequence[str | None] = ()) -> str | None:
        """Return the first column of these names that is not used for something else, or None."""
        for name in names:
            column = self.by_plain.get(name)
            if column is None or column in used:
                continue
            switch = ""
            if key in ("split", "group"):
                switch = f"; {key}=no leaves it out"
            self.notes.append(f"{key} = '{shown(column)}' (found by name{switch})")
            return column
        return None

    def texts(self, *, takes_pairs: bool = True, key: str = "text") -> tuple[str, ...]:
        """Return the column of the text, or the two of pairs; an error says that the setting `key` must name it."""
        if takes_pairs:
            for first, second in PAIRS:
                if first in self.by_plain and second in self.by_plain:
                    pair = (self.by_plain[first], self.by_plain[second])
                    self.notes.append(f"text = '{pair[0]}' and '{pair[1]}' (found by name)")
                    return pair
        name = self.find("text", TEXT_COLUMNS) or self._longest()
        if name is None:
            raise DataError(
                f"{self.table.source}: {key}: must name the column of the text; "
                f"it has {listed(self.table.columns) or 'no columns'}"
            )
        return (name,)

    def label(self, texts: Sequence[str]) -> str:
        """Return the column of the label."""
        name = self.find("label", LABELS)
        not_texts = [column for column in self.table.columns if column not in texts]
        if name is None and len(not_texts) == 1:
            name = not_texts[0]
            self.notes.append(f"label = '{name}' (the only other column)")
        if name is None:
            raise DataError(
                f"{self.table.source}: label: must name the column of the labels; "
                f"it has {listed(self.table.columns) or 'no columns'}"
            )
        return name

    def _longest(self) -> str | None:
        """Return the column of the longer texts of a table of two columns; None where it holds other things."""
        columns = self.table.columns
        if len(columns) != 2 or not len(self.table):
            return None
        lengths = {}
        for name, cells in columns.items():
            if plain_name(name) not in NO_TEXT:
                lengths[name] = np.mean([len(str(cell)) for cell in cells])
        longest = max(lengths, key=lambda name: lengths[name], default=None)
        if longest is None or not all(isinstance(cell, str) for cell in columns[longest]):
            return None
        reason = "other column"
        if len(lengths) > 1:
            reason = "longer of two columns"
        self.notes.append(f"text = '{longest}' (the {reason})")
        return longest


def labels_of(settings: TaskSettings, table: Table, columns: Columns) -> list[str]:
    """Return the names of several labels, most frequent first."""
    if columns.labels:
        return list(columns.labels)
    counts = _label_counts(_label_sets(settings, table, columns))
    if not counts:
        raise DataError(f"{table.source}: label '{columns.label}': must hold labels; given none")
    if len(counts) > _MAX_LABELS:
        raise DataError(
            f"{table.source}: label '{columns.label}': must have at most {_MAX_LABELS} labels; given {len(counts)}; "
            "keep the frequent ones"
        )
    return _by_frequency(counts)


def _label_counts(sets: Sequence[set[str]]) -> Counter[str]:
    return Counter(label for labels in sets for label in labels)


def _by_frequency(counts: Counter[str]) -> list[str]:
    """Return labels, the most frequent first, those that are equally frequent by their names."""
    return sorted(counts, key=lambda label: (-counts[label], label))


def _label_sets(settings: TaskSettings, table: Table, columns: Columns) -> list[set[str]]:
    """Return the labels of each row, joined where the settings say so."""
    sets = _written_sets(settings, table, columns)
    if not settings.join_labels:
        return sets
    names = joined_names(_label_counts(sets))
    return [{names[label] for label in labels} for labels in sets]


def _written_sets(settings: TaskSettings, table: Table, columns: Columns) -> list[set[str]]:
    """Return the labels of each row, by the names that they have in the table."""
    assert columns.label is not None
    names = table.class_names.get(columns.label)
    sets = []
    for row, cell in enumerate(table.column(columns.label, key="label")):
        labels = cell
        if cell is None:
            labels = []
        elif isinstance(cell, str) and settings.separator:
            labels = cell.split(settings.separator)
        if not isinstance(labels, list):
            raise DataError(
                f"{table.where(row)}: label must be a list, as in other rows; given {type(cell).__name__}"
            )
        sets.append({label for label in as_labels(labels, names) if label is not None})
    return sets


def strata_of(
    settings: TaskSettings, table: Table, columns: Columns, labels: np.ndarray
) -> np.ndarray:
    """Return what test rows are drawn evenly of, int64 [rows]: the classes; of several labels, a row's rarest one.

    All labels of a table have the same test rows by that.
    """
    if not columns.is_multilabel:
        return labels
    if columns.labels:
        answers = {name: _answers(table, name) for name in columns.labels}
        sets = []
        for row in range(len(labels)):
            sets.append({name for name in columns.labels if answers[name][row] == "yes"})
    else:
        sets = _label_sets(settings, table, columns)
    # 0 stands for rows without a label, and the rarest label has the highest number.
    by_frequency = _by_frequency(_label_counts(sets))
    numbers = {label: number for number, label in enumerate(by_frequency, start=1)}
    rarest = [max((numbers[label] for label in row_labels), default=0) for row_labels in sets]
    return np.array(rarest, dtype=np.int64)


_YES = {"1", "yes"}
_NO = {"0", "no"}


def _answers(table: Table, column: str) -> list[str | None]:
    """Return ``yes``, ``no`` or None, where it is missing, of each row's cell in one of several columns of labels."""
    answers: list[str | None] = []
    for row, label in enumerate(as_labels(table.column(column, key="label"))):
        if label is None:
            answers.append(None)
        elif as_label(label) in _YES:
            answers.append("yes")
        elif as_label(label) in _NO:
            answers.append("no")
        else:
            raise DataError(
                f"{table.where(row)}: label '{column}' must be 0 or 1, one of several columns; given '{shown(label)}'"
            )
    return answers


def labelled_rows(table: Table, columns: Columns) -> tuple[Table, list[str]]:
    """Return a table without the rows that have no class yet, and a warning of them; any other table as it is.

    Raises:
        DataError: If no row has a class.
    """
    if columns.label is None or columns.is_multilabel:
        return table, []
    class_names = table.class_names.get(columns.label)
    labels = as_labels(table.column(columns.label, key="label"), class_names)
    labelled = [row for row, label in enumerate(labels) if label is not None]
    if len(labelled) == len(labels):
        return table, []
    if not labelled:
        raise DataError(
            f"{table.source}: label '{columns.label}': must hold labels; all {len(labels)} are missing"
        )
    warning = f"{len(labels) - len(labelled):,} rows without a label left out"
    return table.take(np.array(labelled, dtype=np.int64)), [warning]


@dataclass(frozen=True)
class _RowTargets:
    """What a task's rows are to be predicted as.

    Attributes:
        names: The names of the classes, or of the rating levels.
        labels: The class of each row, int64 [rows].
        scores: The score of each row; None for classes.
        scale: As of `TaskData`.
        kind: The type of the labels.
        notes: What was found.
        warnings: What may be meant otherwise.
    """

    names: tuple[str, ...]
    labels: np.ndarray
    scores: np.ndarray | None = None
    scale: tuple[float, float] | None = None
    kind: LabelKind = "text"
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_targets(
    settings: TaskSettings, table: Table, columns: Columns, *, only: str = ""
) -> _RowTargets:
    """Return what the rows are to be predicted as.

    Args:
        settings: The task's settings.
        table: The table.
        columns: Its columns.
        only: The label that is asked for, where rows have several.

    Raises:
        DataError: If a value is missing, or the values cannot be classes or scores.
    """
    if columns.score is not None:
        return _read_ratings(settings, table, columns.score)
    if columns.is_multilabel:
        return _read_answers(settings, table, columns, only)
    assert columns.label is not None
    cells = table.column(columns.label, key="label")
    class_names = table.class_names.get(columns.label)
    labels = _without_missing(table, as_labels(cells, class_names), columns.label)
    counts = Counter(labels)
    warnings = tuple(missing_warnings(counts))
    if settings.join_labels:
        joined = joined_names(counts)
        labels = [joined[label] for label in labels]
    else:
        warnings += tuple(alike_warnings(counts, _joining(settings)))
    names = _class_names(labels, class_names)
    _check_names(table, columns.label, names, len(labels))
    warnings += tuple(_imbalance_warnings(settings, labels))
    class_of_name = {name: class_index for class_index, name in enumerate(names)}
    kind: LabelKind = "text"
    if class_names is None:
        kind = kind_of_labels(cells, names, is_typed=table.is_typed)
    return _RowTargets(
        names,
        np.array([class_of_name[label] for label in labels], dtype=np.int64),
        kind=kind,
        notes=(f"{len(names)} classes of '{columns.label}'",),
        warnings=warnings,
    )


def _read_answers(settings: TaskSettings, table: Table, columns: Columns, only: str) -> _RowTargets:
    """Return whether each row has one of several labels, as the classes ``no`` and ``yes``."""
    if columns.labels:
        answers = _without_missing(table, _answers(table, only), only)
        has_label = [answer == "yes" for answer in answers]
    else:
        has_label = [only in labels for labels in _label_sets(settings, table, columns)]
    return _RowTargets(
        ("no", "yes"),
        np.array(has_label, dtype=np.int64),
        notes=(f"2 classes of '{only}'",),
        warnings=tuple(_warnings_of_sets(settings, table, columns, only)),
    )


def _without_missing(table: Table, labels: Sequence[str | None], key: str) -> list[str]:
    """Return labels of which none may be missing.

    Raises:
        DataError: If one is.
    """
    missing = [row for row, label in enumerate(labels) if label is None]
    if missing:
        raise DataError(
            f"{table.where(missing[0])}: label '{key}' must not be missing; it is in {len(missing)} rows; "
            "leave them out"
        )
    return [label for label in labels if label is not None]


def _check_names(table: Table, key: str, names: Sequence[str], num_rows: int) -> None:
    if len(names) == 1:
        raise DataError(
            f"{table.source}: label '{key}': must have at least two classes; given only '{shown(names[0])}'"
        )
    if len(names) > max(2, num_rows // 2):
        raise DataError(
            f"{table.source}: label '{key}': must be classes that several rows share; given {len(names)} different "
            f"values in {num_rows} rows; name another column, or use score for numbers of pairs"
        )


def _warnings_of_sets(
    settings: TaskSettings, table: Table, columns: Columns, only: str
) -> list[str]:
    """Return warnings of labels that a person takes for the one that is asked for, where rows have several."""
    if columns.labels or settings.join_labels:
        return []
    counts = _label_counts(_label_sets(settings, table, columns))
    alike = Counter({name: counts[name] for name in counts if as_label(name) == as_label(only)})
    return alike_warnings(alike, _joining(settings))


def _imbalance_warnings(settings: TaskSettings, labels: Sequence[str]) -> list[str]:
    """Return a warning where one class is nearly all rows, and accuracy says little of the other ones."""
    name, count = Counter(labels).most_common(1)[0]
    if settings.metric != "accuracy" or count < _NEARLY_ALL * len(labels):
        return []
    return [
        f"{100 * count / len(labels):.1f} % of the rows are '{shown(name)}', and so accurate is a model that says "
        f"nothing else; {how_to(settings, 'metric', 'macro_f1')} counts all classes alike"
    ]


def _joining(settings: TaskSettings) -> str:
    """Return what joins the classes that a person takes for one, in words."""
    return f"{how_to(settings, 'join_labels', True)} makes them one"


def _class_names(labels: Sequence[str], table_names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the classes that rows have, in the table's own order, by number, or by letter."""
    present = set(labels)
    if table_names is not None:
        return tuple(name for name in table_names if name in present)
    if all(is_number(name) for name in present):
        # Sorted by text first, so that 1 and 1.0 have an order.
        return tuple(sorted(sorted(present), key=float))
    return tuple(sorted(present))


def _numbers(table: Table, name: str) -> np.ndarray:
    """Return the scores of a column, float64 [rows].

    Raises:
        DataError: If one is no finite number.
    """
    cells = table.column(name, key="score")
    scores = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            scores[row] = float(cell)
        except (TypeError, ValueError):
            cell_text = repr(cell)[:40]
            if cell in (None, ""):
                cell_text = "nothing"
            raise DataError(
                f"{table.where(row)}: score '{name}' must be a number; given {cell_text}"
            ) from None
    infinite = np.flatnonzero(~np.isfinite(scores))
    if len(infinite):
        raise DataError(
            f"{table.where(int(infinite[0]))}: score '{name}' must be finite; {len(infinite)} rows are not"
        )
    return scores


def _read_ratings(settings: TaskSettings, table: Table, name: str) -> _RowTargets:
    """Return rating levels, the nearest level of each row, the scores on the scale of the levels, and their own."""
    scores = _numbers(table, name)
    low = float(scores.min())
    high = float(scores.max())
    if low == high:
        raise DataError(
            f"{table.source}: score '{name}': must differ between rows; all are {low:g}"
        )
    if settings.range is not None:
        if low < settings.range[0] or high > settings.range[1]:
            raise DataError(
                f"{table.source}: score '{name}': must be from {settings.range[0]:g} to {settings.range[1]:g}; "
                f"given {low:g} to {high:g}"
            )
        low, high = settings.range
    note = f"scores from {low:g} to {high:g}"
    scale = None
    # Ratings of up to five are used as they are, as in SentEval; others are mapped to the levels.
    is_rating = low >= 0 and NUM_LEVELS - 2 < high <= NUM_LEVELS
    if not is_rating:
        scores = 1 + (NUM_LEVELS - 1) * (scores - low) / (high - low)
        scale = (low, high)
        note += ", mapped to 1 to 5"
    levels = np.clip(np.rint(scores), 1, NUM_LEVELS).astype(np.int64) - 1
    names = tuple(str(level) for level in range(1, NUM_LEVELS + 1))
    return _RowTargets(names, levels, scores, scale, notes=(note,))
