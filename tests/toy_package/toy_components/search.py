"""A sampler, a scheduler and a tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raysent.config import StrictModel
from raysent.sweeps.schedulers import CONTINUE, Decision
from raysent.sweeps.space import Params, SearchSpace


class CornerSettings(StrictModel):
    """Settings of the sampler.

    Attributes:
        first: Which corner is tried first.
    """

    first: int = 0


class Corners:
    """Proposes the corners of the space, one after another."""

    Config = CornerSettings

    def __init__(self, space: SearchSpace, config: CornerSettings, *, seed: int) -> None:
        self._corners, self._first = list(space.edges()), config.first

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Return the next corner; None after the last."""
        place = self._first + number
        return (self._corners[place], 1) if place < len(self._corners) else None

    def replay(self, number: int, params: Params, *, attempts: int) -> None:
        """Remember nothing."""

    def on_report(self, number: int, *, index: int, score: float, usd: float) -> None:
        """Learn nothing."""

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Learn nothing."""


class Nothing(StrictModel):
    """No settings."""


class StopAll:
    """Stops every trial at its first report, except the first trial."""

    Config = Nothing

    def __init__(self, space: SearchSpace, config: Nothing, *, seed: int) -> None:
        pass

    def on_report(self, trial: Any, *, score: float) -> Decision:
        """Continue the first trial alone."""
        return CONTINUE if trial.number == 0 else Decision(should_continue=False, reason="toy")

    def complete(self, trial: Any) -> None:
        """Record nothing."""

    def next_rung(self, index: int) -> int | None:
        """Return the first report."""
        return 1 if index < 1 else None


class LinesTracker:
    """Adds the name of each event to a file of the run folder."""

    Config = Nothing

    def __init__(self, space: SearchSpace, config: Nothing, *, folder: Path) -> None:
        self._path = folder / "toy_events.txt"
        self._names: list[str] = []

    def on_event(self, event: Any) -> None:
        """Remember the event."""
        self._names.append(event["event"])

    def close(self) -> None:
        """Write what was remembered; a resumed sweep and its evaluation have trackers of their own."""
        with self._path.open("a") as stream:
            stream.writelines(f"{name}\n" for name in self._names)


SAMPLERS = {"toy_corners": Corners}
SCHEDULERS = {"toy_stop": StopAll}
TRACKERS = {"toy_lines": LinesTracker}
