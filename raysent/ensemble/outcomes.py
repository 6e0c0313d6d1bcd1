"""Members' records of one task -> the ensemble on that task, beside equal shares and the best member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysent.ensemble.pooling import fit, pool
from raysent.errors import ArtifactError
from raysent.evaluate import Record
from raysent.probes.intervals import Interval, mean_interval

# Always shown beside the method that was asked for.
RIVALS = ("uniform", "best")


@dataclass(frozen=True)
class Outcome:
    """How a pool, or a single member, does on a task.

    Attributes:
        validation: Percent right, the mean over outer folds.
        test: Percent right over all test rows.
        interval: 95 % interval of `test`.
        right: Which test rows were right, bool [test rows], in the order of the folds.
    """

    validation: float
    test: float
    interval: Interval
    right: np.ndarray


@dataclass(frozen=True)
class TaskOutcome:
    """An ensemble on a task.

    Attributes:
        task: The task's name.
        fold_weights: Members' shares in every outer fold, float64 [folds, members].
        ensemble: The pool by the method asked for.
        rivals: The pools it is shown beside, by method.
        members: Each member alone, in the members' order.
    """

    task: str
    fold_weights: np.ndarray
    ensemble: Outcome
    rivals: dict[str, Outcome]
    members: tuple[Outcome, ...]

    @property
    def weights(self) -> np.ndarray:
        """Return the members' mean shares over folds, float64 [members]; they sum to one."""
        mean: np.ndarray = self.fold_weights.mean(axis=0)
        return mean


def task_outcome(records: Sequence[Record], *, method: str) -> TaskOutcome:
    """Return the ensemble of members on one task.

    In every outer fold the weights come from that fold's validation rows; its test rows are only scored.

    Args:
        records: The members' records of the task, in the members' order.
        method: The rule for the weights.

    Raises:
        ArtifactError: If the records are of different tasks, protocols, rows or classes.
        ConfigError: If the method is unknown.
    """
    check_mixable(records)
    fold_weights, ensemble = _pooled(records, method)
    members = tuple(_pooled([record], "uniform")[1] for record in records)
    rivals = {rival: _pooled(records, rival)[1] for rival in RIVALS}
    return TaskOutcome(records[0].task, fold_weights, ensemble, rivals, members)


def check_mixable(records: Sequence[Record]) -> None:
    """Check that members were judged alike, so that their log-probabilities mean the same.

    Raises:
        ArtifactError: If they were not, naming the first two members that differ and in what.
    """
    first = records[0]
    names = {"task": "task", "protocol": "protocol", "label_names": "classes", "row_hash": "rows"}
    for other in records[1:]:
        for attribute, word in names.items():
            ours, theirs = getattr(first, attribute), getattr(other, attribute)
            if ours != theirs:
                raise ArtifactError(
                    f"{first.task}: members must be judged on the same {word}; '{first.model}' has {_short(ours)}, "
                    f"'{other.model}' has {_short(theirs)}; evaluate them together"
                )
        for fold, same in zip(first.folds, other.folds, strict=True):
            if not np.array_equal(fold.test_rows, same.test_rows):
                raise ArtifactError(
                    f"{first.task}: members must be judged on the same folds; '{first.model}' and '{other.model}' "
                    "differ; evaluate them together"
                )


def _pooled(records: Sequence[Record], method: str) -> tuple[np.ndarray, Outcome]:
    """Return the shares [folds, members] and the outcome of one rule."""
    labels = records[0].labels
    fold_weights, validation, right = [], [], []
    for folds in zip(*(record.folds for record in records), strict=True):
        seen = np.stack([fold.validation_log_probabilities for fold in folds])
        seen_labels = labels[folds[0].validation_rows]
        weights = fit(seen, seen_labels, method=method)
        fold_weights.append(weights.values)
        validation.append((pool(seen, weights).argmax(axis=1) == seen_labels).mean())
        tested = np.stack([fold.test_log_probabilities for fold in folds])
        right.append(pool(tested, weights).argmax(axis=1) == labels[folds[0].test_rows])
    flags = np.concatenate(right)
    outcome = Outcome(100 * float(np.mean(validation)), 100 * float(flags.mean()), mean_interval([flags]), flags)
    return np.stack(fold_weights), outcome


def _short(value: object) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
