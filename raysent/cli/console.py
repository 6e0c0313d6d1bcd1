"""Where text goes: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from raysent.errors import ConfigError
from raysent.progress import PIPE_WIDTH, PlainConsole, is_terminal, natural_width

# The form of the objects that `--json` prints; it changes when a name or a meaning does.
JSON_VERSION = 1
DASH = "–"

results = PlainConsole(
    highlight=False,
    markup=False,
    emoji=False,
    width=None if is_terminal(sys.stdout) else PIPE_WIDTH,
)


def address_of(path: Path) -> str:
    """Return a file or folder as a user names it: its s3:// address if it is in a bucket."""
    from raysent.storage import address_of  # numpy comes with it

    return address_of(path)


def usd(value: float, digits: int = 2) -> str:
    """Return dollars as text; small amounts keep two significant digits."""
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"


def confirm_cost(question: str, *, yes: bool, unanswered: str = "") -> None:
    """Ask before machines are paid for: no is the answer to a bare Enter.

    Args:
        question: What is asked; it names the dollars.
        yes: Whether the command line has answered.
        unanswered: Why the command line alone is not enough; empty if it is.

    Raises:
        ConfigError: If there is no terminal to ask on.
    """
    if yes and not unanswered:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            unanswered or "cluster: must be confirmed, as there is no terminal to ask on; add --yes"
        )
    typer.confirm(question, default=False, abort=True, err=True)


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object, with the version of its form, on standard output; NaN is not allowed."""
    named = {"version": JSON_VERSION, **values}
    text = json.dumps(named, indent=2, ensure_ascii=False, allow_nan=False)
    if not _can_hold(text):
        text = json.dumps(named, indent=2, allow_nan=False)
    # JSON leaves these as they are, and a terminal obeys them.
    typer.echo(re.sub(r"[\x7f-\x9f\u202d\u202e]", lambda found: f"\\u{ord(found[0]):04x}", text))


def _can_hold(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def with_interval(value: float, interval: Sequence[float], *, is_signed: bool = False) -> str:
    """Return a value and its interval with two decimals, and a sign where it is a difference."""
    form = "+.2f" if is_signed else ".2f"
    return f"{value:{form}} [{interval[0]:{form}}, {interval[1]:{form}}]"


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, num_text: int = 1
) -> None:
    """Print a table on standard output; all but the first `num_text` columns are numbers.

    A table is never squeezed: in a narrow window its lines wrap.
    """
    table = table_of(headings, rows, num_text=num_text)
    results.print(table, crop=False, no_wrap=True, overflow="ignore")


def table_of(headings: Sequence[str], rows: Iterable[Sequence[str]], *, num_text: int = 1) -> Table:
    """Return a table as wide as its cells; all but the first `num_text` columns are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position < num_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    table.width = natural_width(table)
    return table
