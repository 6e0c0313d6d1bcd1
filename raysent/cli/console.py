"""Where text goes: results to standard output, everything else to standard error; and `--set` as overrides."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from raysent.config import Override, parse_override
from raysent.progress import (
    PIPE_WIDTH,
    PlainConsole,
    ProgressLines,
    format_duration,
    format_value,
    messages,
    natural_width,
)

__all__ = [
    "DASH",
    "ProgressLines",
    "address_of",
    "collect_overrides",
    "format_duration",
    "format_value",
    "messages",
    "print_json",
    "print_table",
    "results",
]

# The form of the objects that `--json` prints; it changes when a name or a meaning does.
JSON_VERSION = 1
DASH = "–"

results = PlainConsole(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def address_of(path: Path) -> str:
    """Return a file or folder as a user names it: its s3:// address if it is in a bucket."""
    from raysent.storage import address_of  # numpy comes with it

    return address_of(path)


def collect_overrides(options: Mapping[str, tuple[str, Any]], texts: Sequence[str]) -> list[Override]:
    """Return what the command line sets, each with the option as it was typed.

    Args:
        options: Option -> dotted name and value; None if it was not given.
        texts: The argument of each `--set`.
    """
    given = [Override(name, value, f"{flag} {value}") for flag, (name, value) in options.items() if value is not None]
    given += [Override(*parse_override(text), f"--set {text}") for text in texts]
    # Wider names first, so that a whole section does not undo a value inside it.
    return sorted(given, key=lambda override: override.name.count("."))


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object, with the version of its form, on standard output; NaN is not allowed."""
    text = json.dumps({"version": JSON_VERSION, **values}, indent=2, ensure_ascii=False, allow_nan=False)
    # JSON leaves these as they are, and a terminal obeys them.
    typer.echo(re.sub(r"[\x7f-\x9f\u202d\u202e]", lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, num_text: int = 1) -> None:
    """Print a table on standard output; all but the first `num_text` columns are numbers.

    A table is never squeezed: in a narrow window its lines wrap.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position < num_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    table.width = natural_width(table)
    results.print(table, crop=False, no_wrap=True, overflow="ignore")
