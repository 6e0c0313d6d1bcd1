"""The parts of a page as plain values, which the template lays out, and numbers as text.

A section has a title, a short text (`lead`) and blocks: tables, figures, notes and facts. Every text is plain text; the
template escapes it. A number that is missing or NaN is `None` and is printed as a dash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from raysent.progress import SECONDS_PER_HOUR

DASH = "–"
# Words of Hebrew, Arabic and their neighbours.
_LETTER = r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]"
_RIGHT_TO_LEFT = re.compile(rf"{_LETTER}+(?:[ \-_'’]+{_LETTER}+)*")

Kind = Literal["text", "number"]


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, its alignment, and a tooltip that explains the heading."""

    name: str
    kind: Kind = "text"
    title: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text.
        order: What the column is sorted by; None for the text.
        share: Length of the bar behind the text, 0 to 1; None for no bar.
        mark: Style: "best", or a trial's status.
        title: Tooltip.
    """

    text: str
    order: float | None = None
    share: float | None = None
    mark: str = ""
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells below named columns; a tall table scrolls in a frame."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    is_tall: bool = False


@dataclass(frozen=True)
class Figure:
    """A plotly figure.

    Attributes:
        json: The figure as JSON.
        height: Pixels.
        label: A sentence in place of the figure, for screen readers and browsers without JavaScript.
        title: Text above the figure.
        caption: Text below the figure.
        is_narrow: Whether it stands beside others.
    """

    json: str
    height: int
    label: str
    title: str = ""
    caption: str = ""
    is_narrow: bool = False


@dataclass(frozen=True)
class Note:
    """A remark, and a command to type."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    items: Sequence[tuple[str, str]]
    is_code: bool = False


Block = Table | Figure | Note | Facts


@dataclass(frozen=True)
class Section:
    """A section of the page; `key` is its address on the page. One that is not open is folded."""

    key: str
    title: str
    lead: str = ""
    blocks: Sequence[Block] = field(default_factory=tuple)
    is_open: bool = True


def kind_of(block: Block) -> str:
    """Return the name of the template's macro that lays out a block."""
    return type(block).__name__.lower()


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        given = float(value)
    except (TypeError, ValueError):
        return None
    return given if math.isfinite(given) else None


def significant(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, with an exponent only if it is needed, or a dash."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        decimals = digits - 1 - (math.floor(math.log10(abs(value))) if value else 0)
        return f"{value:,.{max(decimals, 0)}f}"
    return f"{value:.{digits - 1}e}"


def fixed(value: float | None, decimals: int = 2, *, sign: bool = False) -> str:
    """Return a number with a fixed number of decimals and a minus sign instead of a hyphen, or a dash."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:{'+' if sign else ''}.{decimals}f}".replace("-", "−")


def percent(fraction: float | None) -> str:
    """Return a fraction as whole percents, or a dash."""
    return DASH if fraction is None else f"{100 * fraction:.0f} %"


def whole(value: float | None) -> str:
    """Return a number without decimals, with a comma every three digits, or a dash."""
    return DASH if value is None or not math.isfinite(value) else f"{value:,.0f}"


def dollars(value: float | None) -> str:
    """Return dollars and cents, below a dollar with two significant digits, or a dash."""
    if value is None or not math.isfinite(value):
        return DASH
    sign = "−" if value < 0 else ""
    is_plain = value == 0 or abs(value) >= 0.995
    return f"{sign}${abs(value):,.2f}" if is_plain else f"{sign}${significant(abs(value), 2)}"


def duration(seconds: float | None) -> str:
    """Return seconds in one or two units, or a dash."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def hours_cell(hours: float | None) -> Cell:
    """Return a cell with a duration that is given in hours."""
    return Cell(duration(None if hours is None else hours * SECONDS_PER_HOUR), hours)


def text_of(value: Any) -> str:
    """Return a searched value as a search space writes it."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else DASH
    return str(value)


def label(text: Any) -> str:
    """Return text for a plotly label, in which `<` and `&` are markup."""
    return escape(isolated(text_of(text)), quote=False)


def isolated(text: str) -> str:
    """Return a sentence in which names from right to left do not reorder the numbers beside them.

    Source: Unicode Standard Annex 9, section 2.4.2: first-strong isolates.
    """
    return _RIGHT_TO_LEFT.sub("\u2068\\g<0>\u2069", text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return `1 trial` or `3 trials`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def column_kind(values: Sequence[Any]) -> Kind:
    """Return "number" if all values that are not None are numbers."""
    known = [value for value in values if value is not None]
    return "number" if known and all(number(value) is not None for value in known) else "text"
