"""A sweep or a training as it runs: a live table on a terminal, lines of text elsewhere, as in a notebook.

Events come from the journal. Between reports, a view reads the heartbeats that runs write about once a second into
their folders: step, loss, sentences per second, time left and memory. That needs no event, so it changes neither the
journal nor the training. Heartbeats of other machines are seen only if they share the folder.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysent.cost import MACHINES
from raysent.models.objectives import CONTEXT_METRICS
from raysent.progress import format_duration, format_value, natural_width
from raysent.storage.layout import TRIALS_FOLDER
from raysent.sweeps import Event
from raysent.sweeps.fitting import fitted_settings
from raysent.sweeps.journal import EVENTS_VARIABLE
from raysent.sweeps.ranking import rank_trials
from raysent.sweeps.remaining import TrialPace, reported_pace, training_left_s, whole_trial
from raysent.sweeps.space import SearchSpace
from raysent.sweeps.trial import ENDED, Trial, apply_event
from raysent.training.checkpoint import LiveProgress, read_progress
from raysent.training.memory import show_bytes
from raysent.training.outcome import Report
from raysent.training.validation import METRICS, chance_of

# Trials in the live table, and in a line of text about those that run.
NUM_SHOWN = 12
_NUM_IN_LINE = 4
# Seconds between two lines of text about what runs, and between two looks at a heartbeat.
LINE_INTERVAL_S = 30.0
_LOOK_INTERVAL_S = 1.0
# Heartbeats from which the speed is taken.
_NUM_HEARTBEATS = 15
# The part of all training after which its pace says how long the rest takes.
_KNOWN_PART = 0.01
# Longer values of chosen settings do not move the reasons of the others to the right.
_FITTED_WIDTH = 30
_STYLES = {"running": "cyan", "finished": "green", "stopped": "dim", "failed": "red", "nan": "red"}


def is_submitted() -> bool:
    """Return whether this process is a job that another one submitted, which shows its events."""
    return EVENTS_VARIABLE in os.environ


def plan_lines(space: SearchSpace, *, run: str, where: str, tasks: Sequence[str]) -> list[str]:
    """Return what a sweep will do, in plain words.

    Args:
        space: What is searched.
        run: The run folder.
        where: How many trials train at a time, and on what.
        tasks: Names of the tasks that the best trials are evaluated on.
    """
    limits, cost = space.limits, space.cost
    if not limits.trials:
        why = space.fitted.get("limits.trials", "limits.trials is 0")
        return [f"{', '.join(tasks)}: nothing is trained ({why}); into {run}"]
    base = space.config(space.first_params())
    after = f"; then the best {space.evaluation.members} are evaluated on {', '.join(tasks)} and combined"
    if limits.lexical_s is not None:
        after += f", TF-IDF in at most {format_duration(limits.lexical_s)} of processor time"
    ends = {
        "budget": cost.budget,
        "deadline": cost.deadline,
        "time limit of the search": limits.time,
    }
    limited = ", ".join(f"{name} {value}" for name, value in ends.items() if value is not None)
    free = "" if cost.is_priced else "this machine counts as free"
    source = base.source.path if isinstance(base.source.path, str) else ", ".join(base.source.path)
    return [
        f"{space.name}: {limits.trials} trials, {where}, into {run}",
        f"text: {source}{after if tasks else ''}",
        f"{limited or 'no limit on money or time'}{'; ' if free else ''}{free}",
    ]


def ranking_line(space: SearchSpace) -> str:
    """Return what trials are ranked by, and what ranks them better for tasks, where it is known that something does."""
    line = f"trials are ranked by {space.metric}"
    if space.metric not in CONTEXT_METRICS:
        return (
            f"{line}, the mean validation score on the tasks"
            if space.metric == "downstream"
            else line
        )
    return (
        f"{line}, which orders kinds of encoders as chance does for tasks; rank by one's own labels, with a task "
        "as metric, or without labels by document_accuracy"
    )


def fitted_lines(space: SearchSpace) -> list[str]:
    """Return the settings that were chosen for the text, the machine and the time, and why, one a line."""
    settings = fitted_settings(space)
    if not settings:
        return []
    width = max(len(one.name) for one in settings)
    shown = max((len(one.text) for one in settings if len(one.text) <= _FITTED_WIDTH), default=0)
    lines = [f"  {one.name:<{width}}  {one.text:<{shown}}  {one.why}".rstrip() for one in settings]
    return ["settings chosen here; --set NAME=VALUE sets another value:", *lines]


def chance_line(metric: str, pool: Mapping[str, Any], *, best: float | None = None) -> str:
    """Return what a metric is if all answers are equally likely; empty where that is unknown.

    Args:
        metric: What trials are ranked by.
        pool: What is known of the validation pool, as `sweep.json` has it.
        best: The best trial's, to compare with.
    """
    chance = chance_of(metric, pool)
    if chance is None:
        return ""
    if best is None or METRICS[metric] == "min":
        return f"{metric} of chance: {chance:.3g}"
    return f"{metric} {best:.3g}, {best / chance:.0f} times chance ({chance:.3g})"


def size_line(space: SearchSpace, facts: Mapping[str, Any]) -> str:
    """Return how much text a sweep reads.

    Args:
        space: What is searched.
        facts: What is known of the text, as `sweep.json` has it.
    """
    corpus, base = facts["corpus"], space.config(space.first_params())
    unit = "pairs" if base.source is base.pairs else "sentences"
    return (
        f"{corpus['num_train']:,} {unit} for training, {corpus['num_validation']:,} for validation"
    )


@dataclass(frozen=True)
class Pace:
    """How fast a run trains.

    Attributes:
        now: Its last heartbeat.
        sentences_per_s: Sentences per second lately; None before the first steps.
        left_s: Seconds to the end of the run at that speed, validation not included; None if unknown.
    """

    now: LiveProgress
    sentences_per_s: float | None
    left_s: float | None

    @property
    def part(self) -> float:
        """The part of the run that is done, from 0 to 1."""
        return self.now.step / max(1, self.now.num_steps)

    def text(self) -> str:
        """Return step, loss, speed, time left and memory in one line."""
        now = self.now
        parts = [
            f"step {now.step:,} of {now.num_steps:,} ({self.part:.0%})",
            "" if now.loss is None else f"loss {format_value(now.loss)}",
            "" if self.sentences_per_s is None else f"{self.sentences_per_s:,.0f} sentences/s",
            "" if self.left_s is None else f"{format_duration(self.left_s)} left",
            "" if now.memory_bytes is None else show_bytes(now.memory_bytes),
        ]
        return ", ".join(part for part in parts if part)


class PaceReader:
    """Reads the heartbeats of one run, and derives how fast it trains."""

    def __init__(self, folder: Path) -> None:
        """Read from a run's folder."""
        self._folder = folder
        self._looked_s = -float("inf")
        self._seen: deque[LiveProgress] = deque(maxlen=_NUM_HEARTBEATS)

    def read(self) -> Pace | None:
        """Return how fast the run trains; None before its first heartbeat. Reads at most once a second."""
        if time.monotonic() - self._looked_s >= _LOOK_INTERVAL_S:
            self._looked_s = time.monotonic()
            self._look()
        if not self._seen:
            return None
        first, now = self._seen[0], self._seen[-1]
        # Of a run that has just been found, the mean from its start.
        seconds, steps, sentences = now.seconds, now.step, now.sentences
        if now.seconds > first.seconds:
            seconds, steps = now.seconds - first.seconds, now.step - first.step
            sentences = now.sentences - first.sentences
        if seconds <= 0 or steps <= 0:
            return Pace(now, None, None)
        return Pace(now, sentences / seconds, (now.num_steps - now.step) * seconds / steps)

    def _look(self) -> None:
        found = read_progress(self._folder)
        if found is None or (self._seen and found == self._seen[-1]):
            return
        if self._seen and found.step < self._seen[-1].step:  # resumed from a checkpoint
            self._seen.clear()
        self._seen.append(found)


class _View:
    """A live display on a terminal; elsewhere lines of text, of which some come at intervals; nothing if quiet."""

    def __init__(self, console: Console, *, is_quiet: bool, prefix: str = "") -> None:
        self._console, self._is_quiet, self._prefix = console, is_quiet, prefix
        self._is_live = console.is_terminal and not is_quiet
        self._printed = time.monotonic()
        self._is_over = threading.Event()
        self._blocks = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._is_live:
            live = Live(
                console=self._console,
                get_renderable=self._render,
                refresh_per_second=2,
                transient=True,
            )
            self._blocks.enter_context(live)
        elif not self._is_quiet:
            thread = threading.Thread(target=self._print_regularly, name="live-view", daemon=True)
            thread.start()
            self._blocks.callback(thread.join)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._blocks.close()

    def _render(self) -> Group | Text:
        raise NotImplementedError

    def print_progress(self) -> None:
        """Print a line about what runs, unless something was printed lately."""
        raise NotImplementedError

    def _print_regularly(self) -> None:
        while not self._is_over.wait(LINE_INTERVAL_S / 3):
            self.print_progress()

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        # [brackets] in a value are text, not markup
        self._console.print(
            f"{self._prefix}{line}", highlight=False, markup=False, emoji=False, soft_wrap=True
        )


class SweepView(_View):
    """Shows a sweep; a context manager whose `on_event` is a listener of the journal."""

    def __init__(
        self,
        console: Console,
        space: SearchSpace,
        *,
        folder: Path | None = None,
        is_quiet: bool = False,
    ) -> None:
        """Prepare the view.

        Args:
            console: Where to print.
            space: What is searched.
            folder: The run folder, whose trials' heartbeats are read; None if it is out of reach.
            is_quiet: Whether to show nothing.
        """
        super().__init__(console, is_quiet=is_quiet)
        self._space, self._metric, self._folder = space, space.metric, folder
        self._trials: dict[str, Trial] = {}
        self._readers: dict[str, PaceReader] = {}
        self._num_trials = self._concurrent = 1
        self._started, self._waiting = time.monotonic(), ""
        # Events come from one thread, and another one shows them.
        self._lock = threading.RLock()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._is_live:
            self._console.print(self._render())

    def restore(self, events: Sequence[Event]) -> None:
        """Add the events of earlier sessions without printing them."""
        for event in events:
            self._add(event)
        for one in self._trials.values():
            if one.status not in ENDED:
                one.status = "waiting"

    def on_event(self, event: Event) -> None:
        """Show one event."""
        with self._lock:
            self._add(event)
            line = "" if self._is_live or self._is_quiet else self._line(event)
        if line:
            self._print(line)

    def print_progress(self) -> None:
        """Print a line about the trials that run, unless something was printed lately."""
        with self._lock:
            if time.monotonic() - self._printed < LINE_INTERVAL_S:
                return
            names = [name for name, trial in self._trials.items() if trial.status == "running"]
            paces = [(name, pace) for name in names if (pace := self._pace(name)) is not None]
            summary = self._summary()
        texts = [f"{name}: {pace.text()}" for name, pace in paces[:_NUM_IN_LINE]]
        more = [f"and {len(names) - len(texts)} more"] if len(names) > len(texts) > 0 else []
        self._print("; ".join([*texts, *more]) + f"  [{summary}]" if texts else summary)

    def _add(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "session":
                self._num_trials, self._concurrent = event["trials"], event["concurrent"]
            case "waiting":
                self._waiting = event["reason"]
            case "ended":
                self._readers.pop(event["trial"], None)
        apply_event(self._trials, event)

    def _line(self, event: Mapping[str, Any]) -> str:
        match event["event"]:
            case "session" if (
                sum(trial.status in ENDED for trial in self._trials.values()) < event["trials"]
            ):
                most = "at most " if event.get("price") == MACHINES else ""
                costs = (
                    f", {most}{event['usd_per_hour']:g} usd an hour a machine"
                    if event.get("usd_per_hour")
                    else ""
                )
                return f"training {event['trials']} trials, {event['concurrent']} at a time{costs}"
            case "started":
                params = self._trials[event["trial"]].params
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

    def _score(self, trial: Trial) -> float | None:
        score = trial.metrics.get(self._metric)
        return None if score is None else float(score)

    def _ranked(self) -> list[Trial]:
        return rank_trials(
            self._space, (one for one in self._trials.values() if self._score(one) is not None)
        )

    def _pace(self, name: str) -> Pace | None:
        trial = self._trials[name]
        if self._folder is None or trial.status != "running":
            return None
        if name not in self._readers:
            self._readers[name] = PaceReader(self._folder / TRIALS_FOLDER / name)
        return self._readers[name].read()

    def _summary(self) -> str:
        counts = dict.fromkeys(("starting", "running", "finished", "stopped", "failed", "nan"), 0)
        for name, trial in self._trials.items():
            # Where it can be known whether the process of a trial has trained.
            is_silent = trial.status == "running" and not trial.index and self._folder is not None
            status = "starting" if is_silent and self._pace(name) is None else trial.status
            if status in counts:
                counts[status] += 1
        states = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        ranked = self._ranked()
        best = (
            f"best {format_value(self._score(ranked[0]))} (trial {ranked[0].name})"
            if ranked
            else "no report yet"
        )
        left = self._time_left()
        time_left = f", about {format_duration(left)} left" if left else ""
        elapsed = format_duration(time.monotonic() - self._started)
        return f"{best} | {f'{states} of' if states else 'starting'} {self._num_trials} | {elapsed}{time_left}"

    def _time_left(self) -> float | None:
        """Return the seconds that training still takes at its pace so far; None while too little is done to know it."""
        trials = self._trials.values()
        whole = whole_trial(trials)
        return training_left_s(
            trials,
            num_to_draw=max(0, self._num_trials - len(trials)),
            num_slots=self._concurrent,
            pace_of=lambda trial: self._trial_pace(trial, whole),
            least_part=_KNOWN_PART,
        )

    def _trial_pace(self, trial: Trial, whole: int) -> TrialPace:
        """Return how far a trial is, by its reports and its heartbeats."""
        reported, pace = reported_pace(trial), self._pace(trial.name)
        if pace is None:
            return reported
        return TrialPace(
            max(reported.reports, pace.part * whole),
            max(reported.seconds, pace.now.seconds),
            pace.left_s,
        )

    def _render(self) -> Group:
        with self._lock:
            names = sorted({name for trial in self._trials.values() for name in trial.params})
            # In a narrow window, searched values are left out before progress is.
            while natural_width(table := self._table(names)) > self._console.width and names:
                names.pop()
            if natural_width(table) > self._console.width:
                table = self._table([], has_pace=False)
            waiting = (
                [Text(f"waiting for machines: {self._waiting}", style="yellow")]
                if self._waiting
                else []
            )
            return Group(
                Text(f"{self._space.name}  {self._summary()}", style="bold"), *waiting, table
            )

    def _table(self, names: list[str], *, has_pace: bool = True) -> Table:
        running = [
            (name, trial) for name, trial in self._trials.items() if trial.status == "running"
        ]
        ended = [(trial.name, trial) for trial in self._ranked() if trial.status in ENDED]
        paces = {name: self._pace(name) for name, _ in running}
        has_pace = has_pace and any(pace is not None for pace in paces.values())
        speed = ["loss", "sentences/s", "left", "memory"] if has_pace else []
        table = Table(box=None, pad_edge=False, header_style="bold")
        figures = ["done", self._metric, "time", *speed]
        for heading in ("trial", "status", *figures, *(name.split(".")[-1] for name in names)):
            table.add_column(
                heading, justify="right" if heading in figures else "left", no_wrap=True
            )
        for name, trial in (running + ended)[:NUM_SHOWN]:
            pace = paces.get(name)
            drawn = [format_value(trial.params.get(searched)) for searched in names]
            seconds = trial.seconds if pace is None else max(trial.seconds, pace.now.seconds)
            cells = [name, trial.status, _done(trial, pace), format_value(self._score(trial))]
            cells += [format_duration(seconds), *(_speed(pace) if has_pace else [])]
            table.add_row(*cells, *drawn, style=_STYLES.get(trial.status, ""))
        return table


def _done(trial: Trial, pace: Pace | None) -> str:
    part = trial.index / trial.num_reports if trial.num_reports else 0.0
    if trial.status == "running":
        part = part if pace is None else max(part, pace.part)
        return f"{part:.0%}" if part else "starting"
    return f"{part:.0%}" if part else "–"


def _speed(pace: Pace | None) -> list[str]:
    if pace is None:
        return [""] * 4
    return [
        format_value(pace.now.loss),
        "–" if pace.sentences_per_s is None else f"{pace.sentences_per_s:,.0f}",
        "–" if pace.left_s is None else format_duration(pace.left_s),
        "–" if pace.now.memory_bytes is None else show_bytes(pace.now.memory_bytes),
    ]


class TrainingView(_View):
    """Shows one training: its reports as lines, and between them its progress."""

    def __init__(
        self, console: Console, folder: Path, *, is_quiet: bool = False, prefix: str = ""
    ) -> None:
        """Prepare the view.

        Args:
            console: Where to print.
            folder: The run folder, whose heartbeat is read.
            is_quiet: Whether to show nothing.
            prefix: Text before each line.
        """
        super().__init__(console, is_quiet=is_quiet, prefix=prefix)
        self._reader = PaceReader(folder)

    def on_report(self, report: Report) -> bool:
        """Print one report, and return that training goes on."""
        if not self._is_quiet:
            scores = "  ".join(
                f"{key} {format_value(value)}" for key, value in report.metrics.items()
            )
            trained = f"{report.sentences:,} sentences  {format_duration(report.seconds)}"
            self._print(f"{report.index}/{report.num_reports}  {scores}  {trained}")
        return True

    def print_progress(self) -> None:
        """Print the progress, unless something was printed lately."""
        pace = self._reader.read()
        if pace is not None and time.monotonic() - self._printed >= LINE_INTERVAL_S:
            self._print(pace.text())

    def _render(self) -> Text:
        pace = self._reader.read()
        return Text(f"{self._prefix}{'starting' if pace is None else pace.text()}", style="cyan")
