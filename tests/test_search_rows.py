"""The rows of a run's tasks in files of their own, and a trace of who opens them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_contrast import write_task
from tiny_run import tiny_run, write_corpus
from typed import RAYSENT

from raysent.errors import ArtifactError, DataError
from raysent.evaluation.divided import (
    divide_tasks,
    divided_tasks,
    is_ranked_by_other_rows,
    read_rows,
    save_rows,
)
from raysent.evaluation.division import divided
from raysent.evaluation.task import ProbeTask, TaskData
from raysent.evaluation.tasks import load_task, resolve_tasks
from raysent.reproduction.tasks import senteval
from raysent.storage import read_json, write_json
from raysent.training.labels import LabelledRows, LabelsConfig
from raysent.training.loop import fit
from raysent.training.validation import DownstreamConfig
from raysent.training.validation.metrics import Downstream

SPACE = """
metric: downstream
base:
  labels: {{task: {task}}}
  encoder: {{type: bag, pooling: mean, embedding: {{dim: 8}}}}
  objective: {{type: contrast, positives: labels, temperature: 0.1}}
  training: {{batch_size: 31, learning_rate: 0.02, epochs: 2.0, num_reports: 2}}
  validation: {{downstream: {{tasks: [{task}, TREC], data: {data}}}}}
search:
  training.learning_rate: {{choice: [0.01, 0.02]}}
limits: {{trials: 2}}
evaluation: {{baselines: false}}
"""
# Python runs it first in every process: each opened file of a folder is a line of the folder's `trace`. TREC is taken to
# be published with fewer questions.
HOOK = """
import os, sys
log, root = {}, os.environ["TRACED"] + os.sep
def seen(event, given):
    if event != "open" or not isinstance(given[0], str) or not given[0].startswith(root) or given[0] == root + "trace":
        return
    if "TREC" in given[0]:
        sys.modules["raysent.reproduction.tasks.senteval"].NUM_ROWS.update(QUESTIONS)
    number = os.getpid()
    if number not in log:
        log[number] = os.open(root + "trace", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    how = "w" if given[2] & (os.O_WRONLY | os.O_RDWR) else "r"
    os.write(log[number], f"{number} {how} {given[0][len(root):]}\\n".encode())
sys.addaudithook(seen)
"""
QUESTIONS = {"TREC/train_5500.label": 120, "TREC/TREC_10.label": 40}


def write_trec(folder: Path) -> Path:
    """Questions of two classes, in SentEval's layout."""
    (folder / "data/TREC").mkdir(parents=True)
    for name, num_rows in QUESTIONS.items():
        lines = [
            f"{'HUM' if row % 2 else 'LOC'}:x w{row % 7} w{row % 2} {name[5]}{row}"
            for row in range(num_rows)
        ]
        (folder / "data" / name).write_text("\n".join(lines) + "\n")
    return folder / "data"


def traced(folder: Path, *command: object) -> list[tuple[int, str, str]]:
    """Run a command in a process of its own; returns process, `r` or `w`, and name of each file of the folder."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site/sitecustomize.py").write_text(HOOK.replace("QUESTIONS", repr(QUESTIONS)))
    found = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": found, "TRACED": str(folder)}
    done = subprocess.run(
        [*map(str, command)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 2) for line in (folder / "trace").read_text().splitlines()]
    return [(int(process), how, name) for process, how, name in lines]


def check_trace(trace: list[tuple[int, str, str]], run: str) -> None:
    """No process opens the table after the division, nor a test row before the last evaluation of the first process."""
    first = trace[0][0]
    of_table, of_trec = (
        [place for place, (_, _, name) in enumerate(trace) if name == file]
        for file in ("rows.csv", "data/TREC/TREC_10.label")
    )
    divisions = [
        place
        for place, (_, how, name) in enumerate(trace)
        if how == "w" and "divisions/.rows.test" in name
    ]
    trials = [
        place
        for place, (_, how, name) in enumerate(trace)
        if how == "w" and name.startswith(f"{run}/trials/")
    ]
    tests = [
        place
        for place, (_, how, name) in enumerate(trace)
        if how == "r" and name == f"{run}/divisions/rows.test"
    ]
    assert max(of_table) < min(divisions)
    assert max(divisions) < min(trials)
    assert max(trials) < min(tests)
    assert max(trials) < min(of_trec)
    assert {trace[place][0] for place in (*divisions, *tests, *of_trec)} == {first}


def test_sweep_opens_no_test_row_before_its_last_evaluation(tmp_path):
    """Neither of a user's table nor of a published task, in any process, where trials learn labels and are ranked."""
    task, data = write_task(tmp_path), write_trec(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE.format(task=task, data=data))
    options = [
        "--tasks",
        f"{task},TREC",
        "--data",
        data,
        "--run",
        tmp_path / "run",
        "--set",
        "labels=[32]",
    ]
    trace = traced(tmp_path, *RAYSENT, "sweep", tmp_path / "space.yaml", *options)
    check_trace(trace, "run")
    of_trials = {name for process, how, name in trace if process != trace[0][0] and how == "r"}
    assert {"run/divisions/rows.rows", "run/ranking.rows"} <= of_trials
    tested = [
        line.split(",")[0]
        for line in (tmp_path / "rows.csv").read_text().splitlines()
        if line.endswith(",test")
    ]
    for name in ("ranking.rows", "divisions/rows.rows"):
        written = (tmp_path / "run" / name).read_text()
        assert not any(f'"{text}"' in written for text in tested)
    assert f'"{tested[0]}"' in (tmp_path / "run/divisions/rows.test").read_text()


def test_adapt_opens_no_test_row_before_its_verdict(tmp_path):
    """In one process, trainings come between the division and the test rows."""
    task, data = write_task(tmp_path), write_trec(tmp_path)
    write_corpus(tmp_path)
    fit(tiny_run(tmp_path, training__max_steps=2), tmp_path / "model")
    options = {"tasks": [task, "TREC"], "data": str(data), "time": "1s"}
    options["set"] = {"corpus.format": "sentences", "training.learning_rate": 0.001}
    code = "import raysent; from raysent.pipeline import adapting as a; kept = 'readings', 'contexts'; "
    code += "a.OBJECTIVES = {name: a.OBJECTIVES[name] for name in kept}; "
    code += f"raysent.adapt('model', corpus='text.txt', output='{tmp_path}/out', **{options})"
    check_trace(traced(tmp_path, sys.executable, "-c", code), "out")


def made(task: str, num_rows: int, **values) -> TaskData:
    """Rows of two classes."""
    texts = [f"text {row} {'ä' * (row % 3)}" for row in range(num_rows)]
    given = {
        "kind": "sentence",
        "split": "nested",
        "label_names": ("a", "b"),
        "sentences": (texts,),
    }
    return TaskData(task, **{**given, "labels": np.arange(num_rows) % 2, **values})


def test_rows_are_read_as_they_were_written(tmp_path):
    """Classes, pairs with ratings, folds and a scale; a damaged file is refused in one line."""
    rows = {
        "split": "train-validation-test",
        "train": np.arange(3),
        "validation": np.array([3]),
        "test": np.array([3]),
    }
    scores = {
        "scores": np.array([0.1, 1 / 3, 0.7, 1.0]),
        "scale": (0.0, 1.0),
        "folds": np.array([0, 1, 0, 1]),
    }
    data = [
        made("one", 4, **rows),
        made(
            "two",
            4,
            **rows,
            **scores,
            kind="pair",
            sentences=(list("wxyz"), list("abcd")),
            part_of="whole",
        ),
    ]
    path = tmp_path / "some.rows"
    save_rows(path, data)
    for given, read in zip(data, read_rows(path), strict=True):
        assert read.row_hash == given.row_hash
        assert (read.task, read.metric, read.part_of) == (given.task, given.metric, given.part_of)
        np.testing.assert_array_equal(read.scores, given.scores)
        assert read.scores.dtype == given.scores.dtype
    written = path.read_text()
    for damaged in (written[:-30], written.replace("text 1", "text 7"), "[1]\n", "no JSON"):
        path.write_text(damaged)
        with pytest.raises(ArtifactError, match=r"some\.rows: not the rows that were divided"):
            read_rows(path)


@pytest.mark.parametrize("how", ["drawn", "given", "rated"])
def test_divided_rows_are_whole_again(tmp_path, how):
    """The last evaluation scores the rows of the table, in their order, so that records have the same key."""
    values = {"train": np.arange(4, 60), "test": np.array([3, 1, 2]), "validation": np.array([0])}
    values = {"drawn": {}, "given": {**values, "split": "train-validation-test"}, "rated": values}[
        how
    ]
    if how == "rated":
        values |= {
            "scores": np.linspace(0, 1, 60),
            "split": "train-validation-test",
            "folds": np.arange(60) % 3,
        }
    data = made("own", 60, **values)
    task = ProbeTask("own", files=("rows.csv",), reader=lambda *_: data, is_scored=how == "rated")
    (tmp_path / "rows.csv").touch()
    (found,) = divide_tasks(tmp_path, [(task, tmp_path)], ranking={"own"})
    expected = divided(data)
    for one in (found, divided_tasks(tmp_path)["own"]):
        assert one.load().row_hash == expected.row_hash
        assert one.load().is_drawn == (how == "drawn")
        assert one.scoring == task.scoring
    ((kept,), (tests,)) = (
        read_rows(tmp_path / f"divisions/own.{part}") for part in ("rows", "test")
    )
    assert kept.part_of == tests.part_of == expected.row_hash
    assert [kept.sentences[0][row] for row in kept.train] == [
        expected.sentences[0][row] for row in expected.train
    ]
    assert tests.sentences[0] == [expected.sentences[0][row] for row in expected.test]
    # Test rows of another division, however whole their file is.
    save_rows(tmp_path / "divisions/own.test", [replace(tests, labels=1 - tests.labels)])
    with pytest.raises(ArtifactError, match=r"own\.test: not the rows that were divided"):
        divided_tasks(tmp_path)["own"].load()


def test_other_rows_are_refused_and_an_earlier_versions_run_is_divided(tmp_path):
    """A table that changed after the division is one line; a run without the files gets them, and ranks as it did."""
    rows = made("own", 60)
    task = ProbeTask("own", files=("rows.csv",), reader=lambda *_: rows)
    (tmp_path / "rows.csv").touch()
    (found,) = divide_tasks(tmp_path, [(task, tmp_path)], ranking={"own"})
    assert not is_ranked_by_other_rows(tmp_path, task, lambda _: divided(rows))
    assert is_ranked_by_other_rows(tmp_path, task, lambda _: divided(made("own", 61)))
    about = read_json(tmp_path / "divisions/own.json")
    del about["is_scored"]
    write_json(tmp_path / "divisions/own.json", {**about, "test": [1]})
    assert divided_tasks(tmp_path) == {}
    (again,) = divide_tasks(tmp_path, [(task, tmp_path)])
    assert again.load().row_hash == found.load().row_hash
    assert json.loads((tmp_path / "divisions/own.json").read_text())["ranks"]
    rows = made("own", 59)
    with pytest.raises(
        DataError,
        match=r"^own: must have the 60 rows that .* divided into train and test; given 59",
    ):
        divide_tasks(tmp_path, [(task, tmp_path)])


def test_run_that_has_lost_its_rows_reads_the_tasks_files(tmp_path):
    """A folder that was moved, or an earlier version's, goes on."""
    task = write_task(tmp_path)
    (tmp_path / "search_rows.json").write_text("[]")
    own, whole = Downstream(DownstreamConfig(tasks=[task])), load_task(task)
    for name in ("gone.rows", "search_rows.json"):
        rows = str(tmp_path / name)
        assert Downstream(DownstreamConfig(tasks=[task], rows=rows)).hash == own.hash
        assert LabelledRows(LabelsConfig(task=task, rows=rows)).row_hash == whole.row_hash
    divide_tasks(tmp_path, [(one, None) for one in resolve_tasks([task])])
    (tmp_path / "rows.csv").unlink()
    read = LabelledRows(LabelsConfig(task=task, rows=str(tmp_path / "divisions/rows.rows")))
    assert (read.row_hash, read.train) == (
        whole.row_hash,
        [whole.sentences[0][row] for row in whole.train],
    )


def test_published_test_file_stays_closed(tmp_path, monkeypatch):
    """Without it a task has the other rows, and the same places of them."""
    data = write_trec(tmp_path)
    monkeypatch.setattr(senteval, "NUM_ROWS", QUESTIONS)
    whole = load_task("TREC", data)
    (data / "TREC/TREC_10.label").write_text("other rows")
    known = load_task("TREC", data, with_test=False)
    assert (len(whole), len(known), len(known.test), known.split) == (160, 120, 0, "train-test")
    assert known.sentences[0] == whole.sentences[0][:120]
    assert np.array_equal(known.train, whole.train)
    assert whole.is_any_of([whole.row_hash])
    assert whole.is_any_of([known.row_hash])
    assert not known.is_any_of([whole.row_hash])
