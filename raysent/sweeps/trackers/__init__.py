"""Who follows a sweep while it runs: a module defines `TRACKERS`, a table of names and classes.

    trackers: [tensorboard, {type: my_tracker, project: encoders}]

`track` passes the events of a recorded sweep to one of them. Another package adds a tracker by an entry point
`raysent.trackers` whose value is such a module.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from raysent.config import Document, StrictModel, validate
from raysent.errors import ConfigError, RaysentError
from raysent.storage import refresh
from raysent.sweeps.components import TRACKERS, build
from raysent.sweeps.journal import Event, read_events
from raysent.sweeps.record import load_record
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trial import Trial, apply_event, trials_of

_POLL_S = 2.0


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

    A class may also have `TARGET`, the name of the setting that `raysent track --to NAME:TARGET` gives.

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


def sweep_title(space: SearchSpace, folder: Path) -> str:
    """Return what a tracker calls a sweep unless its settings do: the names of the space and of the run folder."""
    return f"{space.name}-{folder.resolve().name}"


class FollowedTrials:
    """The trials of a sweep, as the events that a tracker receives describe them."""

    def __init__(self, folder: Path) -> None:
        """Follow the sweep in a run folder."""
        self._folder = folder
        self._trials: dict[str, Trial] = {}

    def apply(self, event: Event) -> Trial | None:
        """Return the event's trial as it is after the event; None for an event of no trial.

        A resumed sweep's tracker receives the events of one session; trials of earlier ones are read from the journal.
        """
        name = event.get("trial")
        if name is None:
            return None
        if name in self._trials or event["event"] == "suggested":
            apply_event(self._trials, event)
        else:
            self._trials = trials_of(read_events(self._folder))
        return self._trials.get(name)


def track(folder: Path, target: str, *, follow: bool = False, poll_s: float = _POLL_S) -> int:
    """Pass a sweep's events to a tracker, and return how many there were.

    Args:
        folder: The run folder.
        target: The tracker's name and where it writes, such as ``tensorboard:DIR``.
        follow: Whether to wait for more events until the sweep has ended.
        poll_s: Seconds between two looks at the journal.

    Raises:
        ConfigError: If there is no such tracker, or it refuses an event.
        ArtifactError: If the folder is no sweep's, or its journal is damaged.
    """
    name, _, place = target.partition(":")
    kind = TRACKERS.find(name, where=f"--to {target}")
    setting = getattr(kind, "TARGET", None)
    if setting is None or not place:
        raise ConfigError(f"--to {target}: must be a tracker and where it writes; such as tensorboard:DIR")
    space = load_record(folder).space
    tracker = kind(space, validate(kind.Config, Document({setting: place}, source=f"--to {target}")), folder=folder)
    num_events = 0
    try:
        for event in _recorded(folder, follow=follow, poll_s=poll_s):
            tracker.on_event(event)
            num_events += 1
    except RaysentError:
        raise
    except Exception as error:  # whatever the tracker's library raises
        reason = " ".join(str(error).split())
        raise ConfigError(f"--to {target}: {type(error).__name__}: {reason}") from None
    finally:
        tracker.close()
    return num_events


def _recorded(folder: Path, *, follow: bool, poll_s: float) -> Iterator[Event]:
    """Yield the events of a journal, and those that are added to it until the sweep has ended."""
    num_read = 0
    while True:
        events = list(read_events(folder))
        yield from events[num_read:]
        num_read = max(num_read, len(events))
        if not follow or (events and events[-1]["event"] == "completed"):
            return
        time.sleep(poll_s)
        refresh(folder)


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


__all__ = ["TRACKERS", "FollowedTrials", "Tracker", "TrackerType", "Trackers", "make_trackers", "track"]
