"""From a table to a classifier with the pretrained encoder of this machine, and what there is where none can be had."""

from __future__ import annotations

import ast
import csv
import json
import random

import pytest
from material import write_reviews

from raysent.models.known import encoder_at_hand

pytestmark = [pytest.mark.journey, pytest.mark.cluster]
TEXTS = ["The hotel by the rose was easy.", "The train by the oath was rude."]


@pytest.fixture
def models() -> str:
    """Return the folder of the encoder that the set-up installed, outside the user's own environment."""
    files = encoder_at_hand("en")
    if files is None:
        pytest.skip("no pretrained encoder is installed")
    return str(files.folder)


def write_classes(path, *, num_classes: int, rows_each: int) -> None:
    """Write rows of so many classes, each with a word of its own."""
    draw = random.Random(3)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for row in range(rows_each):
            for number in range(num_classes):
                others = " ".join(f"thing{draw.randrange(400)}" for _ in range(6))
                table.writerow([f"word{number} {others} {row}", f"class {number}"])


def write_rare(path, *, num_rows: int) -> None:
    """Write rows of two classes, of which one has a fiftieth."""
    draw = random.Random(4)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for row in range(num_rows):
            is_rare = row % 50 == 0
            word = "prize" if is_rare else "meeting"
            others = " ".join(f"thing{draw.randrange(400)}" for _ in range(6))
            table.writerow([f"the {word} of {others}", "spam" if is_rare else "mail"])


def answered(user, table: str, texts: list[str], **machine: str) -> tuple[str, str]:
    """Return what a sweep of a table prints, and what its answer predicts of texts in a fresh process."""
    run = f"runs/{table}"
    command = f"raysent sweep --task {table} --run {run} --yes"
    ran = user.run("bash", "-c", command, **machine)
    loaded = f"import raysent; print(raysent.load({run!r}).predict({texts!r}))"
    return ran.stdout + ran.stderr, user.python(loaded, **machine).strip()


def test_table_becomes_an_answer_with_the_encoder_of_this_machine(user, serving, models):
    """Answer, prediction, server and a moved folder, each in a fresh process, without a network."""
    machine = {"RAYSENT_MODELS": models, "HF_HUB_OFFLINE": "1"}
    write_reviews(user.folder / "reviews.csv", rows=45)
    planned = user("sweep", "--task", "reviews.csv", "--dry-run", **machine)
    assert "all-MiniLM-L6-v2" in planned
    user("sweep", "--task", "reviews.csv", "--run", "runs/answer", "--yes", **machine)
    report = json.loads((user.folder / "runs/answer/best/ensemble.json").read_text("utf-8"))
    assert any("MiniLM" in member for member in report["members"])
    loaded = f"import raysent; print(raysent.load('runs/answer').predict({TEXTS!r}))"
    predicted = user.python(loaded, **machine).strip()
    (user.folder / "new.csv").write_text("text\n" + "\n".join(TEXTS) + "\n", "utf-8")
    user("predict", "runs/answer", "new.csv", "-o", "labelled.csv", **machine)
    with (user.folder / "labelled.csv").open(newline="") as file:
        assert str([row["predicted"] for row in csv.DictReader(file)]) == predicted
    # The folder alone, on a machine that has no such encoder.
    (user.folder / "runs/answer/best").rename(user.folder / "moved")
    (user.folder / "runs").rename(user.folder / "gone")
    offline = {"HF_HUB_OFFLINE": "1"}
    moved = loaded.replace("runs/answer", "moved")
    assert user.python(moved, **offline).strip() == predicted
    user.env.update(offline)
    with serving("moved") as ask:
        answered = ask("v1/predict/reviews", {"input": TEXTS})
    assert str(answered["labels"]) == predicted


def test_without_network_and_model_there_is_a_line_and_an_answer(user):
    """Of a table of fifteen rows too."""
    write_reviews(user.folder / "few.csv", rows=15)
    for table in ("reviews.csv", "few.csv"):
        said, predicted = answered(user, table, TEXTS, HF_HUB_OFFLINE="1")
        assert "no pretrained encoder is on this machine" in said
        assert len(ast.literal_eval(predicted)) == len(TEXTS)


def test_many_classes_and_a_rare_class_have_answers(user, models):
    """150 classes; and 2 % of the rows in one class, whose score is macro F1."""
    machine = {"RAYSENT_MODELS": models, "HF_HUB_OFFLINE": "1"}
    write_classes(user.folder / "many.csv", num_classes=150, rows_each=6)
    said, predicted = answered(
        user, "many.csv", ["word7 thing1 thing2", "word99 thing5 thing1"], **machine
    )
    assert "150 classes" in said
    assert predicted == "['class 7', 'class 99']"
    write_rare(user.folder / "rare.csv", num_rows=600)
    texts = ["the prize of thing1 thing2", "the meeting of thing3 thing4"]
    said, predicted = answered(user, "rare.csv", texts, **machine)
    assert "98% of the rows are 'mail', so the score is macro F1" in said
    assert predicted == "['spam', 'mail']"
