"""Scores of every row -> one table, the papers' figures beside them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.papers.making import TIME_FILE
from benchmarks.papers.rows import Row
from raysent.artifacts import read_json, write_json, write_text
from raysent.evaluate import evaluate, evaluate_similarity

SCORES_FILE = "scores.json"


def judge(row: Row, *, models: Path, data: Path) -> dict[str, float]:
    """Score a row's model on every task that is there, and keep the scores beside it."""
    output, senteval = models.parent / "evaluation", data / "senteval"
    scores = evaluate([models / row.name], output=output, data_dir=senteval)
    found = {score.task: score.test for score in scores}
    found |= {
        one.task: one.pearson for one in evaluate_similarity([models / row.name], output=output, data_dir=senteval)
    }
    write_json(models / row.name / SCORES_FILE, found)
    return found


def write_tables(rows: list[Row], *, output: Path, seconds: float) -> str:
    """Write `papers.md` and return its text."""
    scores = {row.name: read_json(output / "models" / row.name / SCORES_FILE) for row in rows}
    taken = {row.name: read_json(output / "models" / row.name / TIME_FILE) for row in rows}
    tasks = list(dict.fromkeys(task for found in scores.values() for task in found))
    parts = [f"{seconds:.0f} seconds of processor time each; test scores, protocol `fast`; in brackets the paper's."]
    for family, members in groupby(rows, key=lambda row: row.family):
        head = f"| {family} | " + " | ".join(tasks) + " | mean | sentences | seconds |"
        lines = [_line(row, tasks, scores[row.name], taken[row.name]) for row in members]
        parts.append("\n".join([head, "|---" * (len(tasks) + 4) + "|", *lines]))
    text = "\n\n".join(parts) + "\n"
    write_text(output / "papers.md", text)
    return text


def _line(row: Row, tasks: list[str], scores: dict[str, float], taken: dict[str, Any]) -> str:
    cells = [f"{scores[task]:.2f}" + _reported(row, task) for task in tasks]
    mean = sum(scores[task] for task in tasks) / len(tasks)
    return f"| {row.title} | " + " | ".join(cells) + f" | {mean:.2f} | {taken['sentences']:,} | {taken['seconds']} |"


def _reported(row: Row, task: str) -> str:
    return f" ({row.reported[task]:g})" if task in row.reported else ""
