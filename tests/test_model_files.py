"""Folders of models, checkpoints and text that others have damaged: one line, and nothing with another meaning."""

import json
import os
import random
import shutil

import pytest
import torch
from model_folders import sign
from safetensors.torch import load_file, save_file

from raysent.config import Document, validate
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.pairs import read_sts
from raysent.data.vocabulary import (
    PAD_WORD,
    UNK_WORD,
    Vocabulary,
    VocabularyConfig,
    read_word_vectors,
)
from raysent.errors import ArtifactError, DataError, RaysentError
from raysent.models import ModelConfig, SentenceModel, encoder_tensors
from raysent.models.files import write_record
from raysent.storage import read_json, write_json
from raysent.training.checkpoint import Progress, load_checkpoint, save_checkpoint

TEXT = ["w1 w2", "w3", "w4 w5 w6 w7"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model and its folder."""
    encoder = {"type": "gru", "hidden_size": 4, "embedding": {"dim": 3}}
    config = validate(
        ModelConfig, Document({"encoder": encoder, "objective": {"type": "context_prediction"}})
    )
    model = SentenceModel.build(
        config, Vocabulary([PAD_WORD, UNK_WORD, *(f"w{i}" for i in range(20))]), seed=0
    )
    folder = tmp_path_factory.mktemp("model")
    model.save(folder)
    return model, folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the folder, to damage."""
    return shutil.copytree(saved[1], tmp_path / "model")


def test_manifest_lists_files_and_tensors(saved):
    """With sizes, digests, types and shapes."""
    about = json.loads((saved[1] / "model.json").read_text())
    assert set(about["files"]) == {"model.safetensors", "vocabulary.txt"}
    assert about["files"]["vocabulary.txt"]["bytes"] == (saved[1] / "vocabulary.txt").stat().st_size
    assert about["tensors"]["f.words.weight"] == {"dtype": "F32", "shape": [22, 3]}


def test_folder_of_an_earlier_version_is_refused(folder):
    """The command that makes it again is named."""
    sign(folder, format=1)
    with pytest.raises(
        ArtifactError,
        match="of another version of raysent; make the model again with 'raysent train'",
    ):
        SentenceModel.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "vocabulary.txt", "model.json"])
def test_no_flipped_bit_loads(folder, name):
    """In any file of the model, in any place tried; except for the white space of JSON."""
    path = folder / name
    whole, draw = path.read_bytes(), random.Random(0)
    meaning = json.loads(whole) if name == "model.json" else None
    for _ in range(60):
        place = draw.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        if name == "model.json" and parsed(damaged) == meaning:
            continue
        with pytest.raises(ArtifactError, match=r"^[^\n]*$"):
            SentenceModel.load(folder)


def parsed(data):
    """Return the value of JSON, or None."""
    try:
        return json.loads(bytes(data))
    except ValueError:
        return None


def test_initial_encoders_of_a_damaged_model_are_refused(folder):
    """A run does not start from them."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(ArtifactError, match="truncated or changed since the model was saved"):
        encoder_tensors(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_length": 0}, "max_length: must be greater than or equal to 1; given 0"),
        ({"max_length": True}, "max_length"),
        ({"max_length": 2.5}, "max_length"),
        ({"num_words": -1}, "num_words"),
        ({"num_classes": "2"}, "num_classes"),
        ({"config": 3}, "changed or of another version"),
    ],
)
def test_values_out_of_bounds_are_refused(folder, changes, message):
    """Also where the manifest fits."""
    sign(folder, **changes)
    with pytest.raises(ArtifactError, match=message):
        SentenceModel.load(folder)


def test_configuration_of_a_huge_model_is_refused_before_it_is_built(folder):
    """Its memory is not allocated first."""
    about = json.loads((folder / "model.json").read_text())
    about["config"]["encoder"]["hidden_size"] = 10**9
    sign(folder, config=about["config"])
    with pytest.raises(ArtifactError, match="of another model: must hold"):
        SentenceModel.load(folder)


@pytest.mark.parametrize("value", [1e300, 0.5])
def test_tensors_of_another_type_are_refused(folder, value):
    """A float64 is not rounded, nor becomes infinite, on its way."""
    tensors = load_file(folder / "model.safetensors")
    tensors["f.words.weight"] = torch.full((22, 3), value, dtype=torch.float64)
    save_file(tensors, folder / "model.safetensors")
    sign(folder)
    with pytest.raises(
        ArtifactError, match=r"'f\.words\.weight' must be torch\.float32; given torch\.float64"
    ):
        SentenceModel.load(folder)


def test_doubled_words_are_refused(folder):
    """A vocabulary whose ids are ambiguous is not read."""
    path = folder / "vocabulary.txt"
    path.write_text(path.read_text().replace("w7\n", "w6\n"))
    sign(folder)
    with pytest.raises(ArtifactError, match="must name each word once; given 2 times 'w6'"):
        SentenceModel.load(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
@pytest.mark.parametrize("name", ["vocabulary.txt", "model.json", "model.safetensors"])
def test_pipe_is_refused_instead_of_waited_for(folder, name):
    """In place of any file."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ArtifactError, match=r"must be a file|no such file"):
        SentenceModel.load(folder)


def test_saving_a_read_model_again_writes_the_same_bytes(saved, tmp_path):
    """The manifest is a function of the model."""
    SentenceModel.load(saved[1]).save(tmp_path)
    for path in saved[1].iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    write_record(tmp_path, saved[0].record)
    assert (tmp_path / "model.json").read_bytes() == (saved[1] / "model.json").read_bytes()


def test_changed_checkpoint_record_is_refused(tmp_path):
    """Progress that no training made is not continued; the older checkpoint is."""
    for step in (5, 10):
        save_checkpoint(
            tmp_path, {"x": torch.zeros(2)}, Progress(step=step, sentences=100 * step), key="k"
        )
    record = tmp_path / "checkpoint/000000010.json"
    record.write_text(record.read_text().replace('"sentences": 1000', '"sentences": 9000'))
    found = load_checkpoint(tmp_path, key="k")
    assert found is not None
    assert found[1].step == 5


def test_checkpoint_of_an_earlier_version_is_refused(tmp_path):
    """It says how to train again."""
    save_checkpoint(tmp_path, {"x": torch.zeros(2)}, Progress(step=5), key="k")
    path = tmp_path / "checkpoint/000000005.json"
    write_json(path, {**read_json(path), "format": "raysent checkpoint 2"}, sealed=True)
    with pytest.raises(
        ArtifactError, match=r"not a checkpoint's record; remove .* to train again from the start"
    ):
        load_checkpoint(tmp_path, key="k")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentences": "abc"}', r"'sentences' must be a list of texts; given 'abc'"),
        ('{"sentences": {"a": 1}}', r"'sentences' must be a list of texts; given \{'a': 1\}"),
        ('{"paragraphs": "abc"}', r"'paragraphs' must be a list of texts"),
        ('{"paragraphs": [{"a": "b"}]}', r"'paragraphs' must be a list of texts"),
        ('{"text": "half \\ud800"}', "half of a surrogate pair"),
        ('{"text": ' + "[" * 200 + "]" * 200 + "}", "nested deeper"),
        ('{"text": "a", "n": ' + "1" * 5000 + "}", "digits"),
    ],
)
def test_bad_line_of_json_is_named(tmp_path, line, message):
    """With its number; a string is not read as one sentence a letter."""
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": "One. Two. Three. Four."}\n' + line + "\n")
    with pytest.raises(DataError, match=message) as raised:
        prepare(
            CorpusConfig(path=str(path), cache_dir=str(tmp_path / "cache"), num_processes=1),
            VocabularyConfig(),
        )
    assert f"{path}:2: " in str(raised.value)


def test_corpus_with_odd_characters_is_prepared(tmp_path):
    """Words of ten million letters and byte order marks are text like any other."""
    path = tmp_path / "text.txt"
    lines = ["\ufeffthe cat sat.", "x" * 2_000_000 + "1", "\u0301 the \ufeffcat", "a b", "c d"] * 3
    path.write_text("\n".join(lines))
    config = CorpusConfig(
        path=str(path), cache_dir=str(tmp_path / "cache"), format="sentences", num_processes=1
    )
    words = prepare(config, VocabularyConfig(min_count=3)).vocabulary
    assert "cat" in words
    assert "the" in words


@pytest.mark.parametrize(("score", "line"), [("high", "a\tb"), ("nan", "a\tb"), ("3", "a")])
def test_bad_line_of_an_sts_set_is_named(tmp_path, score, line):
    """A score that is no number, or a line of one column."""
    (tmp_path / "STS.input.x.txt").write_text(f"a\tb\n{line}\n")
    (tmp_path / "STS.gs.x.txt").write_text(f"1\n{score}\n")
    with pytest.raises(DataError, match=r"STS\.(gs|input)\.x\.txt:2: "):
        read_sts(tmp_path)


@pytest.mark.parametrize("header", [b"9" * 5000 + b" 3\n", b"3 " + b"9" * 12 + b"\n"])
@pytest.mark.parametrize("name", ["v.bin", "v.txt"])
def test_header_of_vectors_beyond_the_limits_is_refused(tmp_path, name, header):
    """Without reading the file into memory."""
    (tmp_path / name).write_bytes(header + b"word 1 2 3\n")
    with pytest.raises(RaysentError, match=r"v\.(bin|txt)"):
        read_word_vectors(tmp_path / name)
