"""The form of Unicode in which models read text: one for all that is new, and that of its training for all else."""

from __future__ import annotations

import json
import pickle
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiny_run import tiny_run

import raysent
from raysent.data.unicode_form import in_form, is_in_form
from raysent.data.vocabulary import (
    PAD_WORD,
    UNK_ID,
    UNK_WORD,
    ChunkTable,
    SubwordVocabulary,
    Vocabulary,
    VocabularyConfig,
    read_word_vectors,
    tokenize,
    train_subwords,
)
from raysent.errors import ArtifactError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand, load_saved
from raysent.evaluation.task_files import OwnTask
from raysent.exports.folder import check_sentences, other_ids
from raysent.exports.tokenizer import build_tokenizer, exported_ids
from raysent.models import SentenceModel, average_of_words
from raysent.models.config import ModelConfig
from raysent.models.files import write_record
from raysent.models.schemes.hash import HashEncoder
from raysent.models.schemes.tfidf import LexicalModel
from raysent.storage import content_key, read_json, write_json
from raysent.storage.layout import RUN_FILE, SWEEP_FILE
from raysent.sweeps import load_record
from raysent.training.loop import fit
from raysent.training.run import load_run

DATA = Path(__file__).parent / "data" / "version_2"
# French, Vietnamese, Korean (whose letters are blocks of others), Greek, and a symbol that is composed.
TEXTS = [
    "Le café près du château où naît l'été.",
    "Nước Việt Nam có phở và cà phê sữa đá.",
    "정원 옆의 다리는 밝게 보였다.",
    "Η γλώσσα είναι ελληνική; ναι, 3 \u2260 4.",
    "É.U. et D\u00fcsseldorf",
]


def decomposed(texts: list[str]) -> list[str]:
    """Return texts in the other form."""
    return [unicodedata.normalize("NFD", text) for text in texts]


def words_of(texts: list[str]) -> list[str]:
    """Return the words of texts, with the two that begin every vocabulary."""
    words = dict.fromkeys(token for text in texts for token in tokenize(text))
    return [PAD_WORD, UNK_WORD, *words]


def bag(vocabulary: Vocabulary) -> SentenceModel:
    """Return a small model of a vocabulary."""
    config = ModelConfig.model_validate(
        {
            "encoder": {"type": "bag", "embedding": {"dim": 8}},
            "objective": {"type": "context_prediction"},
        }
    )
    return SentenceModel.build(config, vocabulary, seed=0).eval()


# --- what is new -------------------------------------------------------------------------------------------------------


def test_both_forms_of_a_character_are_one_word():
    """Of every script, by tables of chunks, compiled or not, and by the plain function."""
    for text, other in zip(TEXTS, decomposed(TEXTS), strict=True):
        assert text != other
        assert tokenize(text) == tokenize(other)
        assert tokenize(text, unicode_form="as_written") == tokenize(text)
        assert tokenize(text, unicode_form="as_written") != tokenize(
            other, unicode_form="as_written"
        )
    vocabulary = Vocabulary(words_of(TEXTS))
    composed = vocabulary.ids(TEXTS, max_length=50)
    assert UNK_ID not in composed.ids
    assert np.array_equal(composed.ids, vocabulary.ids(decomposed(TEXTS), max_length=50).ids)
    for is_compiled in (False, True):
        table = ChunkTable(vocabulary.id, is_compiled=is_compiled)
        assert np.array_equal(table.encode(decomposed(TEXTS)).ids, composed.ids)
    long = "e\u0301" * 70_000  # is cut after it is composed
    assert [len(token) for token in tokenize(long)] == [1 << 16, 70_000 - (1 << 16)]
    assert ChunkTable(len).encode([long]).ids.tolist() == [1 << 16, 70_000 - (1 << 16)]


@pytest.mark.parametrize("text", [*TEXTS, "ascii", "\ud83d e\u0301", "\u0301", " \u0301e", ""])
def test_a_text_is_in_the_form_once_it_is_read_so(text):
    """Reading twice changes nothing, and blanks stay where they are."""
    for form in ("NFC", "as_written"):
        read = in_form(text, form)
        assert in_form(read, form) == read
        assert is_in_form(read, form)
        assert len(read.split()) == len(text.split())
    assert in_form(text, "as_written") == text


def test_models_encode_both_forms_alike(tmp_path):
    """Hashed words, words of a vocabulary, sub-words and word vectors of a file; before and after saving."""
    (tmp_path / "vectors.txt").write_text(
        "".join(f"{word} {row} 1\n" for row, word in enumerate(decomposed(words_of(TEXTS)[2:]))),
        encoding="utf-8",
    )
    subwords = train_subwords(TEXTS * 9, VocabularyConfig(type="subwords", size=600))
    models = [
        HashEncoder(16),
        pickle.loads(pickle.dumps(HashEncoder(16))),
        bag(Vocabulary(words_of(TEXTS))),
        bag(subwords),
        average_of_words(read_word_vectors(tmp_path / "vectors.txt")),
    ]
    models[2].save(tmp_path / "bag")
    models.append(SentenceModel.load(tmp_path / "bag"))
    for model in models:
        vectors = model.encode(TEXTS)
        assert len(np.unique(vectors.round(6), axis=0)) == len(TEXTS)
        assert np.array_equal(vectors, model.encode(decomposed(TEXTS)))


def test_vectors_of_a_file_are_found_in_either_form(tmp_path):
    """The first of two that are one word; a vocabulary of an earlier version finds what is written."""
    path = tmp_path / "vectors.txt"
    path.write_text("cafe\u0301 1 2\ncaf\u00e9 3 4\nplain 5 6\n", encoding="utf-8")
    found = read_word_vectors(path)
    assert (found.words, found.vectors.tolist()) == (["caf\u00e9", "plain"], [[1, 2], [5, 6]])
    assert read_word_vectors(path, words=["caf\u00e9"]).vectors.tolist() == [[1, 2]]
    as_written = read_word_vectors(path, words=["caf\u00e9"], unicode_form="as_written")
    assert as_written.vectors.tolist() == [[3, 4]]


def test_vectors_of_a_large_file_are_read_in_either_form(tmp_path, monkeypatch):
    """From the cache as from the file."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("raysent.data.vocabulary.vectors._CACHED_BYTES", 1)
    path = tmp_path / "vectors.txt"
    path.write_text("cafe\u0301 1 2\ncaf\u00e9 3 4\nplain 5 6\n", encoding="utf-8")
    for _ in range(2):
        found = read_word_vectors(path)
        assert (found.words, found.vectors.tolist()) == (["caf\u00e9", "plain"], [[1, 2], [5, 6]])
        written = read_word_vectors(path, words=["caf\u00e9"], unicode_form="as_written")
        assert written.vectors.tolist() == [[3, 4]]


@pytest.mark.parametrize("analyzer", ["words", "chars"])
def test_tfidf_predicts_both_forms_alike(analyzer, tmp_path):
    """A table in one form, and new rows in the other; the saved model says how it reads."""
    rows = [f"{text} {number}" for number in range(12) for text in TEXTS]
    labels = [f"class {place}" for _ in range(12) for place in range(len(TEXTS))]
    frame = pd.DataFrame({"text": rows, "label": labels})
    name = "tfidf" if analyzer == "words" else "tfidf:chars"
    made = raysent.ensemble(
        [name],
        tasks=[raysent.Task(frame, name="forms")],
        output=tmp_path / "made",
        baselines=False,
        progress=False,
    )
    model = raysent.load(tmp_path / "made")
    expected = made.predict_proba(TEXTS)
    assert np.array_equal(model.predict_proba(decomposed(TEXTS)), expected)
    assert model.predict(decomposed(TEXTS)) == [f"class {place}" for place in range(len(TEXTS))]


def test_corpus_has_one_word_for_both_forms(tmp_path):
    """A run on a text in both forms has the vocabulary of one, and says how its model reads."""
    sentences = [TEXTS[place % 3] for place in range(60)]
    mixed = [text if place % 2 else decomposed([text])[0] for place, text in enumerate(sentences)]
    (tmp_path / "text.txt").write_text("\n".join(mixed) + "\n", encoding="utf-8")
    changes = {"training__max_steps": 1, "training__batch_size": 4, "training__num_reports": 1}
    run = tiny_run(tmp_path, **changes, validation__num_candidates=3, validation__num_sentences=6)
    fit(run, tmp_path / "run")
    model = SentenceModel.load(tmp_path / "run")
    assert sorted(model.vocabulary.words) == sorted(words_of(TEXTS[:3]))
    assert read_json(tmp_path / "run" / "model.json")["unicode_form"] == "NFC"
    assert read_json(tmp_path / "run" / RUN_FILE)["config"]["vocabulary"]["unicode_form"] == "NFC"


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("form", ["NFC", "as_written"])
def test_exported_tokenizer_reads_as_the_model_does(lowercase, form):
    """Of both forms, for a vocabulary of either version."""
    text = [*TEXTS, *decomposed(TEXTS), *check_sentences(Vocabulary(words_of(TEXTS)))]
    bare = Vocabulary([PAD_WORD, UNK_WORD], lowercase=lowercase, unicode_form=form)
    words = dict.fromkeys(token for row in bare.tokenize(text) for token in row if token != "<unk>")
    model = bag(Vocabulary([PAD_WORD, UNK_WORD, *words], lowercase=lowercase, unicode_form=form))
    assert other_ids(model, text).sum() == 0
    built = build_tokenizer(model.vocabulary, max_length=50)
    is_alike = exported_ids(built, TEXTS) == exported_ids(built, decomposed(TEXTS))
    assert is_alike == (form == "NFC")


# --- what an earlier version made --------------------------------------------------------------------------------------


def test_a_vocabulary_of_an_earlier_version_reads_text_as_it_is_written(tmp_path):
    """Its file has no form, and stays as it was when it is written again."""
    old = tmp_path / "vocabulary.txt"
    before = "#lowercase=true\n<pad>\n<unk>\ncafe\u0301\n"
    old.write_text(before, encoding="utf-8")
    vocabulary = Vocabulary.load(old)
    assert vocabulary.unicode_form == "as_written"
    assert vocabulary.ids(["Cafe\u0301", "caf\u00e9"], max_length=9).ids.tolist() == [2, UNK_ID]
    pickle.loads(pickle.dumps(vocabulary)).save(tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text(encoding="utf-8") == before


def test_a_model_of_an_earlier_version_keeps_its_form(tmp_path):
    """Through loading, saving and an export of its tokenizer; a form of another model is refused."""
    source = DATA / "finished" / "trials" / "0000"
    model = SentenceModel.load(source)
    assert (model.vocabulary.unicode_form, model.record.unicode_form) == (
        "as_written",
        "as_written",
    )
    model.save(tmp_path / "saved")
    saved = (tmp_path / "saved" / "vocabulary.txt").read_bytes()
    assert saved == (source / "vocabulary.txt").read_bytes()
    assert build_tokenizer(model.vocabulary, max_length=9).to_str().count("NFC") == 0
    words = (tmp_path / "saved" / "vocabulary.txt").read_text(encoding="utf-8").split("\n", 1)
    other = bag(Vocabulary([PAD_WORD, UNK_WORD, *words[1].split("\n")[2:-1]]))
    other.save(tmp_path / "other")
    about = json.loads((tmp_path / "other" / "model.json").read_text(encoding="utf-8"))
    shutil.copyfile(source / "vocabulary.txt", tmp_path / "other" / "vocabulary.txt")
    write_record(tmp_path / "other", other.record)
    assert about["unicode_form"] == "NFC"
    with pytest.raises(ArtifactError, match=r"must read text in the form NFC; given as_written"):
        SentenceModel.load(tmp_path / "other")


def test_sub_words_of_a_pretrained_model_get_the_text_as_it_is():
    """Its own tokenizer decides; no form is put before it."""
    trained = train_subwords(TEXTS * 9, VocabularyConfig(type="subwords", size=600))
    assert trained.unicode_form == "as_written"
    values = json.loads(trained.tokenizer.to_str())
    values["normalizer"] = None
    plain = SubwordVocabulary(json.dumps(values))
    assert plain.tokenize(TEXTS) != plain.tokenize(decomposed(TEXTS))


def test_a_sweep_of_an_earlier_version_reads_its_text_as_it_began(tmp_path):
    """Its record names no form; one of this version does."""
    shutil.copytree(DATA / "finished", tmp_path / "sweep")
    record = load_record(tmp_path / "sweep")
    assert record.space.config({}).vocabulary.unicode_form == "as_written"
    assert record.values()["space"]["base"]["vocabulary"]["unicode_form"] == "as_written"
    values = read_json(tmp_path / "sweep" / SWEEP_FILE)
    assert "unicode_form" not in json.dumps(values)
    write_json(tmp_path / "sweep" / SWEEP_FILE, record.values(), sealed=True)
    assert load_record(tmp_path / "sweep").values() == record.values()


def test_a_training_that_an_earlier_version_began_goes_on_with_its_text(tmp_path):
    """The key of the run is as it was, and its checkpoint is that of the same text."""
    run = tiny_run(tmp_path)
    earlier = run.model_copy(
        update={"vocabulary": run.vocabulary.model_copy(update={"unicode_form": "as_written"})}
    )
    assert run.key == earlier.key
    straight = fit(earlier, tmp_path / "straight")
    stopped = fit(earlier, tmp_path / "run", report=lambda report: report.index < 2)
    assert stopped.status == "stopped"
    about = read_json(tmp_path / "run" / RUN_FILE)
    del about["config"]["vocabulary"]["unicode_form"]
    write_json(tmp_path / "run" / RUN_FILE, about)
    assert load_run(tmp_path / "run").vocabulary.unicode_form == "as_written"
    resumed = fit(run, tmp_path / "run")
    assert (resumed.status, resumed.metrics) == ("finished", straight.metrics)
    assert SentenceModel.load(tmp_path / "run").vocabulary.unicode_form == "as_written"


def test_an_ensemble_of_an_earlier_version_answers_as_before(tmp_path):
    """Its hashed words and its TF-IDF read text as it is written."""
    frame = pd.DataFrame(
        {
            "text": [f"{text} {row}" for row in range(9) for text in TEXTS],
            "label": list("ab") * 22 + ["a"],
        }
    )
    task = OwnTask(frame, name="forms")
    evaluator = Evaluator(tmp_path / "evaluation")
    (member,) = expand(["tfidf"])
    ((record,),) = evaluator.records([member], [task]).values()
    assert "reads_nfc" in record.arrays
    model = LexicalModel("words")
    old = {name: values for name, values in record.arrays.items() if name != "reads_nfc"}
    new_vectors, old_vectors = (
        model.restored(arrays).transform(decomposed(TEXTS)).toarray()
        for arrays in (record.arrays, old)
    )
    assert not np.array_equal(new_vectors, old_vectors)
    found = load_saved("hash:16", content_key("hash:16"))
    assert found is not None
    assert np.array_equal(found.encode(TEXTS), HashEncoder(16).encode(TEXTS))
    assert not np.allclose(found.encode(decomposed(TEXTS)), found.encode(TEXTS))
    assert load_saved("hash:16", content_key("hash:17")) is None
