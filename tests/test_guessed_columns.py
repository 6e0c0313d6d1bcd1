"""Columns that are found by their names can be left out; labels that may be several in a cell are asked about."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from tables import write_table

from raysent.cli.options import split_names
from raysent.data.texts import read_texts
from raysent.errors import ConfigError, DataError
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.tasks import find_task

TEXTS = [
    f"The {noun} was {word} and {other}"
    for noun in ("lamp", "train", "river", "hotel", "garden", "phone")
    for word in ("kind", "slow", "warm", "cold", "near")
    for other in ("red", "tall")
]
LABELS = ["pos", "neg"] * 30


def written(tmp_path, **columns) -> str:
    """Write the texts with labels and further columns, and return the path."""
    return write_table(tmp_path / "x.csv", {"text": TEXTS, "label": LABELS, **columns})


GUESSED = {
    "group of two": ({"group": ["control", "treatment"] * 30}, "group", r"; the column 'group' was found by its name, and group=no leaves it out$"),
    "one group": ({"doc_id": ["A"] * 60}, "group", r"; the column 'doc_id' was found by its name, and group=no leaves it out$"),
    "set": ({"set": ["A", "B"] * 30}, "split", r"row 1: split 'set' must be train, validation or test; given 'A'; the column 'set' was found by its name, and split=no leaves it out$"),
    "split": ({"split": ["train"] * 40 + ["holdout"] * 20}, "split", r"row 41: split 'split' must be .*; given 'holdout'; .* split=no leaves it out$"),
}  # fmt: skip


@pytest.mark.parametrize("case", GUESSED)
def test_guessed_column_is_named_and_can_be_left_out(tmp_path, case):
    """By an option, in a task file and in Python; the task is then that of a table without the column."""
    column, key, message = GUESSED[case]
    path = written(tmp_path, **column)
    with pytest.raises(DataError, match=message):
        find_task(path).load()
    without = {"text": TEXTS, "label": LABELS}
    plain = OwnTask(pd.DataFrame(without), name="x").load()
    task_file = tmp_path / "x.yaml"
    task_file.write_text(f"path: x.csv\n{key}: no\n")
    for task in (
        find_task(f"{path}:{key}=no"),
        find_task(str(task_file)),
        OwnTask(path, **{key: False}),
    ):
        data = task.load()
        assert data.test.tolist() == plain.test.tolist()
        assert find_task(task.spec).load().test.tolist() == plain.test.tolist()


def test_guessed_column_that_divides_is_named_with_its_switch(tmp_path):
    """In the line of what was found."""
    path = written(tmp_path, group=[f"g{row // 4}" for row in range(60)])
    assert (
        "group = 'group' (found by name; group=no leaves it out)"
        in find_task(path).remarks.notes[0]
    )
    assert "leaves" not in find_task(f"{path}:group=group").remarks.notes[0]


SEVERAL = {
    "semicolons": (["camera;battery", "phone", "", "camera"], ";", True),
    "bars": (["camera|battery", "battery|screen", "phone"], "|", True),
    "commas": (["camera, battery", "battery", "camera, phone", "phone, screen", "screen"], ",", True),
    "lines": (["camera\nbattery", "phone", "camera"], "\n", True),
    "full-width semicolons": (["相机；电池", "电池", "手机"], "；", True),
    "enumeration commas": (["相机、电池", "电池", "手机"], "、", True),
    "slashes": (["camera/battery", "battery", "camera"], "/", True),
    "plus signs": (["camera + battery", "battery", "camera"], "+", True),
    "sciences": (["science/physics", "science/chemistry", "arts"], "/", False),
    "stars of five": (["1/5", "5/5", "5/1", "1/1"], "/", False),
    "languages and grades": (["C", "C++", "A", "A+"], "+", False),
    "a class with a semicolon": (["Food; drinks", "Travel"], ";", False),
    "cities and states": (["New York, NY", "Albany, NY", "Paris", "Rome, IT"], ",", False),
    "decimal commas": (["3,5", "4,5", "3", "4"], ",", False),
}  # fmt: skip


@pytest.mark.parametrize("case", SEVERAL)
def test_labels_that_may_be_several_in_a_cell_are_asked_about(tmp_path, case):
    """Where a part is in other cells too; what is answered holds, and a class that only looks so is no question."""
    cells, separator, is_asked = SEVERAL[case]
    labels = (cells * 60)[:60]
    path = write_table(tmp_path / "x.csv", {"text": TEXTS, "labels": labels})
    classes = {label for label in labels if label}
    if not is_asked:
        assert set(find_task(path).load().label_names) == classes
        return
    with pytest.raises(
        DataError, match=r"label 'labels': may have several labels in a cell, as in '"
    ) as error:
        find_task(path).load()
    assert "separator=no takes each cell for one class" in str(error.value)
    assert "\n" not in str(error.value)
    is_typed = separator not in ("\n", ",")
    assert (f"x.csv:separator={separator}" in str(error.value)) == is_typed
    assert is_typed or f"'separator: {json.dumps(separator)}' in a task file" in str(error.value)
    assert set(find_task(f"{path}:separator=no").load().label_names) == classes
    several = OwnTask(path, separator=separator).variants({"accuracy"})
    parts = {part.strip() for cell in classes for part in cell.split(separator)}
    assert {task.only for task in several} == parts
    assert len(several[0].load()) == 60  # an empty cell has none of them


def test_class_of_nearly_all_rows_is_named_with_what_counts_all_alike(tmp_path):
    """Accuracy is high without a look at the texts; nothing is said where it is not what counts."""
    columns = {"text": TEXTS, "label": ["rare" if row % 12 == 0 else "usual" for row in range(60)]}
    path = write_table(tmp_path / "x.csv", columns)
    by_accuracy = find_task(f"{path}:metric=accuracy")
    (warning,) = [one for one in by_accuracy.remarks.warnings if "of the rows" in one]
    assert "91.7 % of the rows are 'usual'" in warning
    assert f"--task {path}:metric=macro_f1 counts all classes alike" in warning
    for other in (path, f"{path}:metric=macro_f1"):
        assert not any("of the rows" in one for one in find_task(other).remarks.warnings)


def test_lists_as_text_are_refused(tmp_path):
    """As pandas writes a column of lists."""
    labels = [str(cell) for cell in (["camera"], ["camera", "battery"]) * 30]
    path = write_table(tmp_path / "x.csv", {"text": TEXTS, "labels": labels})
    with pytest.raises(
        DataError, match=r"given lists as text, '\['camera', 'battery'\]'; write them as in a;b"
    ):
        find_task(path).load()


@pytest.mark.parametrize("name", ["reviews, final.csv", "a=b.csv", "a,b=c:d.csv"])
def test_file_that_is_there_is_read_whatever_its_name_is(tmp_path, monkeypatch, name):
    """Commas list names, an equals sign names a task, and a colon begins settings: of names that are no files."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / name, {"text": TEXTS, "label": LABELS})
    for text in (name, f"{name}:text=text"):
        assert split_names([text]) == [text]
        assert len(find_task(text).load()) == 60


def test_columns_without_a_header_are_named_by_numbers_in_a_task_file(tmp_path):
    """As docs name them; a header may have numbers, and yes and no may be written as YAML does not read them."""
    (tmp_path / "x.csv").write_text(
        "\n".join(f"{a},{b}" for a, b in zip(TEXTS, LABELS, strict=True))
    )
    for lines in ("header: no\ntext: 0\nlabel: 1\n", "header: false\ntext: [0]\nlabel: [1]\n"):
        (tmp_path / "x.yaml").write_text(f"path: x.csv\n{lines}")
        if "[" in lines:
            with pytest.raises(ConfigError, match="text must name one column, or two for pairs"):
                find_task(str(tmp_path / "x.yaml"))
        else:
            assert find_task(str(tmp_path / "x.yaml")).load().sentences == (TEXTS,)
    write_table(tmp_path / "y.csv", {"text": TEXTS, "2024": LABELS})
    (tmp_path / "y.yaml").write_text("path: y.csv\nlabel: 2024\ncopies: no\n")
    assert find_task(str(tmp_path / "y.yaml")).load().label_names == ("neg", "pos")


def test_column_is_found_in_another_form_of_unicode(tmp_path):
    """A file of another system has it decomposed."""
    path = write_table(tmp_path / "x.csv", {"cafe\u0301": TEXTS, "label": LABELS})
    assert find_task(f"{path}:text=caf\u00e9").load().sentences == (TEXTS,)


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b"])
def test_text_that_is_no_path_is_one_short_line(path):
    """A whole text may be given by mistake."""
    with pytest.raises(
        ConfigError, match=r"path:? must (be the name of a file; given '|hold no NUL)"
    ) as error:
        OwnTask(path)
    assert len(str(error.value)) < 300
    with pytest.raises(ConfigError, match="unknown task") as error:
        find_task(path)
    assert len(str(error.value)) < 1500


def test_passages_are_the_text_of_a_table_of_queries(tmp_path):
    """For what reads one column, such as `index` and `encode`."""
    path = write_table(tmp_path / "x.csv", {"query": LABELS, "passage": TEXTS})
    assert read_texts(path) == (TEXTS, "passage")


def test_option_that_names_a_column_is_the_one_of_the_command(tmp_path, raysent):
    """A command without an option of its own takes it by `--set`."""
    path = write_table(tmp_path / "x.csv", {"a": LABELS, "b": TEXTS})
    ran = raysent("index", "hash:10", path, "-o", tmp_path / "index")
    assert (ran.code, ran.err[:20]) == (2, "error: --set column:")
