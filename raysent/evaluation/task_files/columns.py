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
MAX_LABELS = 100
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
        found: The settings whose column was found by its name, and may be left out.
    """

    texts: tuple[str, ...]
    label: str | None
    labels: tuple[str, ...]
    score: str | None
    split: str | None
    group: str | None
    is_multilabel: bool
    notes: tuple[str, ...]
    found: frozenset[str] = frozenset()

    def switch(self, key: str) -> str:
        """Return what leaves out the column of a setting that was found by its name; empty if the user named it."""
        if key not in self.found:
            return ""
        column = self.split if key == "split" else self.group
        return f"; the column '{column}' was found by its name, and {key}=no leaves it out"


def find_columns(settings: TaskSettings, table: Table) -> Columns:
    """Return the columns that the settings name, and for the others those of a conventional name.

    Raises:
        DataError: If a column is missing, or the first line of the table looks like a row.
    """
    named = (
        settings.text,
        settings.text_a,
        settings.label,
        settings.score,
        settings.group or None,
        settings.header or None,
    )
    others = (settings.split, settings.folds)
    if all(name is None for name in named) and not any(isinstance(name, str) for name in others):
        _check_header(table, "add :header=no if it is one, or :header=yes")
    guess = _Guess(table)
    label, labels = (
        (None, tuple(settings.label)) if isinstance(settings.label, list) else (settings.label, ())
    )
    for name in labels:
        table.column(name, key="label")
    score = settings.score
    texts = _text_columns(settings, guess)
    if label is None and not labels and score is None:
        score = guess.find("score", SCORES) if len(texts) == 2 else None
        label = None if score is not None else guess.label(texts)
    if score is not None and len(texts) == 1:
        raise DataError(
            f"{table.source}: score: must be of pairs of texts; given one text a row; name its class with label"
        )
    values = [] if label is None else table.column(label, key="label")
    is_multilabel = (
        bool(labels) or bool(settings.separator) or any(isinstance(value, list) for value in values)
    )
    if label is not None and not is_multilabel and settings.separator is None:
        check_one_label(settings, table, label, values)
    used = (*texts, label, *labels, score)
    split = settings.split if isinstance(settings.split, str) else None
    if settings.split is None and settings.folds is None and not table.parts:
        split = guess.find("split", SPLITS, used)
    group = settings.group or None
    if settings.group is None:
        group = guess.find("group", GROUPS, used)
    columns_of = {"split": split, "group": group}
    named_ones = {"split": settings.split, "group": settings.group}
    found = {
        key for key, column in columns_of.items() if column is not None and named_ones[key] is None
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
        frozenset(found),
    )


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
    # Two columns are a pair where no name says what one of them is.
    is_all = num_columns == len(table.columns) and (
        num_columns == 1 or not USUAL & set(guess.by_plain)
    )
    found = (
        tuple(table.columns) if is_all else guess.texts(takes_pairs=num_columns == 2, key="column")
    )
    if len(found) != num_columns:
        names = listed(table.columns)
        raise DataError(
            f"{table.source}: column: must name the two columns of the texts of pairs; it has {names}"
        )
    return found


def _check_header(table: Table, otherwise: str) -> None:
    """Refuse a first line that no name is known of, and that looks like a row: it would be lost."""
    if not table.has_header or USUAL & {plain_name(name) for name in table.columns}:
        return
    # A label that other rows have too says it as well as a sentence does.
    repeated = (name for name, values in table.columns.items() if name in values)
    odd = next(repeated, None) or data_among(list(table.columns))
    if odd is not None:
        looks = f"given '{shown(odd)}', which looks like a row; {otherwise}"
        raise DataError(f"{table.source}: the first line must name the columns; {looks}")


def _text_columns(settings: TaskSettings, guess: _Guess) -> tuple[str, ...]:
    if settings.text_a is not None and settings.text_b is not None:
        return settings.text_a, settings.text_b
    if settings.text is not None:
        return (settings.text,) if isinstance(settings.text, str) else tuple(settings.text)
    return guess.texts()


class _Guess:
    """Finds columns by their names; notes what was found."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.notes: list[str] = []
        self.by_plain = {plain_name(name): name for name in reversed(list(table.columns))}

    def find(self, key: str, names: Sequence[str], used: Sequence[str | None] = ()) -> str | None:
        """Return the first column of these names that is not used for something else, or None."""
        found = next(
            (one for name in names if (one := self.by_plain.get(name)) not in (None, *used)), None
        )
        if found is not None:
            switch = f"; {key}=no leaves it out" if key in ("split", "group") else ""
            self.notes.append(f"{key} = '{shown(found)}' (found by name{switch})")
        return found

    def texts(self, *, takes_pairs: bool = True, key: str = "text") -> tuple[str, ...]:
        """Return the column of the text, or the two of pairs; an error says that the setting `key` must name it."""
        for first, second in PAIRS if takes_pairs else ():
            if first in self.by_plain and second in self.by_plain:
                found = self.by_plain[first], self.by_plain[second]
                self.notes.append(f"text = '{found[0]}' and '{found[1]}' (found by name)")
                return found
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
        others = [column for column in self.table.columns if column not in texts]
        if name is None and len(others) == 1:
            name = others[0]
            self.notes.append(f"label = '{name}' (the only other column)")
        if name is None:
            raise DataError(
                f"{self.table.source}: label: must name the column of the labels; "
                f"it has {listed(self.table.columns) or 'no columns'}"
            )
        return name

    def _longest(self) -> str | None:
        if len(self.table.columns) != 2 or not len(self.table):
            return None
        likely = {
            name: values
            for name, values in self.table.columns.items()
            if plain_name(name) not in NO_TEXT
        }
        lengths = {
            name: np.mean([len(str(value)) for value in values]) for name, values in likely.items()
        }
        name = max(lengths, key=lambda column: lengths[column], default=None)
        if name is None or not all(isinstance(value, str) for value in likely[name]):
            return None
        self.notes.append(
            f"text = '{name}' (the {'longer of two columns' if len(likely) > 1 else 'other column'})"
        )
        return name


def labels_of(settings: TaskSettings, table: Table, columns: Columns) -> list[str]:
    """Return the names of several labels, most frequent first."""
    if columns.labels:
        return list(columns.labels)
    counts = Counter(label for labels in _label_sets(settings, table, columns) for label in labels)
    if not counts:
        raise DataError(f"{table.source}: label '{columns.label}': must hold labels; given none")
    if len(counts) > MAX_LABELS:
        raise DataError(
            f"{table.source}: label '{columns.label}': must have at most {MAX_LABELS} labels; given {len(counts)}; "
            "keep the frequent ones"
        )
    return [label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _label_sets(settings: TaskSettings, table: Table, columns: Columns) -> list[set[str]]:
    """Return the labels of each row, joined where the settings say so."""
    sets = _written_sets(settings, table, columns)
    if not settings.join_labels:
        return sets
    names = joined_names(Counter(label for labels in sets for label in labels))
    return [{names[label] for label in labels} for labels in sets]


def _written_sets(settings: TaskSettings, table: Table, columns: Columns) -> list[set[str]]:
    assert columns.label is not None
    names = table.class_names.get(columns.label)
    sets = []
    for row, value in enumerate(table.column(columns.label, key="label")):
        is_text = isinstance(value, str) and bool(settings.separator)
        labels = (
            value.split(settings.separator or None) if is_text else [] if value is None else value
        )
        if not isinstance(labels, list):
            raise DataError(
                f"{table.where(row)}: label must be a list, as in other rows; given {type(value).__name__}"
            )
        sets.append({label for label in as_labels(labels, names) if label is not None})
    return sets


def strata_of(
    settings: TaskSettings, table: Table, columns: Columns, labels: np.ndarray
) -> np.ndarray:
    """Return what test rows are drawn evenly of, int64 [rows]: the classes; of several labels, a row's rarest one.

    So all labels of a table have the same test rows.
    """
    if not columns.is_multilabel:
        return labels
    if columns.labels:
        has = {name: _yes_no(settings, table, columns, name) for name in columns.labels}
        sets = [{name for name in has if has[name][row] == "yes"} for row in range(len(labels))]
    else:
        sets = _label_sets(settings, table, columns)
    counts = Counter(label for found in sets for label in found)
    places = {
        label: place
        for place, (label, _) in enumerate(
            sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        )
    }
    return np.array(
        [max((1 + places[label] for label in found), default=0) for found in sets], dtype=np.int64
    )


_YES, _NO = {"1", "yes"}, {"0", "no"}


def _yes_no(settings: TaskSettings, table: Table, columns: Columns, only: str) -> list[str | None]:
    if not columns.labels:
        return [
            "yes" if only in labels else "no" for labels in _label_sets(settings, table, columns)
        ]
    answers: list[str | None] = []
    for row, label in enumerate(as_labels(table.column(only, key="label"))):
        answer = None if label is None else as_label(label)
        if answer is not None and answer not in _YES | _NO:
            raise DataError(
                f"{table.where(row)}: label '{only}' must be 0 or 1, one of several columns; given '{shown(label)}'"
            )
        is_missing = answer is None
        answers.append(None if is_missing else "yes" if answer in _YES else "no")
    return answers


def labelled_rows(table: Table, columns: Columns) -> tuple[Table, list[str]]:
    """Return a table without the rows that have no class yet, and a warning of them; any other table as it is.

    Raises:
        DataError: If no row has a class.
    """
    if columns.label is None or columns.is_multilabel:
        return table, []
    labels = as_labels(
        table.column(columns.label, key="label"), table.class_names.get(columns.label)
    )
    kept = np.array([row for row, label in enumerate(labels) if label is not None], dtype=np.int64)
    if len(kept) == len(labels):
        return table, []
    if not len(kept):
        raise DataError(
            f"{table.source}: label '{columns.label}': must hold labels; all {len(labels)} are missing"
        )
    return table.take(kept), [f"{len(labels) - len(kept):,} rows without a label left out"]


@dataclass(frozen=True)
class RowTargets:
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
) -> RowTargets:
    """Return what the rows are to be predicted as.

    Args:
        settings: The task's settings.
        table: The table.
        columns: Its columns.
        only: Of several labels a row, the one to ask for.

    Raises:
        DataError: If a value is missing, or the values cannot be classes or scores.
    """
    if columns.score is not None:
        return _read_ratings(settings, table, columns.score)
    if columns.is_multilabel:
        labels = _without_missing(table, _yes_no(settings, table, columns, only), only)
        numbers = np.array([label == "yes" for label in labels], dtype=np.int64)
        notes = (f"2 classes of '{only}'",)
        warnings = tuple(_warnings_of_sets(settings, table, columns, only))
        return RowTargets(("no", "yes"), numbers, notes=notes, warnings=warnings)
    assert columns.label is not None
    values = table.column(columns.label, key="label")
    class_names = table.class_names.get(columns.label)
    labels = _without_missing(table, as_labels(values, class_names), columns.label)
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
    places = {name: place for place, name in enumerate(names)}
    kind: LabelKind = "text"
    if class_names is None:
        kind = kind_of_labels(values, names, is_typed=table.is_typed)
    return RowTargets(
        names,
        np.array([places[label] for label in labels], dtype=np.int64),
        kind=kind,
        notes=(f"{len(names)} classes of '{columns.label}'",),
        warnings=warnings,
    )


def _without_missing(table: Table, labels: Sequence[str | None], key: str) -> list[str]:
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
    """Return warnings of a label of several a row that a person takes for another one of them."""
    if columns.labels or settings.join_labels:
        return []
    counts = Counter(label for labels in _label_sets(settings, table, columns) for label in labels)
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


def _class_names(labels: Sequence[str], known: Sequence[str] | None) -> tuple[str, ...]:
    present = set(labels)
    if known is not None:
        return tuple(name for name in known if name in present)
    if all(is_number(name) for name in present):
        return tuple(sorted(sorted(present), key=float))
    return tuple(sorted(present))


def _read_ratings(settings: TaskSettings, table: Table, name: str) -> RowTargets:
    """Return rating levels, the nearest level of each row, the scores on the scale of the levels, and their own."""
    given = table.column(name, key="score")
    found = np.empty(len(given))
    for row, value in enumerate(given):
        try:
            found[row] = float(value)
        except (TypeError, ValueError):
            shown = "nothing" if value in (None, "") else repr(value)[:40]
            raise DataError(
                f"{table.where(row)}: score '{name}' must be a number; given {shown}"
            ) from None
    broken = np.flatnonzero(~np.isfinite(found))
    if len(broken):
        raise DataError(
            f"{table.where(int(broken[0]))}: score '{name}' must be finite; {len(broken)} rows are not"
        )
    low, high = float(found.min()), float(found.max())
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
    # Ratings of up to five are used as they are, as in SentEval; others are mapped to the levels.
    is_rating = low >= 0 and NUM_LEVELS - 2 < high <= NUM_LEVELS
    note = f"scores from {low:g} to {high:g}" + ("" if is_rating else ", mapped to 1 to 5")
    scores = found if is_rating else 1 + (NUM_LEVELS - 1) * (found - low) / (high - low)
    levels = np.clip(np.rint(scores), 1, NUM_LEVELS).astype(np.int64) - 1
    names = tuple(str(level) for level in range(1, NUM_LEVELS + 1))
    scale = None if is_rating else (low, high)
    return RowTargets(names, levels, scores, scale, notes=(note,))
