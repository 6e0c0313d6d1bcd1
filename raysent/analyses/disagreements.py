"""Where two models differ most on a task. In: their answers. Out: the rows on which one is far better than the other.

Source: Jiao, Wang and Feng, 2018, section 5.3 and table 6 (pairs with both models' scores and people's).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from raysent.analyses.answers import Answers, Judging, answers_of
from raysent.analyses.files import Analysis
from raysent.config import StrictModel
from raysent.errors import ConfigError


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
    models: Sequence[str | Path], task: str, *, judging: Judging, num_rows: int = 10
) -> Disagreements:
    """Return where two models differ most on a task, `num_rows` rows for each of them.

    Raises:
        ConfigError: If there are not two models, or there is no such task.
    """
    found = answers_of(models, task, judging=judging)
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
