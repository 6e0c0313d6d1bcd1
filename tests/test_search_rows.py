"""The rows of a search: a file without test rows, and a trace of the files that search and last evaluation open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_contrast import write_task
from tiny_run import tiny_run, write_corpus

from raysent.errors import ArtifactError
from raysent.evaluation.division import read_search_rows, save_search_rows
from raysent.evaluation.task import TaskData
from raysent.pipeline.arguments import space_of
from raysent.pipeline.sweeps import _with_search_rows
from raysent.training.validation import DownstreamConfig
from raysent.training.validation.metrics import Downstream

# Trains a trial and evaluates its model; prints which files each of both opened.
_TRACED = """
import json, sys
from pathlib import Path
opened = set()
sys.addaudithook(lambda event, what: event == "open" and isinstance(what[0], str) and opened.add(what[0]))
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.tasks import resolve_tasks
from raysent.training.loop import fit
from raysent.training.run import RunConfig
config, run, task = RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
outcome = fit(config, run)
search = sorted(opened)
opened.clear()
Evaluator(run / "evaluation").records(expand([str(run)]), resolve_tasks([task]))
print(json.dumps([search, sorted(opened), outcome.metrics["downstream"]]))
"""


def space_with(folder: Path, task: str):
    """A space whose trials are ranked by the task."""
    write_corpus(folder)
    base = tiny_run(folder, training__max_steps=4, training__num_reports=2).model_dump(
        mode="json", include={"corpus", "encoder", "objective", "training"}
    )
    base["validation"] = {"num_candidates": 20, "num_sentences": 40, "downstream": {"tasks": [task]}}
    return space_of({"name": "traced", "metric": "downstream", "base": base, "search": {}})


@pytest.mark.parametrize("has_parts", [True, False])
def test_search_opens_no_test_row_and_last_evaluation_does(tmp_path, has_parts):
    """By a trace of opened files, for given and for drawn test rows; the score of the search is as from the table."""
    task = write_task(tmp_path, has_parts=has_parts)
    space = space_with(tmp_path, task)
    divided = _with_search_rows(space, tmp_path / "run")
    config = divided.config(divided.first_params())
    assert config.key == space.config(space.first_params()).key
    arguments = [config.model_dump_json(), str(tmp_path / "trial"), task]
    done = subprocess.run(
        [sys.executable, "-c", _TRACED, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    search, last, score = json.loads(done.stdout.splitlines()[-1])
    table, rows = str(tmp_path / "rows.csv"), str(tmp_path / "run" / "divisions" / "search_rows.json")
    assert table not in search
    assert rows in search
    assert table in last
    assert rows not in last
    # The file names no row that tests.
    kept = {row["sentences"][0][0].split()[-1] for row in json.loads(Path(rows).read_text())}
    assert kept
    own = Downstream(DownstreamConfig(tasks=[task])).tasks[0]
    assert read_search_rows(Path(rows))[0].row_hash == own.row_hash
    assert score > 0
    texts = {text for row in json.loads(Path(rows).read_text()) for text in row["sentences"][0]}
    tested = [line.split(",")[0] for line in Path(table).read_text().splitlines()[1:] if line.endswith(",test")]
    assert not texts & set(tested)


def test_rows_are_read_as_they_were_written(tmp_path):
    """Classes, pairs with ratings, folds and a scale; a damaged file is refused in one line."""
    rows = {"train": np.arange(3), "validation": np.array([3]), "test": np.array([3])}
    data = [
        TaskData("one", "sentence", "train-validation-test", ("a", "b"), (list("wxyz"),), np.array([0, 1, 0, 1]), **rows),
        TaskData(
            "two", "pair", "train-validation-test", ("0", "1"), (list("wxyz"), list("abcd")), np.array([0, 1, 0, 1]),
            scores=np.array([0.1, 1 / 3, 0.7, 1.0]), scale=(0.0, 1.0), folds=np.array([0, 1, 0, 1]), **rows,
        ),
    ]  # fmt: skip
    path = tmp_path / "rows.json"
    save_search_rows(path, data)
    for given, read in zip(data, read_search_rows(path), strict=True):
        assert read.row_hash == given.row_hash
        assert (read.task, read.metric) == (given.task, given.metric)
    path.write_text('[{"task": "one"}]')
    with pytest.raises(ArtifactError, match="not the rows of a search; begin another run"):
        read_search_rows(path)


def test_run_that_has_lost_its_rows_reads_the_tasks_files(tmp_path):
    """A folder that was moved, or an earlier version's, goes on."""
    task = write_task(tmp_path)
    moved = DownstreamConfig(tasks=[task], rows=str(tmp_path / "gone.json"))
    assert Downstream(moved).hash == Downstream(DownstreamConfig(tasks=[task])).hash
