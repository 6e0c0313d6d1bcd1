"""From a table of reviews to a classifier that is served, exported and distilled: the README's path."""

from __future__ import annotations

import csv
import json

import pytest
from material import SMALL

pytestmark = pytest.mark.cluster


@pytest.mark.journey
def test_own_table_becomes_a_served_classifier(user, serving):
    """Sweep, ensemble with a lexical member, load, predict, serve, export, distill: each in a process of its own."""
    sweep = [
        "sweep",
        "quick_thoughts",
        "--corpus",
        "books/",
        "--metric",
        "reviews.csv",
        "--run",
        "runs/first",
    ]
    user(*sweep, "--trials=2", "--yes", "--set=evaluation.baselines=false", *SMALL)
    user(
        "ensemble",
        "runs/first",
        "tfidf",
        "--task",
        "reviews.csv",
        "--method",
        "pool",
        "-o",
        "runs/both",
    )

    texts = ["The hotel by the rose was easy.", "The train by the oath was rude."]
    loaded = f"import raysent; print(raysent.load('runs/both').predict({texts!r}))"
    assert user.python(loaded).strip() == "['positive', 'negative']"
    # What the sweep says to take needs no ensemble of one's own.
    assert (
        user.python(loaded.replace("runs/both", "runs/first")).strip() == "['positive', 'negative']"
    )
    probabilities = json.loads(
        user.python(loaded.replace(f"predict({texts!r})", f"predict_proba({texts!r}).tolist()"))
    )
    (user.folder / "new.txt").write_text("\n".join(texts) + "\n")
    (user.folder / "new.csv").write_text(
        "id,text\n" + "".join(f"{row},{text}\n" for row, text in enumerate(texts))
    )
    user("predict", "runs/both", "new.csv", "-o", "labelled.csv", "--proba")
    with (user.folder / "labelled.csv").open(newline="") as file:
        labelled = list(csv.DictReader(file))
    assert [row["predicted"] for row in labelled] == ["positive", "negative"]
    written = [
        [float(row["probability_negative"]), float(row["probability_positive"])] for row in labelled
    ]
    assert written == [pytest.approx(row, abs=1e-6) for row in probabilities]
    for model in ("raysent.Sweep('runs/first').best", "raysent.load('runs/first/trials/0000')"):
        assert user.python(
            f"import raysent; print(len({model}.encode(['One text.'])))"
        ).split() == ["1"]

    with serving("runs/both") as ask:
        found = ask("v1/predict/reviews", {"input": texts})
    assert found["labels"] == ["positive", "negative"]
    assert found["probabilities"] == [pytest.approx(row, abs=1e-9) for row in probabilities]

    user("export", "runs/first", "-o", "exported")
    exported = (
        "from sentence_transformers import SentenceTransformer\n"
        "print(SentenceTransformer('exported', trust_remote_code=True).encode(['One text.']).shape[0])"
    )
    assert user.python(exported).split()[-1] == "1"
    distill = [
        "distill",
        "runs/both",
        "--into",
        "bag",
        "--corpus",
        "books/",
        "-o",
        "runs/small",
        "--set",
        "dim=64",
    ]
    user(*distill, "--set=epochs=2", "--set=validation={num_sentences: 60}")
    user("encode", "runs/small", "sentences.txt", "-o", "vectors.npy")
    assert user.python("import numpy; print(len(numpy.load('vectors.npy')))").strip() == "50"
