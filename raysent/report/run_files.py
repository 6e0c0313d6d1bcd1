"""A run's folder -> the `Run` that the report shows; only this and `score_files` read.

A sweep's folder holds `sweep.json`, `journal.jsonl`, `trials.csv`, and once they are made `evaluation/` and
`ensemble.json`; the folder of a single training holds `reports.jsonl`; one in which models were only judged holds
`evaluation/`, `analyses/` or `neighbours.json`. What is not there yet is empty in the view.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysent.analysis import read_analyses
from raysent.analysis.neighbours import read_comparison
from raysent.cost import Bill, bill_of
from raysent.errors import ArtifactError
from raysent.evaluation.members import costs_of
from raysent.report.blocks import number
from raysent.report.ensemble_files import mapping
from raysent.report.run import Point, Run, Trial
from raysent.report.score_files import read_ensemble, read_scores
from raysent.storage import address_of, read_json, read_json_lines
from raysent.storage.layout import ANALYSES_FOLDER, NEIGHBOURS_FILE
from raysent.training.validation import METRICS

DEFAULT_METRIC = "context_accuracy"


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
        analyses=read_analyses(folder),
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
        analyses=read_analyses(folder),
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
        analyses=read_analyses(folder),
    )


def _read_bill(ledger: Path) -> Bill | None:
    """Return what a ledger comes to; None where there is none, or nothing was spent."""
    bill = bill_of(read_json_lines(ledger)) if ledger.is_file() else None
    return bill if bill is not None and bill.usd > 0 else None


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
