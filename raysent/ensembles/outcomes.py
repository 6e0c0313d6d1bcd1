"""Members' records of one task -> every method on that task, beside equal shares and the best member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raysent.ensembles.compatibility import check_compatible
from raysent.ensembles.cross_fitting import CrossFitted, Draws, Figure, cross_fit, mean_figure
from raysent.ensembles.measures import Diversity, Measures, diversity, measure
from raysent.ensembles.methods import Fit
from raysent.ensembles.predictions import Answers, Float64, Int64, Truth
from raysent.evaluation.records import Record

# Always shown beside the method that was asked for.
RIVALS = ("uniform", "best")


@dataclass(frozen=True)
class Outcome:
    """How a combination, or a single member, does on a task; scores are in percent.

    Attributes:
        validation: Score on the rows it was fitted on, the mean over outer folds.
        cross_fitted: The same rows, each answered by a fit on others: the honest score.
        test: Score on all test rows together.
        measures: Further figures of the test rows.
        num_replaced: Outer folds in which the method did worse than the best member, which answered instead.
    """

    validation: float
    cross_fitted: Figure
    test: Figure
    measures: Measures
    num_replaced: int = 0

    @property
    def optimism(self) -> float:
        """Return the points of percent by which the rows fitted on flatter it."""
        return self.validation - self.cross_fitted.value


@dataclass(frozen=True)
class TaskOutcome:
    """An ensemble on a task.

    Attributes:
        task: The task's name.
        method: The method asked for.
        fold_weights: Members' shares in every outer fold by that method, float64 [folds, members].
        final: What answers new sentences, fitted on every row that has a validation answer.
        is_replaced: Whether `final` is the best member, the method having done worse.
        outcomes: Every method judged, by name; the one asked for and its rivals at least.
        members: Each member alone, in the members' order.
        diversity: How the members differ.
    """

    task: str
    method: str
    fold_weights: Float64
    final: Fit
    is_replaced: bool
    outcomes: Mapping[str, Outcome]
    members: tuple[Outcome, ...]
    diversity: Diversity

    @property
    def ensemble(self) -> Outcome:
        """Return the outcome of the method asked for."""
        return self.outcomes[self.method]

    @property
    def num_folds(self) -> int:
        """Return the number of outer folds."""
        return len(self.fold_weights)

    @property
    def weights(self) -> Float64:
        """Return the members' shares in what answers new sentences, float64 [members]; they sum to one."""
        return self.final.shares


def task_outcomes(records: Sequence[Record], methods: Sequence[str]) -> dict[str, Outcome]:
    """Return how each method does on one task.

    In every outer fold a method is fitted on that fold's validation rows; its test rows are only scored.

    Args:
        records: The members' records of the task, in the members' order.
        methods: Names in `METHODS`.

    Raises:
        ArtifactError: If the records are of different tasks, protocols, rows or classes, or hold no log-probabilities.
        ConfigError: If a method is unknown.
    """
    check_compatible(records)
    return {method: _outcome(records, fitted_folds(records, method=method)) for method in dict.fromkeys(methods)}


def task_outcome(
    records: Sequence[Record], *, method: str, outcomes: Mapping[str, Outcome] | None = None
) -> TaskOutcome:
    """Return the ensemble of members on one task; `outcomes` are those of other methods, where they are known.

    Raises:
        ArtifactError: As `task_outcomes`.
        ConfigError: If the method is unknown.
    """
    check_compatible(records)
    folds = fitted_folds(records, method=method)
    known = {method: _outcome(records, folds), **(outcomes or {})}
    known |= task_outcomes(records, [rival for rival in RIVALS if rival not in known])
    seen, truth = validation_answers(records)
    final = cross_fit(seen, truth, method=method)
    return TaskOutcome(
        task=records[0].task,
        method=method,
        fold_weights=np.stack([fitted.fit.shares for fitted in folds]),
        final=final.fit,
        is_replaced=final.is_replaced,
        outcomes=known,
        members=tuple(single_outcome(record) for record in records),
        diversity=diversity(seen, truth, method=method),
    )


def single_outcome(record: Record) -> Outcome:
    """Return the outcome of one model alone."""
    return _outcome([record], fitted_folds([record], method="uniform"))


def truth_of(record: Record) -> Truth:
    """Return what is known of a record's rows."""
    return Truth(record.labels, record.scores)


def fitted_folds(records: Sequence[Record], *, method: str) -> list[CrossFitted]:
    """Return a method's fit in every outer fold, on that fold's validation rows."""
    truth = truth_of(records[0])
    return [
        cross_fit(
            [fold.validation_log_probabilities for fold in folds], truth.take(folds[0].validation_rows), method=method
        )
        for folds in zip(*(record.folds for record in records), strict=True)
    ]


def validation_answers(records: Sequence[Record]) -> tuple[Answers, Truth]:
    """Return members' answers on every row that has a validation answer, each row once, and what is known of them.

    In nested cross-validation a row has such an answer in every outer fold but its own; the first is taken.
    """
    parts: list[list[np.ndarray]] = [[] for _ in records]
    taken: Int64 = np.empty(0, dtype=np.int64)
    for folds in zip(*(record.folds for record in records), strict=True):
        is_new = ~np.isin(folds[0].validation_rows, taken)
        taken = np.concatenate([taken, folds[0].validation_rows[is_new]])
        for part, fold in zip(parts, folds, strict=True):
            part.append(fold.validation_log_probabilities[is_new])
    return Answers([np.concatenate(part) for part in parts]), truth_of(records[0]).take(taken)


def _outcome(records: Sequence[Record], fitted: Sequence[CrossFitted]) -> Outcome:
    """Return the outcome of a method from its fits in the outer folds."""
    truth = truth_of(records[0])
    draws = Draws(records[0].task, len(truth))
    in_sample, held_out, answers = [], [], []
    for found, *folds in zip(fitted, *(record.folds for record in records), strict=True):
        rows = folds[0].validation_rows
        in_sample.append(100 * truth.take(rows).score(found.in_sample))
        held_out.append((rows, truth.take(rows), found.held_out))
        answers.append(found.fit.combination([fold.test_log_probabilities for fold in folds]))
    rows, tested = np.concatenate([fold.test_rows for fold in records[0].folds]), np.concatenate(answers)
    return Outcome(
        validation=float(np.mean(in_sample)),
        cross_fitted=mean_figure(draws.scores(held_out)),
        test=draws.scores([(rows, truth.take(rows), tested)])[0],
        measures=measure(tested, truth.labels[rows], rows=rows, draws=draws),
        num_replaced=sum(found.is_replaced for found in fitted),
    )
