"""What is shown where: on the screen, on the screen with `--verbose` alone, and in the log of a run.

The screen has what a reader needs to go on: a plan, a line that is alive, warnings, and an answer. All else is a
detail. `log.txt` of a run's folder has both kinds, each line with its time, so that nothing is lost by not looking.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from raysent.errors import RaysentError
from raysent.progress import LISTENERS, VERBOSE_VARIABLE, messages, text_of

LOG_FILE = "log.txt"
# Characters of a line of the plan and of the answer, but for names and commands of the user's own that are longer.
WIDTH = 100
_ELLIPSIS = "…"
# Seconds between two writes where a file can only be written whole.
_WHOLE_INTERVAL_S = 60.0


def is_verbose() -> bool:
    """Return whether details are shown on the screen."""
    return VERBOSE_VARIABLE in os.environ


def show(*lines: str) -> None:
    """Print lines that a reader needs, which are not wrapped; empty ones are left out."""
    for line in filter(None, lines):
        messages.print(line, soft_wrap=True)


def warn(line: str) -> None:
    """Print what a reader should know before going on."""
    messages.print(f"warning: {line}", soft_wrap=True)


def detail(*parts: Any) -> None:
    """Print lines and tables that few readers need: with `--verbose`; the log of a run has them always.

    Args:
        parts: Texts, of which empty ones are left out, and tables of rich.
    """
    for part in parts:
        if part == "":
            continue
        if is_verbose():
            messages.print(part, style="dim", soft_wrap=True)
            continue
        for listener in LISTENERS:
            listener(text_of(part))


def shortened(text: str, most: int = WIDTH) -> str:
    """Return a text of at most so many characters, cut between words."""
    if len(text) <= most:
        return text
    cut = text[: most - len(_ELLIPSIS)]
    head, blank, _ = cut.rpartition(" ")
    return (head if blank else cut).rstrip(" ,;:(+") + _ELLIPSIS


class RunLog:
    """The lines of a command, kept in memory until the folder of its run is known, then written as they come."""

    def __init__(self) -> None:
        """Begin without a line."""
        self._lines: list[str] = []
        self._path: Path | None = None
        self._store: Callable[[Path, str], object] | None = None
        self._written_at = 0.0
        self._is_stored = False
        self._lock = threading.Lock()

    def __call__(self, text: str) -> None:
        """Add a text, each of its lines with the time."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        with self._lock:
            self._lines += [f"{now}  {line}\n" for line in text.splitlines()]
            self._write()

    def open(self, folder: Path, *, store: Callable[[Path, str], object] | None = None) -> None:
        """Write what there is into `log.txt` of a folder, and what follows too.

        Args:
            folder: The folder of the run.
            store: What writes a whole file, where no line can be appended, as in a bucket.
        """
        with self._lock:
            if self._path is not None:
                return
            self._path = folder / LOG_FILE
            self._store = store
            if store is None:
                with contextlib.suppress(OSError):
                    folder.mkdir(parents=True, exist_ok=True)
            if store is not None and self._path.is_file():
                self._lines = [
                    *self._path.read_text(encoding="utf-8").splitlines(True),
                    *self._lines,
                ]
            self._write()

    def close(self) -> None:
        """Write what is not written yet."""
        with self._lock:
            self._written_at = 0.0
            self._write()

    def _write(self) -> None:
        """Write the lines; a disk that refuses them does not end the run that they are of.

        A sweep that came to nothing removes its folder, which is not made again for what is said of that.
        """
        if self._path is None or not self._lines:
            return
        with contextlib.suppress(OSError, RaysentError):
            if self._store is None:
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.writelines(self._lines)
                self._lines.clear()
            elif self._is_stored and not self._path.is_file():
                return  # it was removed with its folder
            elif time.monotonic() - self._written_at > _WHOLE_INTERVAL_S or not self._written_at:
                self._written_at = time.monotonic()
                self._store(self._path, "".join(self._lines))
                self._is_stored = True


@contextlib.contextmanager
def run_log() -> Iterator[RunLog]:
    """Yield the log of what is printed in the block: where a log is open already, that one."""
    current = next((listener for listener in LISTENERS if isinstance(listener, RunLog)), None)
    if current is not None:
        yield current
        return
    log = RunLog()
    LISTENERS.append(log)
    try:
        yield log
    except RaysentError as error:
        # The screen has this line from the caller; a reader of the log alone has to see how the run ended.
        log(f"error: {error}")
        raise
    finally:
        LISTENERS.remove(log)
        log.close()
