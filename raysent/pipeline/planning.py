"""What a sweep is asked for, checked, as one thing: a `SweepPlan` that every step takes whole and returns changed.

`make_plan` is the only way from arguments to a plan, for `plan` and for `sweep`. What takes time follows: pretrained
encoders (`with_encoders`), settings for the text and the machine (`fitted`), the rows of tasks (`divided`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from raysent.config import Override
from raysent.errors import ConfigError
from raysent.evaluation.divided import divide_tasks, save_rows
from raysent.evaluation.task import PROBED, Task, TaskData
from raysent.evaluation.task_set import TaskSet
from raysent.evaluation.tasks import find_task
from raysent.parallel import Progress
from raysent.pipeline.arguments import (
    Space,
    SpaceOptions,
    ranking_tasks,
    run_folder_of,
    spec_of,
    swept_space,
    take_along,
    tasks_of,
    with_labels_of,
)
from raysent.pipeline.learning import (
    learned_labels,
    with_labelled_rows,
    with_pretrained_family,
)
from raysent.pipeline.pretrained import choose_encoders
from raysent.pipeline.results import SweepPlan
from raysent.storage import remove_folder, to_uri
from raysent.storage.layout import DIVISIONS_FOLDER, RANKING_ROWS_FILE, ROWS_SUFFIX
from raysent.sweeps.driver import prepare_space
from raysent.sweeps.estimate import estimate
from raysent.sweeps.fitting import fit_to_machine, with_possible_trials
from raysent.sweeps.layout import Machines, idle_parts, layout
from raysent.sweeps.machines import machines_at
from raysent.sweeps.space import SearchSpace, with_absolute_paths, with_overrides
from raysent.sweeps.speed import trial_time
from raysent.sweeps.trackers import check_targets
from raysent.training.validation.metrics import Downstream


@dataclass(frozen=True)
class SweepRequest:
    """What a caller asks a sweep for.

    Attributes:
        space: A search-space file, the name of a shipped one, its values, or a `SearchSpace`; None for that of tasks;
            or a plan, which has all that follows but the trackers.
        options: What the caller sets in it.
        tasks: Tasks to evaluate on; None for those of the space, else all whose files are there.
        run: The run folder; None for one of today's date.
        address: A running Ray cluster; None for this machine.
        track: Trackers that receive trials, as for the function `track`.
    """

    space: Space | SweepPlan | None = None
    options: SpaceOptions = field(default_factory=SpaceOptions)
    tasks: Sequence[str | Task] | None = None
    run: str | Path | None = None
    address: str | None = None
    track: str | Sequence[str] = ()


def make_plan(request: SweepRequest) -> SweepPlan:
    """Return the plan of a sweep, before anything takes time.

    Args:
        request: What the caller asks for.

    Raises:
        RaysentError: If the space, an argument or a task's file is wrong, or the run folder cannot be used.
    """
    if isinstance(request.space, SweepPlan):
        if request != SweepRequest(request.space, track=request.track):
            raise ConfigError(
                "space: a plan has its tasks, run, address and settings; give them to raysent.plan"
            )
        check_targets(request.track, request.space.space, request.space.folder)
        return request.space
    options = request.options
    space = with_possible_trials(swept_space(request.space, request.tasks, options))
    folder = run_folder_of(request.run, space.name)
    check_targets(request.track, space, folder)
    tasks = tasks_of(space, request.tasks, options.data)
    return SweepPlan(with_labels_of(space, tasks), folder, tasks, address=request.address)


def with_encoders(
    plan: SweepPlan, *, say: Callable[[str], object], may_download: bool = True
) -> SweepPlan:
    """Return the plan with the pretrained encoders that take part; arguments as for `choose_encoders`."""
    encoders = choose_encoders(
        plan.space.evaluation.pretrained,
        plan.task_set.tasks,
        plan.task_set.data,
        say=say,
        may_download=may_download,
    )
    return replace(plan, pretrained=encoders)


def with_named_encoders(plan: SweepPlan) -> SweepPlan:
    """Return the plan with a space that names the pretrained encoders, for a resume too."""
    named = Override("evaluation.pretrained", [*plan.pretrained.paths], "--with")
    return replace(plan, space=with_overrides(plan.space, [named]))


def fitted(
    plan: SweepPlan, *, machines: Machines | None = None, progress: Progress | None = None
) -> SweepPlan:
    """Return the plan with values for what the space lists under `fit`; unchanged without trials.

    Args:
        plan: The plan.
        machines: What there is for trials; None to ask.
        progress: Called with the progress of reading the text.
    """
    if not plan.space.limits.trials:
        return plan
    if plan.pretrained.is_expected:
        # Whether its trials have the time is known when it is here; until then the space keeps the section.
        space = _fitted_to_machine(plan, plan.space, machines=machines, progress=progress)
        return replace(plan, space=with_possible_trials(space))
    join = partial(
        with_pretrained_family,
        encoders=plan.pretrained.paths,
        tasks=plan.task_set,
        address=plan.address,
        progress=progress,
    )
    alone, why = join(plan.space, is_fitted=False)
    space = _fitted_to_machine(plan, alone, machines=machines, progress=progress)
    space, why_not = join(with_possible_trials(space))
    return replace(plan, space=space, notes=tuple(line for line in (why, why_not) if line))


def _fitted_to_machine(
    plan: SweepPlan, space: SearchSpace, *, machines: Machines | None, progress: Progress | None
) -> SearchSpace:
    """Return a space, which the plan's is or comes from, with settings for its text, its tasks and the machine."""
    return fit_to_machine(
        space,
        tasks=ranking_tasks(space, plan.task_set),
        address=plan.address,
        machines=machines,
        progress=progress,
    )


def estimated(plan: SweepPlan, *, progress: Progress | None = None) -> SweepPlan:
    """Return the plan with its time and cost, for which a few steps are trained; unchanged without trials."""
    if not plan.space.limits.trials:
        return plan
    machines = machines_at(plan.address, plan.space)
    plan = fitted(plan, machines=machines, progress=progress)
    facts = prepare_space(plan.space, progress=progress, is_local=True)
    trial = trial_time(plan.space, machines, address=plan.address, progress=progress)
    num_trials = plan.space.limits.trials
    shared = layout(plan.space.limits, machines, num_trials=num_trials)
    idle = idle_parts(shared, machines, plan.space.limits, num_trials=num_trials)
    return replace(
        plan,
        facts=facts,
        estimate=estimate(plan.space, trial, machines),
        notes=(*plan.notes, *idle),
    )


def with_own_text(plan: SweepPlan) -> SweepPlan:
    """Return the plan whose text, where it was made of tasks' rows, is in the run's folder."""
    return replace(plan, space=take_along(plan.space, plan.folder))


def divided(plan: SweepPlan, *, moves: bool) -> SweepPlan:
    """Write the rows of the tasks into the run's folder, and return the plan whose trials open none that test.

    Args:
        plan: The plan.
        moves: Whether other machines, with other working folders, read the space.
    """
    tasks: dict[str, tuple[Task, Path | None]] = {
        spec_of(task): (task, plan.task_set.data) for task in plan.task_set
    }
    ranking, ranking_file = _ranking_rows(plan)
    tasks |= {spec_of(task): (task, ranking.data) for task in ranking}
    files = {} if ranking_file is None else {"validation.downstream.rows": ranking_file}
    labels, labels_file = learned_labels(plan.space), ""
    if labels is not None and labels.task is not None:
        learned = find_task(labels.task, scorings=PROBED)
        tasks[spec_of(learned)] = (learned, None if labels.data is None else Path(labels.data))
        labels_file = f"{DIVISIONS_FOLDER}/{learned.name}{ROWS_SUFFIX}"
    remove_folder(plan.folder / DIVISIONS_FOLDER, below=plan.folder)
    ranks = ranking.names if plan.space.metric == "downstream" else ()
    divide_tasks(plan.folder, tasks.values(), ranking=ranks)
    overrides = [
        Override(f"base.{name}", f"{to_uri(plan.folder)}/{file}", "tasks")
        for name, file in files.items()
        if (plan.folder / file).is_file()
    ]
    space = with_overrides(plan.space, overrides)
    if labels_file and (plan.folder / labels_file).is_file():
        space = with_labelled_rows(space, f"{to_uri(plan.folder)}/{labels_file}")
    return replace(plan, space=with_absolute_paths(space) if moves else space)


def _ranking_rows(plan: SweepPlan) -> tuple[TaskSet, str | None]:
    """Return the tasks that trials are ranked by, and the file of the run in which their rows now are, if any."""
    downstream = plan.space.config(plan.space.first_params()).validation.downstream
    if downstream is None:
        return TaskSet(), None
    ranking = TaskSet.resolve(downstream.tasks, downstream.data)
    loaded = Downstream(downstream.model_copy(update={"rows": None})).tasks
    rows = [of_task for of_task in loaded if isinstance(of_task, TaskData)]
    if len(rows) < len(loaded):  # others have queries
        return ranking, None
    save_rows(plan.folder / RANKING_ROWS_FILE, rows)
    return ranking, RANKING_ROWS_FILE
