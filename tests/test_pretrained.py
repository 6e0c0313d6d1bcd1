"""Pretrained members: a transformer's folder as a model, its code, and an ensemble that is moved with it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from command import CommandLine
from small_bert import WORDS, write_bert
from tiny_run import tiny_run

import raysent
from raysent.ensembles.ensemble import Ensemble
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.members import ensemble_members, saved_path
from raysent.models import load
from raysent.models.pretrained import is_code_trusted, trust_remote_code
from raysent.models.schemes import hf, split_path
from raysent.storage import load_tensors
from raysent.storage.layout import ENSEMBLE_FILE
from raysent.training.loop import fit

transformers = pytest.importorskip("transformers", reason="pip install raysent[pretrained]")

TEXT = ["a cat", "the dog runs to the cat and a man", "", "zzz", "a cat sleeps"]
SPLITS = (("train", 20), ("validation", 10), ("test", 10))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small BERT."""
    return write_bert(tmp_path_factory.mktemp("models") / "bert")


def test_vector_is_the_mean_of_the_last_hidden_states(bert):
    """Of a sentence's own tokens, cut to the model's positions; whatever stands beside it."""
    encoder = load(f"hf:{bert}")
    assert (encoder.get_sentence_embedding_dimension(), encoder.max_seq_length) == (16, 12)
    tokenizer, model = (
        transformers.AutoTokenizer.from_pretrained(bert),
        transformers.AutoModel.from_pretrained(bert),
    )
    text = [*TEXT, "the man and " * 20]
    vectors = encoder.encode(text)
    for sentence, vector in zip(text, vectors, strict=True):
        with torch.inference_mode():
            tokens = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=12)
            expected = model.eval()(**tokens).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(encoder.encode(text[::-1], batch_size=2)[::-1], vectors, atol=1e-5)
    assert encoder.encode([]).shape == (0, 16)
    assert encoder.source == f"hf:{bert}"


def test_vectors_are_those_of_sentence_transformers(bert):
    """It pools a folder without settings of its own in the same way."""
    pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    np.testing.assert_allclose(
        load(f"hf:{bert}").encode(TEXT), load(f"st:{bert}").encode(TEXT), atol=1e-5
    )


def test_model_is_used_by_threads_and_other_processes(bert):
    """Each call gives the same vectors; a copy is read from the folder again."""
    encoder = load(f"hf:{bert}")
    expected = encoder.encode(TEXT)
    with ThreadPoolExecutor(4) as threads:
        for vectors in threads.map(lambda _: encoder.encode(TEXT), range(16)):
            np.testing.assert_array_equal(vectors, expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).encode(TEXT), expected)


def test_loading_leaves_the_random_state(bert):
    """Missing parts, such as a pooler, draw nothing from the process's generator."""
    state = torch.random.get_rng_state()
    load(f"hf:{bert}")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_folder_without_tokens_or_weights_is_refused(bert, tmp_path):
    """Random weights would give vectors that mean nothing."""
    with pytest.raises(
        ArtifactError,
        match=r"^hf:nowhere: must be a model's folder, .*; given nowhere: no such folder$",
    ):
        load("hf:nowhere")
    with pytest.raises(ArtifactError, match=r"^hf:.*config.json: no such file"):
        load(f"hf:{tmp_path}")
    short = write_bert(tmp_path / "short")
    about = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**about, "num_hidden_layers": 3}))
    with pytest.raises(
        ArtifactError, match=r"must hold every weight; encoder\.layer\.2\..* is missing, of 16"
    ):
        load(f"hf:{short}")


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _point(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def _pickle(file: Path) -> None:
    torch.save({"x": subprocess.Popen}, file.with_name("pytorch_model.bin"))
    file.unlink()


def _spoil(file: Path, value: float) -> None:
    tensors = load_tensors(file)
    tensors["encoder.layer.0.output.dense.weight"][0, 0] = value
    file.write_bytes(safetensors.torch.save(tensors, metadata={"format": "pt"}))


def _drop_tokenizer(file: Path) -> None:
    for path in file.parent.glob("*token*"):
        path.unlink()


def _forget_words(file: Path) -> None:
    path = file.with_name("tokenizer.json")
    about = json.loads(path.read_text())
    about["model"]["vocab"] = {
        word: number for number, word in enumerate(WORDS) if word.startswith("[")
    }
    path.write_text(json.dumps(about))


DAMAGES = {
    "truncated weights": (_cut, r"cannot read it: .*incomplete metadata"),
    "pointer of Git LFS": (
        _point,
        r"model\.safetensors is a pointer of Git LFS, .* by 'git lfs pull'",
    ),
    "hostile pickle": (
        _pickle,
        r"a damaged pickle, or one with more than tensors; save them as safetensors",
    ),
    "NaN": (
        lambda file: _spoil(file, np.nan),
        r"every weight must be finite; .*layer\.0\.output\.dense\.weight",
    ),
    "infinity": (
        lambda file: _spoil(file, np.inf),
        r"every weight must be finite; .*layer\.0\.output\.dense\.weight",
    ),
    "no tokenizer": (_drop_tokenizer, r"must hold a tokenizer; found none of tokenizer\.json, "),
    "no words": (_forget_words, r"its tokenizer must know words; it has special tokens alone"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("scheme", ["hf", "st"])
def test_damaged_folder_is_one_line(scheme, damage, bert, tmp_path, capfd):
    """Whatever the library raises, or reads without a word; nothing else is printed."""
    if scheme == "st":
        pytest.importorskip(
            "sentence_transformers", reason="pip install raysent[sentence-transformers]"
        )
    folder = tmp_path / "copy"
    shutil.copytree(bert, folder)
    change, line = DAMAGES[damage]
    change(folder / "model.safetensors")
    with pytest.raises(ArtifactError, match=rf"^{scheme}:.*copy: .*{line}[^\n]*$"):
        load(f"{scheme}:{folder}")
    said = capfd.readouterr()
    assert said.out + said.err == ""


def test_code_of_a_folder_runs_only_where_it_is_trusted(tmp_path, monkeypatch, capsys):
    """By the argument, the option or the variable, and not longer than asked."""
    monkeypatch.delenv("RAYSENT_TRUST_REMOTE_CODE", raising=False)
    folder = write_bert(tmp_path / "own")
    (folder / "modeling_own.py").write_text(
        "from transformers import BertConfig, BertModel\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    about = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    (folder / "config.json").write_text(
        json.dumps({**about, "model_type": "own", "auto_map": classes})
    )
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    refusal = r"contains code of its own, modeling_own\.OwnConfig; to run it, set RAYSENT_TRUST_REMOTE_CODE=1 or --trust"
    for refused in (load, raysent.load):
        with pytest.raises(ConfigError, match=refusal):
            refused(f"hf:{folder}")
    trusted = raysent.load(f"hf:{folder}", trust_remote_code=True)
    assert type(trusted.model[0].auto_model).__name__ == "OwnModel"
    assert not is_code_trusted()
    ran = CommandLine(monkeypatch, capsys)
    for flag, code in (((), 2), (("--trust-remote-code",), 0)):
        arguments = ("encode", f"hf:{folder}", "-o", tmp_path / "a.npy", *flag)
        assert ran(*arguments, stdin=b"a cat\n").code == code
    assert not is_code_trusted()
    with trust_remote_code(False):
        assert not is_code_trusted()


def test_trust_restores_the_variable(monkeypatch):
    """Also where it was set before."""
    monkeypatch.setenv("RAYSENT_TRUST_REMOTE_CODE", "0")
    with trust_remote_code():
        assert is_code_trusted()
    assert os.environ["RAYSENT_TRUST_REMOTE_CODE"] == "0"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("runs/one", ("", "runs/one")),
        ("hash:50", ("hash:50", None)),
        ("tfidf", ("tfidf", None)),
        ("st:models/one", ("st:", "models/one")),
        ("words:start:runs/one", ("words:start:", "runs/one")),
    ],
)
def test_split_path_finds_the_path_in_a_name(name, parts):
    """Behind one scheme or two."""
    assert split_path(name) == parts


def test_paths_of_schemes_are_saved_like_folders(tmp_path, monkeypatch):
    """Relative inside the folder and beside it; else absolute; as given in a bucket."""
    folder = tmp_path / "models/both"
    monkeypatch.chdir(tmp_path)
    names = [
        "hf:models/bert",
        "st:models/both/own",
        "words:start:models/gru",
        "st:/far/one",
        "hf:s3://bucket/one",
    ]
    saved = [saved_path(name, folder) for name in names]
    assert saved == [
        "hf:../bert",
        "st:own",
        "words:start:../gru",
        "st:/far/one",
        "hf:s3://bucket/one",
    ]
    folder.mkdir(parents=True)
    about = {
        "members": ["a", "b", "c"],
        "paths": {"a": "hf:../bert", "b": "words:start:../gru", "c": "st:/far/one"},
    }
    (folder / ENSEMBLE_FILE).write_text(json.dumps(about))
    near = tmp_path.resolve() / "models"
    assert ensemble_members(folder) == [f"hf:{near}/bert", f"words:start:{near}/gru", "st:/far/one"]


def test_path_of_an_earlier_version_is_found(tmp_path, monkeypatch):
    """It was stored as the user wrote it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/bert").mkdir(parents=True)
    (tmp_path / "both").mkdir()
    path = tmp_path / "both" / ENSEMBLE_FILE
    path.write_text(json.dumps({"members": ["bert"], "paths": {"bert": "hf:models/bert"}}))
    assert ensemble_members(tmp_path / "both") == ["hf:models/bert"]


def test_ensemble_of_a_gru_and_a_transformer_is_moved_with_its_members(tmp_path, monkeypatch):
    """Trained, evaluated, combined, saved, moved and loaded: the same vectors and predictions."""
    home = tmp_path / "home"
    home.mkdir()
    fit(tiny_run(tmp_path), home / "gru")
    write_bert(home / "bert")
    monkeypatch.chdir(tmp_path)
    names, task = ["home/gru", "hf:home/bert"], "animals"
    rows = [
        f"{split},the {word} runs {number},{word}"
        for split, count in SPLITS
        for number in range(count)
        for word in ("cat", "dog")
    ]
    (tmp_path / "animals.csv").write_text("\n".join(["split,text,label", *rows]) + "\n")
    table = "animals.csv:text=text,label=label,split=split"
    scores = raysent.evaluate(
        names, tasks=[table], output=home / "both/evaluation", baselines=False, progress=False
    )
    assert list(scores.model) == ["gru", "bert"]
    made = raysent.ensemble(names, tasks=[table], output=home / "both", progress=False)
    about = json.loads((home / "both" / ENSEMBLE_FILE).read_text())
    assert about["paths"] == {"gru": "../gru", "bert": "hf:../bert"}
    assert about["costs"]["bert"]["num_bytes"] == hf.num_bytes("home/bert") > 0
    assert made.predict(task, ["the dog runs", "the cat runs"]) == ["dog", "cat"]
    vectors, predicted = made.encode(TEXT), made.predict_proba(task, TEXT)
    (tmp_path / "elsewhere").mkdir()
    home.rename(tmp_path / "elsewhere/moved")
    again = raysent.load(tmp_path / "elsewhere/moved/both")
    assert isinstance(again, Ensemble)
    np.testing.assert_array_equal(again.encode(TEXT), vectors)
    np.testing.assert_array_equal(again.predict_proba(task, TEXT), predicted)
    write_bert(tmp_path / "elsewhere/moved/bert", seed=1)
    with pytest.raises(ArtifactError, match=r"member 'bert' changed since the ensemble was made"):
        raysent.load(tmp_path / "elsewhere/moved/both")
