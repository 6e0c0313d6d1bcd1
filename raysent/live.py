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
from raysent.errors import RaysentError
from raysent.models.config import spoken_name
from raysent.models.objectives import CONTEXT_METRICS
from raysent.progress import format_duration, format_value, natural_width
from raysent.screen import WIDTH, detail, is_verbose, shortened
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
from raysent.training.run import RunConfig
from raysent.training.validation import METRICS, chance_of

# Trials in the live table, and in a line of text about those that run.
NUM_SHOWN = 12
_NUM_IN_LINE = 4
# Seconds between two lines of text about what runs, and between two looks at a heartbeat.
LINE_INTERVAL_S = 60.0
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


def plan_lines(
    space: SearchSpace, *, run: str, where: str, data: Sequence[str] = (), encoders: str = ""
) -> list[str]:
    """Return what a sweep will do: three lines of a screen at most.

    Args:
        space: What is searched.
        run: The run folder.
        where: How many models train at a time, and on what.
        data: A line for each task that models are evaluated on, or its name.
        encoders: The pretrained encoders that take part, in words; empty for none.
    """
    beside = " and ".join(filter(None, (encoders, "TF-IDF")))
    limits = _limits_text(space)
    if not space.limits.trials:
        return [
            shortened(_data_text(data)),
            shortened(f"compared by cross-validation: {beside}, and ensembles of them"),
            f"{limits}; results: {run}",
        ]
    base = space.config(space.first_params())
    source = base.source.path if isinstance(base.source.path, str) else ", ".join(base.source.path)
    after = f", beside {beside}" if data else ""
    return [
        shortened(_data_text(data) or f"text: {source}"),
        shortened(f"{space.limits.trials} models to train, {where}{after}"),
        f"{limits}; results: {run}",
    ]


def _data_text(data: Sequence[str]) -> str:
    if len(data) < 2:
        return "".join(data)
    names = [line.partition(":")[0] for line in data]
    return f"{len(names)} tasks: {', '.join(names)}"


def _limits_text(space: SearchSpace) -> str:
    """Return what ends the search, in words."""
    ends = {"budget": space.cost.budget, "deadline": space.cost.deadline}
    limits = [f"{name} {value}" for name, value in ends.items() if value is not None]
    if space.limits.time is not None and space.limits.trials:
        limits.insert(0, f"at most {space.limits.time} of training")
    elif space.limits.lexical_s is not None and not space.limits.trials:
        limits.insert(
            0, f"at most {format_duration(space.limits.lexical_s)} of processor time for TF-IDF"
        )
    return ", ".join(limits) or "no limit on time or money"


def known_lines(space: SearchSpace, facts: Mapping[str, Any]) -> list[str]:
    """Return the details of a plan that are known once the text is prepared.

    Args:
        space: What is searched, with the settings that were chosen.
        facts: What is known of the text, as `sweep.json` has it.
    """
    return [
        ranking_line(space),
        *fitted_lines(space),
        size_line(space, facts),
        chance_line(space.metric, facts["pool"]),
    ]


def metric_words(metric: str) -> str:
    """Return how a metric that ranks trials is called where a person reads it."""
    return "score" if metric == "downstream" else metric.replace("_", " ")


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


def unit_of(config: RunConfig) -> str:
    """Return what a run learns from, in the plural."""
    return {"corpus": "sentences", "pairs": "pairs", "labels": "rows"}[config.source_name]


def size_line(space: SearchSpace, facts: Mapping[str, Any]) -> str:
    """Return how much text a sweep reads.

    Args:
        space: What is searched.
        facts: What is known of the text, as `sweep.json` has it.
    """
    corpus, base = facts["corpus"], space.config(space.first_params())
    unit = unit_of(base)
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
        self._has_begun = False
        self._started, self._waiting = time.monotonic(), ""
        # Events come from one thread, and another one shows them.
        self._lock = threading.RLock()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if not self._is_quiet and self._trials:
            detail(self._text_line(), *([self._all_trials()] if is_verbose() else []))

    def restore(self, events: Sequence[Event]) -> None:
        """Add the events of earlier sessions without printing them."""
        for event in events:
            self._add(event)
        for one in self._trials.values():
            if one.status not in ENDED:
                one.status = "waiting"

    def on_event(self, event: Event) -> None:
        """Show one event, and add what few readers need to the log."""
        with self._lock:
            self._add(event)
            shown, known = self._screen_line(event), self._detail_line(event)
        if self._is_quiet:
            return
        if known:
            detail(known)
        if shown and (not self._is_live or event["event"] != "ended" or event["error"]):
            self._print(shown)

    def print_progress(self) -> None:
        """Print how far the search is, unless something was printed lately."""
        with self._lock:
            if time.monotonic() - self._printed < LINE_INTERVAL_S:
                return
            line, paces = self._text_line(), self._pace_lines()
        detail(*paces)
        self._print(line)

    def _pace_lines(self) -> list[str]:
        """Return the step, loss, speed, time left and memory of what trains, for a few of many."""
        running = [name for name, trial in self._trials.items() if trial.status == "running"]
        paces = [(name, self._pace(name)) for name in running[:_NUM_IN_LINE]]
        return [f"trial {name}: {pace.text()}" for name, pace in paces if pace is not None]

    def _add(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "session":
                self._num_trials, self._concurrent = event["trials"], event["concurrent"]
                self._has_begun = True
            case "waiting":
                self._waiting = event["reason"]
            case "ended":
                self._readers.pop(event["trial"], None)
        apply_event(self._trials, event)

    def _screen_line(self, event: Mapping[str, Any]) -> str:
        """Return what every reader sees of an event; empty for most of them."""
        match event["event"]:
            case "session" if event.get("usd_per_hour") and self._num_ended < event["trials"]:
                most = "at most " if event.get("price") == MACHINES else ""
                return f"each machine costs {most}{event['usd_per_hour']:g} usd an hour"
            case "waiting":
                return f"waiting for machines: {event['reason']}" if event["reason"] else ""
            case "refused" | "halted":
                return f"no more training: {event['reason']}"
            case "ended":
                return self._ended_line(self._trials[event["trial"]])
        return ""

    def _ended_line(self, trial: Trial) -> str:
        """Return the line of a model that has ended: its score, what it is, and how it ended."""
        start = f"model {self._num_ended} of {self._num_trials}: "
        if trial.error:
            return f"{start}{self.title(trial)} failed: {trial.error}"
        cut = ", stopped early" if trial.is_outranked else ", cut short"
        ways = {"finished": "", "stopped": cut, "nan": ", diverged"}
        score = f"{metric_words(self._metric)} {format_value(self._score(trial))}, "
        end = f"{ways.get(trial.status, '')}, {format_duration(trial.seconds)}"
        best = self._best_text()
        line = f"{start}{score}{self.title(trial)}{end}  [{best}{self._left_text()}]"
        return line if len(line) <= WIDTH else f"{start}{score}{self.title(trial)}{end}"

    def _detail_line(self, event: Mapping[str, Any]) -> str:
        match event["event"]:
            case "session" if self._num_ended < event["trials"]:
                return f"training {event['trials']} trials, {event['concurrent']} at a time"
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
            case "ended":
                return f"trial {event['trial']} {event['status']}  [{self._summary()}]"
        return ""

    def title(self, trial: Trial) -> str:
        """Return what a trial is, as a person says it: `GRU both ways, 300 numbers, trial 6`."""
        name = f"trial {trial.number}"
        try:
            config = self._space.config(trial.params)
        except RaysentError:  # a file that only the machine of the trial has
            return name
        return f"{spoken_name(config.encoder, config.code)}, {name}"

    @property
    def _num_ended(self) -> int:
        return sum(trial.status in ENDED for trial in self._trials.values())

    def _best_text(self) -> str:
        """Return the best score so far: of what has ended, whose score is the one that counts, if anything has."""
        ranked = self._ranked()
        ended = [trial for trial in ranked if trial.status in ENDED]
        if not ranked:
            return "no score yet"
        best = (ended or ranked)[0]
        return f"best {format_value(self._score(best))} (trial {best.number})"

    def _left_text(self) -> str:
        left = self._time_left()
        return f", about {format_duration(left)} left" if left else ""

    def _text_line(self) -> str:
        """Return how far the search is, in a line."""
        if self._waiting:
            return shortened(f"waiting for machines: {self._waiting}")
        elapsed = format_duration(time.monotonic() - self._started)
        if not self._has_begun:
            return f"starting Ray and the processes of the first models, {elapsed} so far"
        words = metric_words(self._metric)
        return shortened(
            f"{self._num_ended} of {self._num_trials} models trained, {self._running_text()}"
            f"{self._best_text().replace('best', f'best {words}', 1)}, {elapsed} so far{self._left_text()}"
        )

    def _running_text(self) -> str:
        """Return how many models are being trained, and how many of them have not begun."""
        running = [name for name, trial in self._trials.items() if trial.status == "running"]
        silent = [name for name in running if self._is_silent(name)]
        states = [(len(running) - len(silent), "running"), (len(silent), "starting")]
        return "".join(f"{count} {state}, " for count, state in states if count)

    def _is_silent(self, name: str) -> bool:
        """Return whether a running trial has not trained yet, where that can be known."""
        is_new = not self._trials[name].index and self._folder is not None
        return is_new and self._pace(name) is None

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
        """Return the best score and how many trials are in which state, for the log."""
        counts = dict.fromkeys(("starting", "running", "finished", "stopped", "failed", "nan"), 0)
        for name, trial in self._trials.items():
            is_silent = trial.status == "running" and self._is_silent(name)
            status = "starting" if is_silent else trial.status
            if status in counts:
                counts[status] += 1
        states = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        elapsed = format_duration(time.monotonic() - self._started)
        of_all = f"{f'{states} of' if states else 'starting'} {self._num_trials}"
        return f"{self._best_text()} | {of_all} | {elapsed}{self._left_text()}"

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

    def _render(self) -> Group | Text:
        with self._lock:
            line = Text(self._text_line(), style="bold", no_wrap=True, overflow="ellipsis")
            return Group(line, self._all_trials()) if is_verbose() else line

    def _all_trials(self) -> Table:
        """Return a table of what runs and of the best that has ended."""
        with self._lock:
            names = sorted({name for trial in self._trials.values() for name in trial.params})
            # In a narrow window, searched values are left out before progress is.
            while natural_width(table := self._table(names)) > self._console.width and names:
                names.pop()
            if natural_width(table) > self._console.width:
                table = self._table([], has_pace=False)
            return table

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
