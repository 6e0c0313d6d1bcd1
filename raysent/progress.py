"""Progress bars, and short texts for numbers and times. `live` shows a whole sweep.

Progress goes to standard error, so that results can be piped. Whatever is printed goes through `printable`: sentences,
labels and names of files may hold sequences that rewrite a terminal.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table

from raysent.redaction import without_secrets

# Set by --verbose: Ray's own messages are printed.
SECONDS_PER_HOUR = 3600.0
VERBOSE_VARIABLE = "RAYSENT_VERBOSE"
# Text that goes into a file or a pipe has no screen to fit.
PIPE_WIDTH = 160

# Control characters except tab and newline, and those that reverse the order of what is shown.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160), 0x202D, 0x202E], "\ufffd")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; a process without a console, or a daemon, may have none."""
    return stream is not None and stream.isatty()


def printable(text: str) -> str:
    """Return text without characters that a terminal would obey."""
    return text.translate(_CONTROLS)


def printable_message(text: str) -> str:
    """Return a message as it is printed: without secrets of addresses too, which a user's own text keeps."""
    return printable(without_secrets(text))


# Called with the text of whatever is printed, such as the log of a run; see `screen`.
LISTENERS: list[Callable[[str], None]] = []


def text_of(part: str | Table) -> str:
    """Return a text or a table as lines of plain text, without secrets of addresses."""
    if isinstance(part, str):
        return printable_message(part)
    page = Console(file=io.StringIO(), width=PIPE_WIDTH, markup=False, emoji=False, highlight=False)
    page.print(part, crop=False, no_wrap=True, overflow="ignore")
    assert isinstance(page.file, io.StringIO)
    return printable_message(page.file.getvalue().rstrip("\n"))


class PlainConsole(Console):
    """A console on which only its own styles and movements of the cursor reach the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, and say the text of it to those who listen."""
        super().print(*objects, **options)
        if LISTENERS and objects and all(isinstance(part, str | Table) for part in objects):
            text = "\n".join(map(text_of, objects))
            for listener in LISTENERS:
                listener(text)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the pieces of what is printed, their text printable."""
        shown = printable_message if self.stderr else printable
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))


class PrintableFormatter(logging.Formatter):
    """A log's line without characters that a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return printable_message(super().format(record))


messages = PlainConsole(
    stderr=True,
    highlight=False,
    markup=False,
    emoji=False,
    width=None if is_terminal(sys.stderr) else PIPE_WIDTH,
)


def format_duration(seconds: float) -> str:
    """Return seconds as 45s, 3m20s or 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def format_value(value: Any) -> str:
    """Return a searched value or a metric as short text."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def natural_width(table: Table) -> int:
    """Return the number of columns that a table needs without wrapping."""
    wide = messages.options.update(width=100_000)
    return Measurement.get(messages, wide, table).maximum


class ProgressLines:
    """Shows how much of something is done and the time left: a bar on a terminal, a line a minute elsewhere.

    What takes long between two steps is shown again every minute, so that a log shows that it lives.
    """

    INTERVAL_S, REPEAT_S = 60.0, 60.0
    # Steps that tell how long the others take: the first is often the longest, as what all share is made in it.
    LEAST_STEPS = 3

    def __init__(self, *, prefix: str = "", is_quiet: bool = False) -> None:
        """Prepare the bar, which appears with the first step.

        Args:
            prefix: Text before each description.
            is_quiet: Whether to show nothing.
        """
        self._prefix = prefix
        self._is_quiet = is_quiet
        self._printed_at = time.monotonic()
        self._task: Any = None
        self._step: tuple[str, int, int | None] | None = None
        # What was done first of a total, and when.
        self._first: tuple[int, int | None, float] = (0, None, self._printed_at)
        self._is_over = threading.Event()
        self._bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), console=messages, transient=True,
        )  # fmt: skip

    def __enter__(self) -> ProgressLines:
        if self._is_quiet or messages.quiet:
            return self
        if messages.is_terminal:
            self._bar.start()
        else:
            threading.Thread(target=self._repeat, name="raysent-progress", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        if self._bar.live.is_started:  # stopping a bar that never started would print an empty line
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Show that `done` of `total` are done, where `total` may be unknown (None)."""
        if self._is_quiet or messages.quiet:
            return
        what = self._prefix + what
        if messages.is_terminal:
            if self._task is None:
                self._task = self._bar.add_task(what)
            # What is done leaves the screen to what follows it.
            self._bar.update(
                self._task, description=what, completed=done, total=total, visible=done != total
            )
            return
        now = time.monotonic()
        if self._first[1] != total or done < self._first[0]:
            self._first = (done, total, now)
        self._step = what, done, total
        if now - self._printed_at > self.INTERVAL_S:
            self._print(now)

    def _print(self, now: float) -> None:
        assert self._step is not None
        (what, done, total), (first, _, began) = self._step, self._first
        num_timed = done - first
        left = ""
        if total and done < total and num_timed >= self.LEAST_STEPS:
            seconds = (now - began) / num_timed * (total - done)
            left = f", about {format_duration(seconds)} left"
        self._printed_at = now
        messages.print(f"{what}: {done:,}{f' of {total:,}' if total else ''}{left}")

    def _repeat(self) -> None:
        while not self._is_over.wait(self.REPEAT_S / 10):
            now = time.monotonic()
            if (
                self._step is not None
                and self._step[1] != self._step[2]
                and now - self._printed_at > self.REPEAT_S
            ):
                self._print(now)
