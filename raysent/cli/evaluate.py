"""CLI of `raysent evaluate`, `ensemble`, `report` and `data`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import raysent
from raysent.cli.console import DASH, address_of, messages, print_json, print_table, results
from raysent.cli.options import (
    AddressOption,
    DataOption,
    JsonOption,
    ModelsArgument,
    RunArgument,
    TasksOption,
    opened,
    split_names,
)
from raysent.errors import ExitCode

if TYPE_CHECKING:
    from raysent.ensembles import EnsembleResult, LabelCurve, MemberCost, MemberSubset, Selection
    from raysent.evaluation import AnyScore, Costs, MtebScore, Score, SimilarityScore

evaluate_app = typer.Typer()
data_app = typer.Typer(help="Check data folders.", no_args_is_help=True, rich_markup_mode=None)

ProtocolOption = Annotated[
    str, typer.Option("--protocol", metavar="NAME", help="Evaluation protocol: fast, senteval or kiros.")
]
BaselinesOption = Annotated[
    bool | None,
    typer.Option(
        "--baselines/--no-baselines",
        help="Also evaluate TF-IDF, and of the first model (of a sweep: the best) its mean words and start.  "
        "[default: with the protocol fast]",
        show_default=False,
    ),
]
LabelsOption = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="32,100,all",
        help="Also score models, baselines and their ensembles with so many labels, on tasks with classes.",
    ),
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="NAME", help="senteval: default or prototyping; kiros: default or features."),
]


@evaluate_app.command()
def evaluate(
    models: ModelsArgument,
    data: DataOption = None,
    tasks: TasksOption = None,
    mteb: Annotated[
        list[str] | None,
        typer.Option(
            "--mteb",
            metavar="TASK,...|FILE.py",
            help="Tasks of the mteb package, or a file that defines some; then others only by --tasks. Repeatable.",
        ),
    ] = None,
    protocol: ProtocolOption = "fast",
    config: ConfigOption = None,
    baselines: BaselinesOption = None,
    labels: LabelsOption = None,
    reported: Annotated[
        bool, typer.Option("--reported", help="Also print what papers report on these tasks, one table per protocol.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option("--processes", metavar="N", min=1, help="Evaluate N models and tasks at a time.")
    ] = None,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate models on tasks.

    Encodes sentences, fits a probe per task, and keeps scores and log-probabilities in evaluation/ of the first folder
    named. The protocol senteval reproduces SentEval's figures; kiros is the protocol of the Skip-Thoughts and
    Quick-Thoughts papers. Scores of different protocols are not comparable. With --address, evaluates on a cluster
    that reaches the same folders.
    """
    from raysent import pipeline
    from raysent.evaluation import (
        PROTOCOLS,
        MtebScore,
        Score,
        SimilarityScore,
        absent_tasks,
        library_versions,
        protocol_name,
    )

    name = protocol_name(protocol, config)
    found = pipeline.evaluate_models(
        models,
        tasks=split_names(tasks),
        mteb=None if mteb is None else [one for given in mteb for one in given.split(",") if one],
        data=data,
        protocol=name,
        baselines=baselines,
        map_jobs=pipeline.map_jobs(processes, address),
        progress=not as_json,
    )
    curves = [] if labels is None else _label_curves(models, labels, tasks=tasks, data=data, is_quiet=as_json)
    scores = [score for score in found if isinstance(score, Score)]
    similarities = [score for score in found if isinstance(score, SimilarityScore)]
    of_mteb = [score for score in found if isinstance(score, MtebScore)]
    evaluated = list(dict.fromkeys([*(score.task for score in scores), *(score.task for score in similarities)]))
    if as_json:
        print_json(
            {
                "protocol": protocol,
                "config": config or "default",
                "settings": PROTOCOLS[name].settings(),
                "versions": library_versions(),
                "results": [asdict(score) for score in scores],
                "similarity": [asdict(score) for score in similarities],
                **({"mteb": [asdict(score) for score in of_mteb]} if mteb is not None else {}),
                **({"labels": [curve.model_dump(mode="json") for curve in curves]} if labels is not None else {}),
                **({"reported": _reported_values(evaluated)} if reported else {}),
            }
        )
        return
    if tasks is None and data is not None and (absent := absent_tasks(data)):
        messages.print(f"not in {data}: {', '.join(absent)}", soft_wrap=True)
    if scores:
        _print_scores(scores)
    if similarities:
        results.print()
        _print_similarities(similarities)
    _warn_below_start([score for score in scores if not score.is_correlation], "the mean over tasks")
    _warn_below_start([*(score for score in scores if score.is_correlation), *similarities], "correlations")
    if of_mteb:
        results.print()
        _print_mteb(of_mteb)
    print_curves(curves)
    if reported:
        _print_reported(evaluated)


@evaluate_app.command()
def ensemble(
    models: ModelsArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder of the ensemble.  [default: runs/ensemble-DATE; for the trials of one sweep, its folder]",
            parser=opened,
        ),
    ] = None,
    data: DataOption = None,
    tasks: TasksOption = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="validation, uniform, best, guarded, pool, greedy, linear, stack; or all, which keeps the best.",
        ),
    ] = "validation",
    top: Annotated[
        int | None, typer.Option("--top", metavar="K", min=1, help="Keep K members, the best on validation.")
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            "--select", metavar="NAME", help="How --top chooses: best, or greedy, which adds what improves most."
        ),
    ] = "best",
    max_ms: Annotated[
        float | None,
        typer.Option("--max-ms", metavar="X", min=0, help="Most milliseconds to encode 1,000 sentences, all members."),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", metavar="N", min=0, help="Most bytes of all members' files.")
    ] = None,
    join_vectors: Annotated[
        bool, typer.Option("--join-vectors", help="Also score a probe on all members' vectors, joined and averaged.")
    ] = False,
    baselines: BaselinesOption = None,
    labels: LabelsOption = None,
    protocol: ProtocolOption = "fast",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Combine models into an ensemble.

    Combines the members' log-probabilities on each task, and prints cross-validated scores of the ensemble, of the best
    member and of equal weights, and which sets of members are worth their cost. The ensemble's folder is a model: it
    encodes and predicts.
    """
    made = raysent.ensemble(
        models,
        tasks=split_names(tasks),
        data=data,
        method=method,
        output=output,
        top=top,
        select=cast("Selection", select),
        max_ms=max_ms,
        max_bytes=max_bytes,
        join_vectors=join_vectors,
        baselines=baselines,
        protocol=protocol,
        config=config,
        progress=not as_json,
    )
    curves = []
    if labels is not None:
        curves = _label_curves(
            models,
            labels,
            tasks=tasks,
            data=data,
            method="validation" if method == "all" else method,
            output=made.folder,
            is_quiet=as_json,
        )
    if as_json:
        values = ensemble_values(made.result, made.folder)
        print_json(values | ({"labels": [one.model_dump(mode="json") for one in curves]} if curves else {}))
        return
    print_ensemble(made.result)
    print_curves(curves)
    _print_methods(made.result)
    _print_costs(made.result)
    results.print(f"ensemble: {made.folder}", soft_wrap=True)


@evaluate_app.command()
def report(run: RunArgument, as_json: JsonOption = False) -> None:
    """Write RUN/report.html.

    The page is one file that needs no network.
    """
    path = address_of(raysent.write_report(run))
    if as_json:
        print_json({"report": path})
    else:
        results.print(path, soft_wrap=True)


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder in SentEval's layout.")],
    as_json: JsonOption = False,
) -> None:
    """Print which tasks a data folder holds, and where the others are published.

    Reads every file and compares its number of rows with the published one. Exit code 2 if one is different.
    """
    from raysent.evaluation import check_data

    found = check_data(folder)
    status = ExitCode.MISTAKE if any(one.status == "wrong" for one in found) else ExitCode.DONE
    if as_json:
        print_json({"folder": str(folder), "tasks": [asdict(one) for one in found]})
        raise typer.Exit(status)
    rows = [(one.task, one.status, f"{one.num_rows:,}" if one.num_rows else "") for one in found]
    print_table(["task", "files", "rows"], rows, num_text=2)
    for one in found:
        if one.status != "complete":
            results.print(f"{one.task}: {one.problem}; published at {one.source}", soft_wrap=True)
    raise typer.Exit(status)


def _label_curves(
    models: Sequence[str], labels: str, *, tasks: list[str] | None, is_quiet: bool, **options: Any
) -> list[LabelCurve]:
    """Return the scores against the number of labels."""
    from raysent import pipeline
    from raysent.ensembles import parse_sizes

    return pipeline.label_curves(
        models, labels=parse_sizes(labels), tasks=split_names(tasks), progress=not is_quiet, **options
    )


def print_curves(curves: Sequence[LabelCurve]) -> None:
    """Print scores against the number of labels, a table for each task, and what they say."""
    for curve in curves:
        results.print()
        rows = [
            (name, *(_with_interval(point.value, point.interval) for point in one.points))
            for name, one in curve.curves.items()
        ]
        print_table([f"{curve.task}, by number of labels", *(f"{size:,}" for size in curve.sizes)], rows)
        results.print(curve.sentence, soft_wrap=True)


def _warn_below_start(scores: Sequence[AnyScore], what: str) -> None:
    """Warn about trained models that score lower than before training."""
    from raysent.evaluation import below_start

    by_model: dict[str, list[float]] = {}
    for score in scores:
        by_model.setdefault(score.model, []).append(score.test)
    for name, points in below_start({name: sum(found) / len(found) for name, found in by_model.items()}).items():
        messages.print(f"warning: {name} is {points:.2f} points below its start in {what}", soft_wrap=True)


def _print_scores(scores: Sequence[Score]) -> None:
    """Print test scores, a row per model and a column per task; correlations come after the mean of accuracies.

    Parameters and hours of training come first, if any model has them.
    """
    from raysent.evaluation import Costs

    costs = {score.model: score.costs for score in scores}
    has_costs = any(cost != Costs() for cost in costs.values())
    by_model: dict[str, dict[str, Score]] = {}
    for score in scores:
        by_model.setdefault(score.model, {})[score.task] = score
    accuracies = list(dict.fromkeys(score.task for score in scores if not score.is_correlation))
    correlations = list(dict.fromkeys(score.task for score in scores if score.is_correlation))
    rows = []
    for model, found in by_model.items():
        means = [f"{mean(found[task].test for task in accuracies):.2f}"] if accuracies else []
        rows.append(
            (
                model,
                *(_cost_texts(costs[model]) if has_costs else []),
                *(_score_text(found[task]) for task in accuracies),
                *means,
                *(_score_text(found[task]) for task in correlations),
            )
        )
    headings = [*accuracies, *(["mean"] if accuracies else []), *(f"{task} r" for task in correlations)]
    cost_headings = ["parameters", "hours"] if has_costs else []
    print_table([f"test, protocol {scores[0].protocol}", *cost_headings, *headings], rows)


def _cost_texts(costs: Costs) -> list[str]:
    size, hours = costs.num_parameters, costs.training_hours
    return [DASH if size is None else f"{size:,}", DASH if hours is None else f"{hours:.3g}"]


def _score_text(score: Score) -> str:
    """Return a score as the table shows it, with the F1 after the accuracy."""
    return f"{score.test:.2f}" + (f"/{score.measures['f1']:.2f}" if "f1" in score.measures else "")


def _print_similarities(scores: Sequence[SimilarityScore]) -> None:
    """Print correlations, a row per model and a column per task: the mean over the task's sets.

    For a task with classes instead of ratings, prints accuracy and F1 by a threshold.
    """
    tasks = list(dict.fromkeys(score.task for score in scores))
    by_model: dict[str, dict[str, SimilarityScore]] = {}
    for score in scores:
        by_model.setdefault(score.model, {})[score.task] = score
    rows = [
        (model, *(_similarity_text(found[task]) for task in tasks), found[tasks[0]].measure)
        for model, found in by_model.items()
    ]
    print_table(["Pearson x 100, no probe", *tasks, "by"], rows)


def _similarity_text(score: SimilarityScore) -> str:
    measures = score.measures
    return f"{measures['accuracy']:.2f}/{measures['f1']:.2f}" if measures else f"{score.pearson:.2f}"


def _print_mteb(scores: Sequence[MtebScore]) -> None:
    """Print main scores, a row per model and a column per task."""
    measures = {score.task: score.measure for score in scores}
    by_model: dict[str, dict[str, MtebScore]] = {}
    for score in scores:
        by_model.setdefault(score.model, {})[score.task] = score
    rows = [(model, *(f"{found[task].test:.2f}" for task in measures)) for model, found in by_model.items()]
    headings = [f"{task} {measure}" for task, measure in measures.items()]
    print_table([f"MTEB {scores[0].mteb_version}, main score x 100", *headings], rows)


def ensemble_values(result: EnsembleResult, folder: Path) -> dict[str, Any]:
    """Return an ensemble's scores as plain values; `results` holds one row per model and task."""
    values = result.values()
    scores = {task: found.pop("scores") for task, found in values["tasks"].items()}
    return {
        "path": str(folder),
        **values,
        "difference": result.mean.difference.value,
        "interval": list(result.mean.difference.interval),
        "results": [
            {"model": name, "task": task, "protocol": result.protocol, **of_task[name]}
            for name in result.mean.scores
            for task, of_task in scores.items()
        ],
        "weights": {task: found.weights for task, found in result.tasks.items()},
    }


def print_ensemble(result: EnsembleResult) -> None:
    """Print test scores of members, other methods and the ensemble, and the ensemble's gain over the best member."""
    from raysent.ensembles import ENSEMBLE

    others = [name for name in result.mean.scores if name not in (ENSEMBLE, *result.members)]
    rows = [(_title(name, result), *_test_scores(name, result)) for name in (*result.members, *others, ENSEMBLE)]
    print_table([f"test, protocol {result.protocol}", *result.tasks, "mean"], rows)
    gain = result.mean.difference
    results.print(
        f"ensemble against the best member on validation ({result.best_member}): {gain.value:+.2f} points of mean "
        f"test score, 95 % interval [{gain.interval[0]:+.2f}, {gain.interval[1]:+.2f}]",
        soft_wrap=True,
    )
    if result.mean.over_baseline is not None:
        results.print(result.mean.over_baseline.sentence(), soft_wrap=True)
    for remark in result.remarks():
        messages.print(remark, soft_wrap=True)
    for name, points in result.below_start().items():
        messages.print(f"warning: {name} scores {points:.2f} points below itself before training", soft_wrap=True)
    if result.replaced:
        messages.print(
            f"{', '.join(result.replaced)}: {result.method} has a lower cross-validated score than the best member, "
            "which replaces it there",
            soft_wrap=True,
        )


def _title(name: str, result: EnsembleResult) -> str:
    from raysent.ensembles import ENSEMBLE

    return f"{ENSEMBLE} ({result.method})" if name == ENSEMBLE else name


def _test_scores(name: str, result: EnsembleResult) -> list[str]:
    on_tasks = [task.scores[name].test for task in result.tasks.values()]
    return [f"{score:.2f}" for score in (*on_tasks, result.mean.scores[name].test)]


def _print_methods(result: EnsembleResult) -> None:
    """Print the cross-validated scores of all methods, means over tasks, and the calibration of their probabilities."""
    rows = []
    for name, means in result.mean.scores.items():
        if name in result.members or name in result.baselines:
            continue
        measures = means.measures
        rows.append(
            (
                _title(name, result),
                _with_interval(means.cross_fitted.value, means.cross_fitted.interval),
                f"{means.optimism:+.2f}",
                _with_interval(means.test, means.interval),
                f"{measures['nll'].value:.3f}",
                f"{measures['brier'].value:.3f}",
                f"{measures['ece'].value:.1f}",
                _replaced(name, result),
            )
        )
    headings = ["mean over tasks", "cross-fitted", "optimism", "test", "NLL", "Brier", "ECE %", "best member instead"]
    results.print()
    print_table(headings, rows)


def _with_interval(value: float, interval: Sequence[float]) -> str:
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _replaced(name: str, result: EnsembleResult) -> str:
    """Return in how many of all tasks' folds the best member replaces a method."""
    tasks = result.tasks.values()
    return f"{sum(task.scores[name].num_replaced for task in tasks)} of {sum(len(task.fold_weights) for task in tasks)}"


def _print_costs(result: EnsembleResult) -> None:
    """Print the subsets of members on the front of score against cost."""
    from raysent.ensembles import total_cost

    rows = [_cost_row(subset) for subset in result.choices if subset.fronts]
    rows.append((f"all {len(result.members)}", *_cost(total_cost(list(result.costs.values()))), DASH, ""))
    results.print()
    print_table(["members", "ms / 1,000", "MiB", "training s", "base rule, cross-fitted", "least for its"], rows)


def _cost_row(subset: MemberSubset) -> tuple[str, ...]:
    fronts = {"encode_ms": "time", "num_bytes": "size"}
    best_for = ", ".join(fronts[front] for front in subset.fronts)
    return " + ".join(subset.members), *_cost(subset), f"{subset.score:.2f}", best_for


def _cost(cost: MemberCost) -> tuple[str, str, str]:
    training = DASH if cost.training_s is None else f"{cost.training_s:,.0f}"
    return f"{cost.encode_ms:,.1f}", f"{cost.num_bytes / 2**20:,.1f}", training


def _print_reported(tasks: Sequence[str]) -> None:
    """Print what papers report on these tasks, one table per protocol."""
    from raysent.analysis import COSTS, notes_on, reported_for

    models = reported_for(tasks)
    for protocol in dict.fromkeys(model.protocol for model in models):
        chosen = [model for model in models if model.protocol == protocol]
        columns = [name for name in (*COSTS, *tasks) if any(name in model.figures for model in chosen)]
        rows = [
            (one.model, one.where, *(one.text_of(name, missing=DASH) for name in columns))
            for one in sorted(chosen, key=lambda one: -len(one.figures))
        ]
        results.print()
        print_table([f"as reported, protocol {protocol}", "where", *columns], rows, num_text=2)
    for where, note in notes_on(models):
        results.print(f"{where}: {note}", soft_wrap=True)


def _reported_values(tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return what papers report on these tasks as plain values."""
    from raysent.analysis import reported_for

    return [asdict(model) for model in reported_for(tasks)]
