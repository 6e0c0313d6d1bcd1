"""The training rows of a task: what objectives learn that read labels.

The rows are the training part of the division by which the task is scored. Test rows judge. What chooses are the task's
own validation rows; where it has none, the third of the training rows that a run leaves out (`evaluation.parts`), so
that three runs predict all of them, each row by one that has not seen it.
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
from raysent.evaluation.division import divided
from raysent.evaluation.parts import NUM_PARTS, has_parts, part_numbers
from raysent.evaluation.task import NO_ROWS
from raysent.evaluation.tasks import load_task
from raysent.reading import parse_json
from raysent.storage import content_key


class LabelsConfig(StrictModel):
    """A task whose training rows are learned.

    Attributes:
        task: The task: its name, or its file; with rows for training, validation and test. None takes the one task that
            a sweep is given.
        data: Folder of task files in SentEval's layout.
        max_length: Tokens read of a longer text; None for what the encoder reads, or 50 where it reads any number.
        held_out: Which third of the training rows is left out to choose, of a task without validation rows of its own;
            None for none of them: then no probe on the task ranks the run.
        rows: File of the rows, which a sweep's division writes; while it is there, the task's own file is not opened.
    """

    task: str | None = None
    data: str | None = None
    max_length: int | None = pydantic.Field(default=None, ge=1)
    held_out: int | None = pydantic.Field(default=0, ge=0, lt=NUM_PARTS)
    rows: str | None = None

    @property
    def path(self) -> str:
        """What the rows are read from."""
        task = self.task or ""
        # A task with settings is named by them, as JSON.
        if task.startswith("{"):
            return str(parse_json(task).get("path", task))
        return task


class LabelledRows:
    """The training rows of a task.

    Attributes:
        task: The task's name.
        row_hash: `TaskData.row_hash` of the whole task; where its test rows are a file of their own, without them.
        train: The texts.
        validation: None, as validation rows are read by the metric `downstream` alone.
        held_out: The texts that are left out to choose.
        labels: The class of each text, int64 [rows].
        num_classes: Classes of the task.
        key: Hash of texts and labels.
    """

    def __init__(self, config: LabelsConfig) -> None:
        """Read the rows.

        Raises:
            ConfigError: If the task reads pairs, or predicts scores.
            DataError: If its files are missing or wrong.
        """
        if config.task is None:
            raise ConfigError(
                "labels.task: must name the task whose training rows are learned; given none"
            )
        if config.rows is not None and has_rows(config.rows):
            (task,) = read_rows(config.rows)
        else:
            folder = None if config.data is None else Path(config.data)
            task = load_task(config.task, folder, with_test=False)
        if task.is_scored or task.kind != "sentence":
            raise ConfigError(
                f"labels.task: {task.task}: must have one text and a class a row; given pairs or scores"
            )
        task = divided(task)
        self.task = task.task
        self.row_hash = task.part_of or task.row_hash
        self.has_parts = has_parts(task)
        learned_rows = task.train
        left_out_rows = NO_ROWS
        if self.has_parts and config.held_out is not None:
            parts = part_numbers(task)
            learned_rows = task.train[parts != config.held_out]
            left_out_rows = task.train[parts == config.held_out]
        texts = task.sentences[0]
        self.train = [texts[row] for row in learned_rows]
        self.held_out = frozenset(texts[row] for row in left_out_rows)
        self.validation: list[str] = []
        self.labels = task.labels[learned_rows]
        self.num_classes = len(task.label_names)
        self.key = content_key(self.train, self.labels.tolist())

    def vocabulary(self, config: VocabularyConfig) -> Vocabulary:
        """Return the vocabulary of the training texts."""
        return vocabulary_of([self.train], config)

    def encode(self, vocabulary: Vocabulary, *, max_length: int) -> tuple[Sentences, np.ndarray]:
        """Return the texts as ids, and their classes."""
        return vocabulary.ids(self.train, max_length=max_length), self.labels
