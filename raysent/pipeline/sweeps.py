"""Sweeps: planned, run, resumed and checked."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from raysent.ensembles import DEFAULT_SIZES, parse_sizes
from raysent.errors import ConfigError
from raysent.evaluation.task import Task
from raysent.kernels.device_choice import chosen_device, on_device
from raysent.live import (
    is_submitted,
    known_lines,
    plan_lines,
)
from raysent.pipeline.arguments import (
    Space,
    SpaceOptions,
    overrides_of,
    print_notes,
    print_remarks,
    spec_of,
    view_of,
)
from raysent.pipeline.finishing import evaluate_best
from raysent.pipeline.planning import (
    SweepRequest,
    divided,
    estimated,
    fitted,
    make_plan,
    with_encoders,
    with_named_encoders,
    with_own_text,
)
from raysent.pipeline.pretrained import reading_notes
from raysent.pipeline.results import Sweep, SweepPlan, evaluated_scores
from raysent.pipeline.scales import SpaceScale
from raysent.progress import ProgressLines, messages
from raysent.screen import RunLog, detail, run_log, show, warn
from raysent.storage import (
    Lease,
    address_of,
    holding,
    is_remote,
    open_folder,
    write_text,
)
from raysent.storage.layout import (
    SWEEP_FILE,
)
from raysent.sweeps import (
    Event,
    Listener,
    RecordedSweep,
    RecordedTasks,
    SweepRecord,
    load_record,
    read_sweep,
)
from raysent.sweeps.driver import Surroundings, check_free
from raysent.sweeps.driver import resume as resume_sweep
from raysent.sweeps.driver import start as start_sweep
from raysent.sweeps.fitting import shortages
from raysent.sweeps.fleet import (
    evaluation_machines,
    make_fleet,
    note_waiting,
    spot_prices,
)
from raysent.sweeps.layout import layout
from raysent.sweeps.lessons import keep_lessons
from raysent.sweeps.machines import this_machine
from raysent.sweeps.space import SearchSpace, SweepSettings, absolute_paths
from raysent.sweeps.trackers import TrackingThread
from raysent.sweeps.trial import ENDED


def plan(  # noqa: PLR0913 - the options of the command
    space: Space | None = None,
    *,
    corpus: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    data: str | Path | None = None,
    tasks: Sequence[str | Task] | None = None,
    metric: str | Task | None = None,
    scale: SpaceScale = "auto",
    address: str | None = None,
    progress: bool = True,
    track: str | Sequence[str] = (),
    **settings: Unpack[SweepSettings],
) -> SweepPlan:
    """Check everything that a sweep needs, and return what it would do, in what time and for how many dollars.

    A few steps are trained to measure their speed, unless the space gives `cost.trial`.

    Args:
        space: As for `sweep`, like the other arguments.
        corpus: Text to train on.
        set: Values of the base run.
        run: The run folder.
        data: Folder of task files.
        tasks: Tasks to evaluate on.
        metric: What to rank trials by.
        scale: As for `sweep`.
        address: A running Ray cluster, for which settings are chosen; by default this machine.
        progress: Whether to show progress.
        track: Trackers, which are only checked.
        settings: `trials`, `time`, `budget` and the like.

    Raises:
        RaysentError: As for `sweep`.
    """
    options = SpaceOptions(corpus, set, scale, metric, data, settings)
    request = SweepRequest(space, options, tasks, run, address, track)
    planned = make_plan(request)
    if progress:
        print_remarks(planned.task_set)
    planned = with_encoders(planned, say=lambda _: None, may_download=False)
    with ProgressLines(is_quiet=not progress) as bar:
        planned = estimated(planned, progress=bar)
    show(*(planned.notes if progress else ()))
    if progress and planned.space.limits.trials:
        print_notes(planned.space.config(planned.space.first_params()))
    return planned


def sweep(  # noqa: PLR0913 - the options of the command
    space: Space | SweepPlan | None = None,
    *,
    corpus: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    seed: int = 0,
    data: str | Path | None = None,
    tasks: Sequence[str | Task] | None = None,
    metric: str | Task | None = None,
    labels: str | int | Sequence[int | str] | None = None,
    scale: SpaceScale = "auto",
    address: str | None = None,
    progress: bool = True,
    listeners: Iterable[Listener] = (),
    track: str | Sequence[str] = (),
    command: Sequence[str] = (),
    **settings: Unpack[SweepSettings],
) -> Sweep:
    """Search a space; then evaluate the best trials, combine them and write a report.

    Args:
        space: A search-space file, the bare name of a shipped one, its values, or a `SearchSpace`. By default
            `everything`, on the text of the training rows of `tasks` where no corpus is given, for ten minutes where no
            limit is. Or what `plan` returned, which has tasks, run, address and all settings.
        corpus: Text to train on: a file, folder, glob, ``s3://`` address, or ``docs``, the embedded corpus.
        set: Dotted name -> value of the base run; a value ends the search over its name. ``search.NAME`` searches it.
        run: The run folder to create, also ``s3://BUCKET/FOLDER``; ``runs/NAME-DATE`` by default.
        seed: Seed of everything random.
        data: Folder of task files in SentEval's layout; by default the embedded tasks.
        tasks: Tasks to evaluate on: names, own tables and task files, or `raysent.Task`; by default all whose files
            are there.
        metric: What to rank trials by: a metric, or a task, which means the mean validation score of probes on it; by
            default the space's. Where the space lists `metric` under `fit`, as shipped ones do, that is the score of
            probes on `tasks`, else `document_accuracy` where the text has the documents for it.
        labels: Numbers of labels at which the best trials, their ensemble and baselines are also scored at the end; by
            default 32, 100, 300 and 1,000 where baselines are scored; an empty list for none.
        scale: `auto` chooses the settings that the space lists under `fit` for the text, the machine and the time;
            `paper` uses the settings that the space's paper published.
        address: A running Ray cluster; by default this machine.
        progress: Whether to show progress on standard error.
        listeners: Called with each event of the journal as it is written.
        track: Trackers that receive trials and reports while the sweep runs, each named as for the function `track`.
            They run in a thread of their own; what fails there is one line, and the sweep continues.
        command: The command line that asks for the sweep, for the report; none where Python does.
        settings: Settings of the space's sections `limits`, `cost` and `evaluation` by their names alone: `trials`,
            `time` ("30m"), `concurrent`, `budget` ("40usd"), `deadline` ("6h") and the others of the
            configuration reference.

    Returns:
        The sweep. After Ctrl-C its `status` is ``interrupted``, and `raysent.resume` continues it.

    Raises:
        ConfigError: If the space or an argument is wrong.
        DataError: If the corpus or a task's files cannot be used.
        ArtifactError: If the run folder is in use.
    """
    options = SpaceOptions(corpus, set, scale, metric, data, settings)
    request = SweepRequest(space, options, tasks, run, address, track)
    with run_log() as log:
        planned = make_plan(request)
        address = planned.address
        evaluation = _recorded_evaluation(planned, labels)
        planned = with_encoders(planned, say=show if progress else lambda _: None)
        detail(*_details(planned))
        encoders, remark = planned.pretrained.short, planned.remark
        planned = with_named_encoders(planned)
        shows_plan = progress and not is_submitted()
        lines = plan_lines(
            planned.space,
            run=address_of(planned.folder),
            where=_where(planned.space, address),
            data=planned.summaries,
            encoders=encoders,
        )
        # A log has the plan only once the space is known to be free of mistakes, which are one line.
        show(*(lines if shows_plan and messages.is_terminal else ()))
        check_free(planned.folder)
        with holding(planned.folder) as lease:
            check_free(planned.folder)  # another command may have begun meanwhile
            planned = with_own_text(planned)
            with ProgressLines(is_quiet=not progress) as bar:
                planned = fitted(planned, progress=bar)
            show(*(planned.notes if shows_plan else ()))
            # Workers on other machines have other working folders; those of a submitted job have a copy of its own.
            planned = divided(planned, moves=address is not None and not is_submitted())
            record = SweepRecord(
                planned.space, seed, command, address, evaluation.values(), device=chosen_device()
            )

            def on_prepared(facts: Mapping[str, Any]) -> None:
                open_log(log, planned.folder)
                if shows_plan:
                    show(*(() if messages.is_terminal else lines))
                    _say_prepared(planned.space, facts, remark=remark)
                else:
                    _detail_prepared(planned.space, facts)

            watchers = _Watchers(track, listeners, progress)
            return _started(record, planned.folder, lease, watchers, on_prepared)


def open_log(log: RunLog, folder: Path) -> None:
    """Have the lines of a run written into its folder; into a bucket the whole file at a time."""
    log.open(folder, store=write_text if is_remote(address_of(folder)) else None)


def _recorded_evaluation(
    planned: SweepPlan, labels: str | int | Sequence[int | str] | None
) -> RecordedTasks:
    """Return what `sweep.json` says of the evaluation after the search.

    Raises:
        ConfigError: If a number of labels is wrong.
    """
    tasks = planned.task_set
    if labels is None and planned.space.evaluation.baselines:
        labels = DEFAULT_SIZES
    return RecordedTasks(
        specs=[spec_of(task) for task in tasks],
        names=tasks.names,
        data=None if tasks.data is None else str(tasks.data.resolve()),
        label_sizes=parse_sizes(labels) if labels else (),
    )


def _details(planned: SweepPlan) -> list[str]:
    """Return what the lines of a plan leave out: notes and warnings about tables, and about pretrained encoders."""
    encoders, tasks = planned.pretrained, planned.task_set
    lines = []
    for task in tasks:
        lines += [*task.remarks.notes, *(f"warning: {text}" for text in task.remarks.warnings)]
    return [*lines, *encoders.notes, *reading_notes(encoders.paths, tasks.tasks, tasks.data)]


def _say_prepared(space: SearchSpace, facts: Mapping[str, Any], *, remark: str) -> None:
    """Print the last lines of a plan once the text is ready: what is too little, and a remark; the rest as details."""
    show(*shortages(space)[:1], remark)
    _detail_prepared(space, facts)


def _detail_prepared(space: SearchSpace, facts: Mapping[str, Any]) -> None:
    """Print as details what is known of a space whose text is ready."""
    if space.limits.trials:
        print_notes(space.config(space.first_params()))
        detail(*known_lines(space, facts))


@dataclass(frozen=True)
class _Watchers:
    """Who follows a sweep.

    Attributes:
        track: Trackers, as for `sweep`.
        listeners: Called with each event of the journal.
        progress: Whether progress is shown.
    """

    track: str | Sequence[str]
    listeners: Iterable[Listener]
    progress: bool


def _started(
    record: SweepRecord,
    folder: Path,
    lease: Lease,
    watchers: _Watchers,
    on_prepared: Callable[[Mapping[str, Any]], object],
) -> Sweep:
    """Start a sweep in its folder, which this process holds, and evaluate it once it has ended."""
    space, progress = record.space, watchers.progress
    with TrackingThread(space, folder, targets=watchers.track, warn=warn) as tracking:
        with _surroundings(
            space, folder, [tracking, *watchers.listeners], progress=progress
        ) as around:
            start_sweep(record, folder, replace(around, lease=lease), on_prepared=on_prepared)
        return _evaluated(folder, progress=progress, tracking=tracking)


def resume(
    run: str | Path,
    *,
    budget: str | None = None,
    deadline: str | None = None,
    address: str | None = None,
    accept_versions: bool = False,
    progress: bool = True,
    listeners: Iterable[Listener] = (),
    track: str | Sequence[str] = (),
) -> Sweep:
    """Resume an interrupted or killed sweep; then evaluate, combine and report as `sweep` does.

    No finished trial is trained again; a trial that was running continues from its last checkpoint. It computes on the
    device that the sweep was started with, unless `on_device` or `--device` says another one now.

    Args:
        run: The run folder.
        budget: Another budget, such as ``40usd``. What was spent counts.
        deadline: Another deadline, counted from the sweep's start.
        address: Another address of the sweep's Ray cluster, whose head has come back elsewhere.
        accept_versions: Continue with versions of PyTorch, NumPy or Optuna that give other bits than the recorded.
        progress: Whether to show progress on standard error.
        listeners: Called with each event of the journal as it is written.
        track: As for `sweep`; a tracker receives the events from now on.

    Raises:
        RaysentError: If the folder holds no sweep, another process works on it, or its files are damaged; if its space
            names files by paths that start from another folder than the working folder.
    """
    folder = open_folder(run)
    load_record(folder)  # nothing is written into another folder
    limits = overrides_of(
        {"budget": ("cost.budget", budget), "deadline": ("cost.deadline", deadline)}
    )
    with run_log() as log, holding(folder) as lease:
        open_log(log, folder)
        recorded = read_sweep(folder)
        _check_relative_paths(recorded)
        device = chosen_device() or recorded.record.device
        if progress and messages.is_terminal and not is_submitted():
            num_ended = sum(trial.status in ENDED for trial in recorded.trials)
            num_trials = recorded.space.limits.trials
            where = f"; computes on {device}" if device else ""
            line = f"{recorded.space.name}: resumes; {num_ended} of {num_trials} trials have ended"
            show(line + where)
        with (
            on_device(device),
            TrackingThread(recorded.space, folder, targets=track, warn=warn) as tracking,
        ):
            with _surroundings(
                recorded.space,
                folder,
                [tracking, *listeners],
                past=recorded.events,
                progress=progress,
            ) as around:
                resume_sweep(
                    folder,
                    replace(around, lease=lease),
                    limits=limits,
                    address=address,
                    accept_versions=accept_versions,
                )
            return _evaluated(folder, progress=progress, tracking=tracking)


def origin_of(run: str | Path) -> Path:
    """Return the folder in which a sweep was started, where its relative paths start."""
    return Path(load_record(open_folder(run)).origin or ".")


def _check_relative_paths(recorded: RecordedSweep) -> None:
    """Refuse a sweep whose space names files that other processes look for elsewhere."""
    origin, values = Path(recorded.record.origin), recorded.space.written()
    if (
        is_submitted()
        or not recorded.record.origin
        or not origin.is_dir()
        or origin.samefile(Path.cwd())
    ):
        return
    if recorded.space.trackers or absolute_paths(values, folder=origin) != values:
        raise ConfigError(
            f"{address_of(recorded.folder)}: must be resumed in {origin}, where its relative paths start; change to "
            "it, or use the command 'raysent resume'"
        )


def _of_submitted(folder: Path) -> list[Listener]:
    """Return the listener of a submitted sweep, which stores why trials wait for what follows it."""
    if not is_submitted():
        return []

    def on_event(event: Event) -> None:
        if event["event"] == "waiting":
            note_waiting(folder, event["reason"])

    return [on_event]


@contextlib.contextmanager
def _surroundings(
    space: SearchSpace,
    folder: Path,
    listeners: Sequence[Listener],
    *,
    past: Sequence[Event] = (),
    progress: bool,
) -> Iterator[Surroundings]:
    """Yield what trials are trained with; says how to resume when a second Ctrl-C, or an early one, ends the block."""
    try:
        with (
            ProgressLines(is_quiet=not progress) as bar,
            view_of(space, folder, progress=progress) as view,
        ):
            view.restore(past)
            all_listeners = [view.on_event, *_of_submitted(folder), *listeners]

            def listener(event: Event) -> None:
                for one in all_listeners:
                    one(event)

            yield Surroundings(listener, bar, spot_prices(space.cost.region), make_fleet)
    except KeyboardInterrupt as error:
        if str(error) or not (folder / SWEEP_FILE).exists():
            raise
        command = f"raysent resume {shlex.quote(address_of(folder))}"
        raise KeyboardInterrupt(
            f"stopped at once; trials continue from their last checkpoints: {command}"
        ) from None


def _where(space: SearchSpace, address: str | None) -> str:
    if address is not None:
        return f"on the Ray cluster at {address}, as many at a time as fit"
    here = this_machine(space)
    device = f"{here.cpus} cores"
    at_once, num_gpus = 1, 0
    with contextlib.suppress(ConfigError):  # refused later, after what is wrong with the space
        plan = layout(space.limits, here, num_trials=space.limits.trials)
        at_once, num_gpus = plan.concurrent, plan.num_gpus
    if here.gpus == 1:
        device = "GPU"
    elif here.gpus:
        device = f"{here.gpus:g} GPUs"
    if 0 < num_gpus < here.gpus:
        return f"{at_once} at a time on {num_gpus} of the {device} of this machine"
    return f"{at_once} at a time on the {device} of this machine"


def _evaluated(folder: Path, *, progress: bool, tracking: Listener) -> Sweep:
    """Evaluate a sweep's best trials unless it was interrupted, pass the scores to trackers, and return it."""
    ended = Sweep(folder)
    if ended.status == "interrupted":
        if progress:
            command = f"raysent resume {shlex.quote(address_of(folder))}"
            messages.print(
                f"interrupted; nothing is lost. Resume with:\n  {command}", soft_wrap=True
            )
        return ended
    if ended.closed and progress:
        num_trials = ended.space.limits.trials
        left = num_trials - len(ended.recorded.trials)
        what = f"{left} of {num_trials} models were never trained" if left else "no more training"
        messages.print(f"{what}: {ended.closed}", soft_wrap=True)
    keep_lessons(ended.recorded)
    record = ended.recorded.record
    prices = spot_prices(record.space.cost.region)
    try:
        with evaluation_machines(record, folder, spot=prices, make_fleet=make_fleet) as machines:
            evaluation = evaluate_best(ended, machines, progress=progress)
    except KeyboardInterrupt:
        command = f"raysent resume {shlex.quote(address_of(folder))}"
        raise KeyboardInterrupt(
            f"interrupted; what was scored is kept, and this continues: {command}"
        ) from None
    scores = None if evaluation.result is None else evaluated_scores(folder)
    if scores is not None:
        tracking(scores)
    return Sweep(folder, evaluation=evaluation)
