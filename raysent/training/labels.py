"""The training rows of a task: what objectives learn that read labels.

The rows are the training part of the division by which the task is scored. Validation rows choose and test rows judge,
so a task whose validation rows are drawn again among the training rows is refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydantic

from raysent.config import StrictModel
from raysent.data.pairs import vocabulary_of
from raysent.data.vocabulary import Sentences, Vocabulary, VocabularyConfig
from raysent.errors import ConfigError
from raysent.evaluation.divided import has_rows, read_rows
from raysent.evaluation.tasks import load_task
from raysent.reading import parse_json
from raysent.storage import content_key


class LabelsConfig(StrictModel):
    """A task whose training rows are learned.

    Attributes:
        task: The task: its name, or its file; with rows for training, validation and test. None takes the one task that
            a sweep is given.
        data: Folder of task files in SentEval's layout.
        max_length: Tokens read of a longer text.
        rows: File of the rows, which a sweep's division writes; while it is there, the task's own file is not opened.
    """

    task: str | None = None
    data: str | None = None
    max_length: int = pydantic.Field(default=50, ge=1)
    rows: str | None = None

    @property
    def path(self) -> str:
        """What the rows are read from."""
        task = self.task or ""
        return str(parse_json(task).get("path", task)) if task.startswith("{") else task


class LabelledRows:
    """The training rows of a task.

    Attributes:
        task: The task's name.
        row_hash: `TaskData.row_hash` of the whole task; where its test rows are a file of their own, without them.
        train: The texts.
        validation: None, as validation rows are read by the metric `downstream` alone.
        labels: The class of each text, int64 [rows].
        num_classes: Classes of the task.
        key: Hash of texts and labels.
    """

    def __init__(self, config: LabelsConfig) -> None:
        """Read the rows.

        Raises:
            ConfigError: If the task has no given validation and test rows, reads pairs, or predicts scores.
            DataError: If its files are missing or wrong.
        """
        if config.task is None:
            raise ConfigError(
                "labels.task: must name the task whose training rows are learned; given none"
            )
        if config.rows is not None and has_rows(config.rows):
            (data,) = read_rows(config.rows)
        else:
            data = load_task(
                config.task, None if config.data is None else Path(config.data), with_test=False
            )
        if data.is_scored or data.kind != "sentence":
            raise ConfigError(
                f"labels.task: {data.task}: must have one text and a class a row; given pairs or scores"
            )
        if data.split != "train-validation-test":
            raise ConfigError(
                f"labels.task: {data.task}: must have validation and test rows of its own, as rows that train must not "
                "choose; given a task that is cross-validated; write a task file of its table with "
                "'split: {validation: 0.15, test: 0.15}', or name the column of its parts: split"
            )
        self.task, self.row_hash = data.task, data.part_of or data.row_hash
        self.train = [data.sentences[0][row] for row in data.train]
        self.validation: list[str] = []
        self.labels = data.labels[data.train]
        self.num_classes = len(data.label_names)
        self.key = content_key(self.train, self.labels.tolist())

    def vocabulary(self, config: VocabularyConfig) -> Vocabulary:
        """Return the vocabulary of the training texts."""
        return vocabulary_of([self.train], config)

    def encode(self, vocabulary: Vocabulary, *, max_length: int) -> tuple[Sentences, np.ndarray]:
        """Return the texts as ids, and their classes."""
        return vocabulary.ids(self.train, max_length=max_length), self.labels
