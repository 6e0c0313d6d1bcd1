"""Which rows to label next, and which labels are suspected."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tables import write_table

from raysent import label
from raysent.ensembles import combine
from raysent.ensembles.labelling import density, indecision, next_rows, suspicion
from raysent.errors import RaysentError
from raysent.evaluation.task_files import OwnTask
from raysent.models.schemes.tfidf import LexicalModel

TOPICS = (
    "the film was {}",
    "a train to {} leaves late",
    "we cooked {} with rice",
    "their {} won the match",
)
TEXTS = (
    ("the food was great and the staff kind", "good"), ("lovely room with a warm bed", "good"),
    ("what a wonderful film", "good"), ("I liked this book a lot", "good"), ("superb coffee", "good"),
    ("the food was cold and the staff rude", "bad"), ("awful room with a hard bed", "bad"),
    ("what a terrible film", "bad"), ("I hated this book a lot", "bad"), ("bitter coffee", "bad"),
)  # fmt: skip
MORE = (
    "today",
    "again",
    "in paris",
    "on monday",
    "with friends",
    "last year",
    "at noon",
    "in rain",
    "by the sea",
    "in may",
)
WORDS = ("paris", "soup", "dull", "team", "green", "north", "salt", "goal", "cold", "seven")


def some_predictions(
    num_members: int, num_rows: int, num_classes: int, *, seed: int = 0
) -> np.ndarray:
    """Return log-probabilities [members, rows, classes]."""
    scores = np.random.default_rng(seed).normal(size=(num_members, num_rows, num_classes)) * 2
    return scores - np.log(np.exp(scores).sum(axis=2, keepdims=True))


def test_indecision_is_the_margin_of_the_mean_of_members():
    """Two members that are sure of different classes are as undecided as two that are unsure alike."""
    given = some_predictions(3, 20, 4)
    for row, found in enumerate(indecision(given)):
        members = [[math.exp(value) for value in member[row]] for member in given]
        first, second, *_ = sorted(
            (sum(values) / 3 for values in zip(*members, strict=True)), reverse=True
        )
        assert found == pytest.approx(1 - first + second)
    with np.errstate(divide="ignore"):
        opposite = np.log(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
    assert indecision(opposite) == indecision(np.log(np.full((2, 1, 2), 0.5))) == 1


def test_density_is_the_mean_cosine_with_all_texts():
    """It is computed without comparing every text with every other."""
    texts = [topic.format(word) for topic in TOPICS for word in WORDS]
    vectors = LexicalModel("words").vectorizer().fit_transform(texts).toarray()
    for row, found in enumerate(density(texts)):
        cosines = [
            sum(x * y for x, y in zip(vectors[row], other, strict=True)) for other in vectors
        ]
        assert found == pytest.approx(sum(cosines) / len(cosines))


def test_next_rows_begin_with_the_best_and_are_no_copies():
    """In the order of their scores, without what is known or near-copied, or like no other text."""
    texts = [topic.format(word) for word in WORDS for topic in TOPICS]
    texts += [texts[5].upper(), f"{texts[5]}!", "zzz qqq xxx"]
    given = some_predictions(2, len(texts), 2)
    given[:, [5, 40, 41, 42]] = math.log(0.5)  # a text, its copies, and one that is like no other
    scores = indecision(given) * density(texts)
    chosen = next_rows(given, texts, 12, known=[texts[0].title()]).tolist()
    assert len(chosen) == 12
    assert len({5, 40, 41} & set(chosen)) == 1
    assert not {0, 42} & set(chosen)
    assert scores[chosen[0]] == max(scores[1:])
    assert all(scores[one] >= scores[other] for one, other in pairwise(chosen))


def test_next_rows_have_a_text():
    """Also where more rows are wanted than have one; where none has one, there are none."""
    logs = np.log(np.full((1, 5, 2), 0.5))
    texts = ["a red lamp", "", " \u200b", "the wide river", "&nbsp;"]
    assert sorted(next_rows(logs, texts, 5).tolist()) == [0, 3]
    assert next_rows(logs, ["", " ", "", "", ""], 5).tolist() == []


def test_next_rows_are_the_best_of_each_cluster():
    """The rows of one topic are the least decided; one of each topic is asked for, its best one."""
    texts = [topic.format(word) for topic in TOPICS for word in WORDS]
    given = some_predictions(2, len(texts), 2)
    given[:, :10] = math.log(0.5)
    scores = indecision(given) * density(texts)
    found = next_rows(given, texts, len(TOPICS))
    assert sorted(found.tolist()) == [
        10 * topic + int(scores[10 * topic :][:10].argmax()) for topic in range(len(TOPICS))
    ]


def test_next_rows_look_beyond_copies_of_the_first_ones():
    """Copies that fill the first candidates do not end the search; with too few texts fewer rows are returned."""
    texts = ["the film was dull"] * 100 + [
        topic.format(word) for topic in TOPICS for word in WORDS[:3]
    ]
    given = some_predictions(2, len(texts), 2)
    given[:, :100] = math.log(0.5)
    chosen = next_rows(given, texts, 5).tolist()
    assert chosen[0] < 100
    assert min(chosen[1:]) >= 100
    assert len(chosen) == 5
    assert (
        len(next_rows(given, texts, 200)) == 13 - 1
    )  # the dull film is also one of the topics' texts


def test_suspicion_is_against_what_rows_of_the_label_usually_get():
    """A rare class that the models know badly is not suspected as a whole."""
    given, labels = some_predictions(1, 30, 3)[0], np.arange(30) % 3
    labels[:3] = 2
    for row, found in enumerate(suspicion(given, labels)):
        same = [
            math.exp(given[other, labels[row]])
            for other in range(30)
            if labels[other] == labels[row]
        ]
        assert found == pytest.approx(sum(same) / len(same) - math.exp(given[row, labels[row]]))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a labelled table of which one label is wrong, a table without labels, and an ensemble on the first."""
    folder = tmp_path_factory.mktemp("labelling")
    rows = [(f"{text} {more}", label) for more in MORE for text, label in TEXTS]
    rows[7] = (rows[7][0], {"good": "bad", "bad": "good"}[rows[7][1]])
    write_table(
        folder / "reviews.csv",
        {
            "id": range(60),
            "text": [text for text, _ in rows[:60]],
            "label": [name for _, name in rows[:60]],
        },
    )
    rest = [text for text, _ in rows[60:]]
    write_table(folder / "new.csv", {"text": [*rest, f"{rest[0].upper()}!", rows[0][0]]})
    (folder / "lists.jsonl").write_text('{"text": "a", "label": ["good"]}\n')
    two = "".join(f"  {name}: {{path: reviews.csv}}\n" for name in ("one", "other"))
    (folder / "two.yaml").write_text(f"tasks:\n{two}")
    combine(
        ["tfidf", "hash:20"], output=folder / "ensemble", tasks=[OwnTask(folder / "reviews.csv")]
    )
    return folder


def test_a_planted_wrong_label_is_the_first_suspect(labelled, tmp_path):
    """It comes first with what is predicted in its place; other rows follow, with all columns."""
    made = label(
        labelled / "ensemble", labelled / "reviews.csv", suspect=True, output=tmp_path / "out.csv"
    )
    table = pd.read_csv(tmp_path / "out.csv")
    assert sorted(table["id"]) == list(range(60))
    assert table["id"][0] == 7
    assert table["predicted"][0] != table["label"][0]
    assert made.num_first == (table["predicted"] != table["label"])[:50].sum()
    assert table["probability"][0] < 0.2 * table["probability"][1:].median()


def test_rows_with_a_label_are_not_asked_for_and_nor_are_their_copies(labelled, tmp_path):
    """A table with some labels is asked for the others; it can be handed back as it is."""
    reviews, new = pd.read_csv(labelled / "reviews.csv"), pd.read_csv(labelled / "new.csv")
    pd.concat([reviews, new]).to_csv(tmp_path / "all.csv", index=False)
    made = label(
        labelled / "ensemble", tmp_path / "all.csv", num_rows=100, output=tmp_path / "next.csv"
    )
    first = made.rows["text"][: made.num_first]
    assert {text.lower().strip("!") for text in first} == {
        text.lower() for text in new["text"][:-2]
    }
    assert len(first) == len(new) - 2
    assert len(made.rows) == len(reviews) + len(new)
    data = OwnTask(tmp_path / "next.csv").load()
    assert sorted(data.sentences[0]) == sorted(reviews["text"])


def test_suspects_of_a_table_with_unlabelled_rows_are_written_to_parquet(labelled, tmp_path):
    """A row without a label has no probability."""
    reviews = pd.read_csv(labelled / "reviews.csv", dtype=str)
    reviews.loc[3, "label"] = ""
    reviews.to_csv(tmp_path / "some.csv", index=False)
    output = tmp_path / "out.parquet"
    label(labelled / "ensemble", tmp_path / "some.csv", suspect=True, output=output, progress=False)
    assert pd.read_parquet(output)["probability"].isna().sum() == 1


def test_suspects_of_a_task_file_that_draws_validation_rows(labelled, tmp_path):
    """Rows of all parts are predicted, each by a fit that did not see it."""
    path = tmp_path / "drawn.yaml"
    path.write_text(
        f"path: {labelled / 'reviews.csv'}\nsplit: {{validation: 0.2, test: 0.2}}\n",
        encoding="utf-8",
    )
    made = label(labelled / "ensemble", path, suspect=True, progress=False)
    assert made.rows["id"][0] == "7"
    assert made.rows["probability"].count() == 60


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_rows": 0}, r"^num_rows=0: must be at least 1$"),
        (
            {"output": "new.csv"},
            r"^output .*new.csv: must not exist, as someone may have edited it; name another file$",
        ),
        (
            {"output": "next.txt"},
            r"^output .*next.txt: must end in .csv, .tsv, .jsonl or .parquet$",
        ),
        ({"task": "review"}, r"review: .*was not made on this task; did you mean 'reviews'\?$"),
        (
            {"table": "reviews.csv"},
            r"reviews.csv: must have rows without a label; all 60 have one$",
        ),
        (
            {"table": "reviews.csv:label=stars"},
            r"reviews.csv: label: must name a column; given 'stars'; known: ",
        ),
        (
            {"table": "reviews.csv:label=id+label"},
            r"must be one file with a class a row, so that a person can edit it$",
        ),
        (
            {"table": "lists.jsonl"},
            r"lists.jsonl: must be one file with a class a row, so that a person can edit it$",
        ),
        (
            {"table": "two.yaml"},
            r"two.yaml: must be one file with a class a row, so that a person can edit it$",
        ),
        (
            {"table": "reviews.csv:text=id+text"},
            r"text: must name 1 column\(s\), as of the model's task; given 2$",
        ),
        (
            {"table": "new.csv", "suspect": True},
            r"new.csv: must have labels to suspect; it has no column 'label'$",
        ),
        (
            {"model": "tfidf"},
            r"^tfidf: predicts no task; 'raysent ensemble tfidf --task FILE -o FOLDER' makes a model",
        ),
    ],
)
def test_bad_input_is_one_line(labelled, values, message):
    """What cannot be labelled is refused before anything is written."""
    output = {"output": labelled / values["output"]} if "output" in values else {}
    model = values.get("model", labelled / "ensemble")
    given = {
        name: value for name, value in values.items() if name not in ("model", "table")
    } | output
    with pytest.raises(RaysentError, match=message) as found:
        label(model, f"{labelled}/{values.get('table', 'new.csv')}", progress=False, **given)
    assert "\n" not in str(found.value)


def test_output_in_a_bucket_is_not_overwritten(labelled, monkeypatch):
    """Its file must not exist, as one on this machine."""
    monkeypatch.setattr("raysent.pipeline.labels.list_s3", lambda address: [address])
    with pytest.raises(RaysentError, match=r"^output s3://own/next\.csv: must not exist"):
        label(
            labelled / "ensemble", labelled / "new.csv", output="s3://own/next.csv", progress=False
        )


def test_a_person_labels_the_rows_and_hands_the_table_back(labelled, raysent, tmp_path):
    """Ask, edit, train again and check the labels."""

    def run(*arguments: object) -> dict[str, Any]:
        ran = raysent(*arguments)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    tables = [pd.read_csv(labelled / name) for name in ("reviews.csv", "new.csv")]
    pd.concat(tables).drop(columns="id").to_csv(tmp_path / "all.csv", index=False)
    asked = run("label", labelled / "ensemble", "all.csv", "-n", 4, "--json")
    assert asked == {"version": 1, "file": "all-next.csv", "rows": 102, "first": 4}
    head, *rows = (tmp_path / "all-next.csv").read_text().splitlines()
    edited = [
        f"{row}{'good' if number % 2 else 'bad'}" if number < 4 else row
        for number, row in enumerate(rows)
    ]
    (tmp_path / "edited.csv").write_text("\n".join([head, *edited]))
    run("ensemble", "tfidf", "hash:20", "--task", "edited.csv", "-o", "again", "--json")
    assert run("label", "again", "edited.csv", "--suspect", "--json")["rows"] == 102
    suspects = pd.read_csv(tmp_path / "edited-suspects.csv")
    assert list(suspects) == ["text", "label", "predicted", "probability"]
    assert suspects["probability"].count() == 64
