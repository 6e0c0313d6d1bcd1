"""Models' answers to a task's rows, beside the right ones. In: models and a task. Out: one `Answers` a model.

A probe's answers are those to rows that no choice saw; of scored pairs, its mean mark. Where nothing is trained, an
answer is the model's own similarity, laid on the scale of people's scores by the line that fits these best: the
correlation by which the task is judged is blind to that line.

Differs: Jiao, Wang and Feng, 2018, section 5.3, stretch cosines to [0, 5]; there a model whose cosines all are high
errs on every pair of low score, whatever order it gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysent import evaluate
from raysent.errors import ConfigError
from raysent.evaluate.members import Member, expand
from raysent.evaluate.records import Record
from raysent.model import load as load_model
from raysent.probes.features import encode_columns
from raysent.probes.relatedness import predicted_scores
from raysent.sentence_encoder import SentenceEncoder
from raysent.tasks import TaskData, find_task, load_task
from raysent.tasks.similarity import SIMILARITY_TASKS, ScoredSet

SIMILARITY = "similarity"


@dataclass(frozen=True)
class Judging:
    """Where and how answers are found.

    Attributes:
        output: Folder of the evaluation's records.
        data_dir: Folder in SentEval's layout; None for embedded tasks.
        protocol: How a task with a probe is judged.
        progress: Called with what is being done.
    """

    output: Path
    data_dir: Path | None = None
    protocol: str = "fast"
    progress: evaluate.Progress | None = None


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


def answers_of(models: Sequence[str | Path], task: str, *, judging: Judging) -> list[Answers]:
    """Return the answers of models to the same rows of a task, in the order given.

    Raises:
        ConfigError: If there is no such task.
        DataError: If its files are missing or wrong.
        ArtifactError: If a model cannot be loaded, or a record cannot be written.
    """
    name = similarity_name(task)
    if name is not None:
        sets = SIMILARITY_TASKS[name].load(judging.data_dir)
        return [_compared(member, name, sets, load_model) for member in expand(models)]
    data = load_task(task, judging.data_dir)
    found = evaluate.records(
        models,
        output=judging.output,
        tasks=[data.task],
        data_dir=judging.data_dir,
        protocol=judging.protocol,
        progress=judging.progress,
    )
    return [_probed(records[0], data) for records in found.values()]


def similarity_name(task: str) -> str | None:
    """Return the name of the task of compared pairs that is meant, None for a task with a probe.

    Raises:
        ConfigError: If there is no such task at all.
    """
    by_plain = {name.lower(): name for name in SIMILARITY_TASKS}
    name = by_plain.get(task.lower())
    if name is None:
        try:
            find_task(task)
        except ConfigError as error:
            raise ConfigError(f"{error}, {', '.join(SIMILARITY_TASKS)}") from None
    return name


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


def _compared(member: Member, task: str, sets: Sequence[ScoredSet], load: Callable[[str], SentenceEncoder]) -> Answers:
    """Return a model's own similarities on the scale of people's scores."""
    encoder = load(member.path)
    first = [sentence for one in sets for sentence in one.first]
    second = [sentence for one in sets for sentence in one.second]
    scores = np.concatenate([one.scores for one in sets])
    likeness = np.asarray(encoder.similarity_pairwise(*encode_columns(encoder, (first, second))), dtype=np.float64)
    return Answers(
        model=member.name,
        task=task,
        protocol=SIMILARITY,
        sentences=(first, second),
        gold=scores,
        answers=on_scale(likeness, scores),
    )


def on_scale(likeness: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return similarities [rows] on the scale of scores [rows], by the line of least squares, kept within it."""
    if np.ptp(likeness) == 0:
        return np.full_like(scores, scores.mean())
    slope, intercept = np.polyfit(likeness, scores, deg=1)
    placed: np.ndarray = np.clip(slope * likeness + intercept, scores.min(), scores.max())
    return placed
