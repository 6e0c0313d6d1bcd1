"""`raysent sweep`, `resume` and `space`: what is typed, and what is seen."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from raysent.cli.console import ProgressLines, messages, print_json, print_table, results
from raysent.cli.judging import Judgement, judge_sweep, print_judgement, task_names
from raysent.cli.live import SweepView, format_duration, format_value
from raysent.run import describe
from raysent.search_space import SearchSpace, find_space, read_space, schema
from raysent.sweep import SweepRecord, SweepResult, load_record, read_events
from raysent.sweep import resume as resume_sweep
from raysent.sweep import start as start_sweep

SOME_TRIALS_FAILED, INTERRUPTED = 5, 130


def sweep(
    name: str,
    *,
    overrides: Sequence[str],
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
    wanted = task_names(tasks, data=data, configured=space.judge.tasks)
    folder = run or Path("runs") / f"{space.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if is_dry:
        return _print_plan(space, folder, wanted, as_json=as_json)
    if not is_agreed and sys.stdin.isatty() and not as_json:
        _print_plan(space, folder, wanted, as_json=False)
        typer.confirm("Start?", default=True, abort=True, err=True)
    judging = {"data": None if data is None else str(data.resolve()), "tasks": wanted}
    record = SweepRecord(space, seed or 0, ["raysent", *sys.argv[1:]], address, judging)
    with ProgressLines(is_quiet=as_json) as progress, _view(space, as_json=as_json) as view:
        result = start_sweep(record, folder, listener=view.hear, progress=progress)
    return _conclude(result, record, as_json=as_json)


def resume(folder: Path, *, as_json: bool) -> int:
    """Go on with the sweep of a run folder, then judge; returns the exit code."""
    record = load_record(folder)
    with ProgressLines(is_quiet=as_json) as progress, _view(record.space, as_json=as_json) as view:
        view.recall(list(read_events(folder)))
        result = resume_sweep(folder, listener=view.hear, progress=progress)
    return _conclude(result, record, as_json=as_json)


def lint(files: Sequence[str]) -> int:
    """Check search spaces, and say what each searches."""
    for file in files:
        space = read_space(find_space(file))
        results.print(f"{file}: ok, {len(space.domains)} searched names, {space.limits.trials} trials")
    return 0


def print_schema() -> int:
    """Print the JSON Schema of a search space."""
    print_json(schema())
    return 0


def _view(space: SearchSpace, *, as_json: bool) -> SweepView:
    return SweepView(messages, title=space.name, metric=space.metric, mode=space.mode, is_quiet=as_json)


def _print_plan(space: SearchSpace, folder: Path, tasks: Sequence[str], *, as_json: bool) -> int:
    """Say what a sweep would do."""
    base = space.config(space.first_params())
    plan = {
        "space": space.name,
        "metric": space.metric,
        "trials": space.limits.trials,
        "time": space.limits.time,
        "searched": space.document.values.get("search", {}),
        "run": str(folder),
        "corpus": base.corpus.path,
        "tasks": list(tasks),
    }
    if as_json:
        print_json(plan)
        return 0
    limit = f", at most {space.limits.time}" if space.limits.time else ""
    results.print(f"{space.name}: {space.limits.trials} trials{limit}, best {space.metric} wins, into {folder}")
    results.print(f"corpus: {base.corpus.path}   tasks: {', '.join(tasks)}")
    results.print(f"first corner: {describe(base)}", soft_wrap=True)
    print_table(
        ["searched", "domain"], [(name, _domain_text(entry)) for name, entry in plan["searched"].items()], num_text=2
    )
    return 0


def _domain_text(entry: dict[str, Any]) -> str:
    """Return a domain as it was written, a choice among mappings by its labels."""
    ((form, values),) = entry.items()
    return f"{form} {list(values)}"


def _conclude(result: SweepResult, record: SweepRecord, *, as_json: bool) -> int:
    """Judge a sweep that has ended, print how it went, and return the exit code."""
    if result.is_interrupted:
        command = f"raysent resume {shlex.quote(str(result.folder))}"
        if as_json:
            print_json({**_summary(result), "resume": command})
        else:
            messages.print(f"interrupted; nothing is lost. Go on with:\n  {command}", soft_wrap=True)
        return INTERRUPTED
    judgement = judge_sweep(result, record, is_quiet=as_json)
    if as_json:
        print_json({**_summary(result), **judgement.values()})
    else:
        _print_leaderboard(result, record.space)
        print_judgement(judgement)
    return SOME_TRIALS_FAILED if any(trial.status in ("failed", "nan") for trial in result.trials) else 0


def _summary(result: SweepResult) -> dict[str, Any]:
    """Return a sweep's outcome as plain values."""
    return {
        "run": str(result.folder),
        "status": "interrupted" if result.is_interrupted else "completed",
        "best": None if result.best is None else result.best.name,
        "trials": [
            {key: value for key, value in asdict(trial).items() if key != "decisions"} for trial in result.trials
        ],
    }


def _print_leaderboard(result: SweepResult, space: SearchSpace) -> None:
    """Print the trials, best first."""
    sign = -1 if space.mode == "max" else 1

    def rank(trial: Any) -> tuple[bool, float]:
        score = trial.metrics.get(space.metric)
        return score is None, 0.0 if score is None else sign * score

    rows = [
        (
            trial.name,
            trial.status,
            *(format_value(trial.params.get(name)) for name in space.domains),
            format_value(trial.metrics.get("context_accuracy")),
            format_value(trial.metrics.get("context_nll")),
            format_duration(trial.seconds),
        )
        for trial in sorted(result.trials, key=rank)
    ]
    names = [name.split(".")[-1] for name in space.domains]
    print_table(["trial", "status", *names, "context_accuracy", "context_nll", "time"], rows, num_text=2 + len(names))
    for trial in result.trials:
        if trial.error:
            messages.print(f"trial {trial.name} {trial.status}: {trial.error}", style="red", soft_wrap=True)


__all__ = ["Judgement", "lint", "print_schema", "resume", "sweep"]
