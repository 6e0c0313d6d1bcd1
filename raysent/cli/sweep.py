"""CLI of sweeps and trainings: `sweep`, `plan`, `resume`, `track`, `train` and `retrain`."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import raysent
from raysent import pipeline
from raysent.cli.console import (
    address_of,
    print_json,
    print_table,
    results,
    table_of,
    usd,
    with_interval,
)
from raysent.cli.evaluate import ensemble_parts, ensemble_values
from raysent.cli.options import (
    AddressOption,
    CorpusOption,
    DataOption,
    DryRunOption,
    EpochsOption,
    JsonOption,
    RunArgument,
    RunOption,
    SeedOption,
    SetOption,
    SpaceArgument,
    SpaceOrNone,
    TasksOption,
    WithOption,
    YesOption,
    arguments_of,
    opened_name,
    split_names,
    with_settings,
)
from raysent.errors import ExitCode
from raysent.progress import format_duration, format_value, messages
from raysent.redaction import without_secrets
from raysent.screen import detail, run_log

if TYPE_CHECKING:
    from raysent.ensembles import Kinds
    from raysent.pipeline import Sweep, SweepEvaluation, SweepPlan, TrainedRun


@with_settings("trials", "time", "budget", "deadline", "learn_from")
def sweep(
    settings: Any,
    space: SpaceOrNone = None,
    corpus: CorpusOption = None,
    run: RunOption = None,
    tasks: TasksOption = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME|FILE",
            help="Rank trials by this metric, or by validation on this task: a name or an own table.",
        ),
    ] = None,
    data: DataOption = None,
    pretrained: WithOption = None,
    overrides: SetOption = None,
    seed: SeedOption = None,
    address: AddressOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train and compare models on your text or labels; pick, score and save the best.

    With --task alone: the best of a pretrained encoder, TF-IDF and their combinations, without training. With --corpus
    too: all families of encoders, for ten minutes.

    Trains many runs and stops poor ones early; then evaluates the best trials on tasks, combines them into an
    ensemble, and writes a report. --set takes any name of a run (training.batch_size), of limits, cost and evaluation
    (limits.concurrent, cost.max_hourly) and: scale=paper for the published settings of the
    space's paper; labels=[32,100] for scores with few labels at the end;
    track=[tensorboard:DIR, mlflow:URI] to send trials while they run; keep_cluster=true.
    """
    given: dict[str, Any] = {
        "corpus": corpus,
        "metric": metric,
        "data": data,
        "tasks": split_names(tasks),
        **settings,
    }
    if pretrained is not None:
        given["pretrained"] = split_names(pretrained)
    given |= arguments_of(raysent.sweep, overrides)
    given |= {"run": run, "address": address, "progress": not as_json}
    started: dict[str, Any] = {"seed": seed or 0, "command": ["raysent", *sys.argv[1:]]}
    if dry_run or not (yes or as_json or not sys.stdin.isatty()):
        planned = raysent.plan(
            space, **{name: value for name, value in given.items() if name != "labels"}
        )
        print_json(planned.values()) if as_json else _print_plan(planned)
        if dry_run:
            return
        typer.confirm("Start?", default=True, abort=True, err=True)
        started |= {name: given[name] for name in ("track", "progress", "labels") if name in given}
        swept: Any = planned
    else:
        swept, started = space, {**started, **given}
    with run_log():
        ended = raysent.sweep(swept, **started)
        code = _print_sweep(ended, as_json=as_json)
    raise typer.Exit(code)


@with_settings("budget", "deadline")
def resume(
    run: RunArgument,
    settings: Any,
    address: AddressOption = None,
    overrides: SetOption = None,
    yes: YesOption = False,  # noqa: ARG001 - what asks before it resumes elsewhere reads it
    as_json: JsonOption = False,
) -> None:
    """Resume an interrupted or killed sweep.

    No finished trial is trained again; a running one continues from its last checkpoint. What was spent counts:
    another budget or deadline is measured from the sweep's start. With --cluster, resumes a sweep that a cluster ran;
    with --address, one on a Ray cluster whose head has come back at another address. --set takes accept_versions=true,
    to continue with other versions of PyTorch, NumPy or Optuna; track=[TRACKER:TARGET]; keep_cluster=true; and
    accept_bound=true.
    """
    given = arguments_of(raysent.resume, overrides)
    if "track" in given:  # a folder is named from the folder in which it is typed
        named = [given["track"]] if isinstance(given["track"], str) else given["track"]
        files = "^(tensorboard:|mlflow:sqlite:///)(?=[^/])"
        given["track"] = [
            re.sub(files, lambda found: f"{found[1]}{Path.cwd()}/", one) for one in named
        ]
    with run_log(), _working_folder(run) as named:
        ended = raysent.resume(named, address=address, progress=not as_json, **settings, **given)
        code = _print_sweep(ended, as_json=as_json)
    raise typer.Exit(code)


@contextlib.contextmanager
def _working_folder(run: Path) -> Iterator[Path]:
    """Work in the folder that a sweep's relative paths start from; yields the name of the run folder from there."""
    origin = pipeline.origin_of(run)
    if not origin.is_dir() or origin.samefile(Path.cwd()):
        yield run
        return
    named = run.absolute()
    with contextlib.chdir(origin):
        yield named


def track(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TRACKER:TARGET", help="tensorboard:DIR, mlflow:URI or wandb:PROJECT."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Send a sweep's trials to a tracker.

    Parameters, reports and ends of all trials come from the journal; then the scores of the ensemble, of its members
    and of baselines. MLflow does not get a trial twice that has ended there. --set 'track=[…]' of sweep and resume
    sends them while it runs.
    """
    num_events = raysent.track(run, to)
    if as_json:
        print_json({"to": without_secrets(to), "events": num_events})
    else:
        results.print(f"{num_events} events to {without_secrets(to)}", soft_wrap=True)


def train(
    space: SpaceArgument,
    corpus: CorpusOption = None,
    epochs: EpochsOption = None,
    run: RunOption = None,
    seed: SeedOption = None,
    address: AddressOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one model: the one that a sweep of the space would try first.

    --set changes it, as in training.batch_size=200, and takes seeds=N (with different seeds, each in a folder
    seed-…), scale=paper, workers=N and gpus_per_worker=X. Training continues from the last checkpoint of the run
    folder, if it has one.
    """
    given: dict[str, Any] = {
        "run": run,
        "seed": seed,
        "address": address,
        "corpus": corpus,
        "epochs": epochs,
    }
    given |= arguments_of(raysent.train, overrides)
    _print_trained(
        pipeline.train_space(space, progress=not as_json, **given),
        given.get("seeds"),
        as_json=as_json,
    )


def retrain(
    trial: Annotated[
        str,
        typer.Argument(
            metavar="TRIAL", help="Folder of a finished trial or training.", parser=opened_name
        ),
    ],
    corpus: CorpusOption = None,
    epochs: EpochsOption = None,
    run: RunOption = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a finished trial or training again in a new folder, from its weights.

    For other epochs, on other text, or with other settings. Its words are kept, other words of a new text are unknown,
    and the optimizer starts new. --set takes names of a run, seeds=N, from_scratch=true for new weights, workers=N,
    gpus_per_worker=X and address=ADDR.
    """
    given: dict[str, Any] = {"run": run, "seed": seed, "corpus": corpus, "epochs": epochs}
    given |= arguments_of(raysent.retrain, overrides)
    _print_trained(
        pipeline.train_trial(trial, progress=not as_json, **given),
        given.get("seeds"),
        as_json=as_json,
    )


def _print_trained(trained: Sequence[TrainedRun], seeds: int | None, *, as_json: bool) -> NoReturn:
    values = [
        {"run": one.address, **asdict(one.outcome), "report": address_of(one.report)}
        for one in trained
    ]
    if as_json:
        print_json({"runs": values} if seeds is not None else values[0])
        raise typer.Exit(_code(trained))
    for one in trained:
        outcome = one.outcome
        results.print(
            f"{outcome.status}: {one.address}  report: {address_of(one.report)}", soft_wrap=True
        )
        if outcome.message:
            messages.print(outcome.message, style="red", soft_wrap=True)
    name = next((name for name in trained[0].outcome.metrics if name != "loss"), "loss")
    found = [one.outcome.metrics[name] for one in trained if name in one.outcome.metrics]
    if found and (seeds is not None or trained[0].before is not None):
        spread = f" ± {stdev(found):.2g} over {len(found)} seeds" if len(found) > 1 else ""
        results.print(
            f"{name} {mean(found):.4g}{spread}{_before(trained[0], name)}", soft_wrap=True
        )
    raise typer.Exit(_code(trained))


def _code(trained: Sequence[TrainedRun]) -> int:
    return (
        ExitCode.INCOMPLETE
        if any(one.outcome.status == "nan" for one in trained)
        else ExitCode.DONE
    )


def _before(trained: TrainedRun, name: str) -> str:
    if trained.before is None or name not in trained.before.metrics:
        return ""
    if not trained.is_comparable:
        return f"; the trial had {trained.before.metrics[name]:.4g} on another validation set"
    return f"; the trial had {trained.before.metrics[name]:.4g}"


def _print_plan(plan: SweepPlan) -> None:
    from raysent.live import fitted_lines, plan_lines, ranking_line, unit_of
    from raysent.training import describe, show_bytes

    values, space = plan.values(), plan.space
    if not space.limits.trials:
        lines = plan_lines(
            space,
            run=values["run"],
            where="",
            data=plan.summaries,
            encoders=plan.pretrained.short,
        )
        for line in filter(None, [*lines, plan.pretrained.missing]):
            results.print(line, soft_wrap=True)
        detail(*plan.pretrained.shown, *fitted_lines(space))
        return
    base = space.config(space.first_params())
    unit = unit_of(base)
    limit = f", at most {space.limits.time}" if space.limits.time else ""
    chance = values["chance_accuracy"]
    for line in (
        f"{space.name}: {space.limits.trials} trials{limit}, into {values['run']}",
        ranking_line(space),
        f"corpus {values['corpus']}: {values['num_train']:,} {unit} for training, {values['num_validation']:,} for "
        f"validation",
        "" if chance is None else f"{space.metric} of chance: {chance:.3g}",
        f"memory of the largest trial: about {show_bytes(plan.facts['memory_bytes'])}",
        f"tasks: {', '.join(plan.tasks) or 'none'}",
        *plan.pretrained.shown,
        f"for example: {describe(base)}",
    ):
        if line:
            results.print(line, soft_wrap=True)
    lines = fitted_lines(space)
    if lines:
        results.print()
    for line in lines:
        results.print(line, soft_wrap=True)
    if space.domains:
        results.print()
        rows = [(name, _domain_text(entry)) for name, entry in values["searched"].items()]
        print_table(["searched", "among"], rows, num_text=2)
    _print_estimate(plan)
    if values["refused"]:
        results.print(f"\n{values['refused']}", soft_wrap=True)


def _print_estimate(plan: SweepPlan) -> None:
    expected, cost = plan.estimate, plan.space.cost
    if expected is None:
        return
    rows = [("hours", *(f"{value:.2f}" for value in expected.hours))]
    rows += [("dollars", *(usd(value) for value in expected.usd))] if cost.is_priced else []
    results.print()
    print_table(["estimate", "P10", "P50", "P90"], rows)
    known = (
        f"{num} make report {index} by {format_duration(3600 * hours)}"
        for index, (num, hours) in expected.reports.items()
    )
    results.print(f"trials: {', '.join(known) or 'none makes a report'}", soft_wrap=True)
    for line in expected.assumptions:
        results.print(f"- {line}", soft_wrap=True)
    if not cost.is_priced:
        results.print(
            "- this machine counts as free; set cost.usd_per_hour to its price", soft_wrap=True
        )
    elif cost.budget is not None and cost.usd_per_hour is not None:
        results.print(
            f"- budget: {plan.space.budget().bound_sentence(cost.usd_per_hour)}", soft_wrap=True
        )


def _domain_text(entry: dict[str, Any]) -> str:
    """Return a domain as it is written in the file; of a choice among mappings, the labels."""
    ((form, values),) = entry.items()
    text = ", ".join(
        str(value).lower() if isinstance(value, bool) else str(value) for value in values
    )
    return text if form == "choice" else f"{form} [{text}]"


def _print_sweep(ended: Sweep, *, as_json: bool) -> int:
    if ended.status == "interrupted":
        if as_json:
            print_json({**_values(ended), "resume": f"raysent resume {shlex.quote(ended.address)}"})
        return ExitCode.INTERRUPTED
    from raysent.ensembles import answer_lines, answer_values, notes_of

    evaluation = ended.evaluation
    assert evaluation is not None
    if as_json:
        ensemble = (
            None if evaluation.result is None else ensemble_values(evaluation.result, ended.folder)
        )
        after = {
            "ensemble": ensemble,
            "evaluation_stopped": evaluation.stopped,
            "report": address_of(evaluation.report),
            "answers": answer_values(ended.answers),
        }
        if evaluation.kinds is not None:
            after |= {"kinds": evaluation.kinds.model_dump(mode="json")}
        print_json({**_values(ended), **after})
    else:
        if ended.recorded.trials:
            _note_leaderboard(ended)
        if evaluation.stopped:
            messages.print(evaluation.stopped, soft_wrap=True)
        elif evaluation.result is None and not ended.answers:
            why = "no task is wanted" if evaluation.num_members else "no trial has a model"
            messages.print(f"nothing was evaluated: {why}")
        elif evaluation.result is not None:
            detail(*ensemble_parts(evaluation.result, is_short=bool(ended.answers)))
        detail(*notes_of(ended.answers))
        if evaluation.kinds is not None:
            _print_kinds(ended, evaluation.kinds)
        for line in answer_lines(ended.answers, address_of(evaluation.report)):
            results.print(line, soft_wrap=True)
        if evaluation.kinds is not None and ended.codes_command:
            results.print(f"Binary codes of its encoder: {ended.codes_command}", soft_wrap=True)
    return _sweep_code(ended, evaluation)


def _sweep_code(ended: Sweep, evaluation: SweepEvaluation) -> int:
    """Return the exit code of a sweep that has come to its end, and say in a line where it has trained nothing."""
    trials = ended.recorded.trials
    why = ""
    if ended.space.limits.trials and not any(trial.reports for trial in trials):
        why = ended.closed or "every trial failed before its first report"
    elif evaluation.left_out and not evaluation.num_members:
        why = "no trial has left a whole model"
    if why:
        messages.print(f"nothing was trained: {why}", style="red", soft_wrap=True)
        return ExitCode.NOTHING_TRAINED
    # One that was stopped was poor, or out of time; the model of one that finished is missed.
    is_incomplete = any(
        trial.status in ("failed", "nan")
        or (trial.status == "finished" and trial.name in evaluation.left_out)
        for trial in trials
    )
    return ExitCode.INCOMPLETE if is_incomplete else ExitCode.DONE


def _values(ended: Sweep) -> dict[str, Any]:
    best = ended.recorded.best
    return {
        "run": ended.address,
        "status": ended.status,
        "closed": ended.closed,
        "spent_usd": ended.spent_usd,
        "best": None if best is None else best.name,
        "fitted": ended.fitted,
        "trials": [
            {
                key: value
                for key, value in asdict(trial).items()
                if key not in ("decisions", "reports")
            }
            for trial in ended.recorded.trials
        ],
    }


def _print_kinds(ended: Sweep, kinds: Kinds) -> None:
    """Print a table of one trial of each kind and of all together, with what each adds, and where that is saved.

    The ensemble of the kinds is what such a sweep is for, so that it stands on the screen with its members.
    """
    from raysent.ensembles import kinds_line

    rows = [
        (
            score.kind,
            score.member,
            f"{score.validation:.2f}",
            with_interval(score.test.value, score.test.interval),
            with_interval(score.adds.value, score.adds.interval, is_signed=True),
        )
        for score in kinds.kinds
    ]
    together = with_interval(kinds.together.value, kinds.together.interval)
    gain = with_interval(kinds.over_best.value, kinds.over_best.interval, is_signed=True)
    rows.append(("together", "", "", together, f"{gain} above {kinds.kinds[0].kind}"))
    headings = [f"kinds, {kinds.of_tasks}", "trial", "validation", "test", "adds to the others"]
    print_table(headings, rows, num_text=2)
    detail(*kinds.remarks)
    results.print(kinds_line(ended.folder, kinds), soft_wrap=True)


def _note_leaderboard(ended: Sweep) -> None:
    """Add a table of all trials to what few readers need."""
    names, metrics = list(ended.space.domains), ended.shown_metrics
    trials = ended.trials.astype(object).where(
        ended.trials.notna(), None
    )  # what a trial does not have
    rows = [
        (
            str(name),
            row["status"],
            *(format_value(row[searched]) for searched in names),
            *(format_value(row.get(metric)) for metric in metrics),
            format_duration(row["seconds"]),
        )
        for name, row in trials.iterrows()
    ]
    headings = ["trial", "status", *(name.split(".")[-1] for name in names), *metrics, "time"]
    table = table_of(
        [heading.replace("median_", "median ") for heading in headings],
        rows,
        num_text=2 + len(names),
    )
    detail(table, ended.over_chance)
    for trial in ended.recorded.trials:
        if trial.error:
            detail(f"trial {trial.name} {trial.status}: {trial.error}")
