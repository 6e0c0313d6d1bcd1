"""CLI of `raysent plan`, `sweep`, `resume`, `train` and `space`."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import raysent
from raysent.cli import console
from raysent.cli.console import address_of, format_duration, format_value, messages, print_json, print_table, results
from raysent.cli.cost import usd
from raysent.cli.evaluate import BaselinesOption, ensemble_values, print_ensemble
from raysent.cli.options import (
    AddressOption,
    BudgetOption,
    ClusterOption,
    ColumnOption,
    ConcurrentOption,
    CorpusOption,
    DataOption,
    DeadlineOption,
    DryRunOption,
    GpusOption,
    HourlyOption,
    JsonOption,
    KeepOption,
    MarketOption,
    MemoryOption,
    OnBudgetOption,
    RetrainEpochsOption,
    RetrainOption,
    RunArgument,
    RunOption,
    ScaleOption,
    SeedOption,
    SetOption,
    SpaceArgument,
    SweepLabelsOption,
    TasksOption,
    TimeOption,
    TrackOption,
    TrialsOption,
    WorkersPerTrialOption,
    YesOption,
    split_names,
)
from raysent.cli.submit import resume_on_cluster, sweep_on_cluster
from raysent.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    import pandas as pd

    from raysent.config import Override
    from raysent.pipeline import SpaceScale, Sweep, SweepPlan, TrainedRun
    from raysent.sweeps.space import SearchSpace

sweep_app = typer.Typer()
space_app = typer.Typer(help="Check search spaces.", no_args_is_help=True, rich_markup_mode=None)


@sweep_app.command()
def sweep(
    space: SpaceArgument,
    corpus: CorpusOption = None,
    column: ColumnOption = None,
    run: RunOption = None,
    trials: TrialsOption = None,
    concurrent: ConcurrentOption = None,
    workers_per_trial: WorkersPerTrialOption = None,
    gpus_per_worker: GpusOption = None,
    time: TimeOption = None,
    memory: MemoryOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    max_hourly: HourlyOption = None,
    market: MarketOption = None,
    on_budget: OnBudgetOption = None,
    seed: SeedOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    keep_cluster: KeepOption = False,
    overrides: SetOption = None,
    data: DataOption = None,
    tasks: TasksOption = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME|FILE",
            help="Rank trials by this metric, or by validation on this task: a name or an own table.",
        ),
    ] = None,
    labels: SweepLabelsOption = None,
    scale: ScaleOption = "auto",
    baselines: BaselinesOption = None,
    retrain: RetrainOption = None,
    retrain_epochs: RetrainEpochsOption = None,
    track: TrackOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search a space; then evaluate, combine and report.

    Trains many runs and stops poor ones early; then evaluates the best trials on tasks, combines them into an
    ensemble, and writes a report.
    """
    options = {
        "--trials": ("limits.trials", trials),
        "--concurrent": ("limits.concurrent", concurrent),
        "--workers-per-trial": ("limits.workers_per_trial", workers_per_trial),
        "--gpus-per-worker": ("limits.gpus_per_worker", gpus_per_worker),
        "--time": ("limits.time", time),
        "--memory": ("limits.memory", memory),
        "--budget": ("cost.budget", budget),
        "--deadline": ("cost.deadline", deadline),
        "--max-hourly": ("cost.max_hourly", max_hourly),
        "--market": ("cost.market", market),
        "--on-budget": ("cost.on_budget", on_budget),
        "--baselines": ("evaluation.baselines", baselines),
        "--retrain": ("evaluation.retrain", retrain),
        "--retrain-epochs": ("evaluation.retrain_epochs", retrain_epochs),
        "--corpus": ("corpus.path", corpus),
        "--column": ("corpus.text_field", column),
    }
    given = console.collect_overrides(options, [*_metric_settings(metric, data), *(overrides or [])])
    sizes = None if labels is None else _sizes(labels)
    if cluster is not None:
        if address is not None or dry_run:
            raise ConfigError("--cluster: must not stand beside --address or --dry-run")
        _refuse_on_cluster(track)
        sweep_on_cluster(
            space,
            cluster,
            _with_scale(space, given, scale, data),
            run=run,
            seed=seed,
            data=data,
            tasks=tasks,
            labels=labels,
            is_kept=keep_cluster,
            as_json=as_json,
        )
    checked = _read_space(space, _with_scale(space, given, scale, data))
    names = split_names(tasks)
    if dry_run or not (yes or as_json or not sys.stdin.isatty()):
        plan = raysent.plan(
            checked,
            run=run,
            data=data,
            tasks=names,
            address=address,
            track=track or (),
            progress=not as_json,
        )
        print_json(plan.values()) if as_json else _print_plan(plan)
        if dry_run:
            return
        checked = plan.space
        typer.confirm("Start?", default=True, abort=True, err=True)
    ended = raysent.sweep(
        checked,
        run=run,
        seed=seed or 0,
        data=data,
        tasks=names,
        labels=sizes,
        address=address,
        track=track or (),
        progress=not as_json,
        command=["raysent", *sys.argv[1:]],
    )
    raise typer.Exit(_print_sweep(ended, as_json=as_json))


@sweep_app.command()
def plan(
    space: SpaceArgument,
    corpus: CorpusOption = None,
    column: ColumnOption = None,
    run: RunOption = None,
    trials: TrialsOption = None,
    concurrent: ConcurrentOption = None,
    time: TimeOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    overrides: SetOption = None,
    data: DataOption = None,
    tasks: TasksOption = None,
    scale: ScaleOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print what a sweep would do: its trials, hours and dollars, and when each would be known.

    The time of a trial is measured by a few steps on this machine, or given as cost.trial. 'raysent sweep --dry-run'
    prints the same.
    """
    options = {
        "--trials": ("limits.trials", trials),
        "--concurrent": ("limits.concurrent", concurrent),
        "--time": ("limits.time", time),
        "--budget": ("cost.budget", budget),
        "--deadline": ("cost.deadline", deadline),
        "--corpus": ("corpus.path", corpus),
        "--column": ("corpus.text_field", column),
    }
    given = console.collect_overrides(options, overrides or [])
    checked = _read_space(space, _with_scale(space, given, scale, data))
    planned = raysent.plan(checked, run=run, data=data, tasks=split_names(tasks), progress=not as_json)
    print_json(planned.values()) if as_json else _print_plan(planned)


@sweep_app.command()
def resume(
    run: RunArgument,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    keep_cluster: KeepOption = False,
    track: TrackOption = None,
    accept_versions: Annotated[
        bool,
        typer.Option("--accept-versions", help="Continue with versions of PyTorch, NumPy or Optuna that differ."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Resume an interrupted or killed sweep.

    No finished trial is trained again; a running one continues from its last checkpoint. What was spent counts:
    another budget or deadline is measured from the sweep's start. With --cluster, resumes a sweep that a cluster ran;
    with --address, one on a Ray cluster whose head has come back at another address.
    """
    if cluster is not None:
        if address is not None:
            raise ConfigError("--cluster: must not stand beside --address")
        _refuse_on_cluster(track)
        options = {"--budget": ("cost.budget", budget), "--deadline": ("cost.deadline", deadline)}
        limits = console.collect_overrides(options, [])
        resume_on_cluster(run, cluster, limits, is_kept=keep_cluster, as_json=as_json)
    with _working_folder(run) as named:
        ended = raysent.resume(
            named,
            budget=budget,
            deadline=deadline,
            address=address,
            accept_versions=accept_versions,
            track=track or (),
            progress=not as_json,
        )
    raise typer.Exit(_print_sweep(ended, as_json=as_json))


@contextlib.contextmanager
def _working_folder(run: Path) -> Iterator[Path]:
    """Work in the folder that a sweep's relative paths start from; yields the name of the run folder from there."""
    from raysent.sweeps import load_record

    origin = Path(load_record(run).origin or ".")
    if not origin.is_dir() or origin.samefile(Path.cwd()):
        yield run
        return
    named = run.absolute()
    with contextlib.chdir(origin):
        yield named


@sweep_app.command()
def track(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TRACKER:TARGET",
            help="tensorboard:DIR, optuna:sqlite:///study.db, mlflow:URI or wandb:PROJECT.",
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for more until the sweep has ended; stop with Ctrl-C.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Send a sweep's trials to a tracker.

    Parameters, reports and ends of all trials come from the journal; then the scores of the ensemble, of its members
    and of baselines. Optuna and MLflow do not get a trial twice that has ended there. While a sweep runs,
    'raysent sweep --track' does the same.
    """
    num_events = raysent.track(run, to, follow=follow)
    if as_json:
        print_json({"to": to, "events": num_events})
    else:
        results.print(f"{num_events} events to {to}", soft_wrap=True)


@sweep_app.command()
def doctor(run: RunArgument, as_json: JsonOption = False) -> None:
    """Check a sweep's journal and ledger for damage.

    Every line has a hash, and each file records how much of the other existed. Nothing is changed. Exit code 1 if a
    file is damaged.
    """
    found = raysent.doctor(run)
    if as_json:
        print_json(asdict(found))
    else:
        for text in found.problems:
            messages.print(text, style="red", soft_wrap=True)
        spent = "unknown" if found.spent_usd is None else f"{found.spent_usd:.2f} usd"
        results.print(f"{found.num_events} events, {found.num_entries} ledger entries, spent {spent}", soft_wrap=True)
    raise typer.Exit(ExitCode.CHECK_FAILED if found.problems else 0)


@sweep_app.command()
def train(
    space: Annotated[
        str,
        typer.Argument(
            metavar="SPACE|TRIAL",
            help="A search-space file, or the bare name of one; or the folder of a finished trial or training.",
        ),
    ],
    corpus: CorpusOption = None,
    column: ColumnOption = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", metavar="N", min=0, help="Passes over the text in this training.")
    ] = None,
    run: RunOption = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Number of Ray Train workers.")] = 1,
    gpus_per_worker: GpusOption = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            help="Seed of everything random, of several the first.  [default: the space's, or next to the trial's]",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", min=1, help="Train N times with different seeds, each in a folder seed-…"),
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train a trial from new weights, with its configuration alone.")
    ] = False,
    address: AddressOption = None,
    scale: ScaleOption = "auto",
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the base run of a space, or a finished trial again.

    Of a space, what it searches is left out; --set changes the base. A trial is trained again in a new folder, from its
    weights: for other epochs, on other text, or with other settings. Its words are kept, other words of a new text are
    unknown, and the optimizer starts new. Training continues from the last checkpoint of the run folder, if it has one.
    """
    from raysent import pipeline

    options = {
        "--corpus": ("corpus.path", corpus),
        "--column": ("corpus.text_field", column),
        "--epochs": ("training.epochs", epochs),
    }
    changes = console.collect_overrides(options, overrides or [])
    trial = pipeline.trial_of(space)
    given: dict[str, Any] = {
        "run": run, "seed": seed, "seeds": seeds, "workers": workers, "gpus_per_worker": gpus_per_worker,
        "address": address, "progress": not as_json,
    }  # fmt: skip
    if trial is not None and scale != "auto":
        raise ConfigError("--scale: must be used with a space; a trial has its own settings")
    if trial is not None:
        trained = pipeline.train_trial(trial, overrides=changes, from_scratch=from_scratch, **given)
    elif from_scratch:
        raise ConfigError("--from-scratch: must be used with a trial; a space is always trained from scratch")
    else:
        trained = pipeline.train_space(_read_space(space, _with_scale(space, changes, scale, None)), **given)
    _print_trained(trained, has_seeds=seeds is not None, as_json=as_json)
    raise typer.Exit(ExitCode.INCOMPLETE if any(one.outcome.status == "nan" for one in trained) else 0)


def _print_trained(trained: Sequence[TrainedRun], *, has_seeds: bool, as_json: bool) -> None:
    """Print how trainings ended, and what a trial that was trained again had before."""
    values = [{"run": one.address, **asdict(one.outcome), "report": address_of(one.report)} for one in trained]
    if as_json:
        print_json({"runs": values} if has_seeds else values[0])
        return
    for one in trained:
        outcome = one.outcome
        results.print(f"{outcome.status}: {one.address}  report: {address_of(one.report)}", soft_wrap=True)
        if outcome.message:
            messages.print(outcome.message, style="red", soft_wrap=True)
    name = next((name for name in trained[0].outcome.metrics if name != "loss"), "loss")
    found = [one.outcome.metrics[name] for one in trained if name in one.outcome.metrics]
    if found and (has_seeds or trained[0].before is not None):
        spread = f" ± {stdev(found):.2g} over {len(found)} seeds" if len(found) > 1 else ""
        results.print(f"{name} {mean(found):.4g}{spread}{_before(trained[0], name)}", soft_wrap=True)


def _before(trained: TrainedRun, name: str) -> str:
    """Return a trial's metric before it was trained again; empty for a space."""
    if trained.before is None or name not in trained.before.metrics:
        return ""
    if not trained.is_comparable:
        return f"; the trial had {trained.before.metrics[name]:.4g} on another validation set"
    return f"; the trial had {trained.before.metrics[name]:.4g}"


@space_app.command("lint")
def space_lint(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Search-space files.")],
    as_json: JsonOption = False,
) -> None:
    """Check search spaces at every edge value."""
    from raysent.sweeps import check_task_names

    found = []
    for file in files:
        space = _read_space(file, [])
        check_task_names(space)
        found.append({"file": file, "names": len(space.domains), "trials": space.limits.trials})
        if not as_json:
            names, trials = len(space.domains), space.limits.trials
            results.print(f"{file}: ok, searches {names} names in {trials} trials", soft_wrap=True)
    if as_json:
        print_json({"spaces": found})


@space_app.command("schema")
def space_schema() -> None:
    """Print the JSON Schema of a search space, for editors."""
    from raysent.sweeps.space import schema

    typer.echo(json.dumps(schema(), indent=2, ensure_ascii=False))


def _refuse_on_cluster(track: list[str] | None) -> None:
    """Refuse --track for a sweep that another machine runs."""
    if track:
        raise ConfigError(
            "--track: must not stand beside --cluster; name trackers in the space, or run 'raysent track RUN --follow'"
        )


def _sizes(labels: str) -> list[int | str]:
    """Return the numbers of labels that `--labels` lists; for `none`, an empty list."""
    from raysent.ensembles import parse_sizes

    return [] if labels == "none" else parse_sizes(labels)


def _metric_settings(metric: str | None, data: Path | None) -> list[str]:
    """Return `--metric` as arguments of `--set`."""
    if metric is None:
        return []
    from raysent.pipeline import metric_values

    return [f"{name}={json.dumps(value)}" for name, value in metric_values(metric, data).items()]


def _with_scale(name: str, overrides: Sequence[Override], scale: str, data: Path | None) -> list[Override]:
    """Return what the command line sets, after what `--scale` sets."""
    if scale == "auto":
        return list(overrides)
    from raysent.pipeline import scale_overrides

    return [*scale_overrides(_read_space(name, []), cast("SpaceScale", scale), data=data), *overrides]


def _read_space(name: str, overrides: Sequence[Override]) -> SearchSpace:
    from raysent.sweeps.space import find_space, read_space

    return read_space(find_space(name), overrides=overrides)


def _print_plan(plan: SweepPlan) -> None:
    """Print what a sweep would do."""
    from raysent.live import fitted_lines, trust_line
    from raysent.training import describe, show_bytes

    values, space = plan.values(), plan.space
    base = space.config(space.first_params())
    unit = "pairs" if base.source is base.pairs else "sentences"
    limit = f", at most {space.limits.time}" if space.limits.time else ""
    chance = values["chance_accuracy"]
    for line in (
        f"{space.name}: {space.limits.trials} trials{limit}, ranked by {space.metric}, into {values['run']}",
        trust_line(space.metric),
        f"corpus {values['corpus']}: {values['num_train']:,} {unit} for training, {values['num_validation']:,} for "
        f"validation",
        plan.untrained or ("" if chance is None else f"{space.metric} of chance: {chance:.3g}"),
        f"memory of the largest trial: about {show_bytes(plan.facts['memory_bytes'])}",
        f"then the best {values['retrain']} are trained on from their weights" if values["retrain"] else "",
        f"tasks: {', '.join(plan.tasks) or 'none'}",
        f"for example: {describe(base)}",
        f"the same seed would not give the same trials: {values['not_replayable']}" if values["not_replayable"] else "",
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
    """Print what a sweep is expected to take."""
    expected, cost = plan.estimate, plan.space.cost
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
        results.print("- this machine counts as free; set cost.usd_per_hour to its price", soft_wrap=True)
    elif cost.budget is not None and cost.usd_per_hour is not None:
        results.print(f"- budget: {cost.for_sweep().bound_sentence(cost.usd_per_hour)}", soft_wrap=True)


def _domain_text(entry: dict[str, Any]) -> str:
    """Return a domain as it is written in the file; of a choice among mappings, the labels."""
    ((form, values),) = entry.items()
    text = ", ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
    return text if form == "choice" else f"{form} [{text}]"


def _print_sweep(ended: Sweep, *, as_json: bool) -> int:
    """Print how a sweep ended; returns the exit code."""
    trials = ended.recorded.trials
    if ended.status == "interrupted":
        if as_json:
            print_json({**_values(ended), "resume": f"raysent resume {shlex.quote(ended.address)}"})
        return ExitCode.INTERRUPTED
    evaluation = ended.evaluation
    assert evaluation is not None
    if as_json:
        ensemble = None if evaluation.result is None else ensemble_values(evaluation.result, ended.folder)
        after = {
            "ensemble": ensemble,
            "evaluation_stopped": evaluation.stopped,
            "report": address_of(evaluation.report),
        }
        print_json({**_values(ended), **after})
    else:
        _print_leaderboard(ended)
        if evaluation.stopped:
            messages.print(evaluation.stopped, soft_wrap=True)
        elif evaluation.result is None:
            messages.print("nothing was evaluated: no trial has a model, or no task is wanted")
        else:
            results.print()
            print_ensemble(evaluation.result)
            for curve in evaluation.curves:
                results.print(curve.sentence, soft_wrap=True)
        results.print(f"\nreport: {address_of(evaluation.report)}", soft_wrap=True)
    if not any(trial.reports for trial in trials):
        why = ended.closed or "every trial failed before its first report"
        messages.print(f"nothing was trained: {why}", style="red", soft_wrap=True)
        return ExitCode.NOTHING_TRAINED
    return ExitCode.INCOMPLETE if any(trial.status in ("failed", "nan") for trial in trials) else 0


def _values(ended: Sweep) -> dict[str, Any]:
    """Return how a sweep ended as plain values."""
    best = ended.recorded.best
    return {
        "run": ended.address,
        "status": ended.status,
        "closed": ended.closed,
        "spent_usd": ended.spent_usd,
        "best": None if best is None else best.name,
        "fitted": ended.fitted,
        "baseline_accuracies": dict(ended.recorded.record.facts.get("pool", {}).get("baselines", {})),
        "retrained": [{"name": one.name, **asdict(one)} for one in ended.recorded.retrained.values()],
        "trials": [
            {key: value for key, value in asdict(trial).items() if key not in ("decisions", "reports")}
            for trial in ended.recorded.trials
        ],
    }


def _print_leaderboard(ended: Sweep) -> None:
    """Print the trials, best first."""
    names, metrics = list(ended.space.domains), ended.shown_metrics
    rows = [
        (
            str(name),
            row["status"],
            *(format_value(row[searched]) for searched in names),
            *(format_value(row.get(metric)) for metric in metrics),
            format_duration(row["seconds"]),
        )
        for name, row in _rows(ended.trials)
    ]
    headings = ["trial", "status", *(name.split(".")[-1] for name in names), *metrics, "time"]
    print_table([heading.replace("median_", "median ") for heading in headings], rows, num_text=2 + len(names))
    if ended.over_untrained:
        results.print(ended.over_untrained, soft_wrap=True)
    if not ended.retrained.empty:
        results.print()
        rows = [
            (str(name), row["status"], format_value(row["before"]), format_value(row.get(ended.metric)),
             format_duration(row["seconds"]))
            for name, row in _rows(ended.retrained)
        ]  # fmt: skip
        print_table(["trained on", "status", f"{ended.metric} before", "after", "time"], rows, num_text=2)
    for trial in ended.recorded.trials:
        if trial.error:
            messages.print(f"trial {trial.name} {trial.status}: {trial.error}", style="red", soft_wrap=True)
    for one in ended.recorded.retrained.values():
        if one.error:
            messages.print(f"{one.name} {one.status}: {one.error}", style="red", soft_wrap=True)


def _rows(frame: pd.DataFrame) -> Iterable[tuple[Any, pd.Series[Any]]]:
    """Return the names and rows of a table; what a trial does not have is None, not NaN."""
    return frame.astype(object).where(frame.notna(), None).iterrows()
