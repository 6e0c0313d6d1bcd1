"""Models' predictions on a task's rows beside the right ones.

A probe predicts the rows that neither trained it nor chose its penalty; for rated pairs the prediction is the expected
rating. A task of similarities has no probe: the predictions are the model's similarities on the scale of the human
ratings, by least squares. The score of such a task is a correlation, which that line does not change.

Source: Kiros et al., 2015, table 4 (predicted relatedness of SICK's test pairs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from raysent.config import StrictModel
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member, expand
from raysent.evaluation.probes.features import encode_columns
from raysent.evaluation.probes.results import predicted_scores
from raysent.evaluation.protocols import protocol_name
from raysent.evaluation.records import SIMILARITY, Record
from raysent.evaluation.task import OF_ROWS, PROBED, RetrievalData, SimilarityData, Task, TaskData
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.sentence_encoder import SentenceEncoder
from raysent.report.analyses import Analysis, Request
from raysent.report.blocks import Block, Cell, Column, Kind, Section, Table, fixed, number


@dataclass(frozen=True)
class Predictions:
    """A model's predictions on some rows of a task.

    Attributes:
        model: The model's name.
        task: The task's name.
        protocol: The evaluation protocol; `similarity` if nothing was trained.
        sentences: One list of sentences [rows] per column.
        gold: The right values: classes, int64 [rows], or ratings, float64 [rows].
        predicted: The model's, of the same form.
        label_names: The classes' names; empty for ratings.
        log_probabilities: Of the right class, float64 [rows]; None for ratings.
    """

    model: str
    task: str
    protocol: str
    sentences: tuple[list[str], ...]
    gold: np.ndarray
    predicted: np.ndarray
    label_names: tuple[str, ...] = ()
    log_probabilities: np.ndarray | None = None

    @property
    def unit(self) -> str:
        """The unit of errors: `nats` for classes, `points` for ratings."""
        return "nats" if self.label_names else "points"

    @property
    def errors(self) -> np.ndarray:
        """Error per row, float64 [rows]: the distance to the rating, or −log p of the right class."""
        if self.log_probabilities is not None:
            return -self.log_probabilities
        distances: np.ndarray = np.abs(self.predicted - self.gold)
        return distances

    def text_of(self, value: float) -> str:
        """Return a class's name, or a rating as text."""
        return self.label_names[int(value)] if self.label_names else f"{value:.2f}"

    def sentences_of(self, row: int) -> tuple[str, ...]:
        """Return a row's sentences."""
        return tuple(column[row] for column in self.sentences)


def predict(models: Sequence[str | Path], task: Task, evaluator: Evaluator) -> list[Predictions]:
    """Return the predictions of models on the same rows of a task, in the order given.

    Raises:
        DataError: If its files are missing or malformed.
        ArtifactError: If a model cannot be loaded, or a record cannot be written.
    """
    data = task.load(evaluator.data_dir)
    assert not isinstance(data, RetrievalData)
    if isinstance(data, SimilarityData):
        return [_from_similarities(member, data, evaluator.load) for member in expand(models)]
    results = evaluator.records(expand(models), [task])
    return [_from_record(records[0], data) for records in results.values()]


def _from_record(record: Record, data: TaskData) -> Predictions:
    """Return a probe's predictions of the test rows of all folds, in the order of rows."""
    rows = np.concatenate([fold.test_rows for fold in record.folds])
    log_probabilities = np.concatenate([fold.test_log_probabilities for fold in record.folds])
    order = np.argsort(rows, kind="stable")
    rows, log_probabilities = rows[order], log_probabilities[order].astype(np.float64)
    sentences = tuple([column[row] for row in rows] for column in data.sentences)
    if data.is_scored:
        predicted = predicted_scores(log_probabilities)
        return Predictions(record.model, data.task, record.protocol, sentences, data.scores[rows], predicted)
    gold = data.labels[rows]
    return Predictions(
        model=record.model,
        task=data.task,
        protocol=record.protocol,
        sentences=sentences,
        gold=gold,
        predicted=log_probabilities.argmax(axis=1),
        label_names=data.label_names,
        log_probabilities=log_probabilities[np.arange(len(gold)), gold],
    )


def _from_similarities(member: Member, data: SimilarityData, load: Callable[[str], SentenceEncoder]) -> Predictions:
    encoder = load(member.path)
    similarities = np.asarray(encoder.similarity_pairwise(*encode_columns(encoder, data.sentences)), dtype=np.float64)
    return Predictions(
        model=member.name,
        task=data.task,
        protocol=SIMILARITY,
        sentences=data.sentences,
        gold=data.scores,
        predicted=rescale(similarities, data.scores),
    )


def rescale(similarities: np.ndarray, ratings: np.ndarray) -> np.ndarray:
    """Return similarities [rows] on the scale of ratings [rows], by least squares, clipped to the range of ratings."""
    if np.ptp(similarities) == 0:
        return np.full_like(ratings, ratings.mean())
    slope, intercept = np.polyfit(similarities, ratings, deg=1)
    rescaled: np.ndarray = np.clip(slope * similarities + intercept, ratings.min(), ratings.max())
    return rescaled


class Example(StrictModel):
    """A row with its right value and the model's prediction.

    Attributes:
        sentences: One, or two for pairs.
        gold: The right value.
        answer: The prediction.
        error: Its error, in rating points or nats.
    """

    sentences: tuple[str, ...]
    gold: str
    answer: str
    error: float


class Examples(Analysis):
    """A model's predictions on some rows of a task.

    Attributes:
        task: The task's name.
        protocol: The evaluation protocol; `similarity` if nothing was trained.
        model: The model's name.
        unit: Of the errors, `points` or `nats`.
        num_rows: Rows that were predicted.
        seed: Of the sample.
        sample: Random rows, in the task's order.
        worst: Rows of the largest errors.
    """

    SECTION: ClassVar = Section(
        "examples",
        "Example predictions",
        "Rows of tasks with the right value and the model's prediction: a random sample, then the largest errors. The "
        "error of a rating is the distance in points, that of a class is −log p of the right class in nats.",
    )
    task: str
    protocol: str
    model: str
    unit: str
    num_rows: int
    seed: int
    sample: tuple[Example, ...]
    worst: tuple[Example, ...]

    @property
    def name(self) -> str:
        """The task and the model."""
        return f"{self.task} {self.model}"

    def blocks(self) -> list[Block]:
        """Return the sample and the largest errors."""
        return [self._table(self.sample, "a sample"), self._table(self.worst, "the largest errors")]

    def _table(self, rows: Sequence[Example], title: str) -> Table:
        kind = _value_kind(self.unit)
        columns = [
            *_sentence_columns(rows),
            Column("right", kind),
            Column("predicted", kind),
            Column("error", "number", f"in {self.unit}"),
        ]
        cells = [
            [
                *map(Cell, row.sentences),
                _value(row.gold, self.unit),
                _value(row.answer, self.unit),
                Cell(fixed(row.error), row.error),
            ]
            for row in rows
        ]
        return Table(columns, cells, caption=f"{self.task}, {self.model}: {title} of {self.num_rows:,} rows")


class ExamplesRequest(Request):
    """Predictions beside the right values: random rows, the same of each model, and its own worst ones.

    Attributes:
        rows: Rows to show of each kind.
        protocol: The evaluation protocol of tasks with a probe.
        seed: Seed of the sample.
    """

    RESULT: ClassVar = Examples
    rows: int = 10
    protocol: str = "fast"
    seed: int = 0

    def compute(
        self, models: Sequence[str | Path], tasks: Sequence[str] | None, evaluator: Evaluator
    ) -> list[Examples]:
        """Return each model's examples on each task."""
        evaluator = replace(evaluator, protocol=protocol_name(self.protocol))
        chosen = resolve_tasks(tasks, evaluator.data_dir, scorings=OF_ROWS, default=PROBED)
        return [
            examples(one, num_rows=self.rows, seed=self.seed)
            for task in chosen
            for one in predict(models, task, evaluator)
        ]


def examples(predictions: Predictions, *, num_rows: int, seed: int) -> Examples:
    """Return a random sample of predictions, and the worst ones."""
    total = len(predictions.gold)
    sample = np.sort(np.random.default_rng(seed).permutation(total)[:num_rows])
    return Examples(
        task=predictions.task,
        protocol=predictions.protocol,
        model=predictions.model,
        unit=predictions.unit,
        num_rows=total,
        seed=seed,
        sample=tuple(_example(predictions, int(row)) for row in sample),
        worst=tuple(
            _example(predictions, int(row)) for row in np.argsort(-predictions.errors, kind="stable")[:num_rows]
        ),
    )


def _example(predictions: Predictions, row: int) -> Example:
    return Example(
        sentences=predictions.sentences_of(row),
        gold=predictions.text_of(predictions.gold[row]),
        answer=predictions.text_of(predictions.predicted[row]),
        error=round(float(predictions.errors[row]), 4),
    )


def _sentence_columns(rows: Sequence[Example]) -> list[Column]:
    is_pair = bool(rows) and len(rows[0].sentences) == 2
    return [Column("first sentence"), Column("second sentence")] if is_pair else [Column("sentence")]


def _value_kind(unit: str) -> Kind:
    return "number" if unit == "points" else "text"


def _value(text: str, unit: str) -> Cell:
    return Cell(text, number(text) if unit == "points" else None)


REQUESTS = {"examples": ExamplesRequest}
