"""Own tasks: columns by name, splits, folds, scores, several labels; what is refused and what is warned about."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from object_store import BUCKET
from tables import save_dataset, write_table

import raysent
from raysent.errors import ConfigError, DataError, RaysentError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.protocols import fit_probe
from raysent.evaluation.task import PROBED, SimilarityData, TaskData
from raysent.evaluation.task_files import OwnTask, replace_task
from raysent.evaluation.task_files.columns import _class_names
from raysent.evaluation.task_files.settings import TaskSettings, how_to
from raysent.evaluation.tasks import find_task, load_task, resolve_tasks

SENTEVAL = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "senteval"


def rows(number: int = 60, seed: int = 0) -> list[dict[str, str]]:
    """Return labelled sentences whose class a word shows."""
    generator = np.random.default_rng(seed)
    words = {"good": ["fine", "great", "lovely"], "bad": ["poor", "dull", "awful"]}
    found = []
    for row in range(number):
        label = ("good", "bad")[row % 2]
        found.append(
            {"text": f"{row:03d} a {generator.choice(words[label])} film {row:03d}", "label": label}
        )
    return found


def load(name: str, **columns: object) -> TaskData:
    """Return the rows of an own task."""
    data = (OwnTask(name, **columns) if columns else find_task(name)).load()
    assert isinstance(data, TaskData)
    return data


@pytest.mark.parametrize("name", ["own.csv", "own.tsv", "own.jsonl", "own.parquet", "folder"])
def test_own_task_is_the_same_in_every_form(tmp_path, name):
    """Texts, classes and their order do not depend on the form of the file, nor do the test rows."""
    found = [*rows(), {"text": 'it said "no,\tnever" ; NA', "label": "bad"}]
    data = load(write_table(tmp_path / name, found))
    assert data.sentences == ([row["text"] for row in found],)
    assert data.label_names == ("bad", "good")
    assert [data.label_names[label] for label in data.labels] == [row["label"] for row in found]
    assert (data.split, data.kind, len(data.test)) == (
        "train-test",
        "sentence",
        round(len(data) / 3),
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_own_task_reads_encodings_with_a_bom_and_crlf(tmp_path, encoding, newline):
    """A BOM is no part of the first column's name, nor a carriage return of the last value."""
    path = tmp_path / "own.csv"
    text = newline.join(["text,label", *(f"{row['text']} é,{row['label']}" for row in rows(20))])
    path.write_bytes((text + newline).encode(encoding))
    data = load(str(path))
    assert data.sentences[0][0].endswith(" é")
    assert data.label_names == ("bad", "good")


@pytest.mark.parametrize("blank", ["\n", "\n\n", "  \n", "\r\n"])
@pytest.mark.parametrize("place", [1, 3, 31])
def test_blank_lines_change_no_row_of_a_tsv(tmp_path, blank, place):
    """Without them every line has equally many values, so that a quotation mark is a part of its value."""
    lines = ["text\tlabel\n", '"Hello there\tgood\n', 'world is big"\tbad\n']
    lines += [f"{row['text']}\t{row['label']}\n" for row in rows(28)]
    path = tmp_path / "own.tsv"
    path.write_text("".join(lines))
    plain = load(str(path))
    path.write_bytes("".join([*lines[:place], blank, *lines[place:]]).encode())
    data = load(str(path))
    assert data.sentences == plain.sentences
    assert data.sentences[0][:2] == ['"Hello there', 'world is big"']
    assert data.labels.tolist() == plain.labels.tolist()


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_table_without_a_header_loses_no_row(tmp_path, suffix):
    """A first line that looks like a row is refused; `header` says what it is."""
    separator = "," if suffix == "csv" else "\t"
    lines = [f"{row['text']}{separator}{row['label']}" for row in rows(20)]
    path = tmp_path / f"own.{suffix}"
    path.write_text("\n".join(lines))
    for first in (lines[0], f"Not bad at all, I would say.{separator}7", f"x{separator}0.5"):
        path.write_text("\n".join([first.replace(", ", " "), *lines[1:]]))
        with pytest.raises(
            DataError, match=r"which looks like a row; add :header=no if it is one, or :header=yes$"
        ):
            load(str(path))
    path.write_text("\n".join(lines))
    data = load(f"{path}:header=no")
    assert data.sentences == ([row["text"] for row in rows(20)],)
    assert load(f"{path}:header=no,text=0,label=1").labels.tolist() == data.labels.tolist()
    notes = find_task(f"{path}:header=no").remarks.notes[0]
    assert (
        "text = '0' (the longer of two columns), label = '1' (the only other column); 20 rows"
        in notes
    )
    assert len(load(f"{path}:header=yes")) == 19
    path.write_text("\n".join([f"Remark{separator}Rating", *lines]))
    assert len(load(str(path))) == 20
    with pytest.raises(ConfigError, match="header"):
        load(f"{path}:header=maybe")
    with pytest.raises(
        DataError, match=r"own.jsonl: only .csv and .tsv may be read without a line of names"
    ):
        load(f"{write_table(tmp_path / 'own.jsonl', rows(20))}:header=no")


def test_label_is_no_text_however_long_it_is(tmp_path):
    """Of two columns the one that is named as a label, a score or a split is not the text; of equal names the first is."""
    found = [
        {"Suchwort": f"w{number}", "label": f"{'warm' if number % 2 else 'cool'} and far away"}
        for number in range(40)
    ]
    task = find_task(write_table(tmp_path / "short.csv", found))
    assert task.remarks.notes[0].startswith(
        "short: text = 'Suchwort' (the other column), label = 'label'"
    )
    assert task.load().sentences == ([row["Suchwort"] for row in found],)
    both = [{"text": row["text"], "Text": "no", "label": row["label"]} for row in rows(20)]
    assert find_task(write_table(tmp_path / "both.csv", both)).load().sentences == (
        [row["text"] for row in both],
    )


def test_ragged_row_of_a_table_without_a_header_is_counted_from_the_first(tmp_path):
    """The first line is row 1 there."""
    path = tmp_path / "own.csv"
    path.write_text("one,a\ntwo,b\nthree, more,a\n")
    with pytest.raises(DataError, match=r"row 3: must have 2 values, as the first row; given 3"):
        load(f"{path}:header=no")


def test_own_task_columns_are_found_by_convention_and_the_guess_is_reported(tmp_path):
    """Names of other tools are known; the only other column of two is the label."""
    found = [
        {"Review": row["text"], "stars": "5" if row["label"] == "good" else "10"}
        for row in rows(20)
    ]
    task = find_task(write_table(tmp_path / "reviews.csv", found))
    assert task.remarks.notes[0].startswith(
        "reviews: text = 'Review' (found by name), label = 'stars' (found by name); 20 rows"
    )
    # Classes that are numbers are in the order of numbers.
    assert task.load().label_names == ("5", "10")


@pytest.mark.parametrize(
    ("parts", "split", "sizes"),
    [
        (["train", "dev", "test"], "train-validation-test", (20, 20, 20)),
        (["Train", "test", "train"], "train-test", (40, 0, 20)),
        (["train", "train", "validation"], "train-test", (40, 0, 20)),
        (["train"], "train-test", (40, 0, 20)),
    ],
)
def test_own_task_takes_the_splits_of_a_column(tmp_path, parts, split, sizes):
    """Common names of splits are known; validation rows alone are the test rows."""
    found = [
        {**row, "split": parts[number // 2 % len(parts)]} for number, row in enumerate(rows(60))
    ]
    data = load(write_table(tmp_path / "own.csv", found))
    assert data.split == split
    assert tuple(map(len, (data.train, data.validation, data.test))) == sizes


def test_own_task_takes_a_file_for_each_split(tmp_path):
    """A task file names them, relative to itself."""
    write_table(tmp_path / "a.csv", rows(40))
    write_table(tmp_path / "b.csv", rows(20, seed=1))
    (tmp_path / "own.yaml").write_text(
        "path: {train: a.csv, test: b.csv}\ntext: text\nlabel: label\n"
    )
    data = load(str(tmp_path / "own.yaml"))
    assert (data.task, data.split, len(data.train), len(data.test)) == ("own", "train-test", 40, 20)


def test_own_task_draws_stratified_fractions(tmp_path):
    """Each class has its fraction in each split, and the seed decides the rows."""
    path = write_table(tmp_path / "own.csv", rows(100))
    first, second = (
        load(path, split={"validation": 0.1, "test": 0.2, "seed": seed}) for seed in (0, 1)
    )
    assert tuple(map(len, (first.train, first.validation, first.test))) == (70, 10, 20)
    assert np.bincount(first.labels[first.test]).tolist() == [10, 10]
    assert not np.array_equal(first.test, second.test)


def test_own_task_keeps_groups_in_one_fold(tmp_path):
    """No document is on both sides of the test or of a fold; the probe uses these folds."""
    found = [{**row, "doc_id": str(number // 6)} for number, row in enumerate(rows(120))]
    data = load(write_table(tmp_path / "own.csv", found))
    documents = np.arange(120) // 6
    assert not set(documents[data.train]) & set(documents[data.test])
    assert all(
        len(set(data.folds[data.train][documents[data.train] == one])) <= 1 for one in range(20)
    )
    assert set(data.folds[data.train]) == set(range(10))
    [fold] = fit_probe(
        np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32), data
    ).folds
    assert np.array_equal(fold.test_rows, data.test)
    assert np.array_equal(fold.validation_rows, data.train)


def test_own_task_with_scores_is_two_tasks(tmp_path):
    """A probe predicts the scores, and the similarity of the model's own vectors is compared with them."""
    generator = np.random.default_rng(0)
    found = [
        {
            "sentence1": f"a {row}",
            "sentence2": f"b {row}",
            "score": f"{generator.uniform(-1, 1):.3f}",
        }
        for row in range(80)
    ]
    probe, similarity = resolve_tasks([write_table(tmp_path / "own.csv", found)])
    data, pairs = probe.load(), similarity.load()
    assert (probe.name, probe.scoring, similarity.name, similarity.scoring) == (
        "own", "correlation", "own-similarity", "similarity",
    )  # fmt: skip
    assert isinstance(data, TaskData)
    assert isinstance(pairs, SimilarityData)
    assert data.kind == "likeness"
    # Other ranges than ratings of up to 5 are mapped to the levels.
    assert (data.scores.min(), data.scores.max()) == (1.0, 5.0)
    assert len(data.test) == 13
    assert len(pairs) == 80  # nothing is fitted to any of them
    assert "80 pairs are tested, as nothing is fitted" in similarity.remarks.notes[0]
    assert [task.name for task in resolve_tasks([str(tmp_path / "own.csv")], scorings=PROBED)] == [
        "own"
    ]


def test_pairs_of_a_test_part_alone_are_tested_whole(tmp_path):
    """By the similarity of the model's own vectors; a part for training is not tested, and none is needed."""
    generator = np.random.default_rng(0)
    rows = [
        {"sentence1": f"a {row}", "sentence2": f"b {row}", "score": f"{generator.uniform():.3f}"}
        for row in range(40)
    ]
    path = write_table(tmp_path / "own.csv", [{**row, "split": "test"} for row in rows])
    (similarity,) = resolve_tasks([path])
    assert (similarity.scoring, len(similarity.load())) == ("similarity", 40)
    scores = raysent.evaluate("hash:20", tasks=[path], output=tmp_path / "out", progress=False)
    assert scores.model[0] == "hash:20"
    parts = ["train"] * 25 + ["test"] * 15
    both = [{**row, "split": part} for row, part in zip(rows, parts, strict=True)]
    probe, similarity = resolve_tasks([write_table(tmp_path / "own.csv", both)])
    assert len(probe.load().test) == len(similarity.load()) == 15
    drawn = f"{write_table(tmp_path / 'own.csv', rows)}"
    task = raysent.Task(drawn, split={"validation": 0.2, "test": 0.25})
    (similarity,) = task.variants({"similarity"})
    assert 5 < len(similarity.load()) < 15


def test_own_task_with_several_labels_is_a_question_for_each(tmp_path):
    """Lists of labels, and values with a separator, become yes/no tasks, the most frequent label first."""
    found = [{"text": f"t {row}", "label": "joy" if row % 3 else "joy|fear"} for row in range(30)]
    found += [{"text": f"u {row}", "label": ""} for row in range(30)]
    tasks = resolve_tasks([write_table(tmp_path / "own.csv", found) + ":separator=|"])
    assert [task.name for task in tasks] == ["own.joy", "own.fear"]
    data = tasks[1].load()
    assert isinstance(data, TaskData)
    assert data.label_names == ("no", "yes")
    assert np.bincount(data.labels).tolist() == [50, 10]
    assert len(replace_task(tasks[0], only="très " * 90).name.encode()) < 200, (
        "a file's name has 255 bytes"
    )
    lists = [
        {"text": row["text"], "labels": [one for one in str(row["label"]).split("|") if one]}
        for row in found
    ]
    pd.DataFrame(lists).to_parquet(tmp_path / "lists.parquet")
    assert [task.name for task in resolve_tasks([str(tmp_path / "lists.parquet")])] == [
        "lists.joy",
        "lists.fear",
    ]


def test_own_task_takes_class_names_of_datasets(tmp_path):
    """Numbers of classes are named as the schema names them, in its order."""
    frame = pd.DataFrame(
        {"text": [f"t {row}" for row in range(30)], "label": [row % 2 for row in range(30)]}
    )
    save_dataset(tmp_path / "own", pa.Table.from_pandas(frame), ["zebra", "ape"])
    assert load(str(tmp_path / "own")).label_names == ("zebra", "ape")


def test_macro_f1_counts_on_an_unbalanced_task(tmp_path):
    """The scores are macro F1, and accuracy is a further measure."""
    found = [
        {"text": f"t {row}", "label": "rare" if row % 10 == 0 else "common"} for row in range(100)
    ]
    data = load(write_table(tmp_path / "own.csv", found), metric="macro_f1")
    result = fit_probe(np.zeros((100, 2), dtype=np.float32), data)
    assert np.bincount(data.labels[data.test]).tolist() == [30, 3]
    assert result.measures["accuracy"] == pytest.approx(100 * 30 / 33)
    # The rare class has F1 0, and the common one 2 * 30 / 63.
    assert result.test == pytest.approx(100 * 0.5 * 60 / 63)
    with pytest.raises(
        ConfigError,
        match=r"^protocol senteval: must be fast for own, which has macro_f1; leave it out$",
    ):
        fit_probe(np.zeros((100, 2), dtype=np.float32), data, protocol="senteval")


def test_own_task_is_evaluated_as_any_other(tmp_path):
    """A table, a task file with several tasks, and a data frame are scored, and records are kept by name."""
    path = write_table(tmp_path / "own.csv", rows(60))
    (tmp_path / "two.yaml").write_text(
        f"tasks:\n  one: {{path: own.csv}}\n  two: {{path: {path}, folds: 5}}\n"
    )
    frame = OwnTask(pd.DataFrame(rows(60)), name="frame")
    scores = Evaluator(tmp_path / "out").evaluate(
        ["hash:20"], [path, str(tmp_path / "two.yaml"), frame]
    )
    assert [score.task for score in scores] == ["own", "one", "two", "frame"]
    assert scores[0].test == scores[1].test == scores[3].test > 60
    assert set(scores[0].measures) == {"macro_f1", "auroc"}


@pytest.mark.skipif(not SENTEVAL.is_dir(), reason="needs ../shared/data/senteval")
@pytest.mark.parametrize("task", ["TREC", "SST-5", "STS-B"])
@pytest.mark.parametrize("form", [".csv", ".parquet", ".jsonl"])
def test_own_task_equals_the_built_in_one(tmp_path, task, form):
    """The rows of a published task in a table of one's own; of pairs their likeness counts too, which papers left out."""
    data = load_task(task, SENTEVAL)
    split = np.empty(len(data), dtype=object)
    for part in ("train", "validation", "test"):
        split[getattr(data, part)] = part
    texts = ("text",) if data.kind == "sentence" else ("sentence1", "sentence2")
    frame = pd.DataFrame(dict(zip(texts, data.sentences, strict=True)))
    if data.is_scored:
        frame["score"] = data.scores
    else:
        frame["label"] = [str(label) for label in data.labels]
    frame["split"] = split
    own = load(write_table(tmp_path / f"own{form}", frame.to_dict("records")))
    assert own.sentences == data.sentences
    assert np.array_equal(own.labels, data.labels)
    assert np.array_equal(own.scores, data.scores)
    for part in ("train", "validation", "test"):
        assert np.array_equal(getattr(own, part), getattr(data, part))
    kind = "likeness" if data.kind == "pair" else data.kind
    assert (own.kind, own.split, len(own.label_names)) == (
        kind,
        data.split,
        len(data.label_names),
    )


def csv_of(*lines: str) -> bytes:
    """Return lines of a CSV file."""
    return "\n".join(lines).encode() + b"\n"


GOOD = [f"text {row},{'ab'[row % 2]}" for row in range(30)]
BAD: dict[str, tuple[str, bytes, str, str]] = {
    # What is wrong: name of the file, its bytes, options, and the message.
    "no file": ("", b"", "", r"no such file$"),
    "only a header": ("x.csv", csv_of("text,label"), "", r"must have rows; given only the names of columns$"),
    "no text column": ("x.csv", csv_of("a,b,c", "1,2,3"), "", r"text: must name the column of the text; it has a, b, c$"),
    "no label column": ("x.csv", csv_of("text,b,c", "1,2,3"), "", r"label: must name the column of the labels; it has text"),
    "no such text column": ("x.csv", csv_of("text,label", *GOOD), ":text=txt", r"text: must name a column; given 'txt'; did you mean 'text'\?$"),
    "no such label column": ("x.csv", csv_of("text,label", *GOOD), ":label=lable", r"label: must name a column; given 'lable'; did you mean 'label'\?$"),
    "no such setting": ("x.csv", csv_of("text,label", *GOOD), ":lable=label", r"lable: unknown setting of a task; did you mean 'label'\?$"),
    "all labels different": ("x.csv", csv_of("text,label", *(f"a,{row}" for row in range(30))), "", r"must be classes that several rows share; given 30 different values in 30 rows"),
    "one class": ("x.csv", csv_of("text,label", *["a b,yes"] * 30), "", r"must have at least two classes; given only 'yes'$"),
    "no labels": ("x.csv", csv_of("text,label", *["more,", "less, "] * 5), "", r"x.csv: label 'label': must hold labels; all 10 are missing$"),
    "missing label of several": ("x.csv", csv_of("text,a,b", "x,1,0", "y,,1"), ":label=a+b", r"row 2: label 'a' must not be missing; it is in 1 rows; leave them out$"),
    "unknown split after a row without a label": ("x.csv", csv_of("text,label,split", "a,,train", *(f"{row},train" for row in GOOD), "c,a,later"), "", r"row 32: split 'split' must be"),
    "all texts empty": ("x.csv", csv_of("text,label", *[",a", ",b"] * 10), "", r"text: must hold text; all 20 values are empty$"),
    "open quotes": ("x.csv", csv_of("text,label", *GOOD, '"open,a'), "", r"x.csv: line 32: must close the quotation mark of each value; write marks inside a value twice, as \"\"$"),
    "open quotes in the last value": ("x.csv", csv_of("label,text", 'a,"open', *GOOD), "", r"x.csv: line 2: must close the quotation mark "),
    "open quotes before closed ones": ("x.csv", csv_of("label,text", 'a,"open', *GOOD, 'b,"two"'), "", r"x.csv: line 2: must close the quotation mark "),
    "not JSON": ("x.jsonl", b'{"text": "a", "label": 1}\n{oops\n', "", r"x.jsonl:2: must be one JSON object a line"),
    "text that is a number": ("x.jsonl", b'{"text": "a", "label": 1}\n{"text": 5, "label": 0}\n', "", r"row 2: text 'text' must be text; given int$"),
    "text that is missing": ("x.jsonl", b'{"text": "a", "label": 1}\n{"label": 0}\n', "", r"row 2: text 'text' must be text; given nothing$"),
    "unknown split": ("x.csv", csv_of("text,label,split", *(f"{row},train" for row in GOOD), "c,a,later"), "", r"row 31: split 'split' must be train, validation or test; given 'later'; the column 'split' was found by its name, and split=no leaves it out$"),
    "no train rows": ("x.csv", csv_of("text,label,split", *(f"{row},test" for row in GOOD)), "", r"split: must have train rows; given test$"),
    "class missing in train": ("x.csv", csv_of("text,label,split", *(f"{row},train" for row in GOOD), "c,z,test"), "", r"train must have rows of every class; it has none of z$"),
    "two groups": ("x.csv", csv_of("text,label,group", *(f"{row},{row[-1]}" for row in GOOD)), "", r"must have groups that can be divided into train and test, with rows of every class to train on; given 30 rows; name a split, or give more groups; the column .group. was found by its name, and group=no leaves it out$"),
    "score that is text": ("x.csv", csv_of("sentence1,sentence2,score", "a,b,1", "c,d,high"), "", r"row 2: score 'score' must be a number; given 'high'$"),
    "score NaN": ("x.csv", csv_of("sentence1,sentence2,score", "a,b,1", "c,d,nan"), "", r"row 2: score 'score' must be finite; 1 rows are not$"),
    "equal scores": ("x.csv", csv_of("sentence1,sentence2,score", "a,b,1", "c,d,1"), "", r"must differ between rows; all are 1$"),
    "score out of range": ("x.csv", csv_of("sentence1,sentence2,score", "a,b,1", "c,d,9"), ":range=0+5", r"must be from 0 to 5; given 1 to 9$"),
    "score that is no column": ("x.csv", csv_of("text_a,text_b,rating", "a,b,1", "c,d,2"), ":text_a=text_a,text_b=text_b,score=ratings", r"score: must name a column; given 'ratings'; did you mean 'rating'"),
    "score of one text": ("x.csv", csv_of("text,score", "a,1", "c,2"), ":score=score", r"score: must be of pairs of texts; given one text a row; name its class with label$"),
    "folds and split": ("x.csv", csv_of("text,label", *GOOD), ":folds=5,split=label", r"split and folds must not both be given$"),
    "folder without a dataset": ("x/y.txt", b"text", "/", r"must be a .csv, .tsv, .jsonl, .parquet file or a folder that datasets saved"),
    "folds of one": ("x.csv", csv_of("text,label,fold", "a copy of text,a,0", "a copy of text,a,1", *(f"w{row} v{row * 7 % 13} z{row % 4},{'ab'[row % 2]},{min(row // 10, 2)}" for row in range(100))), ":folds=fold", r"x.csv: folds 'fold': must name at least 2 folds of the train rows; given 1; divide them into more$"),
    "name with a slash": ("x.yaml", b"path: a.csv\nname: a/b\n", "", r"name: must be fit to name files .*; given 'a/b'; try 'a-b'$"),
    "parts that leave nothing": ("x.yaml", b"path: a.csv\nsplit: {validation: 0.5, test: 0.6}\n", "", r"split: validation and test must leave rows to train on; given 1.1 of all$"),
    "part without a path": ("x.yaml", b"path: {train: a.csv, test:}\n", "", r"path.*: must be"),
    "no parts": ("x.yaml", b"path: {}\n", "", r"path must name a table; given nothing$"),
    "range of words": ("x.csv", csv_of("sentence1,sentence2,score", "a,b,1", "c,d,9"), ":range=low+high", r"range: must be a valid list; given 'low\+high'$"),
    "seed that is no digit": ("x.csv", csv_of("text,label", *GOOD), ":seed=²", r"seed: must be a valid integer; given '²'$"),
    "query that is a list": ("x.jsonl", b'{"query": ["a"], "passage": "b"}\n', "", r"row 1: query 'query' must be text or a number; given list$"),
    "relevance inf": ("x.jsonl", b'{"query": "a", "passage": "b", "relevance": "inf"}\n', "", r"row 1: relevance must be a finite number; given 'inf'$"),
    "two folds": ("x.csv", csv_of("text,label", *GOOD), ":folds=2", r"folds must be from 3 to 20; given 2$"),
    "more folds than there may be": ("x.csv", csv_of("text,label", *GOOD), ":folds=21", r"folds must be from 3 to 20; given 21$"),
    "options of a task file": ("x.yaml", b"path: a.csv\n", ":folds=5", r"x.yaml: options must be written in the task file; given folds=5$"),
    "task file without a path": ("x.yaml", b"text: body\n", "", r"path: must name a table; given nothing$"),
    "task file with an unknown key": ("x.yaml", b"path: a.csv\nlabl: b\n", "", r"x.yaml:2: labl: unknown name; did you mean 'label'\?$"),
}  # fmt: skip


@pytest.mark.parametrize("folds", [3, 20])
def test_folds_of_either_bound_are_made(tmp_path, folds):
    """Each has rows of both classes."""
    path = write_table(tmp_path / "own.csv", rows(200))
    data = load(f"{path}:folds={folds}")
    assert set(data.folds[data.train]) == set(range(folds))


def test_rows_without_a_label_are_left_out_and_counted(tmp_path):
    """A table that a person labels row by row is a task at any time: of the rows that have a label."""
    path = tmp_path / "reviews.csv"
    path.write_bytes(csv_of("text,label", "not yet,", *GOOD, "nor this one, "))
    task = find_task(str(path))
    assert task.load().sentences[0] == [row.split(",")[0] for row in GOOD]
    assert "reviews: 2 rows without a label left out" in task.remarks.warnings


@pytest.mark.parametrize("case", BAD)
def test_bad_task_file_is_one_line(tmp_path, case):
    """Every mistake is an error of one line that names the file."""
    name, data, options, message = BAD[case]
    path = tmp_path / (name or "missing.csv")
    path.parent.mkdir(exist_ok=True)
    if name:
        path.write_bytes(data)
    given = f"{path.parent}/" if options == "/" else f"{path}{options}"
    with pytest.raises(RaysentError, match=message) as found:
        for task in resolve_tasks([given]):
            task.load()
    assert "\n" not in str(found.value)
    assert str(tmp_path) in str(found.value)


WARNED = {
    "empty texts": (csv_of("text,label", *GOOD, ",a"), r"1 texts are empty$"),
    "rows of a template": (
        csv_of("text,label", *GOOD, *(f"The very same text again and again and number {n},c" for n in range(20))),
        r"no test row of c: scores say nothing of it, as its rows are near-copies of each other and stay together; copies=no divides them$",
    ),
    "labels that are alike": (csv_of("text,label", *GOOD, *(f"x{row}".replace(",a", ",A") for row in GOOD)), r"'a' and 'A' \(15 and 15 rows\); --task .*own.csv:join_labels=yes makes them one$"),
    "rows in two splits": (
        csv_of("text,label,split", *(f"{row},train" for row in GOOD), *(f"{row},test" for row in GOOD[:3])),
        r"3 test rows have the text of a train or validation row; test scores are too high$",
    ),
    "groups in two splits": (
        csv_of("text,label,split,group", *(f"{row},{('train', 'test')[n // 2 % 2]},{n % 5}" for n, row in enumerate(GOOD))),
        r"5 groups are in test and in train or validation; see split$",
    ),
    "a rare class": (csv_of("text,label", *GOOD, "more,rare", "and,rare"), r"fewer than 10 rows of rare: not every fold has one$"),
    "no test rows": (
        csv_of("text,label,split", *(f"{row},train" for row in GOOD), *(f"x{row},dev" for row in GOOD)),
        r"no test rows; the validation rows are the test rows, and train alone chooses$",
    ),
    "a 10 MB value": (csv_of("text,label", *GOOD, f"{'long ' * 2_000_000},a"), r"the longest text has 10,000,000 characters"),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_doubtful_task_file_is_warned_about(tmp_path, case):
    """The rows are used, and one line says what makes scores misleading, with a count."""
    data, message = WARNED[case]
    path = tmp_path / "own.csv"
    path.write_bytes(data)
    task = find_task(str(path))
    assert len(task.load()) > 0
    (warning,) = task.remarks.warnings
    assert warning.startswith("own: ")
    assert re.search(message, warning)


def test_several_tasks_of_one_file_need_a_name(tmp_path):
    """What needs one task refuses a file of several labels in one line."""
    path = tmp_path / "own.csv"
    path.write_bytes(
        csv_of("text,label", *(f"t {row},{'a|b' if row % 2 else 'b|c'}" for row in range(20)))
    )
    with pytest.raises(
        ConfigError, match=r"must be one task; given own.b, own.a, own.c; name one label$"
    ):
        find_task(f"{path}:separator=|")
    with pytest.raises(DataError, match="no such file"):
        find_task("./missing.csv").load()


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"validation": 1.5}, "split.validation: must be less than 1; given 1.5"),
        ({"validation": "x"}, "split.validation: must be a valid number; given 'x'"),
        ({"vlidation": 0.2}, "split.vlidation: unknown name; did you mean 'validation'?"),
    ],
)
def test_a_wrong_fraction_is_named(split, message):
    """Not that the fractions are no name of a column."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        OwnTask("rows.csv", split=split)


def test_splits_of_one_meaning_are_one(tmp_path):
    """The rows of `dev` are not lost beside those of `validation`."""
    for number, name in enumerate("abcd"):
        write_table(tmp_path / f"{name}.csv", rows(20, seed=number))
    (tmp_path / "own.yaml").write_text(
        "path: {train: a.csv, dev: b.csv, validation: c.csv, test: d.csv}"
    )
    data = load(str(tmp_path / "own.yaml"))
    assert (len(data.train), len(data.validation), len(data.test)) == (20, 40, 20)
    assert data.validation.tolist() == list(range(20, 60))


def test_order_of_classes_of_equal_numbers_is_that_of_their_names():
    """Not that of a set, which differs between processes."""
    names = ["1.0", "01", "1", "1.00", "+1", "1e0", "2"]
    assert _class_names(names, None) == ("+1", "01", "1", "1.0", "1.00", "1e0", "2")


def test_data_frames_of_one_name_are_two_tasks(tmp_path, monkeypatch):
    """As files of one name are; the same rows twice are one task, and a folder of the name is none of theirs."""
    first, second = (pd.DataFrame(rows(seed=seed)) for seed in (0, 1))
    with pytest.raises(
        ConfigError, match=r"tasks own: two different tasks have this name; rename one$"
    ):
        resolve_tasks([OwnTask(first, name="own"), OwnTask(second, name="own")])
    assert len(resolve_tasks([OwnTask(first, name="own"), OwnTask(first.copy(), name="own")])) == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "corpus.jsonl").write_text("{}")
    assert len(load_task(OwnTask(first, name="own"))) == 60
    twice = pd.concat([first, first["label"]], axis=1)
    with pytest.raises(
        ConfigError, match=r"Task: data: must have columns of different names; given 'label' twice$"
    ):
        OwnTask(twice, name="own")


@pytest.mark.parametrize("given", [pd.DataFrame({"text": ["a"]}), {"name": "own"}, None])
def test_what_is_no_name_and_no_task_is_refused(given):
    """In one line that says what makes a task of a data frame."""
    error = r"^tasks must be a name, a file or raysent\.Task\(TABLE, \.\.\.\); given (DataFrame|dict|NoneType)$"
    with pytest.raises(ConfigError, match=error):
        resolve_tasks([given])


@pytest.mark.parametrize("name", ["group", "set"])
def test_column_of_the_label_is_no_group_or_split(tmp_path, name):
    """Whether it is named or is the only other column."""
    path = write_table(
        tmp_path / "own.csv", [{"text": row["text"], name: row["label"]} for row in rows()]
    )
    assert len(load(f"{path}:label={name}")) == len(load(path)) == 60


def test_settings_that_are_no_json_are_one_line():
    """What begins with a brace is the settings of a task."""
    with pytest.raises(
        ConfigError, match=r"^tasks \{.path.: 3: must be a task's settings as JSON: "
    ):
        find_task('{"path": 3')


def test_changed_table_in_a_bucket_is_read_again(tmp_path, bucket):
    """As a local one is."""
    for number in (60, 40):
        write_table(tmp_path / "own.csv", rows(number))
        bucket.upload_file(str(tmp_path / "own.csv"), BUCKET, "own.csv")
        assert len(load(f"s3://{BUCKET}/own.csv")) == number


@pytest.mark.parametrize(
    "text", ["tasks: [one.csv]\n", "tasks: {one: {path: own.csv}}\npath: own.csv\n"]
)
def test_file_of_tasks_holds_a_mapping_of_names_and_nothing_else(tmp_path, text):
    """A list, or settings beside the tasks."""
    (tmp_path / "tasks.yaml").write_text(text)
    with pytest.raises(
        ConfigError, match=r"tasks: must be the only key, with a mapping of names to tasks"
    ):
        find_task(str(tmp_path / "tasks.yaml"))


@pytest.mark.parametrize(
    ("separator", "said"),
    [
        (";", "--task 'x.csv:label=kind,separator=;'"),
        (",", "'separator: \",\"' in a task file, or separator=',' of raysent.Task,"),
        ("=", "'separator: \"=\"' in a task file, or separator='=' of raysent.Task,"),
    ],
)
def test_setting_that_an_option_cannot_say_is_said_in_other_words(separator, said):
    """A comma and an equals sign divide options."""
    settings = TaskSettings(path="x.csv", label="kind")
    assert how_to(settings, "separator", separator) == said
