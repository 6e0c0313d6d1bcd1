"""What the functions return: a plan, a trained run, a sweep with its trials, models, scores and report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import optuna
import pandas as pd

from raysent.cost import Budget, bill_values
from raysent.ensembles import (
    ENSEMBLE,
    Answer,
    Ensemble,
    EnsembleResult,
    FrontRow,
    Kinds,
    LabelCurve,
    answer_lines,
    load_ensemble,
    read_answers,
    read_kinds,
    read_result,
)
from raysent.errors import ArtifactError, did_you_mean
from raysent.evaluation.records import (
    SIMILARITY,
    AnyScore,
    Score,
    SimilarityScore,
    mean_heading,
    read_scores,
)
from raysent.evaluation.task_set import TaskSet
from raysent.live import chance_line
from raysent.models import SentenceModel
from raysent.models.objectives import CONTEXT_METRICS
from raysent.pipeline.loading import load
from raysent.pipeline.pretrained import ChosenEncoders
from raysent.redaction import without_secrets_in
from raysent.report import write as write_page
from raysent.storage import address_of, open_folder
from raysent.storage.layout import (
    ENCODER_FOLDER,
    ENSEMBLE_FILE,
    EVALUATION_FOLDER,
    LEDGER_FILE,
)
from raysent.sweeps import Event, RecordedSweep, read_ledger, read_sweep, spent_usd, trial_folder
from raysent.sweeps.estimate import Estimate
from raysent.sweeps.fitting import fitted_values
from raysent.sweeps.ranking import median_values
from raysent.sweeps.samplers.optuna_samplers import study_of
from raysent.sweeps.space import SearchSpace
from raysent.sweeps.trackers import evaluated_event
from raysent.sweeps.trackers import track as track_events
from raysent.sweeps.trial import trial_name
from raysent.training.outcome import Outcome
from raysent.training.validation import chance_of


@dataclass(frozen=True)
class SweepEvaluation:
    """What follows the training of a sweep.

    Attributes:
        result: The ensemble of the best trials and its scores; None if no trial has a model, or no task is wanted.
        report: The report's file.
        stopped: Why evaluation stopped early; empty if it did not.
        curves: Scores against the number of labels, if they are wanted.
        num_members: Trials that took part: the best of those that have a whole model.
        left_out: Names of trials that would have taken part and have no whole model.
        kinds: The best trial of each kind of encoder, together; None where the space has no kinds.
    """

    result: EnsembleResult | None
    report: Path
    stopped: str = ""
    curves: tuple[LabelCurve, ...] = ()
    num_members: int = 0
    left_out: tuple[str, ...] = ()
    kinds: Kinds | None = None


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep would do: every step takes it whole, and returns it with what the step has found.

    Attributes:
        space: The search space, checked; it has the text, the metric, the limits and the prices.
        folder: The run folder.
        task_set: The tasks that the best trials will be evaluated on.
        address: The Ray cluster; None for this machine.
        pretrained: Which pretrained encoders take part in the answer.
        facts: What is known of `corpus` and `pool`, and the memory of the largest trial; empty without trials.
        estimate: Hours, dollars, and when each report is known; None without trials.
        notes: Lines about what takes no part, and why.
    """

    space: SearchSpace
    folder: Path
    task_set: TaskSet
    address: str | None = None
    pretrained: ChosenEncoders = field(default_factory=lambda: ChosenEncoders(()))
    facts: Mapping[str, Any] = field(default_factory=dict)
    estimate: Estimate | None = None
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""
        return self.task_set.names

    @property
    def summaries(self) -> list[str]:
        """What each task's rows are, in a line, or its name."""
        return [task.remarks.summary or task.name for task in self.task_set]

    @property
    def remark(self) -> str:
        """The warning about the tasks' rows, or how many there are; else what to do for a pretrained encoder."""
        warnings = [warning for task in self.task_set for warning in task.remarks.warnings]
        if not warnings:
            return self.pretrained.missing
        if len(warnings) == 1:
            return f"warning: {warnings[0]}"
        return f"{len(warnings)} warnings about the data: 'raysent doctor TABLE' shows them"

    @property
    def metric(self) -> str:
        """What trials are ranked by."""
        return self.space.metric

    @property
    def budget(self) -> Budget:
        """What the sweep may spend; its deadline counts from its start."""
        return self.space.budget()

    def values(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        corpus, pool = self.facts.get("corpus", {}), self.facts.get("pool", {})
        return {
            "space": self.space.name,
            "metric": self.metric,
            "trials": self.space.limits.trials,
            "time": self.space.limits.time,
            "memory_bytes": self.facts.get("memory_bytes"),
            "searched": without_secrets_in(self.space.search),
            "run": address_of(self.folder),
            "corpus": corpus.get("path"),
            "num_train": corpus.get("num_train"),
            "num_validation": corpus.get("num_validation"),
            "chance_accuracy": chance_of(self.space.metric, pool) if pool else None,
            "tasks": list(self.tasks),
            "pretrained": list(self.pretrained.paths),
            "budget_usd": self.budget.limit_usd,
            "refused": self.space.cost.too_small or None,
            "estimate": None if self.estimate is None else self.estimate.values(),
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
        return self.before is not None and self.before.pool.get("hash") == self.outcome.pool.get(
            "hash"
        )

    @property
    def model(self) -> SentenceModel:
        """The trained model."""
        return _sentence_model(self.folder)


@dataclass(frozen=True)
class Distilled:
    """A student, and what it costs and scores beside its teacher.

    Attributes:
        folder: Its folder.
        run: Its training; None for a static table, which is not trained.
        front: Student, members and their ensemble by rising time to encode; empty where no tasks are named.
    """

    folder: Path
    run: TrainedRun | None = None
    front: tuple[FrontRow, ...] = ()

    @property
    def address(self) -> str:
        """The folder as a user names it."""
        return address_of(self.folder)

    @property
    def model(self) -> SentenceModel:
        """The student."""
        return _sentence_model(self.folder)

    @property
    def table(self) -> pd.DataFrame:
        """The front as a table, by name."""
        return (
            pd.DataFrame([row.model_dump() for row in self.front]).set_index("name")
            if self.front
            else pd.DataFrame()
        )


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
            "no trial has reported"
            if best is None
            else f"best {best.name}: {self.metric} {self._value(best):.4g}"
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
        last = next(
            (one["event"] for one in reversed(self.recorded.events) if one["event"] in _ENDINGS),
            "session",
        )
        return {"completed": "completed", "interrupted": "interrupted"}.get(last, "running")  # type: ignore[return-value]

    @property
    def closed(self) -> str:
        """Why the sweep ended before all its trials were done; empty if it did not."""
        ended = next(
            (one for one in reversed(self.recorded.events) if one["event"] == "completed"), {}
        )
        return str(ended.get("reason") or "")

    @property
    def spent_usd(self) -> float:
        """What its machines have cost, in dollars."""
        return spent_usd(self.folder)

    @property
    def over_chance(self) -> str:
        """The best trial's metric beside chance; empty where that is unknown."""
        best = self.recorded.best
        pool = self.recorded.record.facts.get("pool", {})
        return "" if best is None else chance_line(self.metric, pool, best=self._value(best))

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
        medians = (
            median_values(self.space, self.recorded.trials) if self.space.limits.seeds > 1 else {}
        )
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

    def model(self, trial: str | int) -> SentenceModel:
        """Return the model of a trial, by its name or number.

        Raises:
            ArtifactError: If there is no such trial, or it has no model.
        """
        name = str(trial)
        known = [one.name for one in self.recorded.trials]
        if not name.isdecimal() or trial_name(int(name)) not in known:
            raise ArtifactError(
                f"{address_of(self.folder)}: has no trial '{name}'{did_you_mean(name, known)}; `trials` lists them, "
                "and `best` is the best model"
            )
        return _sentence_model(trial_folder(self.folder, int(name)))

    @cached_property
    def best(self) -> SentenceModel:
        """The model of the best trial.

        Raises:
            ArtifactError: If no trial has reported yet.
        """
        best = self.recorded.best
        if best is None:
            raise ArtifactError(
                f"{address_of(self.folder)}: has no trial that reported {self.metric}; resume the sweep"
            )
        return self.model(best.name)

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
    def answers(self) -> list[tuple[Path, Answer]]:
        """The folder of the model to take on each task, and how it was chosen; none before the evaluation."""
        return read_answers(self.folder)

    @property
    def kinds(self) -> Kinds | None:
        """The best trial of each kind of encoder, together, as `RUN/kinds` has them; None where it has not."""
        return read_kinds(self.folder)

    @property
    def codes_command(self) -> str:
        """The command that searches binary codes of the best encoder's vectors, on the same text and tasks."""
        corpus = dict(self.space.setting("corpus") or {})
        path = corpus.pop("path", None)
        # Pairs and labelled rows are no running text, which the codes are trained on.
        if path is None or not (self.folder / ENCODER_FOLDER).is_dir():
            return ""
        words = ["raysent", "sweep", "binary", "--corpus", str(path)]
        tasks = self.recorded.record.tasks
        words += [word for spec in tasks.specs or () for word in ("--task", spec)]
        words += [] if tasks.data is None else ["--data", tasks.data]
        settings = {
            **{f"corpus.{name}": value for name, value in corpus.items()},
            "initial": self.address,
        }
        words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return shlex.join(words)

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


def _sentence_model(folder: Path) -> SentenceModel:
    loaded = load(folder)
    if not isinstance(loaded, SentenceModel):
        raise ArtifactError(
            f"{address_of(folder)}: must hold a trained model; it holds {type(loaded).__name__}"
        )
    return loaded


_ENDINGS = ("session", "interrupted", "completed")


def bill(run: str | Path) -> dict[str, Any]:
    """Return what a sweep has cost, by trial and outside trials.

    Args:
        run: The run folder.

    Raises:
        ArtifactError: If the folder is no sweep's, or nothing was spent.
    """
    folder = open_folder(run)
    sweep, entries = read_sweep(folder), read_ledger(folder)
    if not entries:
        raise ArtifactError(f"{address_of(folder)}: holds no {LEDGER_FILE}; nothing was spent")
    closings = [event for event in sweep.events if event["event"] in ("refused", "halted")]
    return {
        **bill_values(entries),
        "budget_usd": sweep.record.space.cost.budget_usd,
        "closed": closings[-1]["reason"] if closings else "",
    }


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
            row = {
                "validation": score.validation,
                "test": score.test,
                "low": low,
                "high": high,
                **score.measures,
            }
            row |= {"learned": True} if score.learned else {}
            costs = {
                "num_parameters": score.costs.num_parameters,
                "training_hours": score.costs.training_hours,
            }
            rows.append(
                {
                    "model": score.model,
                    "task": score.task,
                    "protocol": score.protocol,
                    **row,
                    **costs,
                }
            )
        elif isinstance(score, SimilarityScore):
            row = {"test": score.pearson, "spearman": score.spearman, **score.measures}
            rows.append({"model": score.model, "task": score.task, "protocol": SIMILARITY, **row})
        else:
            row = {"test": score.test, score.measure: score.test}
            rows.append(
                {"model": score.model, "task": score.task, "protocol": score.protocol, **row}
            )
    return pd.DataFrame(rows)


def track(run: str | Path, to: str) -> int:
    """Send the trials of a sweep to a tracker: TensorBoard, MLflow or Weights & Biases.

    The scores of the ensemble, its members and the baselines follow, if they were evaluated.

    Args:
        run: The run folder of a sweep, finished or not.
        to: The tracker and where it writes: ``tensorboard:DIR``, ``mlflow:URI`` or ``wandb:PROJECT``.

    Returns:
        The number of events of the sweep.

    Raises:
        RaysentError: If the folder is no sweep's, or the tracker is unknown, not installed or fails.
    """
    folder = open_folder(run)
    return track_events(folder, to, evaluated=evaluated_scores(folder))


def evaluated_scores(folder: Path) -> Event | None:
    """Return the scores of a sweep's ensemble, of its members and baselines as an event for trackers; None without."""
    if not (folder / ENSEMBLE_FILE).is_file():
        return None
    result, answers = read_result(folder), read_answers(folder)
    return evaluated_event(
        folder,
        time=(folder / ENSEMBLE_FILE).stat().st_mtime,
        scores=_scores_by_model(result),
        members=list(result.members),
        best_member=result.best_member,
        method=result.method,
        summary="\n".join(answer_lines(answers)),
    )


def _scores_by_model(result: EnsembleResult) -> dict[str, dict[str, dict[str, float]]]:
    names = [ENSEMBLE, *result.members, *result.baselines]
    scores = {task: found.scores for task, found in result.tasks.items()}
    rated = {mean_heading(scores): result.mean.scores, **scores} if len(scores) > 1 else scores
    return {
        name: {
            task: {"validation": found[name].validation, "test": found[name].test}
            for task, found in rated.items()
        }
        for name in names
    }
