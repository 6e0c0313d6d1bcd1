"""Scores of every row -> one table, with the figures of the papers beside them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.making import TIME_FILE
from benchmarks.papers.rows import Row
from raysent.evaluation.evaluate import Evaluator
from raysent.models import SentenceModel
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.storage import read_json, write_json, write_text

SCORES_FILE = "scores.json"
_YEARS = ("STS12", "STS13", "STS14", "STS15")


class Block(SentenceEncoder):
    """One block of a model's vectors: a single view."""

    def __init__(self, model: SentenceModel, index: int) -> None:
        ends = np.cumsum([0, *model.config.encoded_dims])
        self._model, self._columns = model, slice(int(ends[index]), int(ends[index + 1]))

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the columns of the block, of unit length, float32 [sentences, dim]."""
        return self._model.encode(sentences, batch_size=batch_size)[:, self._columns]

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of the block."""
        return self._columns.stop - self._columns.start


def evaluate(row: Row, *, models: Path, data: Path) -> dict[str, float]:
    """Evaluate the model of a row on every available task, and store the scores."""
    name, block = row.view or (row.name, None)
    output, senteval = models.parent / "evaluation" / row.name, data / "senteval"

    def load(path: str) -> SentenceEncoder:
        model = SentenceModel.load(Path(path))
        return model if block is None else Block(model, block)

    found = {score.task: score.test for score in Evaluator(output, senteval, load=load).evaluate([models / name])}
    write_json(models / row.name / SCORES_FILE, found)
    return found


def write_tables(rows: list[Row], *, output: Path, seconds: float) -> str:
    """Write `papers.md` and return its text."""
    scores = {row.name: read_json(output / "models" / row.name / SCORES_FILE) for row in rows}
    taken = {row.name: read_json(output / "models" / row.name / TIME_FILE) for row in rows}
    tasks = list(dict.fromkeys(task for found in scores.values() for task in found))
    parts = [
        f"At most {seconds:.0f} seconds of processor time each. Probes: test accuracy, protocol `fast`; STS and "
        "similarity: Pearson x 100, nothing trained. In brackets what the paper reported for its own size."
    ]
    for family, members in groupby(rows, key=lambda row: row.family):
        means = ["mean of probes", "mean of STS"]
        head = f"| {family} | " + " | ".join([*tasks, *means]) + " | sentences | seconds |"
        lines = [_line(row, tasks, scores[row.name], taken[row.name]) for row in members]
        parts.append("\n".join([head, "|---" * (len(tasks) + 5) + "|", *lines]))
    text = "\n\n".join(parts) + "\n"
    write_text(output / "papers.md", text)
    return text


def _line(row: Row, tasks: list[str], scores: dict[str, float], taken: dict[str, Any]) -> str:
    cells = [f"{scores[task]:.1f}" + _reported(row, task) for task in tasks]
    probed = [value for task, value in scores.items() if task not in _YEARS and not task.endswith("similarity")]
    years = [scores[task] for task in _YEARS if task in scores]
    means = [f"{np.mean(probed):.2f}", f"{np.mean(years):.2f}"]
    figures = [*cells, *means, f"{taken['sentences']:,}", f"{taken['seconds']}"]
    return f"| {row.title} | " + " | ".join(figures) + " |"


def _reported(row: Row, task: str) -> str:
    return f" ({row.reported[task]:g})" if task in row.reported else ""
