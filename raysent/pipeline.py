"""The public API: what the commands do, as functions, and `Sweep`, the result of a sweep.

    sweep -> evaluate the best trials -> combine them -> write a report

Each function takes names, paths and plain values, checks them before anything starts, and returns one object. A wrong
value raises a `RaysentError` with one line. Progress goes to standard error; `progress=False` turns it off.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, overload

import numpy as np
import pandas as pd

from raysent.analysis import FaissIndex, build_index
from raysent.config import Document, Override, StrictModel, set_dotted, validate
from raysent.cost.config import parse_duration
from raysent.data.corpus import CorpusConfig, corpus_notes, prepare
from raysent.data.texts import batched, read_texts
from raysent.data.vocabulary import VocabularyConfig
from raysent.ensembles import (
    DEFAULT_SIZES,
    CostLimits,
    Ensemble,
    EnsembleResult,
    FrontRow,
    LabelCurve,
    combine,
    label_curve,
    load_ensemble,
    read_curves,
    read_result,
    student_front,
    write_curves,
)
from raysent.ensembles import default_folder as ensemble_folder
from raysent.errors import ArtifactError, BudgetError, ConfigError, RaysentError, TrainingError, did_you_mean
from raysent.evaluation.baselines import LEXICAL, baselines_of
from raysent.evaluation.evaluate import Evaluator, Job, MapJobs, Result, run_job
from raysent.evaluation.members import Model, model_folder
from raysent.evaluation.members import expand as expand_names
from raysent.evaluation.protocols import protocol_name
from raysent.evaluation.records import SIMILARITY, AnyScore, Score, SimilarityScore, read_scores
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import PROBED, Task, resolve_tasks
from raysent.exports.corpus import BLOCK_SENTENCES, PROCESS_BYTES, EncodedCorpus, Encoding, Limits
from raysent.exports.corpus import encode_corpus as encode_files
from raysent.exports.mteb import evaluate_on_mteb
from raysent.live import (
    EventLines,
    SweepView,
    TrainingView,
    fitted_lines,
    is_submitted,
    plan_lines,
    size_line,
    untrained_line,
)
from raysent.models import Composition, SentenceModel, Whitening
from raysent.models import compose as compose_models
from raysent.models import load as load_model
from raysent.models.objectives import CONTEXT_METRICS
from raysent.models.pretrained import trust_remote_code as trusting
from raysent.models.schemes import is_scheme_name
from raysent.models.sentence_encoder import SentenceEncoder, encode_blocks
from raysent.models.vector_codes import VectorCode, check_vector_file, load_code, write_vectors
from raysent.parallel import num_processes_for
from raysent.progress import ProgressLines, messages
from raysent.registry import Registry
from raysent.report import write as write_page
from raysent.reproduction import ModelEstimate, Reproduction, estimate, read_paper, wanted_models
from raysent.reproduction import Scale as PaperScale
from raysent.reproduction import reproduce as reproduce_paper
from raysent.simulation.estimate import Estimate, estimate_locally
from raysent.storage import address_of, is_remote, open_folder, write_json
from raysent.storage.layout import (
    CODE_FILE,
    ENSEMBLE_FILE,
    ESTIMATE_FILE,
    EVALUATION_FOLDER,
    RETRAINED_SUFFIX,
    RUN_FILE,
    SEED_FOLDER,
    SWEEP_FILE,
    TRIALS_FOLDER,
)
from raysent.sweeps import (
    CheckBudget,
    Event,
    Listener,
    RecordedSweep,
    SweepRecord,
    load_record,
    read_sweep,
    spent_usd,
    trial_folder,
)
from raysent.sweeps.driver import check_free, evaluation_budget
from raysent.sweeps.driver import resume as resume_sweep
from raysent.sweeps.driver import start as start_sweep
from raysent.sweeps.fitting import fit_to_machine, fitted_values
from raysent.sweeps.integrity import check_run as check_files
from raysent.sweeps.integrity import repair as repair_run
from raysent.sweeps.journal_replay import Replayed, not_replayable
from raysent.sweeps.journal_replay import replay as replay_sweep
from raysent.sweeps.optuna_study import study_of
from raysent.sweeps.preparation import prepare_space
from raysent.sweeps.ranking import median_values, select_members
from raysent.sweeps.retraining import retrained_folder
from raysent.sweeps.space import (
    SearchSpace,
    find_space,
    parse_space,
    read_space,
    with_absolute_paths,
    with_files,
    with_overrides,
)
from raysent.sweeps.trackers import TrackingThread
from raysent.sweeps.trackers import track as track_events
from raysent.sweeps.trial import ENDED
from raysent.training.data import TrainingData, open_training_data
from raysent.training.outcome import Outcome, load_outcome, load_reports
from raysent.training.plan import check_run
from raysent.training.ray_session import map_on_ray, ray_session
from raysent.training.ray_train import train as train_run
from raysent.training.retraining import check_weights, next_seed, read_finished, retrained_config, words_line
from raysent.training.run import RunConfig, describe, load_run
from raysent.training.students import student_config, teacher_members, within_time
from raysent.training.validation import METRICS, ValidationConfig, Validator

if TYPE_CHECKING:
    import optuna

    from raysent.cost.prices import SpotUsd
    from raysent.sweeps.cost_tracker import ListMachines
    from raysent.sweeps.driver import Fleet

# A search space by its file, its bare name, its values, or as it was read.
Space = str | Path | Mapping[str, Any] | SearchSpace
# How the settings of a space are chosen: for text, machine and time; or those that its paper published.
SpaceScale: TypeAlias = Literal["auto", "paper"]
# With fewer blocks per process, another process would be ready too late to help.
_LEAST_BLOCKS = 4
# Where scores of models without a folder of their own are kept.
SCORES_FOLDER = Path("runs") / "evaluated"

__all__ = [
    "Distilled",
    "SpaceScale",
    "Sweep",
    "SweepEvaluation",
    "SweepPlan",
    "TrainedRun",
    "components",
    "compose",
    "default_run_folder",
    "distill",
    "doctor",
    "encode_corpus",
    "encode_file",
    "ensemble",
    "evaluate",
    "evaluate_models",
    "index_vectors",
    "label_curves",
    "load",
    "map_jobs",
    "metric_values",
    "plan",
    "plan_reproduction",
    "print_remarks",
    "registries",
    "replay",
    "reproduce",
    "resume",
    "scale_overrides",
    "scores_folder",
    "scores_frame",
    "sweep",
    "train",
    "train_space",
    "train_student",
    "train_trial",
    "trial_of",
    "write_report",
]


@dataclass(frozen=True)
class SweepEvaluation:
    """What follows the training of a sweep.

    Attributes:
        result: The ensemble of the best trials and its scores; None if no trial has a model, or no task is wanted.
        report: The report's file.
        stopped: Why evaluation stopped early; empty if it did not.
        curves: Scores against the number of labels, if they are wanted.
    """

    result: EnsembleResult | None
    report: Path
    stopped: str = ""
    curves: tuple[LabelCurve, ...] = ()


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep would do.

    Attributes:
        space: The search space, checked.
        folder: The run folder.
        tasks: Names of the tasks that the best trials will be evaluated on.
        facts: What is known of `corpus` and `pool`, and the memory of the largest trial.
        estimate: Dollars and hours; None on a machine that is free.
    """

    space: SearchSpace
    folder: Path
    tasks: tuple[str, ...]
    facts: Mapping[str, Any]
    estimate: Estimate | None

    @property
    def untrained(self) -> str:
        """Which `context_accuracy` needs no training; empty if trials are not ranked by it."""
        return untrained_line(self.facts["pool"])

    def values(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        corpus, pool = self.facts["corpus"], self.facts["pool"]
        return {
            "space": self.space.name,
            "metric": self.space.metric,
            "trials": self.space.limits.trials,
            "time": self.space.limits.time,
            "memory_bytes": self.facts.get("memory_bytes"),
            "searched": self.space.document.values.get("search", {}),
            "run": address_of(self.folder),
            "corpus": corpus["path"],
            "num_train": corpus["num_train"],
            "num_validation": corpus["num_validation"],
            "chance_accuracy": pool.get("chance_accuracy"),
            "baseline_accuracies": pool.get("baselines", {}),
            "tasks": list(self.tasks),
            "retrain": self.space.evaluation.retrain,
            "budget_usd": self.space.cost.budget_usd,
            "estimate": None if self.estimate is None else self.estimate.values(),
            "not_replayable": not_replayable(self.space) or None,
            "fitted": fitted_values(self.space),
        }


@dataclass(frozen=True)
class TrainedRun:
    """A training that has ended.

    Attributes:
        folder: The run folder.
        outcome: How it ended.
        report: The report's file.
        before: How the training ended that this one did again; None if it did none.
    """

    folder: Path
    outcome: Outcome
    report: Path
    before: Outcome | None = None

    @property
    def address(self) -> str:
        """The run folder as a user names it."""
        return address_of(self.folder)

    @property
    def is_comparable(self) -> bool:
        """Whether the training before was validated on the same text."""
        return self.before is not None and self.before.pool.get("hash") == self.outcome.pool.get("hash")

    @property
    def model(self) -> SentenceModel:
        """The trained model."""
        loaded = load_model(self.folder)
        assert isinstance(loaded, SentenceModel)
        return loaded


@dataclass(frozen=True)
class Distilled:
    """A student, and what it costs and scores beside its teacher.

    Attributes:
        run: Its training.
        front: Student, members and their ensemble by rising time to encode; empty where no tasks are named.
    """

    run: TrainedRun
    front: tuple[FrontRow, ...] = ()

    @property
    def model(self) -> SentenceModel:
        """The student."""
        return self.run.model

    @property
    def table(self) -> pd.DataFrame:
        """The front as a table, by name."""
        return pd.DataFrame([asdict(row) for row in self.front]).set_index("name") if self.front else pd.DataFrame()


class Sweep:
    """A sweep, finished or not, as its run folder records it.

    Attributes:
        folder: The run folder.
        evaluation: What followed the training in this process; None for a sweep that was loaded.
    """

    def __init__(self, folder: str | Path, *, evaluation: SweepEvaluation | None = None) -> None:
        """Read a run folder.

        Raises:
            ArtifactError: If the folder is no sweep's, or a file in it is damaged.
        """
        self.folder = open_folder(folder)
        self.evaluation = evaluation
        self.recorded: RecordedSweep = read_sweep(self.folder)

    def __repr__(self) -> str:
        """Return the folder, the state, and the best trial."""
        best = self.recorded.best
        summary = (
            "no trial has reported" if best is None else f"best {best.name}: {self.metric} {self._value(best):.4g}"
        )
        return f"Sweep({address_of(self.folder)!r}, {self.status}, {len(self.recorded.trials)} trials, {summary})"

    def _value(self, trial: Any) -> float:
        value = trial.metrics.get(self.metric)
        return float("nan") if value is None else float(value)

    @property
    def address(self) -> str:
        """The run folder as a user names it."""
        return address_of(self.folder)

    @property
    def space(self) -> SearchSpace:
        """The search space."""
        return self.recorded.space

    @property
    def fitted(self) -> dict[str, Any]:
        """The settings that were chosen for the text, the machine and the time: name -> `values` and `why`."""
        return fitted_values(self.space)

    @property
    def metric(self) -> str:
        """The metric that trials are ranked by."""
        return self.space.metric

    @property
    def status(self) -> Literal["running", "interrupted", "completed"]:
        """Whether the sweep ended, was interrupted, or runs (or was killed)."""
        last = next((one["event"] for one in reversed(self.recorded.events) if one["event"] in _ENDINGS), "session")
        return {"completed": "completed", "interrupted": "interrupted"}.get(last, "running")  # type: ignore[return-value]

    @property
    def closed(self) -> str:
        """Why the sweep ended before all its trials were done; empty if it did not."""
        ended = next((one for one in reversed(self.recorded.events) if one["event"] == "completed"), {})
        return str(ended.get("reason") or "")

    @property
    def spent_usd(self) -> float:
        """What its machines have cost, in dollars."""
        return spent_usd(self.folder)

    @property
    def over_untrained(self) -> str:
        """The best trial's `context_accuracy` beside chance and plain word statistics; empty if unknown."""
        best = self.recorded.best
        pool = self.recorded.record.facts.get("pool", {})
        return "" if best is None else untrained_line(pool, best=self._value(best))

    @property
    def shown_metrics(self) -> list[str]:
        """The metrics of a table of trials: those of the ranking, with the median over seeds if there are several."""
        metrics = [*CONTEXT_METRICS] if self.metric in CONTEXT_METRICS else [self.metric]
        return [*metrics, f"median_{self.metric}"] if self.space.limits.seeds > 1 else metrics

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Every trial, best first, by name.

        Columns: ``status``, the metrics of the last report, ``seconds``, ``usd``, ``seed``, one for each searched name,
        and ``error``; with several seeds also the median of the metric over them.
        """
        medians = median_values(self.space, self.recorded.trials) if self.space.limits.seeds > 1 else {}
        rows = [
            {
                "trial": trial.name,
                "status": trial.status,
                **trial.metrics,
                **({f"median_{self.metric}": medians[trial.name]} if medians else {}),
                "seconds": trial.seconds,
                "usd": trial.usd,
                "seed": trial.seed,
                **{name: trial.params.get(name) for name in self.space.domains},
                "error": trial.error,
            }
            for trial in self.recorded.ranked
        ]
        return pd.DataFrame(rows).set_index("trial") if rows else pd.DataFrame()

    @cached_property
    def retrained(self) -> pd.DataFrame:
        """The trials that were trained on after the search, by the name of the result, which `model` takes.

        Columns: ``trial``, ``status``, the metrics of the last report, ``before`` (the trial's own metric),
        ``seconds``, ``usd`` and ``error``.
        """
        trials = {trial.name: trial for trial in self.recorded.trials}
        rows = [
            {
                "name": one.name,
                "trial": one.trial,
                "status": one.status,
                **one.metrics,
                "before": trials[one.trial].metrics.get(self.metric),
                "seconds": one.seconds,
                "usd": one.usd,
                "error": one.error,
            }
            for one in self.recorded.retrained.values()
        ]
        return pd.DataFrame(rows).set_index("name") if rows else pd.DataFrame()

    def model(self, trial: str | int) -> SentenceModel:
        """Return the model of a trial, by its name or number; ``0006-retrained`` is trial 6 after it was trained on.

        Raises:
            ArtifactError: If the trial has no model.
        """
        name = str(trial)
        is_retrained = name.endswith(RETRAINED_SUFFIX)
        place = retrained_folder if is_retrained else trial_folder
        loaded = load_model(place(self.folder, int(name.removesuffix(RETRAINED_SUFFIX))))
        assert isinstance(loaded, SentenceModel)
        return loaded

    @cached_property
    def best(self) -> SentenceModel:
        """The best model: of all trials, and of those that were trained on.

        Raises:
            ArtifactError: If no trial has reported yet.
        """
        best = self.recorded.best
        if best is None:
            raise ArtifactError(
                f"{address_of(self.folder)}: has no trial that reported {self.metric}; resume the sweep"
            )
        return self.model(self.recorded.best_model)

    @cached_property
    def ensemble(self) -> Ensemble:
        """The ensemble of the best trials.

        Raises:
            ArtifactError: If the sweep has none.
        """
        if not (self.folder / ENSEMBLE_FILE).is_file():
            raise ArtifactError(
                f"{address_of(self.folder)}: has no {ENSEMBLE_FILE}; "
                f"finish the sweep with 'raysent resume {shlex.quote(address_of(self.folder))}'"
            )
        return load_ensemble(self.folder)

    @property
    def scores(self) -> pd.DataFrame:
        """Scores of the evaluated trials on each task, as `evaluate` returns them."""
        return scores_frame(read_scores(self.folder / EVALUATION_FOLDER))

    @property
    def report(self) -> Path:
        """The report's file; it is written again where the folder has changed."""
        return write_report(self.folder)

    def study(self) -> optuna.Study:
        """Return an Optuna study with the sweep's trials, rebuilt from the journal."""
        return study_of(self.recorded)

    def resume(self, **options: Any) -> Sweep:
        """Resume the sweep; see `raysent.resume`."""
        return resume(self.folder, **options)


@dataclass(frozen=True)
class RunHealth:
    """What `doctor` found.

    Attributes:
        problems: The first bad line of each damaged file, as ``file:line: reason``; empty if all is well.
        repaired: What was repaired, in words.
        num_events: Events of the journal that can be read.
        num_entries: Entries of the ledger that can be read.
        spent_usd: What the sweep has spent, or at least has; None if that is unknown.
    """

    problems: tuple[str, ...]
    repaired: tuple[str, ...]
    num_events: int
    num_entries: int
    spent_usd: float | None


_ENDINGS = ("session", "interrupted", "completed")


def load(path: str | Path, *, trust_remote_code: bool = False) -> SentenceEncoder | Sweep | VectorCode:
    """Return what a folder holds, or a model by a scheme's name.

    - A folder of `train`, `expand`, `bag` or `average`, or of one trial of a sweep: a `SentenceModel`.
    - A folder of `sweep`: a `Sweep`, finished or not.
    - A folder of `ensemble`: an `Ensemble`.
    - A folder of `binarize --keep`: a `VectorCode`.

    Args:
        path: The folder, also in ``s3://``; or a name such as ``hash:50``, ``st:PATH`` or ``hf:PATH``.
        trust_remote_code: Whether code in a pretrained model's folder may run.

    Raises:
        RaysentError: If there is no such folder, or its files are truncated or of another kind.
    """
    with trusting(trust_remote_code):
        if isinstance(path, str) and is_scheme_name(path):
            return load_model(path)
        folder = open_folder(path)
        if (folder / SWEEP_FILE).is_file():
            return Sweep(folder)
        if (folder / CODE_FILE).is_file():
            return load_code(folder)
        return load_model(path)


def plan(  # noqa: PLR0913 - the options of the command
    space: Space,
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
    **limits: Any,
) -> SweepPlan:
    """Check everything that a sweep needs, and return what it would do; nothing is trained.

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
        limits: `trials`, `time`, `budget` and the like.

    Raises:
        RaysentError: As for `sweep`.
    """
    checked = _read_space(space, corpus=corpus, set=set, metric=metric, data=data, scale=scale, **limits)
    chosen = _tasks(checked, tasks, data, progress=progress)
    with ProgressLines(is_quiet=not progress) as bar:
        checked = fit_to_machine(checked, address=address, progress=bar)
        facts = prepare_space(checked, progress=bar, is_local=True)
    if progress:
        _print_notes(checked.config(checked.first_params()))
    estimate = estimate_locally(checked, num_concurrent=os.cpu_count() or 1)
    return SweepPlan(checked, _run_folder(run, checked.name), tuple(task.name for task in chosen), facts, estimate)


def sweep(  # noqa: PLR0913 - the options of the command
    space: Space,
    *,
    corpus: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    seed: int = 0,
    data: str | Path | None = None,
    tasks: Sequence[str | Task] | None = None,
    metric: str | Task | None = None,
    labels: Sequence[int | str] = (),
    scale: SpaceScale = "auto",
    address: str | None = None,
    progress: bool = True,
    listeners: Iterable[Listener] = (),
    track: Sequence[str] = (),
    callbacks: Sequence[Any] = (),
    **limits: Any,
) -> Sweep:
    """Search a space; then evaluate the best trials, combine them and write a report.

    Args:
        space: A search-space file, the bare name of a shipped one, its values, or a `SearchSpace`.
        corpus: Text to train on: a file, folder, glob, ``s3://`` address, or ``docs``, the embedded corpus.
        set: Dotted name -> value of the base run; a value ends the search over its name. ``search.NAME`` searches it.
        run: The run folder to create, also ``s3://BUCKET/FOLDER``; ``runs/NAME-DATE`` by default.
        seed: Seed of everything random.
        data: Folder of task files in SentEval's layout; by default the embedded tasks.
        tasks: Tasks to evaluate on: names, own tables and task files, or `raysent.Task`; by default all whose files
            are there.
        metric: What to rank trials by: a metric, or a task, which means the mean validation score of probes on it; by
            default the space's.
        labels: Numbers of labels at which the best trials, their ensemble and baselines are also scored at the end.
        scale: `auto` chooses the settings that the space lists under `fit` for the text, the machine and the time;
            `paper` uses the settings that the space's paper published.
        address: A running Ray cluster; by default this machine.
        progress: Whether to show progress on standard error.
        listeners: Called with each event of the journal as it is written.
        track: Trackers that receive trials and reports while the sweep runs, each named as for the function `track`.
            They run in a thread of their own; what fails there is one line, and the sweep continues.
        callbacks: Callbacks of your own, `ray.tune.Callback`. They see Ray Tune's trials, whose `config["trial"]` is
            the trial's name; they decide nothing, and are not called for trainings of `retrain`. One that raises is
            reported in a warning and is not called again.
        limits: `trials`, `concurrent`, `workers_per_trial`, `gpus_per_worker`, `time` ("30m"), `memory` ("4GiB"),
            `budget` ("40usd"), `deadline` ("6h"), `max_hourly` ("12usd"), `market`, `on_budget`, `baselines` (whether
            they are scored at the end), `retrain` (how many of the best configurations are trained on afterwards),
            `retrain_epochs`; see `raysent sweep --help`.

    Returns:
        The sweep. After Ctrl-C its `status` is ``interrupted``, and `Sweep.resume` continues it.

    Raises:
        ConfigError: If the space or an argument is wrong.
        DataError: If the corpus or a task's files cannot be used.
        ArtifactError: If the run folder is in use.
    """
    checked = _read_space(space, corpus=corpus, set=set, metric=metric, data=data, scale=scale, **limits)
    if address is not None and not is_submitted():
        # Workers on other machines have other working folders; those of a submitted job have a copy of its own.
        checked = with_absolute_paths(checked)
    chosen = _tasks(checked, tasks, data, progress=progress)
    folder = _run_folder(run, checked.name)
    options: dict[str, Any] = {"data": None if data is None else str(Path(data).resolve())}
    options["tasks"] = [task.spec for task in chosen]
    if labels:
        options["labels"] = list(labels)
    shows_plan = progress and not is_submitted()
    names = [task.name for task in chosen]
    lines = plan_lines(checked, run=address_of(folder), address=address, tasks=names) if shows_plan else []
    # A log has the plan only once the space is known to be free of mistakes, which are one line.
    if messages.is_terminal:
        _print_lines(lines)
    check_free(folder)
    with ProgressLines(is_quiet=not progress) as bar:
        checked = fit_to_machine(checked, address=address, progress=bar)
    record = SweepRecord(checked, seed, ["raysent", *sys.argv[1:]], address, options)
    estimate = estimate_locally(checked, num_concurrent=os.cpu_count() or 1) if address is None else None

    def on_prepared(facts: Mapping[str, Any]) -> None:
        if shows_plan:
            _print_lines([] if messages.is_terminal else lines)
            _print_notes(checked.config(checked.first_params()))
            _print_lines(
                [
                    *fitted_lines(checked),
                    size_line(checked, facts, address=address),
                    untrained_line(facts["pool"]),
                    "starting Ray and the processes of the first trials",
                ]
            )

    with (
        _stopped_at_once(folder, progress=progress),
        ProgressLines(is_quiet=not progress) as bar,
        _view(checked, folder, progress=progress) as view,
        TrackingThread(track, checked, folder, warn=_print_warning) as tracking,
    ):
        start_sweep(
            record,
            folder,
            listener=partial(_distribute, [view.on_event, _SaveEstimate(folder, estimate), tracking, *listeners]),
            progress=bar,
            on_prepared=on_prepared,
            spot=_spot_prices(checked),
            make_fleet=_make_fleet,
            callbacks=callbacks,
        )
    return _evaluated(folder, progress=progress)


def resume(
    run: str | Path,
    *,
    budget: str | None = None,
    deadline: str | None = None,
    accept_versions: bool = False,
    progress: bool = True,
    listeners: Iterable[Listener] = (),
    track: Sequence[str] = (),
    callbacks: Sequence[Any] = (),
) -> Sweep:
    """Resume an interrupted or killed sweep; then evaluate, combine and report as `sweep` does.

    No finished trial is trained again; a trial that was running continues from its last checkpoint.

    Args:
        run: The run folder.
        budget: Another budget, such as ``40usd``. What was spent counts.
        deadline: Another deadline, counted from the sweep's start.
        accept_versions: Continue with versions of PyTorch, NumPy or Optuna that give other bits than the recorded.
        progress: Whether to show progress on standard error.
        listeners: Called with each event of the journal as it is written.
        track: As for `sweep`; a tracker receives the events from now on.
        callbacks: As for `sweep`.

    Raises:
        RaysentError: If the folder holds no sweep, another process works on it, or its files are damaged.
    """
    recorded = read_sweep(open_folder(run))
    origin = Path(recorded.record.origin or Path.cwd())
    if not origin.is_dir() or origin.samefile(Path.cwd()):
        origin = Path.cwd()
    else:
        recorded = read_sweep(recorded.folder.absolute())
    # Relative paths of the space start from the folder in which the sweep was started.
    with contextlib.chdir(origin):
        return _resumed(
            recorded,
            budget,
            deadline,
            accept_versions=accept_versions,
            progress=progress,
            listeners=listeners,
            track=track,
            callbacks=callbacks,
        )


def _resumed(
    recorded: RecordedSweep,
    budget: str | None,
    deadline: str | None,
    *,
    accept_versions: bool,
    progress: bool,
    listeners: Iterable[Listener],
    track: Sequence[str],
    callbacks: Sequence[Any],
) -> Sweep:
    """Resume a sweep in the folder that it was started in."""
    folder = recorded.folder
    limits = _overrides({"budget": budget, "deadline": deadline}, {})
    if progress and messages.is_terminal and not is_submitted():
        num_ended = sum(trial.status in ENDED for trial in recorded.trials)
        _print_lines(
            [f"{recorded.space.name}: resumes; {num_ended} of {recorded.space.limits.trials} trials have ended"]
        )
    with (
        _stopped_at_once(folder, progress=progress),
        ProgressLines(is_quiet=not progress) as bar,
        _view(recorded.space, folder, progress=progress) as view,
        TrackingThread(track, recorded.space, folder, warn=_print_warning) as tracking,
    ):
        view.restore(recorded.events)
        resume_sweep(
            folder,
            limits=limits,
            accept_versions=accept_versions,
            listener=partial(_distribute, [view.on_event, tracking, *listeners]),
            progress=bar,
            spot=_spot_prices(recorded.space),
            make_fleet=_make_fleet,
            callbacks=callbacks,
        )
    return _evaluated(folder, progress=progress)


def track(run: str | Path, to: str, *, follow: bool = False) -> int:
    """Send the trials of a sweep to a tracker: TensorBoard, Optuna's storage, MLflow or Weights & Biases.

    Args:
        run: The run folder of a sweep, finished or not.
        to: The tracker and where it writes: ``tensorboard:DIR``, ``optuna:sqlite:///study.db``, ``mlflow:URI`` or
            ``wandb:PROJECT``.
        follow: Whether to wait for more events until the sweep has ended.

    Returns:
        The number of events of the sweep.

    Raises:
        RaysentError: If the folder is no sweep's, or the tracker is unknown, not installed or fails.
    """
    return track_events(open_folder(run), to, follow=follow)


def doctor(run: str | Path, *, repair: bool = False) -> RunHealth:
    """Check the journal and the ledger of a sweep, and repair what can be repaired without loss.

    Args:
        run: The run folder.
        repair: Whether to repair. Damaged files are kept beside the repaired ones.

    Returns:
        What is damaged, what was repaired, and what the sweep has spent.

    Raises:
        RaysentError: If the folder cannot be read; to repair, also if it is in a bucket or in use.
    """
    folder = open_folder(run)
    repaired = repair_run(folder).repaired if repair else ()
    found = check_files(folder)
    return RunHealth(tuple(map(str, found.problems)), repaired, found.num_events, found.num_entries, found.spent_usd)


def replay(run: str | Path) -> Replayed:
    """Derive every decision of a sweep again from its journal, and compare.

    Args:
        run: The run folder.

    Returns:
        The comparison; its `difference` is empty if all decisions are the same.

    Raises:
        ArtifactError: If the folder is no sweep's, or its journal is damaged.
    """
    recorded = read_sweep(open_folder(run))
    return replay_sweep(recorded.space, seed=recorded.record.seed, events=recorded.events)


@overload
def train(space: Space | SentenceModel, *, seeds: None = None, **options: Any) -> SentenceModel: ...


@overload
def train(space: Space | SentenceModel, *, seeds: int, **options: Any) -> list[SentenceModel]: ...


def train(  # type: ignore[misc]  # noqa: PLR0913 - as above; the overloads leave out what they share
    space: Space | SentenceModel,
    *,
    corpus: str | Path | None = None,
    epochs: float | None = None,
    set: Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    from_scratch: bool = False,
    scale: SpaceScale = "auto",
    workers: int = 1,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    progress: bool = True,
) -> SentenceModel | list[SentenceModel]:
    """Train the base run of a space, or a finished trial again, on Ray Train workers.

    Of a space, what it searches is left out. A trial is trained again from its weights: its words are kept, other words
    of a new text are unknown, and the optimizer starts new. Training continues from the last checkpoint of the run
    folder, if it has one.

    Args:
        space: As for `sweep`; or the folder of a trial or a training, or its model, such as `Sweep.best`.
        corpus: Text to train on.
        epochs: Passes over the text in this training.
        set: Dotted name -> value of the run.
        run: The run folder; with `seeds`, each training has a folder ``seed-N`` in it.
        seed: Seed of everything random, of several the first; by default the space's or 0, or one that follows the
            trial's.
        seeds: Number of trainings, which differ in their seed alone.
        from_scratch: Train a trial from new weights, with its configuration alone.
        scale: As for `sweep`, of a space.
        workers: Number of Ray Train workers.
        gpus_per_worker: GPUs of each worker; by default one if the cluster has enough, else none.
        address: A running Ray cluster; by default this machine.
        progress: Whether to show progress on standard error.

    Returns:
        The model; with `seeds`, a list of models.

    Raises:
        TrainingError: If training cannot continue, for instance because the loss is not finite.
        RaysentError: If the space, the trial, the text or the folder is wrong.
    """
    changes = {
        **({} if corpus is None else {"corpus.path": str(corpus)}),
        **({} if epochs is None else {"training.epochs": float(epochs)}),
        **(set or {}),
    }
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds: must be at least 1; given {seeds}")
    options: dict[str, Any] = {
        "run": run, "seed": seed, "seeds": seeds, "workers": workers, "gpus_per_worker": gpus_per_worker,
        "address": address, "progress": progress,
    }  # fmt: skip
    trial = trial_of(space)
    if trial is not None:
        trained = train_trial(trial, overrides=_overrides({}, changes), from_scratch=from_scratch, **options)
    else:
        if from_scratch:
            raise ConfigError("from_scratch: must be used with a trial; a space is always trained from scratch")
        assert not isinstance(space, SentenceModel)
        trained = train_space(_read_space(space, set=changes, scale=scale), **options)
    for one in trained:
        if one.outcome.status == "nan":
            raise TrainingError(f"{one.address}: {one.outcome.message}")
    return trained[0].model if seeds is None else [one.model for one in trained]


def trial_of(space: Space | SentenceModel) -> str | None:
    """Return the folder of a training or a trial that is named instead of a space; None for a space.

    Raises:
        ConfigError: If it is a model that was not loaded from a folder.
    """
    if isinstance(space, SentenceModel):
        if space.source is None:
            raise ConfigError("model: must have been loaded from the folder of a training; name that folder")
        return space.source
    if not isinstance(space, (str, Path)):
        return None
    name, path = str(space), Path(space)
    is_bare = path.name == name
    if path.is_dir():
        # A folder may have the bare name of a space.
        return name if not is_bare or any(path.glob("*.json")) else None
    is_space = is_bare or path.is_file() or path.suffix in (".yaml", ".yml")
    return name if is_remote(name) or not is_space else None


def train_space(space: SearchSpace, *, seed: int | None = None, **options: Any) -> list[TrainedRun]:
    """Train the base run of a checked space and write its report; options as for `train`.

    Raises:
        RaysentError: With the line of the search space that is at fault, if one is.
    """
    progress, address = options.get("progress", True), options.get("address")
    space = space if address is None else with_absolute_paths(space)
    with ProgressLines(is_quiet=not progress) as bar:
        space = fit_to_machine(space, address=address, is_sweep=False, progress=bar)
    _print_lines(fitted_lines(space) if progress else [])
    config = space.config({})
    first = config.seed if seed is None else seed
    configs = [config.model_copy(update={"seed": first + number}) for number in range(options.get("seeds") or 1)]
    try:
        return _train_all(configs, space.name, interruptions_per_hour=space.cost.interruptions_per_hour, **options)
    except RaysentError as error:
        raise space.located(error, {}) from None


def train_trial(
    trial: str | Path,
    *,
    overrides: Sequence[Override] = (),
    from_scratch: bool = False,
    seed: int | None = None,
    **options: Any,
) -> list[TrainedRun]:
    """Train a finished trial or training again and write its report; options as for `train`.

    Args:
        trial: Its folder.
        overrides: Changed values of the run.
        from_scratch: Whether to start with new weights.
        seed: The first seed.
        options: As for `train`.

    Raises:
        RaysentError: If the folder holds no finished training, or a value is wrong.
    """
    folder = open_folder(trial)
    finished = read_finished(folder)
    is_trial = folder.parent.name == TRIALS_FOLDER
    above = folder.parent.parent
    origin = load_record(above).origin if is_trial and (above / SWEEP_FILE).is_file() else ""
    if options.get("address") is not None or (origin and Path(origin).is_dir() and Path(origin) != Path.cwd()):
        # Relative paths of a trial start from the folder in which its sweep was started.
        with contextlib.chdir(origin or Path.cwd()):
            values = with_files(
                finished.config.model_dump(mode="json"), lambda text, _: str(Path(text).expanduser().absolute())
            )
        finished = replace(finished, config=RunConfig.model_validate(values))
    seed = next((override.value for override in overrides if override.name == "seed"), seed)
    if not from_scratch:
        check_weights(finished)
    first = next_seed(finished.config, from_scratch=from_scratch) if seed is None else seed
    configs = [
        retrained_config(finished.config, folder, overrides=overrides, seed=first + number, from_scratch=from_scratch)
        for number in range(options.get("seeds") or 1)
    ]
    name = f"{above.name}-{folder.name}" if is_trial else f"{folder.name}-retrained"
    return _train_all(configs, name, before=finished.outcome, **options)


def _train_all(  # noqa: PLR0913 - as above
    configs: Sequence[RunConfig],
    name: str,
    *,
    run: str | Path | None = None,
    seeds: int | None = None,
    workers: int = 1,
    gpus_per_worker: float | None = None,
    address: str | None = None,
    progress: bool = True,
    interruptions_per_hour: float = 0.0,
    before: Outcome | None = None,
) -> list[TrainedRun]:
    """Train runs that differ in their seed alone, one after another, and write reports; options as for `train`."""
    folder = _run_folder(run, name)
    folders = [folder] if seeds is None else [folder / f"{SEED_FOLDER}{config.seed}" for config in configs]
    if seeds is not None and (folder / RUN_FILE).exists():
        raise ArtifactError(f"{address_of(folder)}: holds a training; name another --run")
    for config, place in zip(configs, folders, strict=True):
        _check_free(place, config)
    with ProgressLines(is_quiet=not progress) as bar:
        training_data = open_training_data(configs[0], progress=bar)
        check_run(configs[0], training_data, num_workers=workers)
    words = words_line(configs[0], training_data)
    if progress:
        _print_notes(configs[0])
        _print_lines([words] if words else [])
    trained = []
    try:
        with ray_session(address) if len(configs) > 1 else contextlib.nullcontext():
            for config, place in zip(configs, folders, strict=True):
                if progress:
                    _announce(config, place)
                with TrainingView(messages, place, is_quiet=not progress) as view:
                    outcome = train_run(
                        config,
                        place,
                        num_workers=workers,
                        gpus_per_worker=gpus_per_worker,
                        address=address,
                        on_report=view.on_report,
                        interruptions_per_hour=interruptions_per_hour,
                    )
                trained.append(TrainedRun(place, outcome, write_report(place), before))
    except KeyboardInterrupt:
        again = f"--run {shlex.quote(address_of(folder))}"
        messages.print(f"interrupted; the same command with {again} continues from its last checkpoint", soft_wrap=True)
        raise
    return trained


def distill(  # noqa: PLR0913 - as above
    teacher: str | Path | SentenceEncoder | Sweep,
    *,
    into: str | Mapping[str, Any] = "bag",
    dim: int | None = None,
    corpus: str | Path | None = None,
    tasks: Sequence[str | Task] | None = None,
    data: str | Path | None = None,
    epochs: float | None = None,
    time: str | None = None,
    set: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    seed: int = 0,
    address: str | None = None,
    progress: bool = True,
) -> Distilled:
    """Train a student that learns the vectors of a model or the joined vectors of an ensemble, on text without labels.

    The teacher encodes the text once; its vectors are kept in the cache. The student is a training like any other: its
    folder loads, resumes, evaluates, exports and joins ensembles, and does not need the teacher.

    Args:
        teacher: Folder of a training, a trial, a composition, an ensemble or a sweep with an ensemble; what `load`
            returned for it; or a name such as ``st:PATH``.
        into: The student's encoder: its type, such as ``bag``, ``cnn``, ``gru`` or ``transformer``, or its settings.
        dim: Size of the target, to which the teacher's vectors are projected; 1024 by default.
        corpus: Text to train on; by default that of the teacher's first member.
        tasks: Tasks on which the loss of the projection is measured first, and on which the student is compared with
            its teacher in the end. A student of an ensemble also learns its log-probabilities on those that it was
            made on. By default none.
        data: Folder of task files in SentEval's layout.
        epochs: Passes over the text; 1 by default.
        time: Time of training instead, such as ``30m``: as many steps as fit on this machine.
        set: Dotted name -> value of the run, such as ``objective.max_loss``.
        output: The run folder; ``runs/distill-DATE`` by default. A training of the same student in it is resumed.
        seed: Seed of everything random.
        address: A running Ray cluster; by default this machine.
        progress: Whether to show progress on standard error.

    Returns:
        The student's training, and where tasks are named, the front of score against time to encode.

    Raises:
        ConfigError: If a value is wrong, or the projection loses more than ``objective.max_loss``.
        TrainingError: If the loss is not finite.
        RaysentError: If the teacher, the text, a task or the folder cannot be used.
    """
    changes = {
        **({} if epochs is None else {"training.epochs": float(epochs)}),
        **({} if dim is None else {"objective.dim": dim}),
        **(set or {}),
    }
    return train_student(
        _teacher_name(teacher),
        into,
        overrides=_overrides({}, changes),
        corpus=None if corpus is None else str(corpus),
        tasks=tasks,
        data=None if data is None else Path(data),
        time=time,
        output=output,
        seed=seed,
        address=address,
        progress=progress,
    )


def train_student(  # noqa: PLR0913 - as above
    teacher: str,
    into: str | Mapping[str, Any],
    *,
    overrides: Sequence[Override],
    corpus: str | None = None,
    tasks: Sequence[str | Task] | None = None,
    data: Path | None = None,
    time: str | None = None,
    output: str | Path | None = None,
    seed: int = 0,
    address: str | None = None,
    progress: bool = True,
) -> Distilled:
    """Return what `distill` returns; `overrides` are changed values of the run, other arguments as there."""
    chosen = [] if tasks is None else resolve_tasks(tasks, data, scorings=PROBED)
    config = student_config(
        teacher,
        {
            "encoder": {"type": into} if isinstance(into, str) else dict(into),
            "objective": {
                "tasks": [task.spec for task in chosen] or None,
                "data": None if data is None else str(data),
            },
            "seed": seed,
        },
        corpus=corpus,
        overrides=overrides,
    )
    place = _run_folder(output, "distill")
    if time is not None:
        config = _within(config, time, place, progress=progress)
    (trained,) = _train_all([config], "distill", run=place, address=address, progress=progress)
    if trained.outcome.status == "nan":
        raise TrainingError(f"{trained.address}: {trained.outcome.message}")
    if not chosen:
        return Distilled(trained)
    front = _student_front(place, teacher, chosen, data, progress=progress)
    # Again, with the student's scores.
    return Distilled(replace(trained, report=write_report(place)), front)


def _teacher_name(teacher: str | Path | SentenceEncoder | Sweep) -> str:
    """Return the folder or the name of a teacher, as `load` takes it.

    Raises:
        ConfigError: If it is a model that was not loaded from a folder.
    """
    if isinstance(teacher, Sweep):
        return str(teacher.folder)
    if not isinstance(teacher, SentenceEncoder):
        return str(teacher)
    if teacher.source is None:
        raise ConfigError("teacher: must have been loaded from a folder; name that folder")
    return teacher.source


def _within(config: RunConfig, time: str, folder: Path, *, progress: bool) -> RunConfig:
    """Return a run with as many steps as fit into a time.

    Raises:
        ConfigError: If the time is no duration.
    """
    try:
        seconds = parse_duration(time)
    except ConfigError as error:
        raise ConfigError(f"--time: {error}") from None
    with ProgressLines(is_quiet=not progress) as bar:
        return within_time(config, open_training_data(config, progress=bar), seconds, folder=folder)


def _student_front(
    folder: Path, teacher: str, tasks: Sequence[Task], data: Path | None, *, progress: bool
) -> tuple[FrontRow, ...]:
    """Evaluate a student and the members of its teacher; records are kept in the student's folder."""
    members = teacher_members(teacher)
    place = open_folder(teacher) if not is_scheme_name(teacher) else Path()
    method = read_result(place).method if (place / ENSEMBLE_FILE).is_file() else "validation"
    student, *others = expand_names([str(folder), *members])
    known = tuple(Path(one) / EVALUATION_FOLDER for one in (*members, str(place)) if Path(one).is_dir())
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        evaluator = Evaluator(folder / EVALUATION_FOLDER, data, progress=bar, other_outputs=known)
        return student_front(student, evaluator.records([student, *others], tasks), method=method)


def evaluate(  # noqa: PLR0913 - as above
    models: Model | Sequence[Model],
    *,
    tasks: Sequence[str | Task] | None = None,
    mteb: Sequence[str | Any] | None = None,
    data: str | Path | None = None,
    protocol: str = "fast",
    config: str | None = None,
    output: str | Path | None = None,
    baselines: bool | None = None,
    processes: int | None = None,
    address: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Evaluate models on tasks: fit a probe on frozen vectors, or correlate similarities with human ratings.

    Args:
        models: Folders of trainings, trials, ensembles or sweeps (which stand for all their trials), names such as
            ``hash:50``, ``st:PATH`` and ``hf:PATH``, or encoders in memory.
        tasks: Names of tasks, own tables and task files, or `raysent.Task`; by default all whose files are
            in `data`, or the embedded ones; with `mteb`, none.
        mteb: Tasks of the mteb package: names, Python files that define tasks, or tasks themselves. They run in this
            process.
        data: Folder of task files in SentEval's layout.
        protocol: ``fast``, ``senteval`` or ``kiros``. Scores of different protocols are not comparable.
        config: A configuration of the protocol, such as ``prototyping``.
        output: Folder of the records, which are read instead of made again; by default ``evaluation/`` of the first
            model's folder.
        baselines: Whether to also evaluate what every model should beat: `tfidf`, the mean of the first model's word
            vectors, that model at its start, and random word vectors; by default with the protocol ``fast``, and
            not on tasks of `mteb`.
        processes: Evaluate so many models and tasks at the same time.
        address: Evaluate on a running Ray cluster.
        trust_remote_code: Whether code in a pretrained model's folder may run.
        progress: Whether to show progress on standard error.

    Returns:
        One row per model and task: ``model``, ``task``, ``protocol``, ``validation``, ``test`` (percent, or a
        correlation times 100), ``low`` and ``high`` (95 % bootstrap interval of ``test``), and further measures.

    Raises:
        RaysentError: If a model, a task or the protocol is unknown, or files are missing or wrong; if mteb is needed
            and not installed.
    """
    named = [models] if isinstance(models, (str, Path, SentenceEncoder)) else list(models)
    with trusting(trust_remote_code):
        return scores_frame(
            evaluate_models(
                named,
                tasks=tasks,
                mteb=mteb,
                data=None if data is None else Path(data),
                protocol=protocol_name(protocol, config),
                output=None if output is None else Path(output),
                baselines=baselines,
                map_jobs=map_jobs(processes, address),
                progress=progress,
            )
        )


def evaluate_models(  # noqa: PLR0913 - as above
    models: Sequence[Model],
    *,
    tasks: Sequence[str | Task] | None = None,
    mteb: Sequence[str | Any] | None = None,
    data: Path | None = None,
    protocol: str = "fast",
    output: Path | None = None,
    baselines: bool | None = None,
    map_jobs: MapJobs | None = None,
    progress: bool = True,
) -> list[AnyScore]:
    """Return the scores behind `evaluate`, in the order given; arguments as there."""
    folder = output or scores_folder(models) / EVALUATION_FOLDER
    chosen = [] if tasks is None and mteb is not None else resolve_tasks(tasks, data)
    if progress:
        print_remarks(chosen)
    given = models
    has_baselines = (protocol == "fast" and bool(chosen)) if baselines is None else baselines
    if has_baselines:
        models = [*models, *(one.path for one in baselines_of(expand_names(models), protocol=protocol))]
    scores: list[AnyScore] = []
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        if chosen or mteb is None:
            scores += Evaluator(folder, data, protocol, progress=bar, map_jobs=map_jobs).evaluate(models, chosen)
        if mteb is not None:
            named = expand_names(models if baselines else given)
            with_vectors = [one for one in named if not (baselines and one.path in LEXICAL)]
            scores += evaluate_on_mteb(with_vectors, mteb, output=folder, progress=bar)
    return scores


def ensemble(  # noqa: PLR0913 - as above
    models: Sequence[Model],
    *,
    tasks: Sequence[str | Task] | None = None,
    data: str | Path | None = None,
    method: str = "validation",
    output: str | Path | None = None,
    top: int | None = None,
    max_ms: float | None = None,
    max_bytes: int | None = None,
    join_vectors: bool = False,
    baselines: bool | None = None,
    protocol: str = "fast",
    config: str | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> Ensemble:
    """Combine models into an ensemble, score it and save it.

    Args:
        models: As for `evaluate`.
        tasks: Names of tasks, own tables and task files, or `raysent.Task`; by default all whose files are
            in `data`, or the embedded ones.
        data: Folder of task files in SentEval's layout.
        method: ``validation`` (weights are the members' validation scores), ``uniform``, ``best``, ``pool``,
            ``greedy``, ``linear``, ``stack``; or ``all``, which keeps the method of the best cross-validated score.
        output: The ensemble's folder; ``runs/ensemble-DATE`` by default.
        top: Keep this number of members, the best by validation.
        max_ms: Most milliseconds that all members may take to encode 1,000 sentences.
        max_bytes: Most bytes of all members' files.
        join_vectors: Whether to also score a probe on the members' joined vectors.
        baselines: Whether to also score what the best member should beat, and what training and combining gain over
            it; by default as for `evaluate`.
        protocol: As for `evaluate`.
        config: As for `evaluate`.
        trust_remote_code: As for `evaluate`.
        progress: Whether to show progress on standard error.

    Returns:
        The ensemble; its `result` has weights and scores with intervals.

    Raises:
        RaysentError: If an argument is wrong, or members cannot be combined.
    """
    named = [model for model in models if isinstance(model, (str, Path))]
    folder = ensemble_folder(named) if output is None else open_folder(output)
    data_dir = None if data is None else Path(data)
    chosen = resolve_tasks(tasks, data_dir, scorings=PROBED, default={"accuracy"})
    if progress:
        print_remarks(chosen)
    with (
        trusting(trust_remote_code),
        ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar,
    ):
        combine(
            models,
            output=folder,
            tasks=chosen,
            data_dir=data_dir,
            method=method,
            top=top,
            limits=CostLimits(max_ms, max_bytes),
            joins_vectors=join_vectors,
            baselines=protocol == "fast" if baselines is None else baselines,
            protocol=protocol_name(protocol, config),
            progress=bar,
        )
        return load_ensemble(folder)


def compose(models: Sequence[str | Path], *, output: str | Path) -> Composition:
    """Put trained models side by side as one model in a folder of its own.

    Args:
        models: Folders of trainings or trials; a sweep stands for its trials.
        output: Folder of the new model; must be new or empty.

    Returns:
        The composition, as `load` returns it.

    Raises:
        ConfigError: If fewer than two models are given, one has a code, or the folder is not empty.
        ArtifactError: If a folder holds no model.
    """
    places: dict[str, Path] = {}
    for member in expand_names(models):
        found = model_folder(Path(member.path))
        if found is None:
            raise ConfigError(f"{member.path}: must be a trained model to be composed; name the folder of a training")
        places[member.folder] = found
    return compose_models(places, open_folder(output))


@dataclass(frozen=True)
class Whitened:
    """A whitened model, and how its dimension was chosen.

    Attributes:
        model: The model; unchanged where its own vectors have the best score.
        dimension: Dimensions kept; None where the model is unchanged.
        rank: Directions in which the vectors of the sample vary.
        num_sentences: Sentences of the sample.
        metric: The metric of `scores`; empty where the caller named the dimension.
        scores: Dimension -> validation score; None stands for the model as it is.
    """

    model: SentenceModel
    dimension: int | None
    rank: int
    num_sentences: int
    metric: str = ""
    scores: Mapping[int | None, float] = field(default_factory=dict)


def whiten(  # noqa: PLR0913 - as above
    model: str | Path | SentenceModel,
    *,
    corpus: str | Path | None = None,
    dimension: int | Literal["auto", "full"] = "auto",
    metric: str | Task | None = None,
    data: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    num_sentences: int = 15_000,
    output: str | Path | None = None,
    progress: bool = True,
) -> Whitened:
    """Whiten the vectors of a trained model: keep the directions of the largest variance, each with the same variance.

    The transform is computed from sentences without labels and stored with the model; the encoder is not trained.

    Args:
        model: Folder of a training or a trial, or its model.
        corpus: Text to compute it from; by default the model's training text.
        dimension: Dimensions to keep; ``full`` keeps all in which the vectors vary; ``auto`` takes the best of the
            model as it is, 64, 128, 256, … and ``full`` by `metric`.
        metric: A task with a probe, scored on its validation rows; or ``pearson``, with `set` naming the sets of pairs.
            By default what the model's training was validated on.
        data: Folder of task files.
        set: Dotted name -> value of `corpus` and `validation`, such as ``validation.sts``.
        num_sentences: Sentences of the sample, spread evenly over the text.
        output: Folder of the new model; None does not save it.
        progress: Whether to show progress on standard error.

    Returns:
        The new model and how it was chosen.

    Raises:
        RaysentError: If the model has a code, or a file, a metric or the dimension is wrong.

    Source: Su et al., 2021, section 3.3.
    """
    given = load_model(model) if isinstance(model, (str, Path)) else model
    if not isinstance(given, SentenceModel):
        raise ConfigError(f"{model}: must be a trained model; a composition or an ensemble has whitened members")
    if dimension not in ("auto", "full") and not (isinstance(dimension, int) and dimension >= 1):
        raise ConfigError(f"dimension: must be a positive whole number, full or auto; given {dimension!r}")
    run = load_run(Path(given.source)) if given.source and (Path(given.source) / RUN_FILE).is_file() else None
    values = {**({} if metric is None else metric_values(metric, data)), **(set or {})}
    values = {name: value for name, value in values.items() if not name.startswith(("metric", "evaluation."))}
    sources = _whitening_sources(run, values, corpus=corpus)
    name = _whitening_metric(metric, sources.validation) if dimension == "auto" else ""
    with ProgressLines(is_quiet=not progress) as bar:
        is_own = run is not None and corpus is None and not any(key.startswith("corpus.") for key in values)
        if is_own and run is not None:
            text = open_training_data(run, progress=bar)
        else:
            prepared = prepare(sources.corpus, VocabularyConfig(), words=given.vocabulary, progress=bar)
            text = TrainingData(given.vocabulary, corpus=prepared, max_length=given.max_length)
    found = Whitening(given, text.sample(num_sentences))
    result = Whitened(given, None, found.rank, found.num_sentences)
    if dimension == "auto":
        result = _best_whitening(result, found, name, sources.validation)
    else:
        kept = found.rank if dimension == "full" else dimension
        result = replace(result, model=found.apply(kept), dimension=kept)
    if output is not None:
        result.model.save(open_folder(output))
    return result


class _WhiteningSources(StrictModel):
    """The text and the validation set of `whiten`."""

    corpus: CorpusConfig = CorpusConfig()
    validation: ValidationConfig = ValidationConfig()


def _whitening_sources(
    run: RunConfig | None, values: Mapping[str, Any], *, corpus: str | Path | None
) -> _WhiteningSources:
    """Return the settings of `whiten`: those of the model's training with what the caller sets."""
    if run is None and corpus is None and "corpus.path" not in values:
        raise ConfigError("corpus: must name text, because the model's folder has no run.json; use --corpus PATH")
    own: dict[str, Any] = {} if run is None else {"validation": run.validation.model_dump(exclude_none=True)}
    overrides = _overrides({"corpus": None if corpus is None else str(corpus)}, values)
    for override in overrides:
        set_dotted(own, override.name, override.value)
    options = {tuple(override.name.split(".")): override.option for override in overrides}
    return validate(_WhiteningSources, Document(values=own, options=options))


def _whitening_metric(metric: str | Task | None, validation: ValidationConfig) -> str:
    """Return the name of the metric that the dimension is chosen by.

    Raises:
        ConfigError: If there is none, or it does not read the finished vectors.
    """
    present = [
        *(["pearson"] if validation.sts is not None or validation.similarity is not None else []),
        *(["downstream"] if validation.downstream is not None else []),
    ]
    wanted = metric if metric in METRICS else None if metric is None else "downstream"
    if wanted in present or (wanted is None and present):
        return str(wanted or present[0])
    if wanted in (None, "pearson"):
        raise ConfigError(
            "dimension auto: must have validation scores to choose by; name --metric TASK, or --metric pearson with "
            "--set validation.sts=FOLDER; or a dimension, such as --dimension 256"
        )
    raise ConfigError(f"--metric {wanted}: must be pearson or a task, which read whitened vectors")


def _best_whitening(unchanged: Whitened, found: Whitening, metric: str, validation: ValidationConfig) -> Whitened:
    """Return the model of the best validation score; of equal ones the model as it is, else the fewest dimensions."""
    vocabulary, max_length = unchanged.model.vocabulary, unchanged.model.max_length
    needed = validation if metric == "downstream" else validation.model_copy(update={"downstream": None})
    validator = Validator([metric], needed, vocabulary=vocabulary, max_length=max_length)
    scores: dict[int | None, float] = {None: validator.scores(unchanged.model.eval())[metric]}
    for dimension in found.dimensions():
        scores[dimension] = validator.scores(found.apply(dimension))[metric]
    best = max(scores, key=scores.__getitem__)
    model = unchanged.model if best is None else found.apply(best)
    return replace(unchanged, model=model, dimension=best, metric=metric, scores=scores)


def reproduce(
    paper: str,
    *,
    tables: Sequence[str] | None = None,
    claims: Sequence[str] = (),
    scale: PaperScale = "small",
    data: str | Path = "data",
    output: str | Path | None = None,
    max_hours: float | None = None,
    progress: bool = True,
) -> Reproduction:
    """Train a paper's models and evaluate them beside the reported figures; continues after an interruption.

    Args:
        paper: Name of a shipped paper, such as ``quick_thoughts``, or a file.
        tables: Numbers of the tables; all by default.
        claims: Claims to run on several seeds; ``all`` for every one.
        scale: ``small``, or ``paper`` for the published settings.
        data: Folder of corpora, pairs, vectors and tasks.
        output: Folder of models, records and results; ``runs/PAPER-SCALE`` by default.
        max_hours: No model is begun after this time.
        progress: Whether to show progress on standard error.

    Returns:
        Tables and claims; what could not run has a reason.

    Raises:
        ConfigError: If the paper, a table or a claim is unknown.
    """
    folder = Path("runs") / f"{Path(paper).stem}-{scale}" if output is None else Path(output)
    return reproduce_paper(
        paper,
        data=Path(data),
        output=folder,
        scale=scale,
        tables=tables,
        claims=claims,
        max_hours=max_hours,
        progress=(lambda line: messages.print(line, soft_wrap=True)) if progress else None,
    )


def plan_reproduction(
    paper: str,
    *,
    tables: Sequence[str] | None = None,
    claims: Sequence[str] = (),
    scale: PaperScale = "small",
    data: str | Path = "data",
) -> list[ModelEstimate]:
    """Return the models of a paper's tables and claims, with parameters, hours and dollars; nothing is trained.

    Arguments are those of `reproduce`.
    """
    found = read_paper(paper)
    wanted = wanted_models(found, tables=tables, claims=claims)
    return estimate(found, wanted, scale=scale, data=Path(data))


def label_curves(
    models: Model | Sequence[Model],
    *,
    labels: Sequence[int | str] = DEFAULT_SIZES,
    tasks: Sequence[str | Task] | None = None,
    data: str | Path | None = None,
    method: str = "validation",
    baselines: bool = True,
    output: str | Path | None = None,
    progress: bool = True,
) -> list[LabelCurve]:
    """Score models, baselines and their ensembles against the number of labels, and keep the scores.

    Args:
        models: As for `evaluate`; two or more are also combined.
        labels: Numbers of labels, or ``all``.
        tasks: As for `evaluate`; only tasks with classes have curves.
        data: Folder of task files in SentEval's layout.
        method: How members are combined; as for `ensemble`.
        baselines: Whether to score baselines too.
        output: Folder that gets ``label_curves/``; by default the first model's folder.
        progress: Whether to show progress on standard error.

    Returns:
        One curve for each task; its `sentence` says from how many labels on which model is best.

    Raises:
        RaysentError: If an argument is wrong, or files are missing or wrong.
    """
    named = [models] if isinstance(models, (str, Path, SentenceEncoder)) else list(models)
    data_dir = None if data is None else Path(data)
    chosen = resolve_tasks(tasks, data_dir, scorings={"accuracy"})
    folder = Path(output) if output is not None else scores_folder(named)
    members = expand_names(named)
    others = baselines_of(members) if baselines else []
    curves = []
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        for task in chosen:
            rows = task.load(data_dir)
            assert isinstance(rows, TaskData)
            curves.append(label_curve(rows, members, others, sizes=labels, method=method, progress=bar))
    write_curves(folder, curves)
    return curves


def encode_file(  # noqa: PLR0913 - as above
    model: str | Path,
    file: str | Path | None,
    *,
    output: Path,
    column: str | None = None,
    batch_size: int = 512,
    normalize: bool = False,
    precision: str = "float32",
    bfloat16: bool = False,
    processes: int | None = None,
    progress: bool = True,
) -> tuple[int, int]:
    """Encode the lines or rows of a file into a file of vectors.

    Args:
        model: As for `load`.
        file: One sentence per line; or a table, Markdown or HTML, as `raysent.data.texts.read_texts` reads them; also
            in ``s3://``. None for lines from standard input.
        output: The file to write: ``.npy``, ``.npz`` (``vectors``) or ``.parquet`` (``text``, ``vector``); float32
            [sentences, dim], or uint8 [sentences, ceil(bits / 8)].
        column: Column of the text of a table; by default ``text``, else ``sentence``.
        batch_size: Sentences per batch.
        normalize: Whether each vector gets length 1.
        precision: ``float32``; or ``ubinary``, the bits of a model with a code, eight per byte.
        bfloat16: Whether products are computed in bfloat16; only for trained models.
        processes: Number of processes; by default as many as pay.
        progress: Whether to show progress on standard error.

    Returns:
        The shape of the array.

    Raises:
        RaysentError: If the model cannot do what is asked, or a file cannot be read or written.
    """
    encoder = load_model(model)
    encoding = Encoding(precision, normalize=normalize, batch_size=batch_size, bfloat16=bfloat16)
    encoding.check(encoder, model)
    check_vector_file(output)
    sentences, found = read_texts(None if file is None else str(file), column=column)
    blocks = list(batched(sentences, BLOCK_SENTENCES))
    if processes is None:
        processes = min(num_processes_for(None, bytes_each=PROCESS_BYTES), max(len(blocks) // _LEAST_BLOCKS, 1))
    encoded: list[np.ndarray] = []
    with ProgressLines(is_quiet=not progress) as bar:
        for vectors in encode_blocks(encoder, blocks, num_processes=processes, **encoding.options):
            encoded.append(encoding.rows(vectors))
            bar("encoding", sum(len(one) for one in encoded), len(sentences))
    array = np.concatenate(encoded)
    write_vectors(output, array, sentences)
    # Last, since a mistake is one line.
    if found and column is None and progress:
        messages.print(f"{file}: text = '{found}' (found by name)", style="dim", soft_wrap=True)
    return array.shape[0], array.shape[1]


def encode_corpus(  # noqa: PLR0913 - as above
    model: str | Path | SentenceEncoder,
    input: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    column: str | None = None,
    splits_sentences: bool = False,
    keeps_text: bool = True,
    precision: str = "float32",
    normalize: bool = False,
    batch_size: int = 512,
    bfloat16: bool = False,
    workers: int | None = None,
    address: str | None = None,
    time: str | None = None,
    budget: str | None = None,
    max_hourly: str | None = None,
    usd_per_hour: float | None = None,
    progress: bool = True,
) -> EncodedCorpus:
    """Encode many files into a folder with a Parquet file for each; another call continues where one stopped.

    A Parquet file appears whole or not at all. Files that were encoded by the same model with the same settings are
    skipped unless their text has changed. The files are bit-identical whatever the number of processes. A Parquet file
    has the columns `file`, `row` (from 0), `text`, and `vector`, a list of fixed size.

    Args:
        model: As for `load`; on a cluster, its folder must be reachable from every machine.
        input: Files, folders, globs or ``s3://`` addresses of text, as a corpus for training is named.
        output: The folder, also in ``s3://``.
        column: Column of the text of tables; by default ``text``, else ``sentence``.
        splits_sentences: Whether running text is split into sentences, as for training; otherwise each line or row has
            a vector.
        keeps_text: Whether the texts are written beside their vectors.
        precision: ``float32``, vectors [dim]; or ``ubinary``, uint8 [ceil(bits / 8)], the bits of a model with a code.
        normalize: Whether each vector gets length 1.
        batch_size: Sentences per batch.
        bfloat16: Whether products are computed in bfloat16; only for trained models.
        workers: Processes of this machine, by default as many as pay; or files at the same time on a cluster, by
            default one per core.
        address: A running Ray cluster, which encodes one file per core; a file is encoded again if its machine or
            process is lost.
        time: Wall-clock limit, such as ``30m``.
        budget: Dollars for all calls with this folder, such as ``5usd``; needs `usd_per_hour`.
        max_hourly: The most that all machines together may cost an hour.
        usd_per_hour: Price of each machine.
        progress: Whether to show progress on standard error.

    Returns:
        What was done, and `stopped`, the limit that was reached. Files that were complete by then are kept.

    Raises:
        ConfigError: If an argument is wrong.
        DataError: If a file cannot be read.
        ArtifactError: If the folder has vectors of another model or with other settings, or cannot be written.
        WorkerError: If the same file has ended several processes.
    """
    with ProgressLines(prefix="encoding, ", is_quiet=not progress) as bar:
        return encode_files(
            model,
            input,
            output,
            column=column,
            splits_sentences=splits_sentences,
            keeps_text=keeps_text,
            encoding=Encoding(precision, normalize=normalize, batch_size=batch_size, bfloat16=bfloat16),
            workers=workers,
            address=address,
            limits=Limits(time, budget, max_hourly, usd_per_hour),
            progress=bar,
        )


def index_vectors(folder: str | Path, output: str | Path, *, ivf: bool = False, progress: bool = True) -> FaissIndex:
    """Write an index of FAISS of the vectors in a folder that `encode_corpus` wrote.

    Unit vectors are compared by inner product, so by cosine (`IndexFlatIP`), and codes by Hamming distance
    (`IndexBinaryFlat`). Rows are in the order of the files' names, then of rows. ``OUTPUT.json`` records what the index
    is made of. FAISS holds the whole index in memory.

    Args:
        folder: A folder of vectors, also in ``s3://``.
        output: The file to write.
        ivf: Whether to divide the rows into cells, 4 times the square root of their number, of which a search reads 32
            (`IndexIVFFlat`, `IndexBinaryIVF`): fast, but it may miss neighbours. Needs 10,000 rows.
        progress: Whether to show progress on standard error.

    Raises:
        ConfigError: If faiss-cpu is not installed, or there are too few rows for cells.
        DataError: If the folder has no rows, or a vector is not finite.
        ArtifactError: If the folder has no vectors, or a file is damaged or cannot be written.
    """
    with ProgressLines(is_quiet=not progress) as bar:
        return build_index(folder, output, ivf=ivf, progress=bar)


def write_report(run: str | Path) -> Path:
    """Write ``report.html`` into a run folder and return its path.

    Args:
        run: The run folder of a sweep or a training, or a folder with records of `evaluate`.

    Raises:
        ArtifactError: If the folder is no run's, or a file in it is damaged.
    """
    return write_page(open_folder(run))


def scores_frame(scores: Sequence[AnyScore]) -> pd.DataFrame:
    """Return scores as a table; see `evaluate`."""
    rows = []
    for score in scores:
        if isinstance(score, Score):
            low, high = score.interval or (None, None)
            row = {"validation": score.validation, "test": score.test, "low": low, "high": high, **score.measures}
            costs = {"num_parameters": score.costs.num_parameters, "training_hours": score.costs.training_hours}
            rows.append({"model": score.model, "task": score.task, "protocol": score.protocol, **row, **costs})
        elif isinstance(score, SimilarityScore):
            row = {"test": score.pearson, "spearman": score.spearman, **score.measures}
            rows.append({"model": score.model, "task": score.task, "protocol": SIMILARITY, **row})
        else:
            row = {"test": score.test, score.measure: score.test}
            rows.append({"model": score.model, "task": score.task, "protocol": score.protocol, **row})
    return pd.DataFrame(rows)


def scores_folder(models: Sequence[Model]) -> Path:
    """Return the folder that keeps scores of models: that of the first model with a folder of its own."""
    names = [getattr(model, "source", None) if isinstance(model, SentenceEncoder) else model for model in models]
    folders = [Path(name) for name in names if name is not None and Path(name).is_dir()]
    return folders[0] if folders else SCORES_FOLDER


def map_jobs(processes: int | None, address: str | None) -> MapJobs | None:
    """Return what runs evaluations side by side: in processes or on a cluster; None to run them one after another.

    Raises:
        ConfigError: If both are given.
    """
    if processes is not None and address is not None:
        raise ConfigError("--processes and --address: must not both be given; a cluster has its own cores")
    if processes in (None, 1) and address is None:
        return None
    return partial(map_on_ray, _run_any_job, num_cpus=processes, address=address)


def _run_any_job(job: Job) -> Result:
    """Run a job in a process that imports this module, so that it can load ensembles too."""
    return run_job(job)


def _read_space(
    space: Space,
    *,
    corpus: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    scale: SpaceScale = "auto",
    **limits: Any,
) -> SearchSpace:
    """Return a checked space with what the caller sets."""
    metric, data = limits.pop("metric", None), limits.pop("data", None)
    unknown = [name for name in limits if name not in _LIMITS]
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown argument{did_you_mean(unknown[0], _LIMITS)}")
    values = {**({} if metric is None else metric_values(metric, data)), **(set or {})}
    overrides = _overrides({**limits, "corpus": None if corpus is None else str(corpus)}, values)
    if isinstance(space, (str, Path)):
        path = find_space(str(space))
        before = [] if scale == "auto" else scale_overrides(read_space(path), scale, data=data)
        return read_space(path, overrides=[*before, *overrides])
    if not isinstance(space, SearchSpace):
        space = parse_space(Document(values=dict(space), source="space"), name=str(space.get("name", "space")))
    overrides = [*scale_overrides(space, scale, data=data), *overrides]
    return with_overrides(space, overrides) if overrides else space


def scale_overrides(space: SearchSpace, scale: SpaceScale, *, data: str | Path | None = None) -> list[Override]:
    """Return what a scale sets in a space; nothing at `auto`.

    `paper` sets vocabulary, encoders, objective, postprocessing, code and training to those of `raysent reproduce
    --scale paper`, and ends the search over what the paper published. The text stays that of the space.

    Args:
        space: The space.
        scale: The scale.
        data: Folder of the files that published settings name, such as word vectors; None for ``data``.

    Raises:
        ConfigError: If the scale is unknown, or the space has no published settings.
    """
    if scale not in get_args(SpaceScale):
        raise ConfigError(f"--scale {scale}: must be {' or '.join(get_args(SpaceScale))}")
    if scale == "auto":
        return []
    if space.published is None:
        raise ConfigError(
            f"--scale paper: must be used with a space that names its published settings; '{space.name}' has none; "
            "'raysent reproduce' trains the models of a paper"
        )
    paper, option = read_paper(space.published.paper), "--scale paper"
    run = paper.values(space.published.model, scale="paper", data=Path(data or "data"))
    parts = {name: value for name, value in run.items() if name in _PUBLISHED}
    why = f"published: {paper.paper}, '{space.published.model}' of 'raysent reproduce {space.published.paper}'"
    return [
        Override("fit", [], option),
        Override("fitted", dict.fromkeys(parts, why), option),
        *(Override(name, value, option) for name, value in parts.items()),
        # Each value again, which ends the search over its name.
        *(Override(name, value, option) for name, value in _leaves(parts)),
    ]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of everything in nested mappings that is no mapping."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# The parts of a run that a paper publishes; its text is the user's.
_PUBLISHED = ("vocabulary", "encoder", "second_encoder", "objective", "postprocessing", "code", "training")


# Argument -> the name of the space that it sets.
_LIMITS = {
    "trials": "limits.trials",
    "concurrent": "limits.concurrent",
    "workers_per_trial": "limits.workers_per_trial",
    "gpus_per_worker": "limits.gpus_per_worker",
    "time": "limits.time",
    "memory": "limits.memory",
    "budget": "cost.budget",
    "deadline": "cost.deadline",
    "max_hourly": "cost.max_hourly",
    "baselines": "evaluation.baselines",
    "retrain": "evaluation.retrain",
    "retrain_epochs": "evaluation.retrain_epochs",
    "market": "cost.market",
    "on_budget": "cost.on_budget",
    "corpus": "corpus.path",
}


def _overrides(limits: Mapping[str, Any], values: Mapping[str, Any]) -> list[Override]:
    """Return arguments as overrides; wider names first, so that a whole section does not undo a value inside it."""
    given = [Override(_LIMITS[name], value, f"{name}={value!r}") for name, value in limits.items() if value is not None]
    given += [Override(name, value, f"set {name}={value!r}") for name, value in values.items()]
    return sorted(given, key=lambda override: override.name.count("."))


def _tasks(
    space: SearchSpace, tasks: Sequence[str | Task] | None, data: str | Path | None, *, progress: bool
) -> list[Task]:
    """Return the tasks that are named, else those of the space, else all whose files are there."""
    folder = None if data is None else Path(data)
    try:
        chosen = resolve_tasks(
            space.evaluation.tasks if tasks is None else tasks, folder, scorings=PROBED, default={"accuracy"}
        )
    except RaysentError as error:
        if tasks is not None or space.evaluation.tasks is None:
            raise
        raise space.document.error(("evaluation", "tasks"), str(error).removeprefix("--tasks ")) from None
    if progress:
        print_remarks(chosen)
    return chosen


def print_remarks(tasks: Iterable[Task]) -> None:
    """Print what was guessed of tasks' files, and what may make their scores misleading."""
    for task in tasks:
        for note in task.remarks.notes:
            messages.print(note, style="dim", soft_wrap=True)
        for warning in task.remarks.warnings:
            messages.print(f"warning: {warning}", soft_wrap=True)


def _print_notes(config: RunConfig) -> None:
    """Print how the tables of a run's corpus are read."""
    for note in corpus_notes(config.corpus) if config.source is config.corpus else ():
        messages.print(note, style="dim", soft_wrap=True)


def metric_values(metric: str | Task, data: str | Path | None = None) -> dict[str, Any]:
    """Return the values of a space that ranks trials by a metric, or by the validation score of probes on a task.

    Args:
        metric: A metric, or a task: its name, its file, or a `Task`.
        data: Folder of task files.

    Raises:
        RaysentError: If it is neither, or the task's files are missing or wrong.
    """
    if metric in METRICS:
        return {"metric": metric}
    folder = None if data is None else Path(data)
    tasks = resolve_tasks([metric], folder, scorings=PROBED, option="--metric ")
    specs = [task.spec for task in tasks]
    values: dict[str, Any] = {"metric": "downstream", "validation.downstream.tasks": specs}
    if any(task.files for task in tasks):
        return values | {"validation.downstream.data": None if folder is None else str(folder.resolve())}
    return values | {"evaluation.tasks": specs}


def _run_folder(run: str | Path | None, name: str) -> Path:
    """Return the run folder that is named, else one of today's date."""
    return default_run_folder(name) if run is None else open_folder(run)


def default_run_folder(name: str) -> Path:
    """Return the run folder of a space if none is named."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _view(space: SearchSpace, folder: Path, *, progress: bool) -> SweepView | EventLines:
    """Return what shows a sweep as it runs."""
    if is_submitted():
        return EventLines(messages)
    return SweepView(messages, space, folder=folder, is_quiet=not progress or messages.quiet)


def _print_lines(lines: Iterable[str]) -> None:
    """Print lines of text that are not wrapped."""
    for line in filter(None, lines):
        messages.print(line, soft_wrap=True)


def _print_warning(line: str) -> None:
    messages.print(f"warning: {line}", soft_wrap=True)


def _spot_prices(space: SearchSpace) -> SpotUsd | None:
    """Return the live spot prices of the machines' region; None if it is unknown."""
    if not space.cost.region:
        return None
    from raysent.cluster.prices import LiveSpot  # noqa: PLC0415 - seconds that only sweeps in a cloud need

    return LiveSpot(space.cost.region)


def _make_fleet(*arguments: Any) -> Fleet | None:
    """Return the fleet of this process's cluster; see `make_fleet` there."""
    from raysent.cluster.fleet import make_fleet  # noqa: PLC0415 - as above

    return make_fleet(*arguments)


def _list_machines(record: SweepRecord) -> ListMachines:
    """Return what lists the machines of a sweep's cluster."""
    if record.address is None:
        return lambda: None
    from raysent.cluster.fleet import list_machines  # noqa: PLC0415 - as above

    return list_machines(record.space.cost, record.started)


def _distribute(listeners: Sequence[Listener], event: Event) -> None:
    """Call every listener with an event."""
    for listener in listeners:
        listener(event)


@dataclass(frozen=True)
class _SaveEstimate:
    """Writes the estimate before the first trial starts, so that a killed sweep's bill is compared with it too."""

    folder: Path
    estimate: Estimate | None

    def __call__(self, event: Event) -> None:
        if self.estimate is not None and event["event"] == "suggested" and event["number"] == 0:
            write_json(self.folder / ESTIMATE_FILE, self.estimate.values())


@contextlib.contextmanager
def _stopped_at_once(folder: Path, *, progress: bool) -> Iterator[None]:
    """Print how to resume when a second Ctrl-C, or one before the first trial, ends the block at once."""
    try:
        yield
    except KeyboardInterrupt:
        if progress and (folder / SWEEP_FILE).exists():
            command = f"raysent resume {shlex.quote(address_of(folder))}"
            messages.print(f"stopped at once; trials continue from their last checkpoints: {command}", soft_wrap=True)
        raise


def _evaluated(folder: Path, *, progress: bool) -> Sweep:
    """Evaluate a sweep's best trials unless it was interrupted, and return it."""
    ended = Sweep(folder)
    if ended.status == "interrupted":
        if progress:
            command = f"raysent resume {shlex.quote(address_of(folder))}"
            messages.print(f"interrupted; nothing is lost. Resume with:\n  {command}", soft_wrap=True)
        return ended
    if ended.closed and progress:
        messages.print(f"no more training: {ended.closed}", soft_wrap=True)
    record = ended.recorded.record
    prices = _spot_prices(record.space)
    with evaluation_budget(record, folder, spot=prices, machines=_list_machines(record)) as check_budget:
        evaluation = _evaluate_best(ended, check_budget=check_budget, progress=progress)
    return Sweep(folder, evaluation=evaluation)


def _evaluate_best(ended: Sweep, *, check_budget: CheckBudget, progress: bool) -> SweepEvaluation:
    """Evaluate a sweep's best trials, combine them and write its report; if the budget ends, keep what is done."""
    options = ended.recorded.record.evaluation or {}
    members = select_members(ended.space, ended.recorded.trials)
    result, stopped = None, ""
    if members and options.get("tasks") != []:
        with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:

            def on_progress(what: str, done: int, total: int) -> None:
                check_budget()
                bar(what, done, total)

            try:
                result = combine(
                    [ended.recorded.model_folder(trial) for trial in members],
                    output=ended.folder,
                    tasks=options.get("tasks"),
                    data_dir=None if options.get("data") is None else Path(options["data"]),
                    baselines=ended.space.evaluation.baselines,
                    progress=on_progress,
                )
                if options.get("labels"):
                    _write_label_curves(ended, result, options, on_progress)
            except BudgetError as error:
                run = shlex.quote(address_of(ended.folder))
                stopped = f"{error}; raise it with 'raysent resume {run} --budget …'"
    return SweepEvaluation(result, write_report(ended.folder), stopped, tuple(read_curves(ended.folder)))


def _write_label_curves(
    ended: Sweep, result: EnsembleResult, options: Mapping[str, Any], progress: Callable[[str, int, int], None]
) -> None:
    """Write the members' scores against the number of labels into a sweep's folder, for tasks with classes."""
    data = None if options.get("data") is None else Path(options["data"])
    sizes = options["labels"]
    folders = (ended.folder / TRIALS_FOLDER / name for name in result.members)
    members = expand_names([folder for folder in folders if folder.is_dir()])
    others = baselines_of(members)
    curves = []
    for task in resolve_tasks(options.get("tasks"), data, scorings=PROBED, default={"accuracy"}):
        rows = task.load(data)
        if isinstance(rows, TaskData) and not rows.is_scored:
            curves.append(label_curve(rows, members, others, sizes=sizes, progress=progress))
    write_curves(ended.folder, curves)


def _check_free(folder: Path, config: RunConfig) -> None:
    """Refuse a folder with other contents; a training of the same run continues in its folder.

    Raises:
        ArtifactError: If the path is a file, a sweep's folder, or the folder of another run.
    """
    where = address_of(folder)
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{where}: must be a folder; given a file; name another --run")
    if (folder / SWEEP_FILE).exists():
        raise ArtifactError(f"{where}: holds a sweep; name another --run")
    if (folder / RUN_FILE).exists() and load_run(folder).key != config.key:
        raise ArtifactError(f"{where}: holds a run with another configuration; name another --run")


def _announce(config: RunConfig, folder: Path) -> None:
    """Print what will be trained, and how much of it is done."""
    messages.print(f"{describe(config)}, into {address_of(folder)}", soft_wrap=True)
    before = load_outcome(folder, key=config.key)
    if before is not None and before.status != "stopped":
        messages.print("the run is finished; nothing is trained again")
    elif reports := load_reports(folder):
        messages.print(f"continues after report {reports[-1].index} of {reports[-1].num_reports}")


# Kind, as `raysent.components` names it -> where its registry is.
_REGISTRIES = {
    "encoders": ("raysent.models.encoders", "ENCODERS"),
    "objectives": ("raysent.models.objectives", "OBJECTIVES"),
    "codes": ("raysent.models.codes", "CODES"),
    "schemes": ("raysent.models.schemes", "SCHEMES"),
    "tasks": ("raysent.evaluation.tasks", "TASKS"),
    "protocols": ("raysent.evaluation.protocols", "PROTOCOLS"),
    "ensemble_methods": ("raysent.ensembles.methods", "METHODS"),
    "samplers": ("raysent.sweeps.samplers", "SAMPLERS"),
    "schedulers": ("raysent.sweeps.schedulers", "SCHEDULERS"),
    "trackers": ("raysent.sweeps.trackers", "TRACKERS"),
    "formats": ("raysent.exports.formats", "FORMATS"),
}


def registries() -> dict[str, Registry[Any]]:
    """Return the registry of each kind of component, by the kind's name in `components`."""
    return {
        kind: getattr(importlib.import_module(module), attribute) for kind, (module, attribute) in _REGISTRIES.items()
    }


def components(kind: str | None = None) -> pd.DataFrame:
    """Return the encoders, objectives, tasks and other components that are installed.

    Another package adds one by an entry point of the group ``raysent.KIND``.

    Args:
        kind: Only components of this kind, such as ``encoders``.

    Returns:
        Columns ``kind``, ``name``, ``package`` and ``summary``. ``attrs["broken"]`` has entry points that cannot be
        loaded, by name, and why.

    Raises:
        ConfigError: If there is no such kind.
    """
    if kind is not None and kind not in _REGISTRIES:
        raise ConfigError(f"{kind}: unknown kind of component{did_you_mean(kind, _REGISTRIES)}")
    rows: list[dict[str, str]] = []
    broken: dict[str, str] = {}
    for name, registry in registries().items():
        if kind in (None, name):
            rows += [
                {"kind": name, "name": one.name, "package": one.package, "summary": one.summary}
                for one in registry.components()
            ]
            broken |= dict(registry.broken)
    table = pd.DataFrame(rows, columns=["kind", "name", "package", "summary"])
    table.attrs["broken"] = broken
    return table
