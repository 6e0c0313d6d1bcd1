"""What follows the training of a sweep: its best trials are evaluated on its tasks, combined, and one answer is saved.

In: a sweep whose trials have ended. Out: `ensemble.json`, `RUN/best`, `RUN/encoder`, `RUN/kinds`, the scores against
the number of labels, and the report. If the budget ends meanwhile, what is done is kept.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raysent.ensembles import (
    EnsembleResult,
    Kinds,
    LabelCurve,
    label_curve,
    read_curves,
    save_best,
    save_encoder,
    save_fusion,
    save_kinds,
    write_curves,
)
from raysent.ensembles.best import Keeping
from raysent.ensembles.combining import combine
from raysent.errors import BudgetError, ConfigError, TrainingError, listed
from raysent.evaluation.baselines import baselines_of
from raysent.evaluation.divided import divided_tasks, kept_divisions
from raysent.evaluation.evaluate import Evaluator, MapJobs
from raysent.evaluation.members import expand as expand_names
from raysent.evaluation.members import fault_of
from raysent.evaluation.task import Task, TaskData
from raysent.evaluation.task_kinds import TaskRows
from raysent.evaluation.task_set import TaskSet
from raysent.parallel import Progress, shared_processes
from raysent.pipeline.evaluation import ClusterMap, map_jobs
from raysent.pipeline.pretrained import with_middle_layers
from raysent.pipeline.results import Sweep, SweepEvaluation, write_report
from raysent.progress import ProgressLines, messages
from raysent.screen import warn
from raysent.storage import address_of, path_below, remove_folder
from raysent.storage.layout import (
    BEST_FOLDER,
    ENCODER_FOLDER,
    ENSEMBLE_FILE,
    EVALUATION_FOLDER,
    KINDS_FOLDER,
    MEMBERS_FOLDER,
    TRIALS_FOLDER,
)
from raysent.sweeps import RecordedTasks, trial_folder
from raysent.sweeps.fleet import EvaluationMachines
from raysent.sweeps.parts import learns_parts, train_parts
from raysent.sweeps.ranking import members_of_kinds, select_members
from raysent.sweeps.trial import Trial


def evaluate_best(ended: Sweep, machines: EvaluationMachines, *, progress: bool) -> SweepEvaluation:
    """Evaluate a sweep's best trials, combine them and write its report; if the budget ends, keep what is done.

    Args:
        ended: The sweep.
        machines: What evaluates.
        progress: Whether to show progress.
    """
    recorded = ended.recorded.record.tasks
    trials, left_out = _members_of(ended)
    found = _Found([trial_folder(ended.folder, trial.number) for trial in trials])
    has_candidates = bool(trials) or not ended.space.limits.trials
    if has_candidates and recorded.specs != []:
        tasks = _tasks_of(ended.folder, recorded)
        with ProgressLines(prefix="scoring ", is_quiet=not progress) as bar:

            def on_progress(what: str, done: int, total: int | None) -> None:
                machines.check_budget()
                bar(what, done, total)

            finish = _Finish(ended, trials, tasks, on_progress, _map_of(machines))
            # Scores and label curves need the same libraries, which take a process seconds to import.
            with shared_processes():
                found = finish.run(found.members, recorded.label_sizes)
    machines.release()  # the rest is this machine's work
    members = found.members
    if members and (found.result is None or not (ended.folder / ENCODER_FOLDER).is_dir()):
        save_encoder(ended.folder, {member: [] for member in expand_names(members)})
    return SweepEvaluation(
        result=found.result,
        report=write_report(ended.folder),
        stopped=found.stopped,
        curves=tuple(read_curves(ended.folder)),
        num_members=len(members),
        left_out=left_out,
        kinds=found.kinds,
    )


@dataclass
class _Found:
    """What came of an evaluation until its end, or that of the budget.

    Attributes:
        members: The folders of the models that take part.
        result: The ensemble of trials and its scores.
        kinds: The best trial of each kind of encoder, together.
        stopped: Why it ended early; empty if it did not.
    """

    members: list[Path]
    result: EnsembleResult | None = None
    kinds: Kinds | None = None
    stopped: str = ""


@dataclass(frozen=True)
class _Finish:
    """The evaluation of a sweep's best trials, of pretrained encoders and of baselines on its tasks.

    Attributes:
        ended: The sweep.
        trials: Those that may be members, best first.
        tasks: Its tasks, with the rows that the run has of them.
        progress: Called with the progress.
        map_jobs: Runs jobs.
        rows: The rows of the tasks, which are loaded and divided once.
    """

    ended: Sweep
    trials: Sequence[Trial]
    tasks: TaskSet
    progress: Progress
    map_jobs: MapJobs
    rows: TaskRows = field(default_factory=TaskRows)

    @property
    def pretrained(self) -> list[str]:
        """The pretrained encoders, each followed by its middle layer where it has one."""
        return with_middle_layers(self.ended.space.evaluation.pretrained or ())

    def run(self, members: list[Path], label_sizes: Sequence[int | str]) -> _Found:
        """Take every step that the budget allows.

        Args:
            members: The folders of the trials.
            label_sizes: Numbers of labels at which models are also scored; none for no curves.
        """
        found = _Found(members)
        evaluator = Evaluator(
            self.ended.folder / EVALUATION_FOLDER,
            self.tasks.data,
            divides=True,
            goes_on=True,
            progress=self.progress,
            map_jobs=self.map_jobs,
            lexical_s=self.ended.space.limits.lexical_s,
            rows=self.rows,
        )
        try:
            found.members = _with_parts(self.ended, members, self.map_jobs, self.progress)
            if self.tasks.probed:
                found.result = self._combine(found.members) if found.members else None
                self._save_best(found.members, evaluator)
                found.kinds = _save_kinds(self.ended, self.trials, evaluator, self.tasks.probed)
            self._save_fusions(found.members, evaluator)
            if label_sizes:
                self._write_label_curves(found.result, label_sizes)
        except BudgetError as error:
            run = shlex.quote(address_of(self.ended.folder))
            found.stopped = f"{error}; raise it with 'raysent resume {run} --budget …'"
        return found

    def _combine(self, members: Sequence[Path]) -> EnsembleResult:
        """Combine the trials, and write `ensemble.json`."""
        return combine(
            members,
            output=self.ended.folder,
            tasks=self.tasks.probed,
            data_dir=self.tasks.data,
            baselines=self.ended.space.evaluation.baselines,
            pretrained=self.pretrained,
            progress=self.progress,
            map_jobs=self.map_jobs,
            lexical_s=self.ended.space.limits.lexical_s,
            rows=self.rows,
        )

    def _save_best(self, members: Sequence[Path], evaluator: Evaluator) -> None:
        """Save the model to take on each task with a probe."""
        wanted = self.ended.space.evaluation
        save_best(
            members,
            evaluator,
            run=self.ended.folder,
            tasks=self.tasks.probed,
            baselines=wanted.baselines,
            pretrained=self.pretrained,
            prefer=wanted.prefer,
            keeping=Keeping(refits=wanted.refit, copies_hub=wanted.copy_pretrained),
        )

    def _save_fusions(self, members: Sequence[Path], evaluator: Evaluator) -> None:
        """Save what ranks the passages of each task with queries."""
        wanted = self.ended.space.evaluation
        save_fusions(
            self.ended.folder,
            [*members, *(wanted.pretrained or ())],
            self.tasks.with_queries,
            evaluator,
            copies_hub=wanted.copy_pretrained,
        )

    def _write_label_curves(
        self, result: EnsembleResult | None, sizes: Sequence[int | str]
    ) -> None:
        """Write the members' scores against the number of labels, for tasks with classes."""
        names = () if result is None else result.members
        folders = (self.ended.folder / TRIALS_FOLDER / name for name in names)
        trials = [folder for folder in folders if folder.is_dir()]
        members = expand_names(trials) if trials else []
        encoders = expand_names(self.pretrained) if self.pretrained else []
        curves = list[LabelCurve]()
        for task in self.tasks:
            rows = self.rows.loaded(task, self.tasks.data)
            if not isinstance(rows, TaskData) or rows.is_scored:
                continue
            others = list(encoders)
            if self.ended.space.evaluation.baselines:
                others = [*baselines_of(members, tasks=[task]), *encoders]
            if not members and not others:
                continue
            try:
                curves.append(
                    label_curve(
                        rows,
                        members,
                        others,
                        sizes=sizes,
                        progress=self.progress,
                        map_jobs=self.map_jobs,
                    )
                )
            except ConfigError as error:  # fewer rows than the smallest size: nothing else is lost
                messages.print(str(error), soft_wrap=True)
        write_curves(self.ended.folder, curves)


def _map_of(machines: EvaluationMachines) -> MapJobs:
    if machines.address is None:
        return map_jobs()
    release = None if machines.fleet is None else machines.release
    return ClusterMap(
        machines.address, prepare=machines.prepare, check=machines.check_nodes, release=release
    )


def _with_parts(
    ended: Sweep, members: Sequence[Path], run: MapJobs, progress: Progress
) -> list[Path]:
    """Return members of which the best one that learned labels has predictions of every row; see `sweeps.parts`.

    Others that learned labels are left out: for each of them as many trainings would be needed.
    """
    trials = {trial_folder(ended.folder, one.number): one for one in ended.recorded.trials}
    learned = [member for member in members if learns_parts(ended.folder, trials[member])]
    if not learned:
        return list(members)
    others = [member for member in members if member not in learned]
    try:
        whole = train_parts(ended.folder, trials[learned[0]], run, progress=progress)
    except TrainingError as error:
        warn(f"{error}; no model that learned labels takes part")
        return others
    return [
        whole if member == learned[0] else member
        for member in members
        if member in (learned[0], *others)
    ]


def _save_kinds(
    ended: Sweep, trials: Sequence[Trial], evaluator: Evaluator, tasks: Sequence[Task]
) -> Kinds | None:
    """Save the best trial of each kind of encoder together; nothing where the space has no kinds, or one has a model.

    Args:
        ended: The sweep.
        trials: Those that may be members, best first.
        evaluator: Reads their records.
        tasks: Tasks with a probe.
    """
    kept = members_of_kinds(ended.space, trials)
    if not kept:
        return None
    members = expand_names([trial_folder(ended.folder, trial.number) for trial in trials])
    by_number = dict(zip([trial.number for trial in trials], members, strict=True))
    kinds = save_kinds(
        {kind: by_number[trial.number] for kind, trial in kept.items()},
        evaluator,
        run=ended.folder,
        tasks=tasks,
        ended={kind: trial.status == "finished" for kind, trial in kept.items()},
        absent=[str(kind) for kind in ended.space.kinds if kind not in kept],
    )
    if kinds is None:
        messages.print(
            f"{address_of(ended.folder / KINDS_FOLDER)} is not made: of {listed(ended.space.kinds)} "
            f"{listed(list(kept))} alone has left a model",
            soft_wrap=True,
        )
    return kinds


def _members_of(ended: Sweep) -> tuple[list[Trial], tuple[str, ...]]:
    """Return the best trials that have a whole model, and the names of better ones that have none.

    A trial may have been ended while it wrote its model, and its folder is open to all that happens to a disk.
    """
    num_members = ended.space.evaluation.members
    trials = list(ended.recorded.trials)
    sound = set[int]()
    left_out: list[str] = []
    while True:
        selected = select_members(ended.space, trials, num_members=num_members)
        broken = set[int]()
        for trial in selected:
            if trial.number in sound:
                continue
            fault = fault_of(trial_folder(ended.folder, trial.number))
            if fault is None:
                sound.add(trial.number)
                continue
            broken.add(trial.number)
            left_out.append(trial.name)
            warn(f"trial {trial.name} has no whole model and is left out: {fault}")
        if not broken:
            return selected, tuple(left_out)
        trials = [trial for trial in trials if trial.number not in broken]


def _tasks_of(folder: Path, recorded: RecordedTasks) -> TaskSet:
    """Return the tasks of a sweep with the rows in its folder; those of an earlier version are divided first."""
    known = divided_tasks(folder)
    names: list[str | Task] | None = None
    if recorded.specs is not None:
        names = [known.get(name, spec) for name, spec in recorded.named_specs]
    tasks = TaskSet.resolve(names, recorded.data)
    for line in kept_divisions(folder):
        messages.print(line, soft_wrap=True)
    return tasks.divided(folder)


def save_fusions(
    run: Path,
    members: Sequence[Path],
    tasks: Sequence[Task],
    evaluator: Evaluator,
    *,
    copies_hub: bool = False,
) -> None:
    """Save what ranks passages on each task with queries as the model to take."""
    best = run / BEST_FOLDER
    is_only = len(tasks) == 1 and not any(best.glob(f"**/{ENSEMBLE_FILE}"))
    for task in tasks:
        folder = best if is_only else _answer_folder(best, task.name)
        remove_folder(folder, below=run)
        save_fusion(members, task, evaluator, folder=folder, copies=True, copies_hub=copies_hub)


def _answer_folder(best: Path, task: str) -> Path:
    """Return the folder of a task's answer below an answer of another task, whose own folders it leaves alone."""
    is_taken = task in (MEMBERS_FOLDER, EVALUATION_FOLDER)
    return path_below(best, f"{task}-answer" if is_taken else task)
