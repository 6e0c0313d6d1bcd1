"""What is typed, as overrides; and where text goes: results to standard output, all else to standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from raysent.config import Override, parse_override

# Text that goes into a file or a pipe has no screen to fit.
_PIPE_WIDTH = 160

messages = Console(
    stderr=True, highlight=False, markup=False, emoji=False, width=None if sys.stderr.isatty() else _PIPE_WIDTH
)
results = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def collect_overrides(options: Mapping[str, tuple[str, Any]], texts: Sequence[str]) -> list[Override]:
    """Return what the command line sets, each with the option as it was typed.

    Args:
        options: Option -> dotted name and value; None where it was not given.
        texts: What followed each `--set`.
    """
    given = [Override(name, value, f"{flag} {value}") for flag, (name, value) in options.items() if value is not None]
    given += [Override(*parse_override(text), f"--set {text}") for text in texts]
    # Wider names first, so that a section that is set as a whole does not take back a value inside it.
    return sorted(given, key=lambda override: override.name.count("."))


def default_folder(name: str) -> Path:
    """Return the run folder of a space where none is named."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def print_json(value: Any) -> None:
    """Print one JSON object on standard output; NaN has no place in it."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, num_text: int = 1) -> None:
    """Print a table on standard output; all but the first `num_text` columns are figures.

    It is never squeezed: where a window is too narrow, its lines run on into the next.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position < num_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    table.width = natural_width(table)
    results.print(table, crop=False, no_wrap=True, overflow="ignore")


def natural_width(table: Table) -> int:
    """Return the columns of a screen that a table takes where it is not squeezed."""
    wide = results.options.update(width=100_000)
    return Measurement.get(results, wide, table).maximum


class ProgressLines:
    """Shows how far something is: a bar on a terminal, a line every few seconds elsewhere."""

    INTERVAL_S = 10.0

    def __init__(self, *, prefix: str = "", is_quiet: bool = False) -> None:
        """Show nothing yet.

        Args:
            prefix: Stands before whatever is told.
            is_quiet: Whether to show nothing ever.
        """
        self._prefix = prefix
        self._is_quiet = is_quiet
        self._told_at = time.monotonic()
        self._task: Any = None
        self._bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=messages, transient=True,
        )  # fmt: skip

    def __enter__(self) -> ProgressLines:
        if messages.is_terminal and not self._is_quiet:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar.live.is_started:  # stopping what never started would print an empty line
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show that `done` of `total` (None where it is not known) of `what` are done."""
        if self._is_quiet:
            return
        what = self._prefix + what
        if messages.is_terminal:
            if self._task is None:
                self._task = self._bar.add_task(what)
            self._bar.update(self._task, description=what, completed=done, total=total)
        elif time.monotonic() - self._told_at > self.INTERVAL_S:
            self._told_at = time.monotonic()
            messages.print(f"{what}: {done:,}{f' of {total:,}' if total else ''}")
