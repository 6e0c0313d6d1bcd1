"""The events of a sweep as they happen: a live table on a terminal, lines of text elsewhere, as in a notebook."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysent.cost import MACHINES
from raysent.progress import format_duration, format_value, natural_width
from raysent.sweeps import Event
from raysent.sweeps.journal import EVENT_MARK, EVENTS_VARIABLE
from raysent.sweeps.ranking import TrialResult, first_number, rank
from raysent.sweeps.space import SearchSpace

# Trials in the live table.
NUM_SHOWN = 12
_STYLES = {"running": "cyan", "finished": "green", "stopped": "dim", "failed": "red", "nan": "red"}
_ENDED = ("finished", "stopped", "failed", "nan")


def is_submitted() -> bool:
    """Return whether this process is a job that another one submitted, and shows the events of."""
    return EVENTS_VARIABLE in os.environ


class EventLines:
    """Writes a sweep's events as lines of JSON, for the process that submitted the sweep."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> EventLines:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to release."""

    def restore(self, events: Sequence[Event]) -> None:
        """Write the events of earlier sessions."""
        for event in events:
            self.on_event(event)

    def on_event(self, event: Event) -> None:
        """Write one event at once."""
        self._console.file.write(f"{EVENT_MARK}{json.dumps(event, ensure_ascii=False)}\n")
        self._console.file.flush()


class SweepView:
    """Shows a sweep's events; a context manager whose `on_event` is a listener of the journal."""

    def __init__(self, console: Console, space: SearchSpace, *, is_quiet: bool = False) -> None:
        self._console = console
        self._space, self._title, self._metric = space, space.name, space.metric
        self._is_quiet = is_quiet
        self._trials: dict[str, dict[str, Any]] = {}
        self._num_trials = self._concurrent = 1
        self._started = time.monotonic()
        self._num_reports = 0
        self._waiting = ""
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._is_quiet

    def __enter__(self) -> SweepView:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_live:
            self._live.stop()
            self._console.print(self._render())

    def restore(self, events: Sequence[Event]) -> None:
        """Add the events of earlier sessions without printing them."""
        for event in events:
            self._add(event)
        for trial in self._trials.values():
            if trial["status"] not in _ENDED:
                trial["status"] = "waiting"

    def on_event(self, event: Event) -> None:
        """Show one event."""
        self._add(event)
        if not self._is_live and not self._is_quiet:
            line = self._line(event)
            if line:
                # [brackets] in a value are text, not markup
                self._console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def _add(self, event: Mapping[str, Any]) -> None:
        """Update the state with an event."""
        match event["event"]:
            case "session":
                self._num_trials, self._concurrent = event["trials"], event["concurrent"]
            case "suggested":
                blank = {"status": "waiting", "index": 0, "num_reports": 0, "seconds": 0.0, "metrics": {}}
                self._trials[event["trial"]] = {"number": event["number"], "params": event["params"], **blank}
            case "waiting":
                self._waiting = event["reason"]
            case "started":
                self._trials[event["trial"]]["status"] = "running"
            case "report":
                fields = ("index", "num_reports", "metrics", "seconds")
                self._trials[event["trial"]].update({name: event[name] for name in fields})
                self._num_reports += 1
            case "ended":
                self._trials[event["trial"]].update(status=event["status"], seconds=event["seconds"])

    def _line(self, event: Mapping[str, Any]) -> str:
        """Return the line of text for an event; empty for events that are not shown."""
        match event["event"]:
            case "session":
                most = "at most " if event.get("price") == MACHINES else ""
                costs = f", {most}{event['usd_per_hour']:g} usd an hour a machine" if event.get("usd_per_hour") else ""
                return f"{self._title}: {event['trials']} trials, {event['concurrent']} at a time{costs}"
            case "started":
                params = self._trials[event["trial"]]["params"]
                drawn = " ".join(f"{name}={format_value(value)}" for name, value in params.items())
                return f"trial {event['trial']} started  {drawn}"
            case "report":
                score = format_value(event["metrics"].get(self._metric))
                return (
                    f"trial {event['trial']} {event['index']}/{event['num_reports']}  {self._metric} {score}  "
                    f"{format_duration(event['seconds'])}"
                )
            case "decision" if event["decision"] == "stop":
                return f"trial {event['trial']} stopped: {event['reason']}"
            case "waiting":
                return f"waiting for machines: {event['reason']}" if event["reason"] else ""
            case "refused" | "halted":
                return f"{event['event']}: {event['reason']}"
            case "ended":
                why = f": {event['error']}" if event["error"] else ""
                return f"trial {event['trial']} {event['status']}{why}  [{self._summary()}]"
        return ""

    def _score(self, trial: Mapping[str, Any]) -> float | None:
        score = trial["metrics"].get(self._metric)
        return None if score is None else float(score)

    def _ranked(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the trials that have reported, best first."""
        scored = [self._result(name) for name, trial in self._trials.items() if self._score(trial) is not None]
        return [(result.name, self._trials[result.name]) for result in rank(scored, mode=self._space.mode)]

    def _result(self, name: str) -> TrialResult:
        """Return a trial in the form that is ranked."""
        trial = self._trials[name]
        first = first_number(trial["number"], num_seeds=self._space.limits.seeds)
        return TrialResult(name, trial["number"], trial["status"], trial["params"], self._score(trial), first)

    def _summary(self) -> str:
        """Return the best value so far, counts and time, in one line."""
        counts = dict.fromkeys(("running", "finished", "stopped", "failed", "nan"), 0)
        for trial in self._trials.values():
            if trial["status"] in counts:
                counts[trial["status"]] += 1
        states = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        ranked = self._ranked()
        best = f"best {format_value(self._score(ranked[0][1]))} (trial {ranked[0][0]})" if ranked else "no report yet"
        left = self._time_left()
        time_left = f", about {format_duration(left)} left" if left is not None else ""
        elapsed = format_duration(time.monotonic() - self._started)
        return f"{best} | {states or 'starting'} of {self._num_trials} | {elapsed}{time_left}"

    def _time_left(self) -> float | None:
        """Return the seconds left at this session's pace; None before the third report."""
        if self._num_reports < 3:
            return None
        ended = [trial for trial in self._trials.values() if trial["status"] in _ENDED]
        per_trial = max((trial["num_reports"] for trial in self._trials.values()), default=0)
        mean = sum(trial["index"] for trial in ended) / len(ended) if ended else per_trial
        # Running trials may continue to their end; later ones make on average as many reports as those that have ended.
        running = [trial for trial in self._trials.values() if trial["status"] not in _ENDED]
        reports_left = sum(per_trial - trial["index"] for trial in running)
        reports_left += max(0, self._num_trials - len(self._trials)) * mean
        return float((time.monotonic() - self._started) / self._num_reports * reports_left)

    def _render(self) -> Group:
        """Return the live table: running trials first, then the best of those that have ended."""
        names = sorted({name for trial in self._trials.values() for name in trial["params"]})
        # In a narrow window, searched values are left out before progress is.
        while natural_width(table := self._table(names)) > self._console.width and names:
            names.pop()
        waiting = [Text(f"waiting for machines: {self._waiting}", style="yellow")] if self._waiting else []
        return Group(Text(f"{self._title}  {self._summary()}", style="bold"), *waiting, table)

    def _table(self, names: list[str]) -> Table:
        """Return the table with columns for the given searched names."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("trial", "status", "done", self._metric, "time", *(name.split(".")[-1] for name in names)):
            is_figure = heading in ("done", self._metric, "time")
            table.add_column(heading, justify="right" if is_figure else "left", no_wrap=True)
        running = [item for item in self._trials.items() if item[1]["status"] == "running"]
        ended = [item for item in self._ranked() if item[1]["status"] in _ENDED]
        for name, trial in (running + ended)[:NUM_SHOWN]:
            done = f"{trial['index']}/{trial['num_reports'] or '?'}"
            drawn = [format_value(trial["params"].get(searched)) for searched in names]
            cells = [name, trial["status"], done, format_value(self._score(trial)), format_duration(trial["seconds"])]
            table.add_row(*cells, *drawn, style=_STYLES.get(trial["status"], ""))
        return table
