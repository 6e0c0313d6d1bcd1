"""CLI of `raysent analyse`: results go to the run's folder, and its report shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysent.cli.console import DASH, ProgressLines, print_json, print_table, results
from raysent.cli.options import DataOption, JsonOption, ModelsArgument, opened, opened_name, split_names
from raysent.errors import ConfigError

if TYPE_CHECKING:
    from raysent.analysis import Analysis, Disagreements, Examples, ParameterEffect
    from raysent.evaluation import Evaluator

analyse_app = typer.Typer(
    help="Look closer than scores; results are stored in the run's folder and shown in its report.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ProtocolOption = Annotated[str, typer.Option("--protocol", metavar="NAME", help="Protocol for tasks with a probe.")]
RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN", help="Folders of trainings, or of sweeps (all their trials), also in s3://.", parser=opened_name
    ),
]
IntoOption = Annotated[
    Path | None,
    typer.Option("--into", metavar="DIR", help="Folder for the results.  [default: the first named]", parser=opened),
]
MetricOption = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME", help="Validation metric.  [default: downstream, or one that all report]"),
]
TasksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks", "--task", metavar="A,B|FILE", help="Tasks, with a probe or of pairs.  [default: all with a probe]"
    ),
]
NumRowsOption = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Rows to show of each kind.")]
# Characters of sentences in a table; the file and the report hold them whole.
_MAX_TEXT = 90


@analyse_app.command("tsne")
def analyse_tsne(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: TasksOption = None,
    points: Annotated[int, typer.Option("--points", metavar="N", help="Most rows to show.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the sample and of t-SNE.")] = 0,
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Map the sentences of tasks to a plane by t-SNE.

    Points are coloured by class; pairs, as [u * v ; |u - v|], by human ratings.
    """
    from raysent.analysis import project

    names = _task_names(tasks, data)
    with ProgressLines(prefix="mapping ", is_quiet=as_json) as progress:
        evaluator = _evaluator(models, into, data, progress=progress)
        found = project(models, names, evaluator=evaluator, num_points=points, seed=seed)
    if not as_json:
        rows = [(one.model, one.task, str(len(one.x)), str(one.num_rows), f"{one.divergence:.2f}") for one in found]
        print_table(["model", "task", "points", "of rows", "divergence, nats"], rows, num_text=2)
    _store(found, models, into, as_json=as_json)


@analyse_app.command("errors")
def analyse_errors(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: TasksOption = None,
    protocol: ProtocolOption = "fast",
    rows: NumRowsOption = 10,
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rows on which two models differ most.

    For tasks with a probe, rows that one model gets right and the other wrong; for rated pairs, rows on which one is
    much nearer to the rating.
    """
    from raysent.analysis import find_disagreements
    from raysent.evaluation import protocol_name

    name = protocol_name(protocol)
    if len(models) != 2:
        raise ConfigError(f"errors: two models are compared; given {len(models)}; name two")
    with ProgressLines(prefix="evaluating ", is_quiet=as_json) as progress:
        evaluator = _evaluator(models, into, data, protocol=name, progress=progress)
        found = [
            find_disagreements(models, task, evaluator=evaluator, num_rows=rows) for task in _task_names(tasks, data)
        ]
    if not as_json:
        for one in found:
            _print_disagreements(one)
    _store(found, models, into, as_json=as_json)


@analyse_app.command("examples")
def analyse_examples(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: TasksOption = None,
    protocol: ProtocolOption = "fast",
    rows: NumRowsOption = 10,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the sample.")] = 0,
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show models' predictions beside the right ones.

    A sample of rows, and the rows with the largest errors.
    """
    from raysent.analysis import pick_examples
    from raysent.evaluation import protocol_name

    name = protocol_name(protocol)
    with ProgressLines(prefix="evaluating ", is_quiet=as_json) as progress:
        evaluator = _evaluator(models, into, data, protocol=name, progress=progress)
        found = [
            one
            for task in _task_names(tasks, data)
            for one in pick_examples(models, task, evaluator=evaluator, num_rows=rows, seed=seed)
        ]
    if not as_json:
        for one in found:
            _print_examples(one)
    _store(found, models, into, as_json=as_json)


@analyse_app.command("efficiency")
def analyse_efficiency(
    runs: RunsArgument,
    metric: MetricOption = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="X", help="Score to reach.  [default: the best score that all runs reach]"),
    ] = None,
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs' scores against hours of training.

    Shows how soon each run reaches the same score. Train with --set validation.downstream.data=DIR to compare task
    scores.
    """
    from raysent.analysis import compare_efficiency

    found = compare_efficiency(runs, metric=metric, target=target)
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
        reached = f"hours to {found.target:.4g}"
        headings = ["run", "objective", "parameters", f"last {found.metric}", "hours", reached, "speed-up"]
        print_table(headings, rows, num_text=2)
    _store([found], runs, into, as_json=as_json)


@analyse_app.command("parameter")
def analyse_parameter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Dotted name of a setting, such as encoder.hidden_size.")],
    runs: RunsArgument,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="A second setting; each of its values gets a line.")
    ] = None,
    metric: MetricOption = None,
    data: DataOption = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks", "--task", metavar="A,B|FILE", help="Compare the mean test score of these tasks instead."
        ),
    ] = None,
    protocol: ProtocolOption = "fast",
    into: IntoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a metric between the values of one setting.

    Means and standard deviations over runs with the same value, for instance over seeds.
    """
    from raysent.analysis import compare_values
    from raysent.evaluation import PROBED, find_task, protocol_name

    if tasks is not None and metric is not None:
        raise ConfigError("--metric, --tasks: name one of them; given both")
    with ProgressLines(prefix="evaluating ", is_quiet=as_json) as progress:
        found = compare_values(
            runs,
            name,
            by=by or "",
            metric=metric,
            tasks=[find_task(task, scorings=PROBED).spec for task in split_names(tasks) or ()],
            evaluator=_evaluator(runs, into, data, protocol=protocol_name(protocol), progress=progress),
        )
    if not as_json:
        _print_effect(found)
    _store([found], runs, into, as_json=as_json)


def _evaluator(models: Sequence[str], into: Path | None, data: Path | None, **options: Any) -> Evaluator:
    from raysent.evaluation import Evaluator

    return Evaluator(output=_folder(models, into) / "evaluation", data_dir=data, **options)


def _folder(models: Sequence[str], into: Path | None) -> Path:
    from raysent.pipeline import scores_folder

    return into or scores_folder(models)


def _task_names(tasks: list[str] | None, data: Path | None) -> list[str]:
    """Return the names of the tasks named, or of all with a probe whose files are there."""
    from raysent.evaluation import PROBED, resolve_tasks

    return [task.spec for task in resolve_tasks(split_names(tasks), data, default=PROBED)]


def _store(found: Sequence[Analysis], models: Sequence[str], into: Path | None, *, as_json: bool) -> None:
    """Write the results and print where they are."""
    from raysent.analysis import write_analysis
    from raysent.storage import address_of

    paths = [address_of(write_analysis(_folder(models, into), one)) for one in found]
    if as_json:
        print_json({"results": [one.model_dump(mode="json") for one in found], "paths": paths})
        return
    results.print()
    for path in paths:
        results.print(f"stored: {path}", soft_wrap=True)


def _print_disagreements(found: Disagreements) -> None:
    first, second = found.models
    how = "by the models' own similarity" if found.protocol == "similarity" else f"protocol {found.protocol}"
    results.print(
        f"{found.task}, {how}: of {found.num_rows} rows {first} is better on {found.num_first}, {second} on "
        f"{found.num_second} (sign test p = {found.p_value:.2g})",
        soft_wrap=True,
    )
    rows = [
        (_joined(row.sentences), row.gold, row.first, row.second, f"{row.gap:+.2f}".replace("-", "−"))
        for row in found.rows
    ]
    print_table([f"largest differences, in {found.unit}", "right", first, second, f"for {first}"], rows)


def _print_examples(found: Examples) -> None:
    for title, rows in (("sample", found.sample), ("largest errors", found.worst)):
        table = [(_joined(row.sentences), row.gold, row.answer, f"{row.error:.2f}") for row in rows]
        print_table([f"{found.task}: {title} of {found.num_rows}", "right", found.model, f"error, {found.unit}"], table)


def _print_effect(found: ParameterEffect) -> None:
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
    headings = [found.parameter, *by, "runs", f"mean {found.metric}", "std", "parameters", "hours"]
    print_table(headings, rows, num_text=1 + len(by))
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
