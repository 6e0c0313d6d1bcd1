"""`raysent sweep`, `resume` and `space`: what is typed, and what is seen."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from raysent.cli import money
from raysent.cli.console import ProgressLines, default_folder, messages, print_json, print_table, results
from raysent.cli.judging import evaluate_sweep, print_judgement, task_names
from raysent.cli.live import EVENTS_VARIABLE, EventLines, SweepView, format_duration, format_value
from raysent.cluster.autoscaling import prefer_on_demand
from raysent.cluster.prices import LiveSpot
from raysent.config import Override
from raysent.errors import RaysentError
from raysent.evaluation.tasks import PROBED, find_task
from raysent.models.objectives import CONTEXT_METRICS
from raysent.storage import address_of
from raysent.storage.layout import JOURNAL_FILE
from raysent.sweeps import Event, SweepRecord, SweepResult, judged, load_record, prepare_space, read_events, spent_usd
from raysent.sweeps import replay as replay_sweep
from raysent.sweeps import resume as resume_sweep
from raysent.sweeps import start as start_sweep
from raysent.sweeps.ranking import median_values, rank_trials
from raysent.sweeps.space import SearchSpace, find_space, read_space, schema, with_absolute_paths
from raysent.training.run import describe

SOME_TRIALS_FAILED, INTERRUPTED = 5, 130


def sweep(
    name: str,
    *,
    overrides: Sequence[Override],
    run: Path | None,
    seed: int | None,
    address: str | None,
    data: Path | None,
    tasks: str | None,
    is_dry: bool,
    is_agreed: bool,
    as_json: bool,
) -> int:
    """Check everything, sweep, judge, and say how it went; returns the exit code."""
    path = find_space(name)
    space = read_space(path, overrides=overrides)
    # Workers elsewhere stand in other folders; those of a submitted job in a copy of its own.
    if address is not None and EVENTS_VARIABLE not in os.environ:
        space = with_absolute_paths(space)
    wanted = _tasks_of(space, tasks, data=data)
    folder = run or default_folder(space.name)
    if is_dry or not (is_agreed or as_json or not sys.stdin.isatty()):
        with ProgressLines(is_quiet=as_json) as progress:
            facts = prepare_space(space, progress=progress)
        _print_plan(space, folder, wanted, facts, as_json=as_json)
        if is_dry:
            return 0
        typer.confirm("Start?", default=True, abort=True, err=True)
    forecast = money.expected(space, num_concurrent=os.cpu_count() or 1) if address is None else None
    evaluation = {"data": None if data is None else str(data.resolve()), "tasks": wanted}
    record = SweepRecord(space, seed or 0, ["raysent", *sys.argv[1:]], address, evaluation)
    with ProgressLines(is_quiet=as_json) as progress, _view(space, as_json=as_json) as view:

        def hear(event: Event) -> None:
            # Before anything is trained: a killed sweep's bill is held against its estimate too.
            if event["event"] == "suggested" and event["number"] == 0:
                money.save_estimate(folder, forecast)
            view.hear(event)

        result = start_sweep(
            record, folder, listener=hear, progress=progress, spot=_spot(space), request_on_demand=prefer_on_demand
        )
    return _conclude(result, record, as_json=as_json)


def resume(folder: Path, *, limits: Sequence[Override], as_json: bool) -> int:
    """Go on with the sweep of a run folder, then judge; returns the exit code."""
    record = load_record(folder)
    with ProgressLines(is_quiet=as_json) as progress, _view(record.space, as_json=as_json) as view:
        view.recall(list(read_events(folder)))
        spot = _spot(record.space)
        result = resume_sweep(
            folder, limits=limits, listener=view.hear, progress=progress, spot=spot, request_on_demand=prefer_on_demand
        )
    return _conclude(result, record, as_json=as_json)


def replay(folder: Path, *, as_json: bool) -> int:
    """Derive every decision of a sweep again from its journal; 1 where one comes out otherwise."""
    record = load_record(folder)
    found = replay_sweep(record.space, seed=record.seed, events=list(read_events(folder)))
    if as_json:
        print_json(asdict(found))
    elif found.difference:
        messages.print(f"{address_of(folder / JOURNAL_FILE)}: {found.difference}", soft_wrap=True)
    else:
        sittings = f"{found.num_sittings} sitting" + ("s" if found.num_sittings != 1 else "")
        results.print(
            f"{found.num_derived} events of {sittings} derived again from the journal: all the same", soft_wrap=True
        )
    return 1 if found.difference else 0


def lint(files: Sequence[str]) -> int:
    """Check search spaces, and say what each searches."""
    for file in files:
        space = read_space(find_space(file))
        _tasks_named(space)
        results.print(
            f"{file}: ok, searches {len(space.domains)} names in {space.limits.trials} trials", soft_wrap=True
        )
    return 0


def print_schema() -> int:
    """Print the JSON Schema of a search space."""
    print_json(schema())
    return 0


def _spot(space: SearchSpace) -> LiveSpot | None:
    """Return who tells spot prices where the machines are; nobody where it is not said where that is."""
    return LiveSpot(space.cost.region) if space.cost.region else None


def _view(space: SearchSpace, *, as_json: bool) -> SweepView | EventLines:
    if EVENTS_VARIABLE in os.environ:
        return EventLines(messages)
    return SweepView(messages, space, is_quiet=as_json)


def _tasks_of(space: SearchSpace, tasks: str | None, *, data: Path | None) -> list[str]:
    """Return the tasks that `--tasks` names, else the space, else all whose files are there."""
    try:
        return task_names(tasks, data=data, configured=space.evaluation.tasks)
    except RaysentError as error:
        if tasks is not None or space.evaluation.tasks is None:
            raise
        raise space.document.error(("evaluation", "tasks"), str(error).removeprefix("--tasks ")) from None


def _tasks_named(space: SearchSpace) -> None:
    """Refuse a task that the space names and nobody knows; whether its files are there is not asked."""
    for name in space.evaluation.tasks or []:
        try:
            find_task(name, scorings=PROBED, option="")
        except RaysentError as error:
            raise space.document.error(("evaluation", "tasks"), str(error)) from None


def _print_plan(
    space: SearchSpace, folder: Path, tasks: Sequence[str], facts: Mapping[str, Any], *, as_json: bool
) -> None:
    """Say what a sweep would do."""
    base = space.config(space.first_params())
    corpus, pool = facts["corpus"], facts["pool"]
    forecast = money.expected(space, num_concurrent=os.cpu_count() or 1)
    plan = {
        "space": space.name,
        "metric": space.metric,
        "trials": space.limits.trials,
        "time": space.limits.time,
        "searched": space.document.values.get("search", {}),
        "run": address_of(folder),
        "corpus": corpus["path"],
        "num_train": corpus["num_train"],
        "num_validation": corpus["num_validation"],
        "chance_accuracy": pool.get("chance_accuracy"),
        "tasks": list(tasks),
        "budget_usd": space.cost.budget_usd,
        "estimate": None if forecast is None else forecast.values(),
    }
    if as_json:
        print_json(plan)
        return
    unit = "pairs" if base.source is base.pairs else "sentences"
    chance = []
    if "chance_accuracy" in pool:
        chance = [f"chance on the validation pool: context_accuracy {pool['chance_accuracy']:.4g}"]
    limit = f", at most {space.limits.time}" if space.limits.time else ""
    for line in (
        f"{space.name}: {space.limits.trials} trials{limit}, ranked by {space.metric}, into {address_of(folder)}",
        f"corpus {corpus['path']}: {corpus['num_train']:,} {unit} to train on, {corpus['num_validation']:,} to "
        f"validate with",
        *chance,
        f"tasks: {', '.join(tasks) or 'none'}",
        f"for example: {describe(base)}",
    ):
        results.print(line, soft_wrap=True)
    if space.domains:
        results.print()
        rows = [(name, _domain_text(entry)) for name, entry in plan["searched"].items()]
        print_table(["searched", "among"], rows, num_text=2)
    if forecast is not None:
        money.print_estimate(forecast)
    else:
        results.print("\ncost: this machine counts as free; cost.usd_per_hour says what it costs", soft_wrap=True)


def _domain_text(entry: dict[str, Any]) -> str:
    """Return a domain as it was written, a choice among mappings by its labels."""
    ((form, values),) = entry.items()
    shown = ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
    return shown if form == "choice" else f"{form} [{shown}]"


def _conclude(result: SweepResult, record: SweepRecord, *, as_json: bool) -> int:
    """Judge a sweep that has ended, print how it went, and return the exit code."""
    if result.is_interrupted:
        command = f"raysent resume {shlex.quote(address_of(result.folder))}"
        if as_json:
            print_json({**_summary(result), "resume": command})
        else:
            messages.print(f"interrupted; nothing is lost. Go on with:\n  {command}", soft_wrap=True)
        return INTERRUPTED
    if result.closed and not as_json:
        messages.print(f"no more training: {result.closed}", soft_wrap=True)
    with judged(record, result.folder, spot=_spot(record.space)) as check_budget:
        judgement = evaluate_sweep(result, record, check_budget=check_budget, is_quiet=as_json)
    result = replace(result, spent_usd=spent_usd(result.folder))
    if as_json:
        print_json({**_summary(result), **judgement.values()})
    else:
        _print_leaderboard(result, record.space)
        print_judgement(judgement)
    return SOME_TRIALS_FAILED if any(trial.status in ("failed", "nan") for trial in result.trials) else 0


def _summary(result: SweepResult) -> dict[str, Any]:
    """Return a sweep's outcome as plain values."""
    return {
        "run": address_of(result.folder),
        "status": "interrupted" if result.is_interrupted else "completed",
        "closed": result.closed,
        "spent_usd": result.spent_usd,
        "best": None if result.best is None else result.best.name,
        "trials": [
            {key: value for key, value in asdict(trial).items() if key not in ("decisions", "reports")}
            for trial in result.trials
        ],
    }


def _print_leaderboard(result: SweepResult, space: SearchSpace) -> None:
    """Print the trials, best first."""
    figures = [*CONTEXT_METRICS] if space.metric in CONTEXT_METRICS else [space.metric]
    medians = median_values(space, result.trials) if space.limits.seeds > 1 else {}
    rows = [
        (
            trial.name,
            trial.status,
            *(format_value(trial.params.get(name)) for name in space.domains),
            *(format_value(trial.metrics.get(name)) for name in figures),
            *([format_value(medians[trial.name])] if medians else []),
            format_duration(trial.seconds),
        )
        for trial in rank_trials(space, result.trials)
    ]
    names = [name.split(".")[-1] for name in space.domains]
    figures += [f"median {space.metric}"] if medians else []
    print_table(["trial", "status", *names, *figures, "time"], rows, num_text=2 + len(names))
    for trial in result.trials:
        if trial.error:
            messages.print(f"trial {trial.name} {trial.status}: {trial.error}", style="red", soft_wrap=True)


__all__ = ["lint", "print_schema", "replay", "resume", "sweep"]
