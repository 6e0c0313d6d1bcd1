"""`raysent analyse …`: what is typed, and what is seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysent import analysis as analyses
from raysent.cli.console import ProgressLines, print_json, print_table, results
from raysent.cli.judging import home, split_names
from raysent.errors import ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.protocols import protocol_name
from raysent.evaluation.records import SIMILARITY
from raysent.evaluation.tasks import PROBED, find_task, resolve_tasks
from raysent.storage import address_of
from raysent.storage.layout import EVALUATION_FOLDER

DASH = "–"
# Sentences in a window's table; the file and the report hold them whole.
_MAX_TEXT = 90


def tsne(
    models: Sequence[str],
    *,
    data: Path | None,
    tasks: str | None,
    num_points: int,
    seed: int,
    into: Path | None,
    as_json: bool,
) -> int:
    """Place tasks' sentences on planes and say where that is kept."""
    names = _task_names(tasks, data)
    with ProgressLines(prefix="placing ", is_quiet=as_json) as progress:
        evaluator = _evaluator(models, into, data, progress=progress)
        found = analyses.project(models, names, evaluator=evaluator, num_points=num_points, seed=seed)
    if as_json:
        return _finish(found, models, into, as_json=True)
    rows = [(one.model, one.task, str(len(one.x)), str(one.num_rows), f"{one.divergence:.2f}") for one in found]
    print_table(["model", "task", "points", "of rows", "divergence, nats"], rows, num_text=2)
    return _finish(found, models, into, as_json=False)


def errors(
    models: Sequence[str],
    *,
    data: Path | None,
    tasks: str | None,
    protocol: str,
    num_rows: int,
    into: Path | None,
    as_json: bool,
) -> int:
    """Compare two models' errors and print where they differ most."""
    protocol = protocol_name(protocol)
    if len(models) != 2:
        raise ConfigError(f"errors: two models are compared; given {len(models)}; name two")
    with ProgressLines(prefix="evaluating ", is_quiet=as_json) as progress:
        evaluator = _evaluator(models, into, data, protocol=protocol, progress=progress)
        found = [
            analyses.find_disagreements(models, task, evaluator=evaluator, num_rows=num_rows)
            for task in _task_names(tasks, data)
        ]
    if not as_json:
        for one in found:
            _print_disagreements(one)
    return _finish(found, models, into, as_json=as_json)


def examples(
    models: Sequence[str],
    *,
    data: Path | None,
    tasks: str | None,
    protocol: str,
    num_rows: int,
    seed: int,
    into: Path | None,
    as_json: bool,
) -> int:
    """Print what models answer, beside what is right."""
    protocol = protocol_name(protocol)
    with ProgressLines(prefix="evaluating ", is_quiet=as_json) as progress:
        evaluator = _evaluator(models, into, data, protocol=protocol, progress=progress)
        found = [
            one
            for task in _task_names(tasks, data)
            for one in analyses.pick_examples(models, task, evaluator=evaluator, num_rows=num_rows, seed=seed)
        ]
    if not as_json:
        for one in found:
            _print_examples(one)
    return _finish(found, models, into, as_json=as_json)


def efficiency(
    runs: Sequence[str], *, metric: str | None, target: float | None, into: Path | None, as_json: bool
) -> int:
    """Compare runs' scores against hours and print how soon each reached the same score."""
    found = analyses.compare_efficiency(runs, metric=metric, target=target)
    if not as_json:
        rows = [
            (
                curve.run,
                curve.objective,
                _count(curve.num_parameters),
                f"{curve.values[-1]:.4g}",
                f"{curve.hours[-1]:.3g}",
                _hours(curve.hours_to_target),
                _times(found.speed_up(curve)),
            )
            for curve in found.curves
        ]
        target_name = f"hours to {found.target:.4g}"
        print_table(
            ["run", "objective", "parameters", f"last {found.metric}", "hours", target_name, "sooner than the last"],
            rows,
            num_text=2,
        )
    return _finish([found], runs, into, as_json=as_json)


def parameter(
    name: str,
    runs: Sequence[str],
    *,
    by: str | None,
    metric: str | None,
    data: Path | None,
    tasks: str | None,
    protocol: str,
    into: Path | None,
    as_json: bool,
) -> int:
    """Compare a metric between the values of one setting and print the means."""
    protocol = protocol_name(protocol)
    if tasks is not None and metric is not None:
        raise ConfigError("--metric, --tasks: name one of them; given both")
    with ProgressLines(prefix="evaluating ", is_quiet=as_json) as progress:
        found = analyses.compare_values(
            runs,
            name,
            by=by or "",
            metric=metric,
            tasks=[find_task(task, scorings=PROBED).name for task in split_names(tasks) or ()],
            evaluator=_evaluator(runs, into, data, protocol=protocol, progress=progress),
        )
    if not as_json:
        _print_effect(found)
    return _finish([found], runs, into, as_json=as_json)


def _evaluator(models: Sequence[str], into: Path | None, data: Path | None, **options: Any) -> Evaluator:
    return Evaluator(output=(into or home(models)) / EVALUATION_FOLDER, data_dir=data, **options)


def _task_names(tasks: str | None, data: Path | None) -> list[str]:
    """Return the names of the tasks named, or of all with a probe whose files are there."""
    return [task.name for task in resolve_tasks(split_names(tasks), data, default=PROBED)]


def _finish(found: Sequence[analyses.Analysis], models: Sequence[str], into: Path | None, *, as_json: bool) -> int:
    """Keep what was found, and say where."""
    folder = into or home(models)
    paths = [analyses.write_analysis(folder, one) for one in found]
    if as_json:
        print_json({"results": [one.model_dump(mode="json") for one in found], "paths": [str(path) for path in paths]})
        return 0
    results.print()
    for path in paths:
        results.print(f"kept: {address_of(path)}", soft_wrap=True)
    return 0


def _print_disagreements(found: analyses.Disagreements) -> None:
    first, second = found.models
    how = "by the models' own similarity" if found.protocol == SIMILARITY else f"protocol {found.protocol}"
    results.print(
        f"{found.task}, {how}: of {found.num_rows} rows {first} is better on {found.num_first}, {second} on "
        f"{found.num_second} (sign test p = {found.p_value:.2g})",
        soft_wrap=True,
    )
    rows = [
        (_joined(row.sentences), row.gold, row.first, row.second, f"{row.gap:+.2f}".replace("-", "−"))
        for row in found.rows
    ]
    print_table([f"where they differ most, in {found.unit}", "right", first, second, f"for {first}"], rows)


def _print_examples(found: analyses.Examples) -> None:
    for title, rows in (("a sample", found.sample), ("the worst", found.worst)):
        table = [(_joined(row.sentences), row.gold, row.answer, f"{row.error:.2f}") for row in rows]
        print_table([f"{found.task}: {title} of {found.num_rows}", "right", found.model, f"off, {found.unit}"], table)


def _print_effect(found: analyses.ParameterEffect) -> None:
    rows = [
        (
            str(group.value) if group.value is not None else DASH,
            *([group.series] if found.by else []),
            str(group.num_runs),
            f"{group.mean:.4g}",
            DASH if group.spread is None else f"{group.spread:.2g}",
            _count(group.num_parameters),
            _hours(group.training_hours),
        )
        for group in found.groups()
    ]
    by = [found.by] if found.by else []
    print_table(
        [found.parameter, *by, "runs", f"mean {found.metric}", "spread", "parameters", "hours"],
        rows,
        num_text=1 + len(by),
    )
    if found.also_varied:
        results.print(f"the runs also differ in: {', '.join(found.also_varied)}", soft_wrap=True)


def _joined(sentences: Sequence[str]) -> str:
    text = " | ".join(sentences)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _count(number: float | None) -> str:
    return DASH if number is None else f"{number:,.0f}"


def _hours(hours: float | None) -> str:
    return DASH if hours is None else f"{hours:.3g}"


def _times(ratio: float | None) -> str:
    return DASH if ratio is None else f"{ratio:.1f} x"
