"""Pretrained encoders by name: which are known, and where the files of one are looked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from backbones import write_sentence_transformer
from small_bert import write_bert

from raysent.errors import ArtifactError
from raysent.evaluation.members import expand, load_saved, model_key
from raysent.models import known, load
from raysent.models.backbone import read_backbone
from raysent.models.known import (
    KnownEncoder,
    encoder_at_hand,
    find_encoder,
    find_known,
    find_local,
    known_encoders,
    pinned_name,
    smallest_encoder,
)
from raysent.models.objectives.distillation import Config as Distillation
from raysent.models.pretrained import folder_key
from raysent.pipeline.arguments import start_of
from raysent.storage import file_sha256
from raysent.training.run import RunConfig
from raysent.training.targets import find_teacher

TEXT = ["A cat runs.", "", "The dog after the cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small encoder in the form of sentence-transformers."""
    base = tmp_path_factory.mktemp("encoders")
    return write_sentence_transformer(base / "any name", write_bert(base / "bert"), pooling="mean")


@pytest.fixture
def encoder(folder, monkeypatch):
    """The same encoder as one that is known: by the hash of its weights."""
    files = {"model.safetensors": file_sha256(folder / "model.safetensors")}
    made = KnownEncoder(
        name="owner/tiny-en",
        languages=["en"],
        license="mit",
        megabytes=1,
        dimensions=8,
        files=files,
    )
    monkeypatch.setattr(known, "known_encoders", lambda: (made,))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return made


def test_file_of_known_encoders_is_read():
    """Every entry is checked; hashes are of whole files; a name with its owner or without it is found."""
    names = [one.name for one in known_encoders()]
    assert len(set(names)) == len(names) >= 10
    assert all(len(digest) == 64 for one in known_encoders() for digest in one.files.values())
    minilm = find_known("ALL-minilm-l6-v2")
    assert minilm is not None
    assert minilm is find_known("sentence-transformers/all-MiniLM-L6-v2")
    assert minilm.reads("en")
    assert not minilm.reads("de")
    assert smallest_encoder("en") is minilm
    german = smallest_encoder("de")
    assert german is not None
    assert german.languages == "many"


def test_folders_of_models_are_known_by_the_hash_of_the_weights(encoder, folder, monkeypatch):
    """Whatever a folder is called, itself or the one above it is named; others are passed over."""
    assert find_local(encoder) is None
    for named in (folder, folder.parent):
        monkeypatch.setenv("RAYSENT_MODELS", f"{folder.parent / 'none'}:{named}")
        files = find_local(encoder)
        assert files is not None
        assert files.folder == folder
        assert not files.is_of_hub
    assert find_encoder("tiny-en").folder == folder
    assert encoder_at_hand("en") == files
    assert encoder_at_hand("de") is None
    np.testing.assert_array_equal(
        load("st:tiny-en").encode(TEXT), load(f"st:{folder}").encode(TEXT)
    )


def test_folder_with_other_weights_is_not_the_known_encoder(encoder, folder, tmp_path, monkeypatch):
    """A damaged copy, or another model under the name, is no answer to the name."""
    other = write_sentence_transformer(
        tmp_path / "tiny-en", write_bert(tmp_path / "bert", seed=5), pooling="mean"
    )
    monkeypatch.setenv("RAYSENT_MODELS", str(other))
    assert find_local(encoder) is None
    with pytest.raises(ArtifactError, match=r"given tiny-en: no such folder"):
        find_encoder("tiny-en", may_download=False)


def test_installed_package_carries_a_known_encoder(encoder, folder, tmp_path, monkeypatch):
    """Its files are found by the package's name alone; nothing of it is imported."""
    package = tmp_path / "carrier-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
    (tmp_path / "carrier").mkdir()
    (tmp_path / "carrier/__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "carrier/model").symlink_to(folder)
    monkeypatch.syspath_prepend(tmp_path)
    carried = encoder.model_copy(update={"packages": {"carrier": "carrier/model"}})
    monkeypatch.setattr(known, "known_encoders", lambda: (carried,))
    files = find_local(carried)
    assert files is not None
    assert files.folder.samefile(folder)


def test_name_with_a_commit_is_kept_and_a_folder_has_none(encoder, folder, tmp_path, monkeypatch):
    """What an ensemble stores: another machine finds the same files by it."""
    commit, cache = "0" * 40, tmp_path / "hub/models--owner--tiny-en"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (cache / "snapshots").mkdir(parents=True)
    (cache / "snapshots" / commit).symlink_to(folder)
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(commit)
    assert pinned_name("tiny-en") == f"owner/tiny-en@{commit}"
    assert pinned_name(str(folder)) is None
    assert pinned_name("owner/other") is None


def test_saved_name_of_a_commit_is_found_elsewhere_by_its_content(encoder, folder, monkeypatch):
    """A machine that has the files in a folder needs no cache of the hub; files of other content are not taken."""
    monkeypatch.setenv("RAYSENT_MODELS", str(folder))
    path = f"st:owner/tiny-en@{'0' * 40}"
    found = load_saved(path, folder_key(folder))
    assert found is not None
    np.testing.assert_array_equal(found.encode(TEXT), load(f"st:{folder}").encode(TEXT))
    with pytest.raises(ArtifactError, match=r"given owner/tiny-en@0+: no such folder"):
        load_saved(path, "another key")


def test_key_is_of_what_vectors_depend_on(folder, tmp_path):
    """A changed card or weights of another library change nothing; settings, tokenizer and weights do."""
    copy = tmp_path / "copy"
    for path in folder.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    key = folder_key(folder)
    assert folder_key(copy) == key
    (copy / "README.md").write_text("another card\n")
    (copy / "onnx").mkdir()
    (copy / "onnx/model.onnx").write_bytes(b"weights of another library")
    (copy / "pytorch_model.bin").write_bytes(b"the same weights in another form")
    (copy / "train_script.py").write_text("raise RuntimeError('run')\n")
    library = copy / "config_sentence_transformers.json"
    library.write_text(json.dumps({**json.loads(library.read_text()), "__version__": {}}))
    assert folder_key(copy) == key
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**settings, "layer_norm_eps": 1e-3}))
    assert folder_key(copy) != key


@pytest.mark.parametrize("name", ["", "nowhere", "runs/none", "tiny"])
def test_unknown_name_is_one_line(encoder, name):
    """With the forms that a name can have, and the nearest known encoder."""
    with pytest.raises(ArtifactError) as error:
        find_encoder(name, may_download=False, where="--with")
    text = str(error.value)
    assert text.startswith("--with: must be a model's folder, its name on the hub (owner/name)")
    assert "\n" not in text
    assert ("did you mean 'tiny-en'?" in text) == (name == "tiny")


def test_every_command_takes_every_form_of_a_name(encoder, folder, monkeypatch):
    """A folder, the name with its owner or without, and with a scheme: one resolver finds the same files for all."""
    monkeypatch.setenv("RAYSENT_MODELS", str(folder.parent))
    names = ["tiny-en", "owner/tiny-en", str(folder)]
    vectors = load(f"st:{folder}").encode(TEXT)
    for name in [*names, *(f"st:{name}" for name in names), *(f"hf:{name}" for name in names)]:
        assert find_encoder(name).folder == folder
        (member,) = expand([name])
        assert member.key == model_key(member.path)
        assert find_teacher(Distillation(teacher=name).batches).key == member.key
        start, kind, num_towers = start_of(name)
        assert (kind, num_towers) == ("pretrained", 1)
        assert read_backbone(start["encoder"]["path"]).dim == 16
        run = RunConfig.model_validate({"initial": name, "objective": {"type": "contrast"}})
        assert run.initial is None
        assert find_encoder(run.encoder.path).folder == folder
        np.testing.assert_allclose(load(name).encode(TEXT), vectors, atol=1e-6)


def test_search_takes_folder_names_as_they_are(encoder, folder, monkeypatch):
    """A folder comes before any name."""
    monkeypatch.chdir(folder.parent)
    assert find_encoder(folder.name).folder == Path(folder).resolve()
