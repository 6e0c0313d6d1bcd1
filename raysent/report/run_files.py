"""A run's folder -> one frozen view of everything that the report shows. Nothing else here but `score_files` reads a file.

A sweep's folder holds `sweep.json`, `journal.jsonl`, `trials.csv`, and once they are made `evaluation/` and
`ensemble.json`; the folder of a single training holds `reports.jsonl`. What is not there yet is empty in the view.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raysent.artifacts import read_json, read_json_lines
from raysent.config import get_dotted
from raysent.errors import ArtifactError
from raysent.report.blocks import number
from raysent.report.score_files import Ensemble, Score, mapping, read_ensemble, read_scores

DEFAULT_METRIC = "context_accuracy"
DONE = ("finished", "stopped")
BROKEN = ("failed", "nan")


@dataclass(frozen=True)
class Point:
    """One report of a training: after the share `index` / `num_reports` of it."""

    index: int
    metrics: Mapping[str, float | None]
    seconds: float | None


@dataclass(frozen=True)
class Trial:
    """One trial as the journal tells it.

    Attributes:
        name: The trial's id, which is its folder's name.
        status: finished, stopped (early), failed, nan, running, or waiting.
        params: Searched name -> value; a name that did not apply is absent.
        metrics: The last figures that are known.
        points: Its reports in order of training.
        seconds: Time spent training.
        usd: Dollars spent, where they are known.
        error: The error's line, for a trial that failed.
    """

    name: str
    status: str = "waiting"
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    seconds: float | None = None
    usd: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Run:
    """Everything that is known of a sweep, or of a single training seen as a sweep of one trial."""

    folder: Path
    is_sweep: bool
    name: str
    metric: str
    mode: str
    num_reports: int
    settings: Mapping[str, Any]
    domains: Mapping[str, Any]
    trials: tuple[Trial, ...]
    scores: tuple[Score, ...]
    ensemble: Ensemble | None
    seconds: float | None

    @property
    def searched(self) -> list[str]:
        """The searched names, in the order of the search space."""
        names = dict.fromkeys(self.domains)
        names.update(dict.fromkeys(name for trial in self.trials for name in trial.params))
        return list(names)

    @property
    def chance(self) -> float | None:
        """What guessing scores on the validation pool; it is known for the accuracy alone."""
        if self.metric != DEFAULT_METRIC:
            return None
        found = (get_dotted(self.settings, name) for name in ("pool.chance", "validation_pool.chance", "chance"))
        return next((value for value in map(number, found) if value is not None), None)

    def value(self, trial: Trial) -> float | None:
        """Return the trial's metric, or None."""
        return number(trial.metrics.get(self.metric))

    def ranked(self) -> list[Trial]:
        """Return the trials from best to worst.

        Finished ones come first, since a figure taken earlier in training says less; those that broke come last.
        """
        sign = -1 if self.mode == "max" else 1

        def place(trial: Trial) -> tuple[bool, bool, float, str]:
            value = self.value(trial)
            is_out = value is None or trial.status in BROKEN
            return (is_out, trial.status != "finished", sign * (value or 0.0), trial.name)

        return sorted(self.trials, key=place)

    @property
    def best(self) -> Trial | None:
        """The best trial that has a figure and did not break."""
        return next((t for t in self.ranked() if self.value(t) is not None and t.status not in BROKEN), None)


def read_run(folder: Path) -> Run:
    """Read a sweep's folder, or a single training's.

    Raises:
        ArtifactError: If the folder holds neither, or a file in it is broken.
    """
    if (folder / "sweep.json").is_file():
        return _read_sweep(folder)
    if (folder / "reports.jsonl").is_file():
        return _read_training(folder)
    raise ArtifactError(
        f"{folder}: must hold sweep.json or reports.jsonl; given neither; name the folder of a sweep or of a training"
    )


def _read_sweep(folder: Path) -> Run:
    settings = mapping(read_json(folder / "sweep.json"))
    journal = folder / "journal.jsonl"
    events = [event for event in read_json_lines(journal) if isinstance(event, dict)] if journal.is_file() else []
    trials = _with_costs(_trials_of(events), folder / "trials.csv")
    return Run(
        folder=folder,
        is_sweep=True,
        name=str(settings.get("name") or folder.name),
        metric=str(settings.get("metric") or DEFAULT_METRIC),
        mode=str(settings.get("metric_mode") or settings.get("mode") or "max"),
        num_reports=_num_reports(settings, trials),
        settings=settings,
        domains=mapping(settings.get("search") or get_dotted(settings, "space.search")),
        trials=tuple(trials),
        scores=tuple(read_scores(folder / "evaluation")),
        ensemble=read_ensemble(folder / "ensemble.json"),
        seconds=_wall_clock(events),
    )


def _read_training(folder: Path) -> Run:
    run_file = folder / "run.json"
    settings = mapping(read_json(run_file)) if run_file.is_file() else {}
    points = tuple(_point(line) for line in read_json_lines(folder / "reports.jsonl") if isinstance(line, dict))
    last = points[-1] if points else None
    wanted = _num_reports(settings, [])
    trial = Trial(
        name=folder.name,
        status="finished" if last and last.index >= wanted else "running",
        metrics=last.metrics if last else {},
        points=points,
        seconds=last.seconds if last else None,
    )
    return Run(
        folder=folder,
        is_sweep=False,
        name=folder.name,
        metric=DEFAULT_METRIC,
        mode="max",
        num_reports=max(wanted, last.index if last else 1),
        settings=settings,
        domains={},
        trials=(trial,),
        scores=tuple(read_scores(folder / "evaluation")),
        ensemble=read_ensemble(folder / "ensemble.json"),
        seconds=trial.seconds,
    )


def _point(line: Mapping[str, Any]) -> Point:
    """Return a report; its figures stand under `metrics`, or beside the index."""
    metrics = {name: number(value) for name, value in mapping(line.get("metrics", line)).items()}
    return Point(index=int(line.get("index", 0)), metrics=metrics, seconds=number(line.get("seconds")))


def _trials_of(events: Iterable[Mapping[str, Any]]) -> list[Trial]:
    """Follow the journal's events; a report made again after a resume replaces the first one."""
    trials: dict[str, Trial] = {}
    for event in events:
        name = event.get("trial")
        if name is None:
            continue
        trial = trials.get(str(name), Trial(name=str(name)))
        trials[str(name)] = _after(trial, event)
    return list(trials.values())


def _after(trial: Trial, event: Mapping[str, Any]) -> Trial:
    """Return the trial as it stands after the event."""
    match event.get("event"):
        case "suggested":
            return replace(trial, params=mapping(event.get("params")))
        case "started":
            return replace(trial, status="running")
        case "report":
            point = _point(event)
            points = (*(old for old in trial.points if old.index < point.index), point)
            return replace(trial, status="running", points=points, metrics=point.metrics, seconds=point.seconds)
        case "ended":
            figures = {name: number(value) for name, value in mapping(event.get("metrics")).items()}
            seconds = number(event.get("seconds"))
            return replace(
                trial,
                status=str(event.get("status", "failed")),
                metrics={**trial.metrics, **figures},
                seconds=trial.seconds if seconds is None else seconds,
                usd=number(event.get("usd")),
                error=str(event.get("error") or ""),
            )
    return trial


def _with_costs(trials: list[Trial], table: Path) -> list[Trial]:
    """Add the dollars of `trials.csv`, where they are known."""
    if not table.is_file():
        return trials
    with table.open(encoding="utf-8", newline="") as stream:
        usd = {row.get("trial", ""): number(row.get("usd") or None) for row in csv.DictReader(stream)}
    return [replace(trial, usd=usd.get(trial.name, trial.usd)) for trial in trials]


def _num_reports(settings: Mapping[str, Any], trials: Iterable[Trial]) -> int:
    """Return how many reports a whole training makes: as configured, else the most that was seen."""
    names = ("num_reports", "base.training.num_reports", "space.base.training.num_reports", "training.num_reports")
    names += ("config.training.num_reports",)
    configured = next((value for value in (number(get_dotted(settings, name)) for name in names) if value), None)
    seen = max((point.index for trial in trials for point in trial.points), default=1)
    return max(int(configured) if configured else 1, seen, 1)


def _wall_clock(events: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the seconds between the first event and the last, without the pauses in which no driver was at work."""
    total, last = 0.0, None
    for event in events:
        time = number(event.get("time"))
        if time is None:
            continue
        if last is not None and event.get("event") not in ("session", "resumed"):
            total += max(time - last, 0.0)
        last = time
    return None if last is None else total
