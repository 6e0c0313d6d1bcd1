"""Pretrained encoders as they are: read by the packed tower as their library reads them, also by their middle layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from backbones import KINDS, write_backbone, write_sentence_transformer
from small_bert import write_bert

from raysent.evaluation.members import expand, load_saved, model_key, saved_path
from raysent.models import SentenceModel, load
from raysent.models.schemes import with_scheme
from raysent.storage import content_key, file_sha256

TEXT = [
    "A cat runs.",
    "",
    "the dog",
    "the man and the cat and the dog",
    "x" * 90,
    "日本語",
    "a [MASK] cat",
]

library = pytest.importorskip("sentence_transformers", reason="pip install raysent[pretrained]")


@pytest.mark.parametrize("kind", KINDS)
def test_folder_has_the_vectors_of_its_library(kind, tmp_path):
    """In every architecture that is tried, with pooling, a dense layer and unit length."""
    folder = write_sentence_transformer(
        tmp_path / kind, write_backbone(tmp_path / "parts", kind), dense=12, normalize=True
    )
    model = load(str(folder))
    assert isinstance(model, SentenceModel)
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(TEXT)
    np.testing.assert_allclose(model.encode(TEXT), expected, atol=1e-5)
    assert model.origin.kind == "pretrained"
    assert model.source == f"st:{folder}"


def test_middle_layer_is_the_mean_of_its_states(tmp_path):
    """After two thirds of the layers, of unit length; padding does not count."""
    transformers = pytest.importorskip("transformers")
    folder = write_bert(tmp_path / "bert", num_hidden_layers=3)
    model = load(f"middle:{folder}")
    assert model.config.encoder.layer == 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    whole = transformers.AutoModel.from_pretrained(folder).eval()
    for text in TEXT:
        with torch.no_grad():
            tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=12)
            states = whole(**tokens, output_hidden_states=True).hidden_states[2][0]
        expected = states.mean(dim=0) / states.mean(dim=0).norm()
        np.testing.assert_allclose(model.encode(text), expected.numpy(), atol=1e-5)


def test_model_is_saved_and_read_without_its_folder(tmp_path):
    """As any model of raysent's own; its record says that nothing was trained."""
    folder = write_bert(tmp_path / "bert")
    for name in (str(folder), f"middle:{folder}"):
        model = load(name)
        model.save(tmp_path / "saved" / model.source.replace("/", "_"))
        again = load(tmp_path / "saved" / model.source.replace("/", "_"))
        np.testing.assert_array_equal(again.encode(TEXT), model.encode(TEXT))
        assert again.origin == model.origin


def test_names_without_a_scheme_are_of_one_kind(tmp_path, monkeypatch):
    """A folder of a transformer is a pretrained encoder; a run's is not, nor is a path that is misspelled."""
    folder = write_bert(tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    assert with_scheme("bert") == "st:bert"
    assert with_scheme("all-MiniLM-L6-v2") == "st:all-MiniLM-L6-v2"
    assert with_scheme("owner/name@main") == "st:owner/name@main"
    (tmp_path / "runs").mkdir()
    assert with_scheme("runs/frist") == "runs/frist"
    assert with_scheme("hash:50") == "hash:50"
    load(folder).save(tmp_path / "runs/saved")
    assert with_scheme("runs/saved") == "runs/saved"
    members = expand(["bert", "middle:bert"])
    assert [member.path for member in members] == ["st:bert", "middle:bert"]
    assert saved_path("middle:bert", tmp_path / "both") == "middle:../bert"


def test_folder_that_an_earlier_version_saved_is_read(tmp_path):
    """Its key was one of all files; with other weights it is another model."""
    folder = write_bert(tmp_path / "bert")
    (folder / "README.md").write_text("a card\n")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    earlier = content_key(*((str(path.relative_to(folder)), file_sha256(path)) for path in files))
    assert load_saved(f"st:{folder}", earlier) is not None
    assert load_saved(f"st:{folder}", model_key(f"st:{folder}")) is not None
    (folder / "README.md").write_text("another card\n")
    assert load_saved(f"st:{folder}", earlier) is None
