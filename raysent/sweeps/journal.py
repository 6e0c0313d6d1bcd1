"""The append-only record of a sweep: every suggestion, report, decision and outcome, written before it takes effect.

One JSON object a line, with a checksum as `raysent.storage.lines` describes. What a line says is all that a resumed
sweep needs; nothing of Ray's or Optuna's own state is read back. Events of one call of the controller, such as a report
and the decision on it, are one line: in a bucket, each line is an object.

    session    a driver took up the sweep            trials, concurrent, earlier_s, spent_usd, prices, budget
    suggested  a trial was drawn                     trial, number, attempts, params, seed
    started    a trial was handed to a worker        trial, funds
    report     a trial came to a share of its run    trial, index, num_reports, metrics, seconds, usd
    decision   whether it continues                  trial, index, decision, by (budget, else scheduler), reason, funds
    ended      a trial is over                       trial, status, metrics, seconds, usd, error
    refused    no money or time for another trial    reason, funds
    halted     no money, time or machine for training reason, funds, by (machines)
    interrupted  the driver was asked to stop
    completed  every trial has ended                 reason
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raysent.redaction import without_secrets_in
from raysent.storage import Lease, Lines, read_json_lines, refresh
from raysent.storage.layout import JOURNAL_FILE

# Set for a sweep that runs as a submitted job: it prints no events, as what follows it reads its stored journal.
EVENTS_VARIABLE = "RAYSENT_EVENTS"

Event = dict[str, Any]
Listener = Callable[[Event], None]


class Journal:
    """A journal that one driver at a time may append to."""

    def __init__(
        self, folder: Path, *, listeners: Sequence[Listener] = (), lease: Lease | None = None
    ) -> None:
        """Open the journal of a run folder.

        Args:
            folder: The run folder.
            listeners: Called with each event after it is written.
            lease: The lease of the folder that the caller holds; None to take it until the journal is closed.

        Raises:
            ArtifactError: If another process is at work on the run, or the folder cannot be written.
        """
        self.path = folder / JOURNAL_FILE
        self._listeners = listeners
        self._collected: list[Event] = []
        self._is_collecting = False
        # The system clock may be changed meanwhile; the length of this session must not change with it.
        self._began = time.time() - time.monotonic()
        self._own_lease = Lease(folder) if lease is None else None
        try:
            refresh(folder)  # another machine may have continued it since the download
            self.past = list(read_events(folder))
            self._lines = Lines(self.path)
        except BaseException:
            self.close()
            raise

    def write(self, event: str, **values: Any) -> Event:
        """Append one event, push it to the disk, and tell the listener; NaN and infinity are written as null."""
        line = {
            "event": event,
            "time": round(self._began + time.monotonic(), 3),
            **without_secrets_in(finite(values)),
        }
        self._collected.append(line)
        if not self._is_collecting:
            self._write_collected()
        return line

    @contextmanager
    def one_line(self) -> Iterator[None]:
        """Write the events of the block as one line at its end, also if it raises; none may take effect before.

        Raises:
            ArtifactError: At the end of the block, if the disk or the object store refuses; none of it is written.
        """
        self._is_collecting = True
        try:
            yield
        finally:
            self._is_collecting = False
            self._write_collected()

    def _write_collected(self) -> None:
        events, self._collected = self._collected, []
        if events:
            self._lines.append(*events)
        for event in events:
            for listener in self._listeners:
                listener(event)

    def close(self) -> None:
        """Let other drivers continue the run, unless the caller holds its lease."""
        if self._own_lease is not None:
            self._own_lease.release()


def read_events(folder: Path) -> Iterator[Event]:
    """Yield the events of a run folder; none where nothing has been written.

    Raises:
        ArtifactError: If a line is not as it was written; an incomplete last one is left out.
    """
    path = folder / JOURNAL_FILE
    if path.exists():
        yield from read_json_lines(path)


def has_completed(events: Sequence[Event]) -> bool:
    """Return whether the last session of a sweep came to its end."""
    endings = [
        event["event"]
        for event in events
        if event["event"] in ("session", "interrupted", "completed")
    ]
    return endings[-1:] == ["completed"]


def session_lengths(events: Iterable[Event]) -> list[float]:
    """Return the seconds of every session, of a killed one up to its last event."""
    lengths: list[float] = []
    begun = 0.0
    for event in events:
        if event["event"] == "session":
            begun = event["time"]
            lengths.append(0.0)
        elif lengths:
            lengths[-1] = event["time"] - begun
    return lengths


def finite(value: Any) -> Any:
    """Return a value in which numbers that JSON has no word for are None."""
    if isinstance(value, dict):
        return {
            key: finite(inner) if isinstance(inner, dict | float) else inner
            for key, inner in value.items()
        }
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
