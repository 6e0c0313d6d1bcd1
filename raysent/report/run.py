"""A run's folder -> the `Run` that the report shows: a sweep, a training, or evaluated models.

Each file is read by the package that writes it. A file that does not exist yet leaves its field empty, so a sweep that
is still running has a report too. A training is shown as a sweep of one trial.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from raysent.cost import Bill, bill_of
from raysent.ensembles import Answer, EnsembleResult, read_answers, read_result
from raysent.ensembles.answer_rows import AnswerRows, read_answer_rows
from raysent.ensembles.label_curves import LabelCurve, read_curves
from raysent.errors import ArtifactError, RaysentError
from raysent.evaluation.divided import divided_tasks
from raysent.evaluation.records import AnyScore, Costs, costs_of, read_scores
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import find_task
from raysent.evaluation.titles import shown_name
from raysent.models.config import spoken_name
from raysent.report.blocks import number
from raysent.storage import address_of
from raysent.storage.layout import ENSEMBLE_FILE, EVALUATION_FOLDER, RUN_FILE, SWEEP_FILE
from raysent.sweeps import RecordedSweep, Trial, TrialReport, read_ledger, read_sweep, trial_folder
from raysent.sweeps.ranking import Mode
from raysent.sweeps.trial import BROKEN
from raysent.training.outcome import RecordedTraining, read_training
from raysent.training.validation import METRICS, chance_of


@dataclass(frozen=True)
class PredictedTask:
    """What an answer predicts of a task's rows.

    Attributes:
        name: The task.
        names: Its classes.
        rows: The predictions.
        data: The rows' texts; None where they cannot be read here.
    """

    name: str
    names: tuple[str, ...]
    rows: AnswerRows
    data: TaskData | None

    def text(self, row: int) -> str:
        """Return the text of a row, or of both texts of a pair; its number where no text can be read."""
        if self.data is None:
            return f"row {row + 1}"
        return " / ".join(column[row] for column in self.data.sentences)


@dataclass(frozen=True)
class Run:
    """What a folder holds.

    Attributes:
        folder: The folder.
        name: The sweep's name, or the folder's.
        metric: The metric that trials are ranked by.
        mode: Whether a greater (`max`) or a smaller (`min`) value of it is better.
        trials: The trials, in the order in which they were drawn.
        num_reports: Reports of a complete training.
        seconds: Wall-clock time of the sweep or training; None if unknown.
        pool: Size, chance levels and hash of the validation set; empty if unknown.
        sweep: The sweep; None if the folder is not that of a sweep.
        training: The training; None if the folder is not that of a training.
        scores: Scores of the evaluated models.
        label_curves: Scores against the number of labels, by task.
        ensemble: The ensemble; None if there is none.
        answers: Folder and answer for each task, what to take; empty before the evaluation.
        costs: Trial -> the costs of its model.
        bill: The sums of the ledger; None if nothing was spent.
    """

    folder: Path
    name: str
    metric: str = ""
    mode: Mode = "max"
    trials: tuple[Trial, ...] = ()
    num_reports: int = 1
    seconds: float | None = None
    pool: Mapping[str, Any] = field(default_factory=dict)
    sweep: RecordedSweep | None = None
    training: RecordedTraining | None = None
    scores: tuple[AnyScore, ...] = ()
    label_curves: tuple[LabelCurve, ...] = ()
    ensemble: EnsembleResult | None = None
    answers: tuple[tuple[Path, Answer], ...] = ()
    costs: Mapping[str, Costs] = field(default_factory=dict)
    bill: Bill | None = None

    @property
    def kind(self) -> str:
        """What the folder holds, as the page says it."""
        if self.sweep is not None:
            return "sweep"
        if self.training is not None:
            return "training"
        return "evaluation"

    @property
    def heading(self) -> str:
        """What the page is called: the table and the answer's score, or the run's name."""
        scores = [f"{answer.task}: {answer.short_score}" for _, answer in self.answers]
        if len(scores) < 2:
            return "".join(scores) or self.name
        return f"{self.name}: {len(scores)} tasks"

    @cached_property
    def predicted_tasks(self) -> list[PredictedTask]:
        """What the answers predict of rows, for tasks with classes."""
        tasks = []
        for folder, answer in self.answers:
            rows = read_answer_rows(folder)
            if rows is None:
                continue
            data = self._rows_of(answer.task)
            num_classes = int(max(rows.labels.max(), rows.predicted.max())) + 1
            names = tuple(f"class {number}" for number in range(num_classes))
            names = names if data is None else data.label_names
            tasks.append(PredictedTask(answer.task, names, rows, data))
        return tasks

    def _rows_of(self, task: str) -> TaskData | None:
        """Return the rows of a task as the run divided them, or as its record names them; None if not to be read."""
        recorded = None if self.sweep is None else self.sweep.record.tasks
        specs = (
            {}
            if recorded is None
            else dict(zip(recorded.names, recorded.specs or (), strict=False))
        )
        folder = None if recorded is None or recorded.data is None else Path(recorded.data)
        try:
            divided = divided_tasks(self.folder).get(task)
            rows = (divided or find_task(specs.get(task, task))).load(folder)
        except RaysentError:
            return None
        return rows if isinstance(rows, TaskData) else None

    @property
    def trains_nothing(self) -> bool:
        """Whether it is a sweep that was to have no trial, as of a table alone."""
        return self.sweep is not None and not self.sweep.space.limits.trials

    @property
    def ranked(self) -> list[Trial]:
        """The trials from best to worst."""
        return list(self.trials) if self.sweep is None else self.sweep.ranked

    @property
    def best(self) -> Trial | None:
        """The best trial that has a value and neither failed nor diverged; None if there is none."""
        if self.sweep is not None:
            return self.sweep.best
        return next((trial for trial in self.trials if self.is_comparable(trial)), None)

    @property
    def searched(self) -> list[str]:
        """The names that the sweep searches, in the order of the search space."""
        return [] if self.sweep is None else list(self.sweep.space.domains)

    @property
    def chance(self) -> float | None:
        """The metric's value if all answers are equally likely; None if unknown."""
        return number(chance_of(self.metric, self.pool))

    @cached_property
    def highest(self) -> float | None:
        """The greatest value of a trial that neither failed nor diverged; None if there is none."""
        values = (self.value(trial) for trial in self.trials if trial.status not in BROKEN)
        return max((value for value in values if value is not None), default=None)

    def value(self, point: Trial | TrialReport) -> float | None:
        """Return the metric of a trial or of one of its reports, or None if it is missing or NaN."""
        return number(point.metrics.get(self.metric))

    def is_comparable(self, trial: Trial) -> bool:
        """Return whether a trial has a value and neither failed nor diverged."""
        return trial.status not in BROKEN and self.value(trial) is not None

    def is_best(self, trial: Trial) -> bool:
        """Return whether a trial is the best one."""
        return self.best is not None and trial.name == self.best.name

    def chance_ratio(self, value: float | None) -> float | None:
        """Return how many times chance a value is; None for a loss, or if chance is unknown."""
        chance = self.chance if self.mode == "max" else None
        return value / chance if value is not None and chance else None

    def title(self, name: str) -> str:
        """Return what a model is called, a trial of a sweep by what it is: `GRU both ways, 300 numbers, trial 3`."""
        return self._titles.get(name, shown_name(name))

    @cached_property
    def _titles(self) -> dict[str, str]:
        """What the trials of a sweep are called, by their names; without those whose files are elsewhere."""
        titles: dict[str, str] = {}
        if self.sweep is None:
            return titles
        for trial in self.trials:
            with contextlib.suppress(RaysentError, KeyError):
                config = self.sweep.space.config(trial.params)
                spoken = spoken_name(config.encoder, config.code)
                titles[trial.name] = f"{spoken}, {shown_name(trial.name)}"
        return titles

    def cost(self, name: str) -> Costs:
        """Return the costs of a trial or an evaluated model, from its folder or its scores."""
        known = (
            score.costs for score in self.scores if score.model == name and score.costs != Costs()
        )
        return self.costs.get(name) or next(known, Costs())


def read_run(folder: Path) -> Run:
    """Read the folder of a sweep, of a training, or of evaluated models.

    Raises:
        ArtifactError: If the folder holds none of them, or a file in it is damaged.
    """
    found: dict[str, Any] = {
        "scores": tuple(read_scores(folder / EVALUATION_FOLDER)),
        "label_curves": tuple(read_curves(folder)),
        "ensemble": read_result(folder) if (folder / ENSEMBLE_FILE).is_file() else None,
        "answers": tuple(read_answers(folder)),
    }
    if (folder / SWEEP_FILE).is_file():
        return _of_sweep(read_sweep(folder), found)
    if (folder / RUN_FILE).is_file():
        return _of_training(read_training(folder), found)
    if any(found.values()):
        return Run(folder, folder.name, **found)
    raise ArtifactError(
        f"{address_of(folder)}: must hold {SWEEP_FILE}, {RUN_FILE} or {EVALUATION_FOLDER}/; "
        f"found none; name the folder of a sweep, of a training or of evaluated models"
    )


def _of_sweep(sweep: RecordedSweep, found: Mapping[str, Any]) -> Run:
    bill = bill_of(read_ledger(sweep.folder))
    return Run(
        folder=sweep.folder,
        name=sweep.space.name,
        metric=sweep.space.metric,
        mode=sweep.space.mode,
        trials=sweep.trials,
        num_reports=sweep.num_reports,
        seconds=sweep.seconds,
        pool=sweep.record.facts.get("pool", {}),
        sweep=sweep,
        costs={
            trial.name: _costs_of_trial(trial_folder(sweep.folder, trial.number))
            for trial in sweep.trials
        },
        bill=bill if bill.usd > 0 else None,
        **found,
    )


def _costs_of_trial(folder: Path) -> Costs:
    """Return the costs of a trial; none are known of one that has left half a model."""
    try:
        return costs_of(folder)
    except ArtifactError:
        return Costs()


def _of_training(training: RecordedTraining, found: Mapping[str, Any]) -> Run:
    trial, outcome = _as_trial(training), training.outcome
    metric = next(
        (name for name in METRICS if name in trial.metrics),
        next(iter(training.config.metrics), "loss"),
    )
    return Run(
        folder=training.folder,
        name=training.folder.name,
        metric=metric,
        mode=METRICS.get(metric, "min"),
        trials=(trial,),
        num_reports=trial.num_reports or 1,
        seconds=trial.seconds,
        pool={} if outcome is None else outcome.pool,
        training=training,
        costs={trial.name: costs_of(training.folder)},
        **found,
    )


def _as_trial(training: RecordedTraining) -> Trial:
    trial = Trial(training.folder.name, 0, {}, training.config.seed, status="running")
    for report in training.reports:
        trial.take(
            TrialReport(report.index, report.metrics, report.seconds),
            num_reports=report.num_reports,
        )
    if training.outcome is not None:
        trial.status, trial.seconds = training.outcome.status, training.outcome.seconds
        trial.error = training.outcome.message or None
    return trial
