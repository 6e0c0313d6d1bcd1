"""Models' answers to a task's rows, beside the right ones. In: models and a task. Out: one `Answers` a model.

A probe's answers are those to rows that no choice saw; of scored pairs, its mean mark. Where nothing is trained, an
answer is the model's own similarity, laid on the scale of people's scores by the line that fits these best: the
correlation by which the task is judged is blind to that line.

Differs: Jiao, Wang and Feng, 2018, section 5.3, stretch cosines to [0, 5]; there a model whose cosines all are high
errs on every pair of low score, whatever order it gives them.

Where two models differ most on a task. In: their answers. Out: the rows on which one is far better than the other.

Source: Jiao, Wang and Feng, 2018, section 5.3 and table 6 (pairs with both models' scores and people's).

What a model answers, beside what is right: a seeded sample of a task's rows, and its worst ones.

Source: Kiros et al., 2015, table 4 (predicted relatedness of SICK's test pairs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from raysent.analysis.files import Analysis
from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import Member, expand
from raysent.evaluation.probes.features import encode_columns
from raysent.evaluation.probes.results import predicted_scores
from raysent.evaluation.records import SIMILARITY, Record
from raysent.evaluation.tasks import SimilarityData, TaskData, find_task
from raysent.models import load as load_model
from raysent.models.sentence_encoder import SentenceEncoder


@dataclass(frozen=True)
class Answers:
    """A model's answers to some rows of a task.

    Attributes:
        model: The member's name.
        task: The task's name.
        protocol: How the answers came about; `similarity` where nothing was trained.
        sentences: One list of sentences [rows] per column.
        gold: The right answers: classes, int64 [rows], or scores, float64 [rows].
        answers: The model's, as `gold`.
        label_names: The classes' names; empty for scores.
        log_probabilities: Of the right class, float64 [rows]; None for scores.
    """

    model: str
    task: str
    protocol: str
    sentences: tuple[list[str], ...]
    gold: np.ndarray
    answers: np.ndarray
    label_names: tuple[str, ...] = ()
    log_probabilities: np.ndarray | None = None

    def shown(self, value: float) -> str:
        """Return an answer as text: a class's name, or a score."""
        return self.label_names[int(value)] if self.label_names else f"{value:.2f}"

    @property
    def errors(self) -> np.ndarray:
        """How far each answer is off, float64 [rows]: in the scores' unit, or in nats, the right class's −log p."""
        if self.log_probabilities is not None:
            return -self.log_probabilities
        distances: np.ndarray = np.abs(self.answers - self.gold)
        return distances


def answers_of(models: Sequence[str | Path], task: str, *, evaluator: Evaluator) -> list[Answers]:
    """Return the answers of models to the same rows of a task, in the order given.

    Raises:
        ConfigError: If there is no such task.
        DataError: If its files are missing or wrong.
        ArtifactError: If a model cannot be loaded, or a record cannot be written.
    """
    found = find_task(task)
    data = found.load(evaluator.data_dir)
    if isinstance(data, SimilarityData):
        return [_compared(member, data, load_model) for member in expand(models)]
    results = evaluator.records(expand(models), [found])
    return [_probed(records[0], data) for records in results.values()]


def _probed(record: Record, data: TaskData) -> Answers:
    """Return a probe's answers to the test rows of all folds, in the order of rows."""
    rows = np.concatenate([fold.test_rows for fold in record.folds])
    log_probabilities = np.concatenate([fold.test_log_probabilities for fold in record.folds])
    order = np.argsort(rows, kind="stable")
    rows, log_probabilities = rows[order], log_probabilities[order].astype(np.float64)
    sentences = tuple([column[row] for row in rows] for column in data.sentences)
    if data.is_scored:
        predicted = predicted_scores(log_probabilities)
        return Answers(record.model, data.task, record.protocol, sentences, data.scores[rows], predicted)
    gold = data.labels[rows]
    return Answers(
        model=record.model,
        task=data.task,
        protocol=record.protocol,
        sentences=sentences,
        gold=gold,
        answers=log_probabilities.argmax(axis=1),
        label_names=data.label_names,
        log_probabilities=log_probabilities[np.arange(len(gold)), gold],
    )


def _compared(member: Member, data: SimilarityData, load: Callable[[str], SentenceEncoder]) -> Answers:
    """Return a model's own similarities on the scale of the human ratings."""
    encoder = load(member.path)
    similarities = np.asarray(encoder.similarity_pairwise(*encode_columns(encoder, data.sentences)), dtype=np.float64)
    return Answers(
        model=member.name,
        task=data.task,
        protocol=SIMILARITY,
        sentences=data.sentences,
        gold=data.scores,
        answers=on_scale(similarities, data.scores),
    )


def on_scale(likeness: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return similarities [rows] on the scale of scores [rows], by the line of least squares, kept within it."""
    if np.ptp(likeness) == 0:
        return np.full_like(scores, scores.mean())
    slope, intercept = np.polyfit(likeness, scores, deg=1)
    placed: np.ndarray = np.clip(slope * likeness + intercept, scores.min(), scores.max())
    return placed


class Disagreement(StrictModel):
    """A row on which two models differ.

    Attributes:
        sentences: One, or two for pairs.
        gold: The right answer.
        first: The first model's.
        second: The second model's.
        gap: How much less the first model errs: points of the score, or nats of the right class's log-probability.
    """

    sentences: tuple[str, ...]
    gold: str
    first: str
    second: str
    gap: float


class Disagreements(Analysis):
    """The rows on which two models differ most.

    Attributes:
        task: The task's name.
        protocol: How the answers came about.
        models: The two.
        unit: Of the gaps, `points` or `nats`.
        num_rows: Rows that both answered.
        num_first: Rows on which the first is better: alone right, or nearer to the score.
        num_second: Rows on which the second is.
        p_value: Of both being as often better (sign test, exact; McNemar's for classes).
        rows: Those of the largest gaps, the first model's before the second's.
    """

    task: str
    protocol: str
    models: tuple[str, str]
    unit: str
    num_rows: int
    num_first: int
    num_second: int
    p_value: float
    rows: tuple[Disagreement, ...]

    @property
    def name(self) -> str:
        """The task, and the two models."""
        return f"{self.task} {self.models[0]} {self.models[1]}"


def find_disagreements(
    models: Sequence[str | Path], task: str, *, evaluator: Evaluator, num_rows: int = 10
) -> Disagreements:
    """Return where two models differ most on a task, `num_rows` rows for each of them.

    Raises:
        ConfigError: If there are not two models, or there is no such task.
    """
    found = answers_of(models, task, evaluator=evaluator)
    if len(found) != 2:
        raise ConfigError(f"errors are compared between two models; given {len(found)}; name two")
    return disagreements(*found, num_rows=num_rows)


def disagreements(first: Answers, second: Answers, *, num_rows: int) -> Disagreements:
    """Return where two models' answers to the same rows differ most."""
    gaps = second.errors - first.errors
    is_first, is_second = _better(first, second)
    num_first, num_second = int(is_first.sum()), int(is_second.sum())
    num_apart = num_first + num_second
    chosen = [
        *_largest(np.where(is_first, gaps, -np.inf), min(num_rows, num_first)),
        *_largest(np.where(is_second, -gaps, -np.inf), min(num_rows, num_second)),
    ]
    return Disagreements(
        task=first.task,
        protocol=first.protocol,
        models=(first.model, second.model),
        unit="nats" if first.label_names else "points",
        num_rows=len(gaps),
        num_first=num_first,
        num_second=num_second,
        p_value=float(stats.binomtest(num_first, num_apart).pvalue) if num_apart else 1.0,
        rows=tuple(_row(first, second, int(row), float(gaps[row])) for row in chosen),
    )


def _better(first: Answers, second: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Return where the first is better, and where the second is, bool [rows] each."""
    if first.label_names:
        is_right, other_is = first.answers == first.gold, second.answers == second.gold
        return is_right & ~other_is, other_is & ~is_right
    return first.errors < second.errors, second.errors < first.errors


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the largest values [rows], the largest first."""
    return np.argsort(-values, kind="stable")[:count]


def _row(first: Answers, second: Answers, row: int, gap: float) -> Disagreement:
    return Disagreement(
        sentences=tuple(column[row] for column in first.sentences),
        gold=first.shown(first.gold[row]),
        first=first.shown(first.answers[row]),
        second=second.shown(second.answers[row]),
        gap=round(gap, 4),
    )


class Example(StrictModel):
    """A row with its right answer and the model's.

    Attributes:
        sentences: One, or two for pairs.
        gold: The right answer.
        answer: The model's.
        error: How far that is off: points of the score, or nats, the right class's −log p.
    """

    sentences: tuple[str, ...]
    gold: str
    answer: str
    error: float


class Examples(Analysis):
    """A model's answers to some rows of a task.

    Attributes:
        task: The task's name.
        protocol: How the answers came about.
        model: Its name.
        unit: Of the errors, `points` or `nats`.
        num_rows: Rows that were answered.
        seed: Of the sample.
        sample: Rows drawn from all, in the task's order.
        worst: Rows of the largest errors.
    """

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
        """The model and the task."""
        return f"{self.task} {self.model}"


def pick_examples(
    models: Sequence[str | Path], task: str, *, evaluator: Evaluator, num_rows: int = 10, seed: int = 0
) -> list[Examples]:
    """Return each model's answers to the same `num_rows` rows of a task, and to its own worst ones."""
    return [examples(found, num_rows=num_rows, seed=seed) for found in answers_of(models, task, evaluator=evaluator)]


def examples(answers: Answers, *, num_rows: int, seed: int) -> Examples:
    """Return a sample of answers, and the worst."""
    total = len(answers.gold)
    sample = np.sort(np.random.default_rng(seed).permutation(total)[:num_rows])
    worst = np.argsort(-answers.errors, kind="stable")[:num_rows]
    return Examples(
        task=answers.task,
        protocol=answers.protocol,
        model=answers.model,
        unit="nats" if answers.label_names else "points",
        num_rows=total,
        seed=seed,
        sample=tuple(_example(answers, int(row)) for row in sample),
        worst=tuple(_example(answers, int(row)) for row in worst),
    )


def _example(answers: Answers, row: int) -> Example:
    return Example(
        sentences=tuple(column[row] for column in answers.sentences),
        gold=answers.shown(answers.gold[row]),
        answer=answers.shown(answers.answers[row]),
        error=round(float(answers.errors[row]), 4),
    )
