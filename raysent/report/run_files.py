"""A run's folder -> one frozen view of everything that the report shows; only this and `score_files` read.

A sweep's folder holds `sweep.json`, `journal.jsonl`, `trials.csv`, and once they are made `evaluation/` and
`ensemble.json`; the folder of a single training holds `reports.jsonl`; one in which models were only judged holds
`evaluation/`, `analyses/` or `neighbours.json`. What is not there yet is empty in the view.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from raysent.analyses import KINDS, Analysis, read_analyses
from raysent.analyses.files import ANALYSES_FOLDER
from raysent.artifacts import address_of, read_json, read_json_lines
from raysent.cost import Bill, bill_of
from raysent.errors import ArtifactError
from raysent.evaluate.costs import Costs, costs_of
from raysent.neighbours import NEIGHBOURS_FILE, Comparison, read_comparison
from raysent.report.blocks import number
from raysent.report.ensemble_files import mapping
from raysent.report.score_files import Ensemble, Score, read_ensemble, read_scores
from raysent.validation import METRICS

DEFAULT_METRIC = "context_accuracy"
DONE = ("finished", "stopped")
BROKEN = ("failed", "nan")

Found = TypeVar("Found", bound=Analysis)


@dataclass(frozen=True)
class Point:
    """One report of a training, after the share `index` / `num_reports` of it; `usd` is all it had cost by then."""

    index: int
    metrics: Mapping[str, float | None]
    seconds: float | None
    usd: float | None = None
    time: float | None = None


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
    """Everything that is known of a sweep, of a single training seen as a sweep of one trial, or of judged models."""

    folder: Path
    is_sweep: bool
    name: str
    metric: str
    mode: str
    num_reports: int
    settings: Mapping[str, Any]
    pool: Mapping[str, Any]
    domains: Mapping[str, Any]
    trials: tuple[Trial, ...]
    scores: tuple[Score, ...]
    ensemble: Ensemble | None
    seconds: float | None
    neighbours: Comparison | None = None
    analyses: tuple[Analysis, ...] = ()
    costs: Mapping[str, Costs] = field(default_factory=dict)
    bill: Bill | None = None
    estimate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the folder holds: a `sweep`, a `training`, or `judged models` that were trained elsewhere."""
        if self.is_sweep:
            return "sweep"
        return "training" if self.trials else "judged models"

    def analyses_of(self, kind: type[Found]) -> list[Found]:
        """Return the analyses of a kind, by name."""
        return [found for found in self.analyses if isinstance(found, kind)]

    def cost(self, name: str) -> Costs:
        """Return what a trial or an evaluated model costs, as far as its folder or its scores tell."""
        told = (score.costs for score in self.scores if score.model == name and score.costs != Costs())
        return self.costs.get(name) or next(told, Costs())

    @cached_property
    def searched(self) -> list[str]:
        """The searched names, in the order of the search space."""
        names = dict.fromkeys(self.domains)
        names.update(dict.fromkeys(name for trial in self.trials for name in trial.params))
        return list(names)

    @property
    def chance(self) -> float | None:
        """What scores that are all equal reach on the validation pool, where it is known."""
        return number(self.pool.get(self.metric.replace("context_", "chance_")))

    def against_chance(self, value: float | None) -> float | None:
        """Return how many times chance a value is; of a loss there is no such figure."""
        chance = self.chance if self.mode == "max" else None
        return value / chance if value is not None and chance else None

    @cached_property
    def highest(self) -> float | None:
        """The highest figure of a trial that did not break; what bars are measured by."""
        values = (self.value(trial) for trial in self.trials if trial.status not in BROKEN)
        return max((value for value in values if value is not None), default=None)

    def title(self, name: str) -> str:
        """Return a trial's name with the words it was searched by, as in `0003 bi`; any other name as it is."""
        params = next((trial.params for trial in self.trials if trial.name == name), {})
        return " ".join([name, *(value for value in params.values() if isinstance(value, str))])

    def value(self, trial: Trial) -> float | None:
        """Return the trial's metric, or None."""
        return number(trial.metrics.get(self.metric))

    @cached_property
    def ranked(self) -> list[Trial]:
        """The trials from best to worst.

        Finished ones come first, since a figure taken earlier in training says less; those that broke come last.
        """
        sign = -1 if self.mode == "max" else 1

        def place(trial: Trial) -> tuple[bool, bool, float, str]:
            value = self.value(trial)
            is_out = value is None or trial.status in BROKEN
            return (is_out, trial.status != "finished", sign * (value or 0.0), trial.name)

        return sorted(self.trials, key=place)

    @cached_property
    def best(self) -> Trial | None:
        """The best trial that has a figure and did not break."""
        return next((t for t in self.ranked if self.value(t) is not None and t.status not in BROKEN), None)


def read_run(folder: Path) -> Run:
    """Read the folder of a sweep, of a single training, or of judged models.

    Raises:
        ArtifactError: If the folder holds none of them, or a file in it is broken.
    """
    if (folder / "sweep.json").is_file():
        return _read_sweep(folder)
    if (folder / "reports.jsonl").is_file():
        return _read_training(folder)
    if any((folder / name).exists() for name in ("evaluation", ANALYSES_FOLDER, NEIGHBOURS_FILE)):
        return _read_judged(folder)
    raise ArtifactError(
        f"{address_of(folder)}: must hold sweep.json, reports.jsonl, evaluation/ or {ANALYSES_FOLDER}/; given none; "
        "name the folder of a sweep, of a training or of judged models"
    )


def _read_sweep(folder: Path) -> Run:
    settings = mapping(read_json(folder / "sweep.json"))
    if settings.get("kind") != "sweep":
        raise ArtifactError(f"{folder / 'sweep.json'}: not the record of a sweep; name the folder of a sweep")
    journal = folder / "journal.jsonl"
    events = [event for event in read_json_lines(journal) if isinstance(event, dict)] if journal.is_file() else []
    trials = _with_costs(_trials_of(events), folder / "trials.csv")
    return Run(
        folder=folder,
        is_sweep=True,
        name=str(settings.get("name") or folder.name),
        metric=str(settings.get("metric") or DEFAULT_METRIC),
        mode=str(settings.get("metric_mode") or "max"),
        num_reports=_num_reports(event for event in events if event.get("event") == "report"),
        settings=settings,
        pool=mapping(settings.get("pool")),
        domains=mapping(settings.get("search")),
        trials=tuple(trials),
        scores=tuple(read_scores(folder / "evaluation")),
        ensemble=read_ensemble(folder / "ensemble.json"),
        seconds=_wall_clock(events),
        neighbours=read_comparison(folder),
        analyses=_read_analyses(folder),
        costs={trial.name: costs_of(folder / "trials" / trial.name) for trial in trials},
        bill=_read_bill(folder / "ledger.jsonl"),
        estimate=mapping(_read_if_there(folder / "estimate.json").get("usd")),
    )


def _read_training(folder: Path) -> Run:
    settings, outcome = _read_if_there(folder / "run.json"), _read_if_there(folder / "outcome.json")
    lines = [line for line in read_json_lines(folder / "reports.jsonl") if isinstance(line, dict)]
    points = tuple(map(_point, lines))
    metric = next((name for name in METRICS if points and name in points[-1].metrics), DEFAULT_METRIC)
    trial = Trial(
        name=folder.name,
        status=str(outcome.get("status") or "running"),
        metrics=points[-1].metrics if points else {},
        points=points,
        seconds=number(outcome.get("seconds")) or (points[-1].seconds if points else None),
        error=str(outcome.get("message") or ""),
    )
    return Run(
        folder=folder,
        is_sweep=False,
        name=folder.name,
        metric=metric,
        mode=METRICS.get(metric, "max"),
        num_reports=_num_reports(lines),
        settings=settings,
        pool=mapping(outcome.get("pool")),
        domains={},
        trials=(trial,),
        scores=tuple(read_scores(folder / "evaluation")),
        ensemble=read_ensemble(folder / "ensemble.json"),
        seconds=trial.seconds,
        neighbours=read_comparison(folder),
        analyses=_read_analyses(folder),
        costs={trial.name: costs_of(folder)},
    )


def _read_judged(folder: Path) -> Run:
    return Run(
        folder=folder,
        is_sweep=False,
        name=folder.name,
        metric=DEFAULT_METRIC,
        mode="max",
        num_reports=1,
        settings={},
        pool={},
        domains={},
        trials=(),
        scores=tuple(read_scores(folder / "evaluation")),
        ensemble=read_ensemble(folder / "ensemble.json"),
        seconds=None,
        neighbours=read_comparison(folder),
        analyses=_read_analyses(folder),
    )


def _read_bill(ledger: Path) -> Bill | None:
    """Return what a ledger comes to; None where there is none, or nothing was spent."""
    bill = bill_of(read_json_lines(ledger)) if ledger.is_file() else None
    return bill if bill is not None and bill.usd > 0 else None


def _read_analyses(folder: Path) -> tuple[Analysis, ...]:
    return tuple(found for kind in KINDS for found in read_analyses(folder, kind))


def _point(line: Mapping[str, Any]) -> Point:
    """Return a report; its figures stand under `metrics`, or beside the index."""
    metrics = {name: number(value) for name, value in mapping(line.get("metrics", line)).items()}
    told = {name: number(line.get(name)) for name in ("seconds", "usd", "time")}
    return Point(index=int(line.get("index", 0)), metrics=metrics, **told)


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


def _num_reports(reports: Iterable[Mapping[str, Any]]) -> int:
    """Return how many reports a whole training makes: as the reports say, else the highest that was made."""
    said = [number(report.get(name)) for report in reports for name in ("num_reports", "index")]
    return int(max((value for value in said if value is not None), default=1.0))


def _read_if_there(path: Path) -> Mapping[str, Any]:
    return mapping(read_json(path)) if path.is_file() else {}


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
