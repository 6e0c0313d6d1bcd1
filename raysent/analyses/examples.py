"""What a model answers, beside what is right: a seeded sample of a task's rows, and its worst ones.

Source: Kiros et al., 2015, table 4 (predicted relatedness of SICK's test pairs).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raysent.analyses.answers import Answers, Judging, answers_of
from raysent.analyses.files import Analysis
from raysent.config import StrictModel


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
    models: Sequence[str | Path], task: str, *, judging: Judging, num_rows: int = 10, seed: int = 0
) -> list[Examples]:
    """Return each model's answers to the same `num_rows` rows of a task, and to its own worst ones."""
    return [examples(found, num_rows=num_rows, seed=seed) for found in answers_of(models, task, judging=judging)]


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
