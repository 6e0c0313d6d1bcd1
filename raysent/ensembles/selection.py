"""Greedy selection of an ensemble's members: one choice for all tasks, by their validation predictions.

Members are added one by one, each time the one that lowers the NLL of the equally weighted logarithmic pool most, in
the mean over tasks. The choice within a fold reads only the fold's rows of its own task, so cross-validated and test
scores cover it.

Source: Caruana, Niculescu-Mizil, Crew and Ksikes, 2004.
Differs: a member is taken once, so that the number of members is the one asked for; the pool is logarithmic, as that of
the method that weights them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from raysent.ensembles.combination import LOG_ZERO, normalize
from raysent.ensembles.cross_fitting import Select
from raysent.ensembles.predictions import MemberPredictions
from raysent.ensembles.task_ensemble import fold_predictions, validation_predictions
from raysent.evaluation.records import Record
from raysent.evaluation.targets import Float64, Int64, Targets


class GreedySelection:
    """The selection of some members on several tasks."""

    def __init__(self, records: Sequence[Sequence[Record]], *, size: int) -> None:
        """Prepare the selection.

        Args:
            records: The members' records [tasks][members], in the members' order.
            size: Members to select, at most all.
        """
        self._records = records
        self._size = min(size, len(records[0]))
        self._whole = [_Losses(*validation_predictions(of_task)) for of_task in records]
        self._of_folds: dict[tuple[int, int], _Losses] = {}

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The members that are selected on all rows with a validation prediction, in the order of selection."""
        return self._select([(losses, None) for losses in self._whole])

    def within(self, task: int, fold: int) -> Select:
        """Return the selection that reads only some validation rows of an outer fold of a task.

        Args:
            task: The task's place. All validation rows of the other tasks are read.
            fold: The outer fold's place.
        """
        if (task, fold) not in self._of_folds:
            self._of_folds[task, fold] = _Losses(*fold_predictions(self._records[task], fold))
        return partial(self._select_within, task, self._of_folds[task, fold])

    def _select_within(self, task: int, losses: _Losses, rows: Int64) -> tuple[int, ...]:
        others = [(one, None) for place, one in enumerate(self._whole) if place != task]
        return self._select([(losses, rows), *others])

    def _select(self, tasks: Sequence[tuple[_Losses, Int64 | None]]) -> tuple[int, ...]:
        chosen: tuple[int, ...] = ()
        while len(chosen) < self._size:
            left = [member for member in range(len(self._records[0])) if member not in chosen]
            means = [np.mean([losses.mean((*chosen, member), rows) for losses, rows in tasks]) for member in left]
            chosen = (*chosen, left[int(np.argmin(means))])
        return chosen


class _Losses:
    """The NLL of pools of some members on each row, computed once for each set of members."""

    def __init__(self, predictions: MemberPredictions, targets: Targets) -> None:
        self._predictions, self._labels = predictions, targets.labels
        self._known: dict[frozenset[int], npt.NDArray[np.float32]] = {}

    def mean(self, members: Sequence[int], rows: Int64 | None) -> float:
        """Return the mean NLL of the pool on rows; on all rows for None."""
        key = frozenset(members)
        if key not in self._known:
            self._known[key] = self._losses(sorted(key)).astype(np.float32)
        losses = self._known[key]
        return float((losses if rows is None else losses[rows]).mean(dtype=np.float64))

    def _losses(self, members: Sequence[int]) -> Float64:
        total = sum(np.maximum(part, LOG_ZERO) for part in self._predictions.select(members).members())
        pooled = normalize(np.asarray(total) / len(members))
        losses: Float64 = -pooled[np.arange(len(pooled)), self._labels]
        return losses
