"""Tables that commands write: the user's own columns are unchanged in every form, and no value is changed by a cast."""

from __future__ import annotations

import datetime
import io
import json
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from tables import save_dataset

from raysent import label, load, predict
from raysent.data.cells import is_formula, without_formula
from raysent.data.tables import read_table
from raysent.ensembles import combine
from raysent.errors import ConfigError, DataError
from raysent.evaluation.task_files import OwnTask
from raysent.pipeline.table_output import OutputTable, writing

WORDS = ("red", "blue", "tall", "short", "round", "flat", "hot", "cold")
FORMULA = '=HYPERLINK("http://evil","a")'


def texts(num_rows: int) -> list[str]:
    """Return texts of a few words."""
    rng = np.random.default_rng(0)
    return [
        " ".join(rng.choice(WORDS, 5)) + f" {'abcdefghij'[row % 10] * 5}{row}"
        for row in range(num_rows)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model of two labels, of which one is a formula."""
    folder = tmp_path_factory.mktemp("model") / "own"
    rows = texts(60)
    labels = [FORMULA if "red" in row else "-1" for row in rows]
    combine(
        ["tfidf"],
        output=folder,
        tasks=[OwnTask(pd.DataFrame({"text": rows, "label": labels}), name="own")],
    )
    return folder


def written(path: Path, *blocks: list[list[object]], names=("x",), schema=None) -> Path:
    """Write blocks of the user's own columns, and return the path."""
    with writing(path, OutputTable(list(names), len(names), schema)) as write:
        for block in blocks:
            write(block)
    return path


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ([1, 2], [2.5, 3]),
        ([None, None], [1, 2]),
        ([None], ["a"]),
        ([{"a": 1}], [{"b": [2.5]}]),
        ([[]], [[1, 2]]),
        ([[1]], [[2.5]]),
        ([True], [None, False]),
    ],
)  # fmt: skip
def test_types_of_parquet_hold_the_values_of_all_blocks(tmp_path, first, later):
    """The first block decides nothing; also where the widest types come first."""
    for blocks in ([first, later, first], [later, first]):
        path = written(tmp_path / "x.parquet", *([block] for block in blocks))
        values = parquet.read_table(path)["x"].to_pylist()
        expected = [value for block in blocks for value in block]
        for value, wanted in zip(values, expected, strict=True):
            if isinstance(wanted, dict):  # a key that others have is null
                assert {key: inner for key, inner in value.items() if inner is not None} == wanted
            else:
                assert value == wanted
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("first", "later"), [([1], ["a"]), ([True], [1]), ([2**60 + 1], [0.5]), ([2**80], [1])]
)
def test_values_that_no_type_holds_are_refused_with_their_column(tmp_path, first, later):
    """Numbers and text, or an integer that would lose digits; nothing is left of the file."""
    with pytest.raises(
        DataError, match=r"^output: column 'x': Parquet cannot hold .*write \.jsonl"
    ) as error:
        written(tmp_path / "x.parquet", [first], [later])
    assert len(str(error.value)) < 300
    assert list(tmp_path.iterdir()) == []


TYPED = pa.table(
    {
        "text": pa.array(texts(40)).cast(pa.large_string()),
        "kind": pa.array(["a", "b"] * 20).dictionary_encode(),
        "small": pa.array(range(40), pa.int8()),
        "price": pa.array([Decimal("1.10")] * 40, pa.decimal128(9, 2)),
        "at": pa.array([1_700_000_000_000_000_001] * 40, pa.timestamp("ns", tz="Europe/Berlin")),
        "far": pa.array([1 << 60] * 40, pa.timestamp("us")),
        "half": pa.array(np.full(40, 0.1, np.float32)),
        "amount": pa.array([1.5, float("nan")] * 20),
        "image": pa.array([b"\x00\xff"] * 40),
        "pairs": pa.array([[("k", 1)]] * 40, pa.map_(pa.string(), pa.int64())),
        "empty": pa.nulls(40, pa.int32()),
    }
)  # fmt: skip


@pytest.mark.parametrize("name", ["x.parquet", "x"])
def test_columns_of_a_typed_file_pass_unchanged(tmp_path, model, name):
    """Types, zones, numbers of categories and what Python has no value for; of a folder of `datasets` too."""
    if name.endswith(".parquet"):
        parquet.write_table(TYPED, tmp_path / name, row_group_size=7)
    else:
        save_dataset(tmp_path / name, TYPED)
    predict(model, tmp_path / name, output=tmp_path / "out.parquet", progress=False)
    out = parquet.read_table(tmp_path / "out.parquet")
    assert out.column_names == [*TYPED.column_names, "predicted"]
    for column in TYPED.column_names:
        assert out.schema.field(column).type == TYPED.schema.field(column).type
        assert out[column].to_numpy(zero_copy_only=False).tolist().__repr__() == (
            TYPED[column].to_numpy(zero_copy_only=False).tolist().__repr__()
        )


def test_labelling_keeps_the_types_of_a_typed_file(tmp_path, model):
    """And the labels that it writes are no formulas."""
    table = TYPED.drop_columns(["far"]).append_column("label", pa.array([FORMULA, None] * 20))
    parquet.write_table(table, tmp_path / "x.parquet")
    label(
        model, tmp_path / "x.parquet", num_rows=3, output=tmp_path / "next.parquet", progress=False
    )
    out = parquet.read_table(tmp_path / "next.parquet")
    assert out.schema.types == table.schema.types
    assert sorted(out["small"].to_pylist()) == sorted(table["small"].to_pylist())


def test_objects_without_a_key_keep_the_keys_of_the_others(tmp_path, model):
    """Neither what the first object lacks is lost, nor is a column predicted because it comes first."""
    rows = [
        {"subject": "A subject"},
        *({"subject": "re", "text": text, "ticket": 1} for text in texts(8)),
    ]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=r"row 1: column 'text' must be text; given nothing"):
        predict(model, path, output=tmp_path / "out.jsonl", progress=False)
    rows[0]["text"] = "red"
    path.write_text("\n".join(map(json.dumps, [{"text": "blue"}, *rows])))
    predict(model, path, output=tmp_path / "out.jsonl", progress=False)
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["ticket"] for row in out] == [None, None, *[1] * 8]
    assert [row["text"] for row in out] == ["blue", "red", *texts(8)]


def test_whole_numbers_with_fractions_later_stay_what_they_are(tmp_path, model):
    """They are in a later block than the one that would decide."""
    rows = [{"text": texts(4)[row % 4], "price": row if row < 1500 else 2.5} for row in range(1600)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    predict(model, tmp_path / "x.jsonl", output=tmp_path / "out.parquet", progress=False)
    assert parquet.read_table(tmp_path / "out.parquet")["price"].to_pylist() == [
        row["price"] for row in rows
    ]


def test_nan_is_null_in_json_and_empty_in_csv(tmp_path):
    """So both are read again; also inside of lists and objects."""
    columns = [[float("nan"), 1.5], [[float("nan")], {"a": float("nan")}]]
    path = written(tmp_path / "x.jsonl", columns, names=("x", "y"))
    assert read_table(path).columns == {"x": [None, 1.5], "y": [[None], {"a": None}]}
    path = written(tmp_path / "x.csv", columns, names=("x", "y"))
    assert read_table(path).columns["x"] == ["", "1.5"]
    with pytest.raises(DataError, match=r"column 'x': JSON has no infinite numbers"):
        written(tmp_path / "x.jsonl", [[float("inf")]])


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
@pytest.mark.parametrize("value", [b"\x00", {"bytes": b"\x00"}, [b"a"]])
def test_bytes_are_refused_with_their_column(tmp_path, name, value):
    """Text of Python about them is no value of the table."""
    with pytest.raises(
        DataError, match=r"^output: column 'image': (CSV|JSON) cannot hold bytes; write \.parquet"
    ):
        written(tmp_path / name, [[value]], names=("image",))


def test_lists_are_joined_only_where_they_can_be_divided_again(tmp_path):
    """A separator inside of a text would make two of one."""
    path = written(tmp_path / "x.csv", [[["a", "b"], ["a|b", "c"], [1, 2]]])
    assert read_table(path).columns["x"] == ["a|b", '["a|b", "c"]', "[1, 2]"]


def test_dates_and_decimal_numbers_are_text_in_json(tmp_path):
    """As they are written everywhere."""
    path = written(tmp_path / "x.jsonl", [[datetime.date(2024, 5, 1), Decimal("1.10")]])
    assert read_table(path).columns == {"x": ["2024-05-01", "1.10"]}


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.jsonl"])
def test_labels_are_no_formulas_and_own_cells_are_unchanged(tmp_path, model, name, capsys):
    """A text of a table that begins with a sign comes back as it was; a model's label gets an apostrophe, with a line."""
    own = ["red @SUM(A1)", "@united red thanks", "- red", "=1+1 red", "tall"]
    (tmp_path / "x.jsonl").write_text(
        "\n".join(json.dumps({"text": text, "=n": "+x"}) for text in own)
    )
    predict(model, tmp_path / "x.jsonl", output=tmp_path / name)
    columns = read_table(tmp_path / name).columns
    assert (columns["text"], columns["=n"]) == (own, ["+x"] * 5)
    is_json = name.endswith(".jsonl")
    answers = load(model).predict(own)
    assert columns["predicted"] == [
        answer if is_json else without_formula(answer) for answer in answers
    ]
    assert FORMULA in answers
    assert ("--set formulas=true leaves them" in " ".join(capsys.readouterr().err.split())) == (
        not is_json
    )
    predict(model, tmp_path / "x.jsonl", output=tmp_path / name, formulas=True, progress=False)
    assert read_table(tmp_path / name).columns["predicted"] == answers


@pytest.mark.parametrize("text", ["=1", "+x", "-x", "@a", "\tx", "\r", "'x"])
def test_formula_is_found_and_restored(text):
    """By its first character."""
    assert is_formula(text)
    assert without_formula(text).removeprefix("'") == text


@pytest.mark.parametrize("text", ["", "-", "+", "-1", "+1.5e3", "a=b", "x"])
def test_numbers_and_signs_are_no_formulas(text):
    """Labels such as -1 and + are written as they are."""
    assert without_formula(text) == text


def test_standard_output_that_cannot_hold_a_character_is_one_line(monkeypatch):
    """Its encoding is the terminal's; a file is UTF-8."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    message = r"^output: must be a file, which is UTF-8, as standard output is latin-1 and cannot hold '\\U0001f642'"
    with pytest.raises(ConfigError, match=message):
        written(None, [["é"]], [["🙂"]])
