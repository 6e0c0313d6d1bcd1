"""CLI of models and runs looked at: `evaluate`, `ensemble`, `label`, `report` and `doctor`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import raysent
from raysent.cli.console import (
    DASH,
    address_of,
    print_json,
    print_table,
    results,
    table_of,
    with_interval,
)
from raysent.cli.options import (
    DataOption,
    JsonOption,
    ModelsArgument,
    PredictingArgument,
    RunArgument,
    SetOption,
    TasksOption,
    arguments_of,
    opened,
    split_names,
)
from raysent.errors import ExitCode
from raysent.progress import messages

if TYPE_CHECKING:
    from raysent.ensembles import EnsembleResult, FusedModel, LabelCurve
    from raysent.evaluation import AnyScore, Costs, MtebScore, Score, SimilarityScore

OneScore = TypeVar("OneScore", bound="AnyScore")

ProtocolOption = Annotated[
    str,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="Evaluation protocol: fast, fast/divided, senteval, senteval/prototyping, kiros or kiros/features.",
    ),
]
# Characters of a sentence in a table; the file and the report hold it whole.
_MAX_TEXT = 90
# Suspected labels on the screen.
_MAX_SUSPECTS = 10


def evaluate(
    models: ModelsArgument,
    tasks: TasksOption = None,
    data: DataOption = None,
    mteb: Annotated[
        list[str] | None,
        typer.Option(
            "--mteb",
            metavar="TASK,...|FILE.py",
            help="Tasks of the mteb package, or a file that defines some; then others only by --tasks. Repeatable.",
        ),
    ] = None,
    protocol: ProtocolOption = "fast",
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="32,100,all",
            help="Also score models and their ensembles with so many labels.",
        ),
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate models on tasks.

    Encodes sentences, fits a probe per task, and keeps scores and log-probabilities in evaluation/ of the first folder
    named. The protocol senteval reproduces SentEval's figures; kiros is the protocol of the Skip-Thoughts and
    Quick-Thoughts papers. Scores of different protocols are not comparable. --set takes baselines=false (TF-IDF, mean
    words and the start of the first model are left out), processes=N models and tasks at a time, output=DIR, and
    address=ADDR, a Ray cluster that reaches the same folders.
    """
    from raysent import pipeline
    from raysent.ensembles import parse_sizes
    from raysent.evaluation import PROTOCOLS, absent_tasks, library_versions, protocol_name

    named, sizes = split_names(tasks), [] if labels is None else parse_sizes(labels)
    given = arguments_of(raysent.evaluate, overrides)
    options = pipeline.EvaluationOptions(
        tasks=named,
        mteb=None if mteb is None else [name for text in mteb for name in text.split(",") if name],
        data=data,
        protocol=protocol,
        progress=not as_json,
        **given,
    )
    found = pipeline.evaluate_models(models, options)
    scores, similarities, of_mteb = _by_kind(found)
    if not as_json:
        if tasks is None and data is not None and (absent := absent_tasks(data)):
            messages.print(f"not in {data}: {', '.join(absent)}", soft_wrap=True)
        _print_evaluated(scores, similarities, of_mteb)
    curves = []
    if sizes:
        kept = ("output", "baselines", "processes", "address")
        shared = {name: given[name] for name in kept if given.get(name) is not None}
        curves = raysent.label_curves(
            models, labels=sizes, tasks=named, data=data, progress=not as_json, **shared
        )
    if as_json:
        name = protocol_name(protocol, given.get("config"))
        family, _, configuration = name.partition("/")
        print_json(
            {
                "protocol": family,
                "config": configuration or "default",
                "settings": PROTOCOLS[name].settings(),
                "versions": library_versions(),
                "results": [asdict(score) for score in scores],
                "similarity": [asdict(score) for score in similarities],
                **({"mteb": [asdict(score) for score in of_mteb]} if mteb is not None else {}),
                **(
                    {"labels": [curve.model_dump(mode="json") for curve in curves]}
                    if labels is not None
                    else {}
                ),
            }
        )
        return
    for curve in curves:
        _print_curve(curve)


def _by_kind(
    found: Sequence[AnyScore],
) -> tuple[list[Score], list[SimilarityScore], list[MtebScore]]:
    from raysent.evaluation import MtebScore, Score, SimilarityScore

    return (
        [score for score in found if isinstance(score, Score)],
        [score for score in found if isinstance(score, SimilarityScore)],
        [score for score in found if isinstance(score, MtebScore)],
    )


def _print_evaluated(
    scores: list[Score], similarities: list[SimilarityScore], of_mteb: list[MtebScore]
) -> None:
    from raysent.evaluation import RETRIEVAL

    if probed := [score for score in scores if score.protocol != RETRIEVAL]:
        _print_scores(probed)
    for task in dict.fromkeys(score.task for score in scores if score.protocol == RETRIEVAL):
        _print_retrieval(
            [score for score in scores if (score.task, score.protocol) == (task, RETRIEVAL)]
        )
    if similarities:
        results.print()
        _print_similarities(similarities)
    _warn_below_start(
        [score for score in scores if not score.is_correlation], "the mean over tasks"
    )
    _warn_below_start(
        [*(score for score in scores if score.is_correlation), *similarities], "correlations"
    )
    if of_mteb:
        results.print()
        _print_mteb(of_mteb)


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
    tasks: TasksOption = None,
    data: DataOption = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="validation, uniform, best, pool, greedy; or all, which keeps the best.",
        ),
    ] = "validation",
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Combine models into an ensemble.

    Combines the members' log-probabilities on each task, and prints cross-validated scores of the ensemble, of the best
    member and of equal weights. The ensemble's folder is a model: it encodes and predicts. --set takes top=K,
    which keeps the K members that are best on validation, and protocol=NAME and baselines=false as for evaluate.
    On a task with queries, encoders and words are combined that rank its passages.
    """
    from raysent.ensembles import FusedModel

    made = raysent.ensemble(
        models,
        tasks=split_names(tasks),
        data=data,
        method=method,
        output=output,
        progress=not as_json,
        **arguments_of(raysent.ensemble, overrides),
    )
    if isinstance(made, FusedModel):
        if as_json:
            print_json({"path": str(made.folder), **made.result.model_dump(mode="json")})
        else:
            _print_fusion(made)
        return
    if as_json:
        print_json(ensemble_values(made.result, made.folder))
        return
    print_ensemble(made.result)
    _print_methods(made.result)
    results.print(f"ensemble: {made.folder}", soft_wrap=True)


def label(
    model: PredictingArgument,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="Rows to label or to check: new.csv, or new.csv:text=body,label=stars.",
        ),
    ],
    num_rows: Annotated[
        int, typer.Option("-n", "--rows", metavar="N", min=1, help="Rows to look at.")
    ] = 50,
    suspect: Annotated[
        bool, typer.Option("--suspect", help="Look for labels that may be wrong.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="New file to write.  [default: TABLE-next, -suspects .csv]",
        ),
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the rows of a table to label next, or those whose label may be wrong.

    Writes the table with these rows first; edit them, and give the file to --task of a sweep, which leaves out rows
    without a label. Rows to label are those on which the model's members disagree or are unsure, among texts like many
    others; of near-copies one. With --suspect models are fitted on the table by cross-validation, and columns
    'predicted' and 'probability', that of the row's label, are added. --set takes task=NAME, of a model of several.
    """
    from raysent.evaluation import split_task_name

    stem = Path(split_task_name(table)[1]).name.partition(".")[0]
    file = output or Path(f"{stem}-{'suspects' if suspect else 'next'}.csv")
    given = arguments_of(raysent.label, overrides)
    made = raysent.label(
        model, table, num_rows=num_rows, suspect=suspect, output=file, progress=not as_json, **given
    )
    if as_json:
        print_json({"file": str(file), "rows": len(made.rows), "first": made.num_first})
        return
    if suspect:
        shown = [made.label, "predicted", "probability", *made.text]
        rows = made.rows[shown].head(_MAX_SUSPECTS).astype(str).to_numpy().tolist()
        print_table(
            shown, [[_shortened(value) for value in row] for row in rows], num_text=len(shown)
        )
    what = f"of the first {min(num_rows, len(made.rows)):,} labels, {made.num_first:,} are not the predicted one"
    results.print(
        f"{file}: {what if suspect else f'{made.num_first:,} rows to label first'}", soft_wrap=True
    )


def report(run: RunArgument, as_json: JsonOption = False) -> None:
    """Write RUN/report.html.

    The page is one file that needs no network.
    """
    path = address_of(raysent.write_report(run))
    if as_json:
        print_json({"report": path})
    else:
        results.print(path, soft_wrap=True)


def doctor(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A table, a text, a search space, a sweep's folder, or a folder of task files.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Say what a table, a text, a search space, a sweep or a folder of task files holds, and what looks wrong.

    Of a table: columns, classes, lengths, language, copies and the split, as 'sweep --task' would read them. Of a text:
    sentences, documents and words. Of a search space: every setting at every edge of the search. Of a sweep: every line
    of its journal and ledger, and whether each has what the other says. Of a folder in SentEval's layout: which tasks
    it holds, with the published number of rows. Nothing is changed. Exit code 1 if a file is damaged, or a folder holds
    nothing of these.
    """
    found = raysent.doctor(path)
    if as_json:
        print_json(found.values())
    else:
        for line in found.lines:
            results.print(line, soft_wrap=True)
        for line in found.problems:
            messages.print(line, style="red", soft_wrap=True)
    raise typer.Exit(ExitCode.CHECK_FAILED if found.problems else ExitCode.DONE)


def _print_curve(curve: LabelCurve) -> None:
    from raysent.evaluation import LEARNED, LEARNED_NOTE

    results.print()
    rows = [
        (
            name + LEARNED * one.learned,
            *(with_interval(point.value, point.interval) for point in one.points),
        )
        for name, one in curve.curves.items()
    ]
    print_table(
        [f"{curve.task}, by number of labels", *(f"{size:,}" for size in curve.sizes)],
        rows,
    )
    results.print(curve.sentence, soft_wrap=True)
    if any(one.learned for one in curve.curves.values()):
        messages.print(LEARNED_NOTE, style="dim", soft_wrap=True)


def _warn_below_start(scores: Sequence[AnyScore], what: str) -> None:
    from raysent.evaluation import below_start

    means = {
        name: mean(one.test for one in found.values()) for name, found in _by_model(scores).items()
    }
    for name, points in below_start(means).items():
        messages.print(
            f"warning: {name} is {points:.2f} points below its start in {what}", soft_wrap=True
        )


def _print_scores(scores: Sequence[Score]) -> None:
    """Print test scores, a row per model and a column per task; correlations come after the mean of accuracies.

    Parameters and hours of training come first, if any model has them.
    """
    from raysent.evaluation import LEARNED_NOTE, Costs, mean_heading

    costs = {score.model: score.costs for score in scores}
    has_costs = any(cost != Costs() for cost in costs.values())
    accuracies = list(dict.fromkeys(score.task for score in scores if not score.is_correlation))
    correlations = list(dict.fromkeys(score.task for score in scores if score.is_correlation))
    rows = []
    for model, found in _by_model(scores).items():
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
    headings = [
        *accuracies,
        *([mean_heading(accuracies)] if accuracies else []),
        *(f"{task} r" for task in correlations),
    ]
    cost_headings = ["parameters", "hours"] if has_costs else []
    print_table([f"test, protocol {scores[0].protocol}", *cost_headings, *headings], rows)
    if any(score.learned for score in scores):
        messages.print(LEARNED_NOTE, style="dim", soft_wrap=True)


def _cost_texts(costs: Costs) -> list[str]:
    size, hours = costs.num_parameters, costs.training_hours
    return [DASH if size is None else f"{size:,}", DASH if hours is None else f"{hours:.3g}"]


def _score_text(score: Score) -> str:
    from raysent.evaluation import LEARNED

    f1 = f"/{score.measures['f1']:.2f}" if "f1" in score.measures else ""
    return f"{score.test:.2f}{f1}{LEARNED if score.learned else ''}"


def _print_retrieval(scores: Sequence[Score]) -> None:
    from raysent.evaluation import differences

    rows = [
        (
            one.model,
            DASH if one.validation is None else f"{one.validation:.2f}",
            with_interval(one.test, one.interval or (one.test, one.test)),
            *(f"{one.measures[name]:.2f}" for name in ("recall_at_100", "mrr_at_10")),
            with_interval(behind.value, behind.interval),
        )
        for one, behind in zip(scores, differences(scores), strict=True)
    ]
    num_dev = scores[0].num_queries.get("dev", 0)
    what = f"{scores[0].task}, {num_dev:,} dev and {len(scores[0].by_query):,} test queries"
    against = "against the best on dev" if num_dev else "against the first"
    print_table([what, "nDCG@10 of dev", "nDCG@10", "recall@100", "MRR@10", against], rows)


def _print_fusion(made: FusedModel) -> None:
    rows = [
        (
            one.title,
            f"{one.validation:.2f}",
            with_interval(one.test, one.interval),
            with_interval(one.behind.value, one.behind.interval),
        )
        for one in made.result.answer.candidates
    ]
    what = f"{made.result.answer.task}, {made.result.answer.test_text}"
    print_table([what, "nDCG@10 of dev", "nDCG@10", "the first is above by"], rows)
    typed = shlex.quote(str(made.folder))
    results.print(
        f"{made.folder}: 'raysent index {typed} TEXT -o INDEX' makes an index", soft_wrap=True
    )


def _print_similarities(scores: Sequence[SimilarityScore]) -> None:
    """Print correlations, a row per model and a column per task: the mean over the task's sets.

    For a task with classes instead of ratings, prints accuracy and F1 by a threshold.
    """
    found = _by_model(scores)
    tasks = list(next(iter(found.values())))
    rows = [
        (name, *map(_similarity_text, of.values()), of[tasks[0]].measure)
        for name, of in found.items()
    ]
    print_table(["Pearson x 100, no probe", *tasks, "by"], rows)


def _similarity_text(score: SimilarityScore) -> str:
    measures = score.measures
    return (
        f"{measures['accuracy']:.2f}/{measures['f1']:.2f}" if measures else f"{score.pearson:.2f}"
    )


def _print_mteb(scores: Sequence[MtebScore]) -> None:
    found = _by_model(scores)
    headings = [f"{one.task} {one.measure}" for one in next(iter(found.values())).values()]
    rows = [(name, *(f"{one.test:.2f}" for one in of.values())) for name, of in found.items()]
    print_table([f"MTEB {scores[0].mteb_version}, main score x 100", *headings], rows)


def _by_model(scores: Sequence[OneScore]) -> dict[str, dict[str, OneScore]]:
    found: dict[str, dict[str, OneScore]] = {}
    for score in scores:
        found.setdefault(score.model, {})[score.task] = score
    return found


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
    table, gain, *remarks = ensemble_parts(result)
    results.print(table, crop=False, no_wrap=True, overflow="ignore")
    results.print(gain, soft_wrap=True)
    for remark in remarks:
        messages.print(remark, soft_wrap=True)


def ensemble_parts(result: EnsembleResult, *, is_short: bool = False) -> list[Any]:
    """Return a table of test scores, the ensemble's gain over the best member in words, and remarks.

    Where it is short, only the best member and the ensemble have a row.
    """
    from raysent.ensembles import ENSEMBLE
    from raysent.evaluation import LEARNED_NOTE, mean_heading, shown_name

    others = [name for name in result.mean.scores if name not in (ENSEMBLE, *result.members)]
    names = [result.best_member, ENSEMBLE] if is_short else [*result.members, *others, ENSEMBLE]
    rows = [(_title(name, result), *_test_scores(name, result)) for name in names]
    headings = [*result.tasks, mean_heading(result.tasks)]
    table = table_of([f"test, protocol {result.protocol}", *headings], rows)
    gain = result.mean.difference
    parts: list[Any] = [
        table,
        f"ensemble against the best member on validation ({result.best_member}): {gain.value:+.2f} points of mean "
        f"test score, 95 % interval [{gain.interval[0]:+.2f}, {gain.interval[1]:+.2f}]",
    ]
    if any(task.learned for task in result.tasks.values()):
        parts.append(LEARNED_NOTE)
    parts += result.remarks()
    better = result.gain_of_answer()
    if better is not None:
        parts.append(
            f"the rule of a sweep's answer is {better:.2f} points above {result.method} by cross-fitting: "
            "'raysent ensemble … --method answer' saves it"
        )
    parts += [
        f"warning: training made {shown_name(name)} worse, by {points:.2f} points; more text (--corpus) or a "
        "pretrained encoder (--with) may help"
        for name, points in result.below_start().items()
    ]
    return parts


def _title(name: str, result: EnsembleResult) -> str:
    from raysent.ensembles import ENSEMBLE

    return f"{ENSEMBLE} ({result.method})" if name == ENSEMBLE else name


def _test_scores(name: str, result: EnsembleResult) -> list[str]:
    from raysent.evaluation import LEARNED

    tasks = result.tasks.values()
    on_tasks = [f"{task.scores[name].test:.2f}{LEARNED * task.is_learned(name)}" for task in tasks]
    return [*on_tasks, f"{result.mean.scores[name].test:.2f}"]


def _print_methods(result: EnsembleResult) -> None:
    rows = []
    for name, means in result.mean.scores.items():
        if name in result.members or name in result.baselines:
            continue
        measures = means.measures
        rows.append(
            (
                _title(name, result),
                with_interval(means.cross_fitted.value, means.cross_fitted.interval),
                f"{means.optimism:+.2f}",
                with_interval(means.test, means.interval),
                f"{measures['nll'].value:.3f}",
                f"{measures['brier'].value:.3f}",
                f"{measures['ece'].value:.1f}",
            )
        )
    headings = ["mean over tasks", "cross-fitted", "optimism", "test", "NLL", "Brier", "ECE %"]
    results.print()
    print_table(headings, rows)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
