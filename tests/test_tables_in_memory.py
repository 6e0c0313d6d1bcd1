"""Tables in memory as tasks: rows, columns, Arrow and other libraries; what is none is one line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from raysent.errors import ConfigError, DataError
from raysent.evaluation.task_files import OwnTask

TEXTS = [
    f"The {noun} was {word} and {other}"
    for noun in ("lamp", "train", "river", "hotel", "garden", "phone")
    for word in ("kind", "slow", "warm", "cold", "near")
    for other in ("red", "tall")
]
LABELS = [1, 0] * 30
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
FRAME = pd.DataFrame(ROWS)


class Interchanged:
    """A table of a library that offers the interchange protocol alone."""

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        """Return the table."""
        return FRAME.__dataframe__(nan_as_null, allow_copy)


class ClassLabel:
    """As of `datasets`."""

    names = ("bad", "good")


class Dataset:
    """As of `datasets`: numbers of classes have names."""

    def __init__(self) -> None:
        self.features = {"text": object(), "label": ClassLabel()}

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows."""
        return FRAME


TABLES = {
    "frame": FRAME,
    "rows": ROWS,
    "columns": {"text": TEXTS, "label": LABELS},
    "columns of NumPy": {"text": np.array(TEXTS), "label": np.array(LABELS)},
    "columns of pandas": {"text": FRAME["text"], "label": FRAME["label"]},
    "Arrow": pa.table({"text": TEXTS, "label": LABELS}),
    "batch of Arrow": pa.record_batch({"text": TEXTS, "label": LABELS}),
    "interchanged": Interchanged(),
    "tuples": list(zip(TEXTS, LABELS, strict=True)),
    "structured array": FRAME.to_records(index=False),
}


@pytest.mark.parametrize("case", TABLES)
def test_table_in_memory_is_the_task_of_its_frame(case):
    """Rows, their order, the type of labels and the division."""
    settings = {"text": 0, "label": 1} if case == "tuples" else {}
    data = OwnTask(TABLES[case], name="x", **settings).load()
    plain = OwnTask(FRAME, name="x").load()
    assert data.sentences == (TEXTS,)
    assert [int(data.label_names[label]) for label in data.labels] == LABELS
    assert data.label_kind == "integer"
    assert data.test.tolist() == plain.test.tolist()


def test_classes_of_a_dataset_have_their_names():
    """And not those of its numbers."""
    assert OwnTask(Dataset(), name="x").load().label_names == ("bad", "good")


def test_parts_in_memory_are_the_parts_of_the_task():
    """Frames, rows or datasets by the names of splits."""
    data = OwnTask({"train": FRAME[:40], "dev": ROWS[40:50], "test": FRAME[50:]}, name="x").load()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [40, 10, 10]
    assert data.sentences == (TEXTS,)
    with pytest.raises(
        ConfigError,
        match=r"parts must have the same columns; 'test' has text, another one text, label",
    ):
        OwnTask({"train": FRAME, "test": FRAME[["text"]]}, name="x")


def test_rows_need_not_have_all_keys():
    """What a row lacks is missing in it; an integer stays one."""
    rows = [*ROWS, {"text": "no label"}]
    task = OwnTask(rows, name="x")
    assert len(task.load()) == 60
    assert task.load().label_kind == "integer"
    assert "1 rows without a label left out" in task.remarks.warnings[0]


NO_TABLES = {
    "Series": (FRAME["text"], "given a Series, which is one; give a data frame"),
    "texts": (TEXTS, "given a list of str"),
    "set": (set(TEXTS), "given a set"),
    "generator": ((row for row in ROWS), "given a generator"),
    "nothing": ([], "given a list"),
    "number": (5, "given a int"),
    "bytes": (b"text", "given a bytes"),
    "column that is a text": ({"text": TEXTS, "label": 5}, "must have a list of values in column 'label'; given int"),
    "columns of two lengths": ({"text": TEXTS, "label": [1]}, "must have columns of one length; given 1, 60"),
    "two columns of a name": (pd.DataFrame([[1, 2]], columns=["a", "a"]), "given 'a' twice"),
    "numbers": (np.zeros((3, 2, 2)), "given a ndarray"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_TABLES)
def test_what_is_no_table_is_one_short_line(case):
    """It names what may be given."""
    table, message = NO_TABLES[case]
    with pytest.raises(ConfigError, match=message) as error:
        OwnTask(table, name="x")
    assert str(error.value).startswith("Task: data: must ")
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_table_without_a_column_of_labels_names_its_columns():
    """As a file."""
    with pytest.raises(
        DataError, match=r"x: label: must name the column of the labels; it has text$"
    ):
        OwnTask({"text": TEXTS}, name="x").load()
    with pytest.raises(ConfigError, match="name: must be given for a table in memory"):
        OwnTask(ROWS)
