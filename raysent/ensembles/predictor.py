"""`Predictor`: a model that was saved, and the tasks that it predicts.

A model encodes, and knows no task: what loads it for a person gives it a predictor, which has what predicts each task
(`task_predictor.py`) and makes it at its first use. This module imports little, for `load` waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from raysent.data.labels import LabelValue
from raysent.errors import ConfigError, did_you_mean, listed
from raysent.models.schemes import is_scheme_name
from raysent.models.sentence_encoder import SentenceEncoder, Texts, no_task

if TYPE_CHECKING:
    from raysent.ensembles.task_predictor import TaskPredictor

# Task -> what makes its predictor.
MakePredictors = Mapping[str, Callable[[], "TaskPredictor"]]


class Predictor(Mapping[str, "TaskPredictor"]):
    """Predicts the tasks of a model, by their names.

    To look one up raises an `ArtifactError` if a record that it predicts with is missing, damaged or was replaced.

    Attributes:
        encoder: The model.
    """

    def __init__(self, encoder: SentenceEncoder, find_tasks: Callable[[], MakePredictors]) -> None:
        """Take a model, and what finds its tasks, which is called once they are needed."""
        self.encoder = encoder
        self._find_tasks = find_tasks
        self._made: dict[str, TaskPredictor] = {}

    @cached_property
    def _makers(self) -> MakePredictors:
        return self._find_tasks()

    def __getitem__(self, task: str) -> TaskPredictor:
        make = self._makers[task]
        if task not in self._made:
            self._made[task] = make()
        return self._made[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def find(self, task: str | None = None) -> TaskPredictor:
        """Return what predicts a task; None for the only one.

        Raises:
            ConfigError: If the model predicts none, several and none is named, or not this one.
        """
        name = self.encoder.source or type(self.encoder).__name__
        if not self:
            raise no_task(name, is_made_by_name=is_scheme_name(name))
        if task is None:
            if len(self) > 1:
                raise ConfigError(f"task: must be named for {name}; it predicts {listed(self)}")
            task = next(iter(self))
        if not isinstance(task, str):
            kind = type(task).__name__
            raise ConfigError(
                f"task: must be the name of a task, before its texts: {listed(self)}; given {kind}"
            )
        if task not in self:
            raise ConfigError(
                f"{task:.100}: {name} was not made on this task{did_you_mean(task, self)}"
            )
        return self[task]

    def split(
        self, arguments: Sequence[Texts], task: str | None
    ) -> tuple[TaskPredictor, list[Texts]]:
        """Return what predicts, and the columns of texts, of the arguments of `predict`.

        The first of them may be the task's name. Where a model has one task, as many arguments as it has columns are
        texts.

        Raises:
            ConfigError: As `find`.
        """
        if task is None and arguments and not self._are_texts(arguments):
            return self.find(cast("str", arguments[0])), list(arguments[1:])
        return self.find(task), list(arguments)

    def _are_texts(self, arguments: Sequence[Texts]) -> bool:
        """Return whether all arguments are columns of the only task."""
        if len(self) != 1:
            return False
        (only_predictor,) = self.values()
        return len(arguments) == only_predictor.num_columns

    def predict(
        self, arguments: Sequence[Texts], *, task: str | None
    ) -> list[LabelValue] | list[float]:
        """Return each row's most probable class; see `SentenceEncoder.predict`."""
        predictor, columns = self.split(arguments, task)
        answers = predictor.answers(predictor.log_probabilities(columns))
        return cast("list[LabelValue] | list[float]", answers)

    def predict_log_probabilities(
        self, arguments: Sequence[Texts], *, task: str | None
    ) -> npt.NDArray[np.float64]:
        """Return calibrated log-probabilities, float64 [rows, classes]."""
        predictor, columns = self.split(arguments, task)
        return predictor.log_probabilities(columns)

    def label_names(self, task: str | None = None) -> tuple[str, ...]:
        """Return the names of a task's classes [classes]; of rated pairs those of the rating levels."""
        return self.find(task).label_names
