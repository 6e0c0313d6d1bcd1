"""Who follows a sweep while it runs: a module defines `TRACKERS`, a table of names and classes.

    trackers: [tensorboard, {type: my_tracker, project: encoders}]

`TrackingThread` passes the events to those trackers, and to others that are named as ``tensorboard:DIR``, in a thread
beside the sweep; `track` passes those of a recorded sweep to one of them. Another package adds a tracker by an entry
point `raysent.trackers` whose value is such a module.
"""

from __future__ import annotations

import queue
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

from raysent.config import Document, validate
from raysent.errors import ConfigError, RaysentError
from raysent.redaction import without_secrets
from raysent.storage import address_of, content_key, to_uri
from raysent.storage.layout import SWEEP_FILE, TRIALS_FOLDER
from raysent.sweeps.components import TRACKERS as TRACKERS
from raysent.sweeps.components import build
from raysent.sweeps.journal import Event, read_events
from raysent.sweeps.record import load_record
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trial import Trial, apply_event

# The event of `evaluated_event`.
EVALUATED = "evaluated"
# The longest that the end of a sweep waits for trackers.
_CLOSE_S = 30.0


class Tracker(Protocol):
    """Receives the events of a sweep's journal as they are written.

    Calls, in a thread of the driver's process: `on_event` for each event of `raysent.sweeps.journal`, then for that of
    the evaluation, which `evaluated_event` describes and the journal does not have; `close` once, at the end of the
    session. A resumed sweep makes a new tracker, which receives the events of its own session: so add to files, do not
    replace them. Write nothing before the first event. A tracker that raises is reported in one line and receives no
    more events; the sweep continues. One whose `__init__` raises is refused in one line before anything starts.
    """

    def on_event(self, event: Event) -> None:
        """Receive one event."""

    def close(self) -> None:
        """Write what is left."""


class TrackingThread:
    """Passes the events of a sweep to its trackers, in a thread of its own. Use as a context manager.

    The sweep waits neither for a slow tracker nor for its library; other trackers do, as they are called in turn. A
    tracker that raises is reported in one line and receives no more events; `track` sends the rest afterwards.
    """

    def __init__(
        self,
        space: SearchSpace,
        folder: Path,
        *,
        targets: str | Sequence[str] = (),
        warn: Callable[[str], object],
    ) -> None:
        """Make the trackers that a space names, and others.

        Args:
            space: The space that is swept.
            folder: The run folder.
            targets: Other trackers by name and where they write, such as ``tensorboard:DIR``.
            warn: Called with a line on what failed.

        Raises:
            ConfigError: If there is no such tracker, its settings are wrong, or it is not installed.
        """
        self._trackers: dict[str, Tracker] = {}
        for place, choice in enumerate(space.trackers):
            at = f"trackers.{place}"
            self._trackers[f"{at}: {choice.type}"] = build(
                TRACKERS, space, choice, at=at, folder=folder
            )
        for target in [targets] if isinstance(targets, str) else targets:
            name = f"--track {without_secrets(target)}"
            self._trackers[name] = _of_target(target, space, folder, option="track")
        self._folder, self._warn = folder, warn
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> TrackingThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._events.put(None)
        self._thread.join(_CLOSE_S)
        for name in self._trackers if self._thread.is_alive() else ():
            self._warn(f"{name}: does not keep up; {self._rest(name)}")

    def __call__(self, event: Event) -> None:
        """Note an event."""
        if self._trackers:
            self._events.put(dict(event))

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            for name, tracker in list(self._trackers.items()):
                self._call(name, partial(tracker.on_event, dict(event)))
        for name, tracker in list(self._trackers.items()):
            self._call(name, tracker.close)

    def _call(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:  # whatever the tracker's library raises
            reason = without_secrets(" ".join(str(error).split()))
            rest = self._rest(name)
            del self._trackers[name]
            self._warn(f"{name}: {type(error).__name__}: {reason}; {rest}")

    def _rest(self, name: str) -> str:
        if getattr(self._trackers.get(name), "TARGET", None) is None:
            return "the sweep continues"
        run, target = (
            shlex.quote(address_of(self._folder)),
            name.partition("--track ")[2] or "TRACKER:TARGET",
        )
        return f"the sweep continues; 'raysent track {run} --to {shlex.quote(target)}' sends what is missing"


def sweep_title(space: SearchSpace, folder: Path) -> str:
    """Return what a tracker calls a sweep unless its settings do: the names of the space and of the run folder."""
    return f"{space.name}-{folder.resolve().name}"


def evaluated_event(
    folder: Path,
    *,
    time: float,
    scores: Mapping[str, Mapping[str, Mapping[str, float]]],
    **facts: str | Sequence[str],
) -> Event:
    """Return the event that ends a sweep for its trackers: what the best trials and their ensemble score.

    Args:
        folder: The run folder.
        time: When it was evaluated, in seconds since 1970; the same in each event, by which MLflow knows a score again.
        scores: Name of a trial, of a baseline or `ensemble` -> task, or `mean` of several tasks -> `validation` and
            `test`, in percent.
        facts: Further values: `members` and `best_member`, names of trials; `method`, which combines them; and
            `summary`, one sentence.
    """
    return {"event": EVALUATED, "time": time, "folder": to_uri(folder), "scores": scores, **facts}


def flat_scores(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return one model's scores by ``test/TASK`` and ``validation/TASK``."""
    return {
        f"{rows}/{task}": value for task, values in scores.items() for rows, value in values.items()
    }


class FollowedTrials:
    """The trials of a sweep, as the events that a tracker receives describe them."""

    def __init__(self, folder: Path) -> None:
        """Follow the sweep in a run folder."""
        self._folder = folder
        self._trials: dict[str, Trial] = {}
        self._suggested: dict[str, float] = {}

    @cached_property
    def sweep_key(self) -> str:
        """A key that differs between sweeps in folders of the same name; empty for a folder without a record."""
        if not (self._folder / SWEEP_FILE).is_file():
            return ""
        record = load_record(self._folder)
        return content_key("sweep", record.space.name, record.started, record.seed)[:8]

    def address_of(self, trial: str) -> str:
        """Return the address of a trial's folder, which does not depend on the working folder."""
        return to_uri(self._folder / TRIALS_FOLDER / trial)

    def suggested(self, trial: str) -> float | None:
        """Return when a trial was suggested, in seconds since 1970; None if it is unknown."""
        return self._suggested.get(trial)

    def apply(self, event: Event) -> Trial | None:
        """Return the event's trial as it is after the event; None for an event of no trial.

        A resumed sweep's tracker receives the events of one session; trials of earlier ones are read from the journal.
        """
        name = event.get("trial")
        if name is None:
            return None
        if name in self._trials or event["event"] == "suggested":
            self._apply(event)
        else:
            self._trials = {}
            for one in _until(read_events(self._folder), event):
                self._apply(one)
        return self._trials.get(name)

    def _apply(self, event: Event) -> None:
        apply_event(self._trials, event)
        if event["event"] == "suggested":
            self._suggested[event["trial"]] = event["time"]


def facts_of(event: Event) -> dict[str, str]:
    """Return as texts what the event of an evaluation says of the ensemble beside scores; nothing that is empty."""
    given = {name: event.get(name) for name in ("members", "best_member", "method", "summary")}
    return {
        name: fact if isinstance(fact, str) else ", ".join(fact)
        for name, fact in given.items()
        if fact
    }


def known_values(event: Event) -> dict[str, float]:
    """Return the values of a report that are numbers, with time and cost so far."""
    values = {**event["metrics"], "seconds": event["seconds"], "usd": event.get("usd", 0.0)}
    return {name: float(value) for name, value in values.items() if value is not None}


def track(folder: Path, target: str, *, evaluated: Event | None = None) -> int:
    """Pass a sweep's events to a tracker, and return how many there were.

    Args:
        folder: The run folder.
        target: The tracker's name and where it writes, such as ``tensorboard:DIR``.
        evaluated: The event of the evaluation that followed the training; None without one.

    Raises:
        ConfigError: If there is no such tracker, or it refuses an event.
        ArtifactError: If the folder is no sweep's, or its journal is damaged.
    """
    tracker = _of_target(target, load_record(folder).space, folder, option="to")
    try:
        events = list(read_events(folder))
        for event in [*events, evaluated] if evaluated is not None else events:
            tracker.on_event(event)
    except RaysentError:
        raise
    except Exception as error:  # whatever the tracker's library raises
        reason = " ".join(str(error).split())
        raise ConfigError(f"to {target}: {type(error).__name__}: {reason}") from None
    finally:
        tracker.close()
    return len(events)


def check_targets(targets: Iterable[str], space: SearchSpace, folder: Path) -> None:
    """Check what `--track` names, before anything starts.

    Raises:
        ConfigError: If there is no such tracker, where it writes is not named, or it is not installed.
    """
    for target in [targets] if isinstance(targets, str) else targets:
        _of_target(target, space, folder, option="track")


def _of_target(target: str, space: SearchSpace, folder: Path, *, option: str) -> Tracker:
    name, _, place = target.partition(":")
    where = f"{option} {target}"
    kind = TRACKERS.find(name, where=where)
    setting = getattr(kind, "TARGET", None)
    if setting is None or not place:
        raise ConfigError(
            f"{where}: must be a tracker and where it writes; such as tensorboard:DIR"
        )
    tracker: Tracker = kind(
        space,
        validate(kind.Config, Document({setting: place}, source=where)),
        folder=folder,
    )
    return tracker


def _until(events: Iterable[Event], last: Event) -> Iterator[Event]:
    """Yield events up to one of them; the journal may have more than a tracker has received."""
    for event in events:
        yield event
        if all(event.get(name) == last.get(name) for name in ("event", "trial", "time")):
            return
