"""Analyses: computed by hand on simulated predictions, refused in one line, stored and shown by a report."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command import CommandLine, write_task

from raysent.analysis import reported_tables
from raysent.errors import ArtifactError
from raysent.evaluation.tasks import senteval
from raysent.report import write as write_report
from raysent.report.analyses import read_analyses, write_analysis
from raysent.report.analyses.predictions import Predictions, examples, rescale


def rated(model: str, predicted: list[float], gold: list[float]) -> Predictions:
    """Return a model's predictions of rated pairs."""
    rows = [f"row {number}" for number in range(len(gold))]
    return Predictions(model, "pairs", "similarity", (rows, rows), np.array(gold), np.array(predicted))


def classified(model: str, predicted: list[int], gold: list[int], log_probabilities: list[float]) -> Predictions:
    """Return a model's predictions of rows of two classes."""
    rows = [f"row {number}" for number in range(len(gold))]
    return Predictions(
        model, "task", "fast", (rows,), np.array(gold), np.array(predicted), ("no", "yes"), np.array(log_probabilities)
    )


def test_error_of_a_class_is_minus_log_p_of_the_right_one():
    """In nats, whether it was predicted or not; the worst rows come first."""
    found = examples(classified("a", [1, 1, 0, 1], [1, 1, 1, 1], [-0.1, -0.2, -3.0, -0.01]), num_rows=2, seed=0)
    assert [(row.sentences, row.answer, row.error) for row in found.worst] == [
        (("row 2",), "no", 3.0),
        (("row 1",), "yes", 0.2),
    ]
    assert found.unit == "nats"


def test_examples_are_a_seeded_sample_and_the_worst():
    """Two models have the same sample, and each its own worst rows."""
    gold = list(np.linspace(0, 5, 40))
    one, other = rated("a", [0.0] * 40, gold), rated("b", [5.0] * 40, gold)
    first, second = (examples(predictions, num_rows=3, seed=7) for predictions in (one, other))
    assert [row.sentences for row in first.sample] == [row.sentences for row in second.sample]
    assert [row.sentences[0] for row in first.worst] == ["row 39", "row 38", "row 37"]
    assert [row.sentences[0] for row in second.worst] == ["row 0", "row 1", "row 2"]


def test_rescale_fits_a_line_and_clips():
    """A linear function of the ratings is rescaled to the ratings, a constant to their mean."""
    scores = np.array([1.0, 2.0, 4.0, 5.0])
    assert rescale(0.9 + 0.01 * scores, scores) == pytest.approx(scores)
    assert rescale(np.array([0.0, 1.0, 9.0, 1.0]), scores).max() <= 5.0
    assert rescale(np.ones(4), scores) == pytest.approx(np.full(4, 3.0))


def test_read_analyses_returns_what_was_written(tmp_path):
    """An analysis survives its file; a file of another version is an error that says what to do."""
    found = examples(rated("a/1", [1.0], [2.0]), num_rows=1, seed=0)
    path = write_analysis(tmp_path, found)
    assert path.name == "examples-pairs-a-1.json"
    assert read_analyses(tmp_path) == (found,)
    values = json.loads(path.read_text())
    del values["model"]
    path.write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match="model is not as this version writes it; analyse again"):
        read_analyses(tmp_path)
    path.write_text("[]")
    with pytest.raises(ArtifactError, match="not an analysis; remove it"):
        read_analyses(tmp_path)


def test_reported_tables_are_complete():
    """All papers are read, every row has a number, and percentages are in a plausible range."""
    tables = reported_tables()
    assert len({table.paper for table in tables}) == 5
    for table in tables:
        for row in table.rows.values():
            assert any(figure is not None for figure in row)
            measured = zip(table.columns, row, strict=True)
            bounded = [figure for column, figure in measured if column.endswith(("pearson", "spearman", "f1"))]
            assert all(figure is None or 10 < figure < 100 for figure in bounded)


def test_analyse_commands_write_what_the_report_shows(tmp_path, monkeypatch, capsys):
    """Each command writes a file, and the page of a folder with evaluated models alone has a section for each."""
    monkeypatch.chdir(tmp_path)
    raysent = CommandLine(monkeypatch, capsys)
    write_task(tmp_path / "data")
    monkeypatch.setattr(senteval, "NUM_ROWS", dict.fromkeys(senteval.NUM_ROWS, 40))
    task = ("--tasks", "MR", "--set", "data=data", "--set", "into=home")
    assert raysent("analyse", "examples", "hash:8", "--set", "rows=3", *task).code == 0
    refused = raysent("analyse", "examples", "hash:8", "--set", "row=3", *task)
    assert (refused.code, refused.err) == (2, "error: row: unknown name; did you mean 'rows'?\n")
    assert "unknown analysis" in raysent("analyse", "exmples", "hash:8").err
    page = write_report(tmp_path / "home").read_text(encoding="utf-8")
    assert "<h2>Example predictions</h2>" in page
