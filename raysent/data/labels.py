"""Labels of a table: which are missing, of what type they are, and which a person takes for one.

A label is missing where its value is: an empty cell, null, or a NaN of floating point. The word "nan" is a class like
any other. A label is compared and kept as text, its name; its type is kept beside it, so that what a model answers is
what the table has: 1 and not "1". Files of CSV and TSV have no types, and get those that their readers see in them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from raysent.data.same_text import as_label
from raysent.data.unicode_form import is_in_form

LabelKind = Literal["text", "integer", "number", "truth"]
LabelValue = str | int | float | bool

_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?(?:0|[1-9]\d{0,14})\.\d{1,15}")
_TRUTH = {"true": True, "false": False}
# As other tools write a value that is missing; "Nan" is a name, and a bread.
_LIKE_MISSING = frozenset(
    ("None", "none", "NONE", "NULL", "null", "Null", "N/A", "n/a", "NA", "<NA>", "#N/A", "nan", "NaN", "NAN", "NaT")
)  # fmt: skip


def kind_of_labels(values: Iterable[Any], names: Sequence[str], *, is_typed: bool) -> LabelKind:
    """Return the type of a column of labels.

    Args:
        values: The labels that are not missing, as the table has them.
        names: The names of its classes.
        is_typed: Whether the table has types; otherwise the names say what a reader sees in them.
    """
    if is_typed:
        kind = _kind_of_values(values)
    else:
        kind = _kind_of_names(names)
    # Names of one value, such as 1 and 1.0, could not be distinguished.
    if len({label_value(name, kind) for name in names}) < len(names):
        return "text"
    return kind


def _kind_of_values(values: Iterable[Any]) -> LabelKind:
    # A column of objects may hold numbers of NumPy.
    labels = [label.item() if isinstance(label, np.generic) else label for label in values]
    types = {type(label) for label in labels}
    if types == {bool}:
        return "truth"
    if types and types <= {int, float}:
        is_whole = all(float(label).is_integer() for label in labels)
        return "integer" if is_whole else "number"
    return "text"


def _kind_of_names(names: Sequence[str]) -> LabelKind:
    if all(_INTEGER.fullmatch(name) for name in names):
        return "integer"
    if all(_INTEGER.fullmatch(name) or _DECIMAL.fullmatch(name) for name in names):
        return "number"
    if all(name.lower() in _TRUTH for name in names):
        return "truth"
    return "text"


def label_value(name: str, kind: LabelKind) -> LabelValue:
    """Return the value of a class of a name."""
    if kind == "integer":
        return int(name)
    if kind == "number":
        return float(name)
    if kind == "truth":
        return _TRUTH[name.lower()]
    return name


def is_number(name: str) -> bool:
    """Return whether a class is named by a whole or decimal number, by which classes are ordered."""
    return re.fullmatch(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", name) is not None


def joined_names(counts: Mapping[str, int]) -> dict[str, str]:
    """Return the name of the class that each name is joined to: of those that say the same, the most frequent.

    Args:
        counts: Name -> rows that have it.
    """
    first_of: dict[str, str] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        first_of.setdefault(as_label(name), name)
    return {name: first_of[as_label(name)] for name in counts}


def alike_warnings(counts: Counter[str], cure: str) -> list[str]:
    """Return a warning that names the classes that a person takes for one, if there are such.

    Args:
        counts: Name -> rows that have it.
        cure: What joins them, for the message.
    """
    groups: dict[str, list[str]] = {}
    for name, _ in counts.most_common():
        groups.setdefault(as_label(name), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return []
    shown = "; ".join(_shown(group, counts) for group in alike[:3])
    more = ""
    if len(alike) > 3:
        more = f" and {len(alike) - 3} more"
    return [f"labels that a person may take for one are several classes: {shown}{more}; {cure}"]


def missing_warnings(counts: Mapping[str, int]) -> list[str]:
    """Return a warning that names the classes that read like a value that is missing, if there are such."""
    missing_names = sorted(name for name in counts if name in _LIKE_MISSING)
    if not missing_names:
        return []
    shown = ", ".join(f"'{name}' ({counts[name]:,} rows)" for name in missing_names[:5])
    return [
        f"labels {shown} read like missing values; if they are, leave the cells empty, and their rows are left out"
    ]


def _shown(group: Sequence[str], counts: Mapping[str, int]) -> str:
    names = " and ".join(visible(name) for name in group)
    sizes = " and ".join(f"{counts[name]:,}" for name in group)
    return f"{names} ({sizes} rows)"


def visible(name: str) -> str:
    """Return a name in quotation marks, with escapes for what would not be seen in it."""
    if is_in_form(name, "NFC") and name.isprintable():
        return repr(name)
    return ascii(name)
