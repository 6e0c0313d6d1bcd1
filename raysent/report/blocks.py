"""What a page of the report is made of: plain values that the template lays out.

A section says in one sentence what it shows (`lead`) and holds blocks: tables, figures and notes. Every text is
plain text; the template escapes it. A number that is missing or NaN is `None` and is printed as a dash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

DASH = "–"


@dataclass(frozen=True)
class Column:
    """A table's column: its heading, whether it lines up as numbers, and what the heading means."""

    name: str
    kind: Literal["text", "number"] = "text"
    title: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: What is read.
        order: What the column is sorted by; the text where it is None.
        share: Length of the bar behind the number, 0 to 1; None for no bar.
        mark: Name of a style: "best", or the word of a status.
        title: Shown when the pointer rests on the cell.
    """

    text: str
    order: float | None = None
    share: float | None = None
    mark: str = ""
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells below named columns; a tall one scrolls in a frame of its own."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    is_tall: bool = False


@dataclass(frozen=True)
class Figure:
    """A plotly figure as JSON, with its height in pixels and a sentence (`label`) for those who cannot see it."""

    json: str
    height: int
    label: str
    title: str = ""
    caption: str = ""
    narrow: bool = False


@dataclass(frozen=True)
class Note:
    """A remark; `command` is shown as something to type."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Facts:
    """Short names and their values, as a list."""

    items: Sequence[tuple[str, str]]
    code: bool = False


Block = Table | Figure | Note | Facts


@dataclass(frozen=True)
class Section:
    """One heading of the report and what stands below it."""

    key: str
    title: str
    lead: str = ""
    blocks: Sequence[Block] = field(default_factory=tuple)


def kind_of(block: Block) -> str:
    """Return the name of the template's macro that lays out the block."""
    return type(block).__name__.lower()


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else: NaN is never shown as a number."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        given = float(value)
    except (TypeError, ValueError):
        return None
    return given if math.isfinite(given) else None


def significant(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits and no needless exponent, or a dash."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        decimals = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
        return f"{value:,.{max(decimals, 0)}f}"
    return f"{value:.{digits - 1}e}"


def fixed(value: float | None, decimals: int = 2, *, sign: bool = False) -> str:
    """Return a number with so many decimals, with a true minus sign, or a dash."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:{'+' if sign else ''}.{decimals}f}".replace("-", "−")


def whole(value: float | None) -> str:
    """Return a number without decimals, in groups of three digits, or a dash."""
    return DASH if value is None or not math.isfinite(value) else f"{value:,.0f}"


def dollars(value: float | None) -> str:
    """Return dollars and cents; of less than a dollar, two figures that say something; or a dash."""
    if value is None or not math.isfinite(value):
        return DASH
    sign = "−" if value < 0 else ""
    is_plain = value == 0 or abs(value) >= 0.995
    return f"{sign}${abs(value):,.2f}" if is_plain else f"{sign}${significant(abs(value), 2)}"


def duration(seconds: float | None) -> str:
    """Return seconds as one or two units that are read at a glance."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def text_of(value: Any) -> str:
    """Return a searched value as it would be written in a search space."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else DASH
    return str(value)


def label(text: Any) -> str:
    """Return text for a plotly label, which would otherwise read `<` and `&` as markup."""
    return escape(text_of(text), quote=False)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 trial` or `3 trials`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
