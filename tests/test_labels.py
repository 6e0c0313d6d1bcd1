"""Labels of a table: which are missing, which a person takes for one, and their types from the table to the answer."""

from __future__ import annotations

import csv
import json
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from starlette.testclient import TestClient

import raysent
from raysent.data.labels import joined_names, kind_of_labels, label_value
from raysent.evaluation.task import TaskData
from raysent.evaluation.task_files import OwnTask
from raysent.serving.server import ServerConfig, make_application
from raysent.storage import read_json, write_json

WORDS = [
    "kettle",
    "lamp",
    "chair",
    "train",
    "hotel",
    "phone",
    "garden",
    "bridge",
    "museum",
    "bakery",
    "river",
    "window",
]


def texts_of(labels: list, *, seed: int = 0) -> list[str]:
    """Return texts that say which of equal labels they have."""
    names = {label: f"word{place}" for place, label in enumerate(dict.fromkeys(map(str, labels)))}
    generator = np.random.default_rng(seed)
    return [f"{names[str(label)]} {' '.join(generator.choice(WORDS, 6))}" for label in labels]


def written(path: Path, labels: list) -> str:
    """Write a table of texts and labels in the form that the path's end names."""
    rows = list(zip(texts_of(labels), labels, strict=True))
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([("text", "label"), *rows])
    elif path.suffix == ".jsonl":
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        texts, values = zip(*rows, strict=True)
        parquet.write_table(pa.table({"text": list(texts), "label": list(values)}), path)
    return str(path)


def load(name: str | OwnTask) -> tuple[TaskData, tuple[str, ...]]:
    """Return the rows of a task and its warnings."""
    task = name if isinstance(name, OwnTask) else OwnTask(name)
    data = task.load()
    assert isinstance(data, TaskData)
    return data, task.remarks.warnings


# --- labels that a person takes for one --------------------------------------------------------------------------------

ALIKE = {
    "forms": ["négatif", unicodedata.normalize("NFD", "négatif"), "positif", "positif"],
    "never shown": ["neg", "neg", "pos", "pos\u200b"],
    "numbers": ["1", "1.0", "0", "0"],
    "case": ["True", "true", "False", "False"],
    "blanks": ["not good", "not_good", "Good", "Good"],
}


@pytest.mark.parametrize("case", ALIKE)
def test_labels_that_are_one_to_a_person_are_named_with_what_joins_them(case, tmp_path):
    """The line is what can be typed, and makes one class of them by the name of the most frequent."""
    labels = [*ALIKE[case] * 15, ALIKE[case][0]]
    path = written(tmp_path / "own.csv", labels)
    data, (warning,) = load(path)
    assert len(data.label_names) == 3
    assert warning.startswith("own: labels that a person may take for one are several classes: ")
    assert (
        "31 and 15 rows" in warning
        or "16 and 15 rows" in warning
        or "15 and 16" in warning
        or "15 and 15" in warning
    )
    command = warning.split("--task ")[1].removesuffix(" makes them one").strip("'")
    (task,) = raysent.evaluation.task_files.open_tasks(command)
    joined, warnings = load(task)
    assert warnings == ()
    assert len(joined.label_names) == 2
    assert set(joined.label_names) <= set(labels)
    assert ALIKE[case][0] in joined.label_names
    assert len(joined) == len(data) == 61


def test_what_joins_labels_keeps_the_other_options(tmp_path):
    """What can be typed has the columns that were named, and the task's name."""
    path = tmp_path / "own.csv"
    frame = pd.DataFrame(
        {"body": texts_of(["1", "1.0"] * 20), "stars": ["1", "1.0", "2", "2"] * 10}
    )
    frame.to_csv(path, index=False)
    (task,) = raysent.evaluation.task_files.open_tasks(
        f"mine={path}:text=body,label=stars,copies=no"
    )
    _, (warning,) = load(task)
    name = f"mine={path}:text=body,label=stars,join_labels=yes,copies=no"
    assert f"--task {name} makes them one" in warning.replace("'", "")


def test_truth_values_beside_numbers_are_named(tmp_path):
    """JSON's true and 1, which several files joined together have."""
    _, warnings = load(written(tmp_path / "own.jsonl", [True, 1, False, 0] * 15))
    assert "'True' and '1' (15 and 15 rows); 'False' and '0' (15 and 15 rows)" in warnings[0]


def test_several_labels_a_row_that_are_one_are_named_and_joined():
    """In the tasks of these labels alone."""
    labels = [["Camera", "battery"], ["camera"], ["sound"], []] * 15
    frame = pd.DataFrame({"text": texts_of(labels), "label": labels})
    task = OwnTask(frame, name="own")
    of_label = {one.only: one.remarks.warnings for one in task.variants({"accuracy"})}
    assert list(of_label) == ["Camera", "battery", "camera", "sound"]
    assert "'Camera' and 'camera' (15 and 15 rows)" in of_label["Camera"][0]
    assert "join_labels=True" in of_label["Camera"][0]
    assert of_label["sound"] == of_label["battery"] == ()
    joined = OwnTask(frame, name="own", join_labels=True).variants({"accuracy"})
    assert [one.only for one in joined] == ["Camera", "battery", "sound"]
    assert joined[0].load().labels.sum() == 30


def test_yes_and_no_are_read_in_any_writing():
    """One of several columns of labels, as a spreadsheet writes it."""
    frame = pd.DataFrame(
        {"text": texts_of(["x"] * 40), "a": ["1.0", "0", "TRUE", "No"] * 10, "b": ["1", "0"] * 20}
    )
    data = OwnTask(frame, name="own", label=["a", "b"]).variants({"accuracy"})[0].load()
    assert data.labels.tolist() == [1, 0, 1, 0] * 10


def test_ordinary_labels_have_no_warning(tmp_path):
    """Signs, ranges and grades are classes of their own."""
    for labels in (
        [">50K", "<=50K"],
        ["-1", "1"],
        ["c++", "c#"],
        ["A", "B+", "B-"],
        ["1", "2", "10"],
    ):
        assert load(written(tmp_path / "own.csv", labels * 20))[1] == ()


# --- labels that are missing -------------------------------------------------------------------------------------------


def test_a_label_is_missing_by_its_type_and_not_by_its_name(tmp_path):
    """A bread called Nan is a class; an empty cell, null and a NaN of floating point are none."""
    data, warnings = load(written(tmp_path / "own.csv", ["Nan", "Pita", "Roti"] * 20))
    assert (data.label_names, len(data), warnings) == (("Nan", "Pita", "Roti"), 60, ())
    data, warnings = load(written(tmp_path / "own.csv", ["", "Pita", "Roti"] * 20))
    assert (data.label_names, len(data)) == (("Pita", "Roti"), 40)
    assert warnings == ("own: 20 rows without a label left out",)
    for missing in (None, float("nan")):
        data, _ = load(written(tmp_path / "own.parquet", [missing, 1.0, 2.0] * 20))
        assert (data.label_names, len(data)) == (("1", "2"), 40)
    assert load(written(tmp_path / "own.jsonl", [None, "nan", "b"] * 20))[0].label_names == (
        "b",
        "nan",
    )


def test_labels_that_read_like_missing_ones_are_classes_with_a_warning(tmp_path):
    """As other tools write them."""
    labels = ["None", "NULL", "N/A", "<NA>", "nan", "pos", "neg"]
    data, (warning,) = load(written(tmp_path / "own.csv", labels * 10))
    assert len(data) == 70
    assert set(data.label_names) == set(labels)
    assert warning == (
        "own: labels '<NA>' (10 rows), 'N/A' (10 rows), 'NULL' (10 rows), 'None' (10 rows), 'nan' (10 rows) read like "
        "missing values; if they are, leave the cells empty, and their rows are left out"
    )


# --- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["0", "1"], "integer"),
        (["-1", "10"], "integer"),
        (["007", "8"], "text"),
        (["1", "1.5"], "number"),
        (["1.0", "0.0"], "number"),
        (["1", "1.0"], "text"),
        (["True", "False"], "truth"),
        (["true", "True"], "text"),
        (["yes", "no"], "text"),
        (["1", "x"], "text"),
        (["1e3", "2"], "text"),
        (["9" * 30, "1"], "text"),
    ],
)
def test_names_of_a_file_without_types_have_the_type_that_a_reader_sees(names, kind):
    """As readers of CSV infer it, unless two names would be one value or a name could not be written again."""
    assert kind_of_labels(names, names, is_typed=False) == kind
    assert kind_of_labels(names, names, is_typed=True) == "text"
    assert len({label_value(name, kind) for name in names}) == len(names)


TYPED = {
    "integers of a frame": (pd.Series([1, 0] * 40), int),
    "truth values of a frame": (pd.Series([True, False] * 40), bool),
    "numbers of NumPy among objects": (
        pd.Series([np.int64(1), np.int32(0)] * 40, dtype=object),
        int,
    ),
    "numbers of a frame": (pd.Series([1.5, 2.0] * 40), float),
    "integers with missing ones": (pd.Series([1, 0, None, 1] * 20), int),
    "text that is numbers": (pd.Series(["1", "0"] * 40), str),
    "text": (pd.Series(["a", "b"] * 40), str),
}


@pytest.mark.parametrize("case", TYPED)
def test_predictions_are_of_the_type_of_the_labels(case, tmp_path):
    """So that `==` with the column is true, of a model in memory and of a saved one."""
    labels, kind = TYPED[case]
    frame = pd.DataFrame({"text": texts_of(labels.tolist()), "label": labels})
    made = raysent.ensemble(
        ["hash:20", "tfidf"],
        tasks=[raysent.Task(frame, name="own")],
        output=tmp_path / "made",
        baselines=False,
        progress=False,
    )
    known = frame[frame.label.notna()]
    for model in (made, raysent.load(tmp_path / "made")):
        predicted = model.predict(known.text)
        assert {type(one) for one in predicted} == {kind}
        assert (pd.Series(predicted, index=known.index) == known.label).mean() > 0.9
        assert all(isinstance(name, str) for name in model.label_names())


@pytest.fixture(scope="module")
def integers(tmp_path_factory) -> Path:
    """A saved model of a CSV file with labels 0 and 1."""
    folder = tmp_path_factory.mktemp("integers")
    task = written(folder / "own.csv", [0, 1] * 40)
    raysent.ensemble(
        ["hash:20", "tfidf"], tasks=[task], output=folder / "made", baselines=False, progress=False
    )
    return folder


def test_predictions_of_a_csv_file_equal_what_pandas_reads(integers):
    """Integers come back as integers; the names stay text."""
    frame = pd.read_csv(integers / "own.csv")
    model = raysent.load(integers / "made")
    assert (model.predict(frame.text) == frame.label).mean() == 1.0
    assert model.label_names() == ("0", "1")


def test_predict_writes_labels_with_their_type_and_as_they_are_written(integers):
    """Numbers where a file has types, and the table's own text where it has none; counts are by name."""
    for end in (".jsonl", ".parquet", ".csv", ".tsv"):
        output = integers / f"predicted{end}"
        found = raysent.predict(
            integers / "made", integers / "own.csv", output=output, progress=False
        )
        assert found.counts == {"0": 40, "1": 40}
        if end == ".jsonl":
            values = [json.loads(line)["predicted"] for line in output.read_text().splitlines()]
        elif end == ".parquet":
            values = parquet.read_table(output).column("predicted").to_pylist()
        else:
            with output.open(newline="", encoding="utf-8") as stream:
                rows = list(csv.DictReader(stream, delimiter="," if end == ".csv" else "\t"))
            values = [row["predicted"] for row in rows]
        assert set(map(type, values)) == {int if end in (".jsonl", ".parquet") else str}
        assert [str(value) for value in values] == ["0", "1"] * 40
    sure = integers / "sure.parquet"
    raysent.predict(
        integers / "made", integers / "own.csv", output=sure, coverage=0.5, progress=False
    )
    assert set(parquet.read_table(sure).column("predicted").to_pylist()) <= {0, 1, None}


def test_server_answers_with_labels_of_their_type(integers):
    """Classes and labels alike, so that one can be looked up in the other."""
    made = make_application(raysent.load(integers / "made"), ServerConfig())
    with TestClient(made, base_url="http://127.0.0.1") as client:
        found = client.post("/v1/predict", json={"input": texts_of([0, 1])}).json()
    assert found["classes"] == [0, 1]
    assert found["labels"] == [0, 1]


def test_a_model_of_an_earlier_version_answers_with_text(integers, tmp_path):
    """Its records say no type, and a folder that is evaluated again gets it."""
    folder = tmp_path / "earlier"
    shutil.copytree(integers / "made", folder)
    for path in folder.glob("evaluation/*/own.json"):
        values = {name: value for name, value in read_json(path).items() if name != "label_kind"}
        write_json(path, values, sealed=True)
    assert set(raysent.load(folder).predict(texts_of([0, 1]))) == {"0", "1"}
    again = raysent.ensemble(
        ["hash:20", "tfidf"],
        tasks=[str(integers / "own.csv")],
        output=folder,
        baselines=False,
        progress=False,
    )
    assert set(again.predict(texts_of([0, 1]))) == {0, 1}


def test_label_keeps_the_table_s_own_values(integers, tmp_path):
    """Of a Parquet file with integers, some missing: suspected or to be labelled, they stay integers."""
    path = tmp_path / "some.parquet"
    labels = [0, 1, None, 1] * 20
    written(path, labels)
    following = raysent.label(
        integers / "made", path, num_rows=5, output=tmp_path / "next.parquet", progress=False
    )
    assert set(following.rows.label.tolist()) == {0, 1, None}
    assert parquet.read_table(tmp_path / "next.parquet").schema.field("label").type == pa.int64()
    checked = raysent.label(
        integers / "made", path, suspect=True, output=tmp_path / "checked.parquet", progress=False
    )
    table = parquet.read_table(tmp_path / "checked.parquet")
    assert table.schema.field("predicted").type == pa.int64()
    assert set(checked.rows.predicted.tolist()) == {0, 1, None}


def test_joined_names_are_those_of_the_most_frequent():
    """Of equally frequent ones the first in order."""
    assert joined_names({"a": 1, "A": 3, "b": 2, "B": 2}) == {
        "a": "A",
        "A": "A",
        "b": "B",
        "B": "B",
    }
