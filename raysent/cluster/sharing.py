"""Several sweeps on one cluster: which of them are alive, whose turn it is, and which of them pays for the head.

On the head, in the folder of the fleet:

    holders/SWEEP.lock  locked by the process of a sweep from its start to its end; a process that dies lets go
    head.json           {id of the head: [[sweep, since, until], ...]} in Unix seconds: who has paid for which time

The first sweep pays for the head while it is alive; then another one continues where it ended. So the head's time is
charged once, without a gap while a sweep is alive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from raysent.errors import ArtifactError
from raysent.storage import read_json, write_json

_HOLDERS_FOLDER = "holders"
_HEAD_FILE = "head.json"
_TURN_FILE = "turn.lock"
# Another sweep that looks whether this one is alive has its lock for a moment.
_LOOK_S = 2.0


class Sharing:
    """The part of one sweep in a cluster that others may use too."""

    def __init__(self, folder: Path, sweep: str) -> None:
        """Use a folder of the head; nothing is locked yet.

        Args:
            folder: The folder of the fleet.
            sweep: The sweep.
        """
        self._folder = folder
        self._sweep = sweep
        self._hold: FileLock | None = None

    def hold(self) -> bool:
        """Hold the cluster until `release`, or until this process dies; False if another process of the sweep does."""
        lock = self._lock(self._sweep)
        try:
            lock.acquire(timeout=_LOOK_S)
        except Timeout:
            return False
        self._hold = lock
        return True

    def release(self) -> None:
        """Let go of the cluster."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def others(self) -> list[str]:
        """Return the other sweeps that hold the cluster."""
        names = sorted(path.stem for path in (self._folder / _HOLDERS_FOLDER).glob("*.lock"))
        return [name for name in names if name != self._sweep and self._is_held(name)]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Let no other sweep change what all of them use inside the block."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / _TURN_FILE):
            yield

    def of_head(self, name: str, *, since: float, now: float) -> tuple[float, bool]:
        """Pay for the head until now if it is this sweep's to pay for.

        Args:
            name: The head's id.
            since: When the sweep begins to pay for machines, in Unix seconds of the cloud.
            now: The cloud's time.

        Returns:
            The seconds that the sweep has paid for in all, and whether it pays now.
        """
        with self.turn():
            path = self._folder / _HEAD_FILE
            periods: list[list[str | float]] = []
            with contextlib.suppress(ArtifactError, AttributeError):
                periods = read_json(path).get(name, [])
            payer = ""
            paid_until = since
            if periods:
                payer = str(periods[-1][0])
                paid_until = float(periods[-1][2])
            is_payer = payer in ("", self._sweep) or not self._is_held(payer)
            if is_payer:
                if payer != self._sweep:
                    start = max(paid_until, since)
                    periods.append([self._sweep, start, start])
                periods[-1][2] = max(float(periods[-1][2]), now)
                write_json(path, {name: periods})
        paid_seconds = [
            float(until) - float(start) for sweep, start, until in periods if sweep == self._sweep
        ]
        return sum(paid_seconds), is_payer

    def _lock(self, sweep: str) -> FileLock:
        folder = self._folder / _HOLDERS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{sweep}.lock")

    def _is_held(self, sweep: str) -> bool:
        try:
            with self._lock(sweep).acquire(timeout=0):
                return False
        except Timeout:
            return True
