"""Who follows a sweep while it runs: a module defines `TRACKERS`, a table of names and classes.

    trackers: [tensorboard, {type: my_tracker, project: encoders}]

Another package adds a tracker by an entry point `raysent.trackers` whose value is such a module.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from raysent.config import StrictModel
from raysent.sweeps.components import TRACKERS, build
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace


class Tracker(Protocol):
    """Receives the events of a sweep's journal as they are written.

    Calls: `on_event` for each event of `raysent.sweeps.journal`, in the driver's process; `close` once, at the end of
    the session. A resumed sweep makes a new tracker, which receives the events of its own session. A tracker that
    raises is reported in a warning and receives no more events; the sweep continues.
    """

    def on_event(self, event: Event) -> None:
        """Receive one event."""

    def close(self) -> None:
        """Write what is left."""


class TrackerType(Protocol):
    """A class of trackers, as a table names it.

    Attributes:
        Config: Its settings, which a search space gives beside `type`.
    """

    Config: type[StrictModel]

    def __call__(self, space: SearchSpace, config: Any, *, folder: Path) -> Tracker:
        """Return a tracker of a sweep in a run folder, where it may write; raise `ConfigError` for wrong settings."""


class Trackers:
    """The trackers of a sweep as one listener of its journal."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def close(self) -> None:
        """Close every tracker, at the end of a session."""
        for tracker in list(self._trackers):
            self._call(tracker, "close")

    def __call__(self, event: Event) -> None:
        """Pass an event to every tracker."""
        for tracker in list(self._trackers):
            self._call(tracker, "on_event", dict(event))

    def _call(self, tracker: Tracker, method: str, *arguments: Any) -> None:
        """Call a tracker; one that raises is not called again."""
        try:
            getattr(tracker, method)(*arguments)
        except Exception as error:  # a broken tracker must not end a sweep
            self._trackers.remove(tracker)
            text = " ".join(str(error).split())
            warnings.warn(
                f"tracker {type(tracker).__name__}: {type(error).__name__}: {text}; it receives no more events",
                stacklevel=2,
            )


def make_trackers(space: SearchSpace, folder: Path) -> Trackers:
    """Return the trackers that a space names.

    Args:
        space: The space.
        folder: The run folder.

    Raises:
        ConfigError: With file and line, if there is none of a name, or its settings are wrong.
    """
    named = enumerate(space.trackers)
    return Trackers([build(TRACKERS, space, one, at=f"trackers.{place}", folder=folder) for place, one in named])


__all__ = ["TRACKERS", "Tracker", "TrackerType", "Trackers", "make_trackers"]
