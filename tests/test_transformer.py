"""Transformers that start from a pretrained BERT: its vectors, its sub-words, and training from there."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from small_bert import KINDS, WORDS, write_bert, write_transformer
from tiny_run import check_resumed, tiny_run

from raysent.config import Document
from raysent.data.corpus import prepare
from raysent.data.vocabulary import SubwordVocabulary, Vocabulary, VocabularyConfig
from raysent.errors import ArtifactError, ConfigError
from raysent.exports import export
from raysent.models import SentenceModel, load
from raysent.models.config import ModelConfig
from raysent.models.derived import expand
from raysent.storage import load_tensors, save_tensors
from raysent.sweeps.record import SweepRecord
from raysent.sweeps.space import parse_space
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.optimization import Optimizer
from raysent.training.plan import build_model, check_run

pytest.importorskip("transformers", reason="pip install raysent[transformers]")

TEXT = ["a cat", "the dog runs to the cat and a man", "", "zzz", "a cat sleeps", "w12 w3"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small BERT of two layers."""
    return write_bert(tmp_path_factory.mktemp("models") / "bert", max_position_embeddings=30)


def encoder_of(folder: Path, **settings):
    """Return the settings of a transformer that starts from a folder."""
    return {"type": "transformer", "path": str(folder), **settings}


def build(folder: Path, **settings) -> SentenceModel:
    """Return an untrained model of one tower."""
    config = ModelConfig.model_validate(
        {"encoder": encoder_of(folder, **settings), "objective": {"type": "paraphrase_margin"}}
    )
    return SentenceModel.build(config, SubwordVocabulary.read(folder), seed=0, max_length=30).eval()


def run_of(folder: Path, bert: Path, **changes):
    """Return a run of 12 steps."""
    values = {"corpus__max_length": 20, "training__learning_rate": 0.003, "training__warmup_steps": 4, **changes}
    return tiny_run(folder, encoder=encoder_of(bert), **values)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    """The model would be of NaN from its first step."""
    folder, name = write_bert(tmp_path / "bert"), "encoder.layer.0.output.dense.weight"
    tensors = load_tensors(folder / "model.safetensors")
    tensors[name][0, 0] = value
    save_tensors(folder / "model.safetensors", tensors)
    with pytest.raises(ArtifactError, match=rf"model\.safetensors: {name} must be finite; given NaN or infinity"):
        build(folder)


def test_vectors_are_those_of_the_pretrained_model(bert):
    """Of unit length, before any training; and the first state is that of its special token."""
    expected = load(f"hf:{bert}").encode(TEXT, normalize_embeddings=True)
    np.testing.assert_allclose(build(bert).encode(TEXT), expected, atol=2e-6)
    first = load(f"hf:{bert}")
    with torch.inference_mode():
        tokens = first.tokenizer(TEXT[1], return_tensors="pt")
        state = first.model(**tokens).last_hidden_state[0, 0]
    np.testing.assert_allclose(build(bert, pooling="first").encode(TEXT[1]), (state / state.norm()).numpy(), atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_each_kind(kind, tmp_path):
    """Of any text, which is read as it is written."""
    folder = write_transformer(tmp_path / kind, kind)
    texts = ["a cat", "the dog's cat  can't", "", "ab 12 w.\n cat", "a", " ".join(["a cat w."] * 40)]
    expected = load(f"hf:{folder}").encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(build(folder).encode(texts), expected, atol=3e-6)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_trained_and_exported(kind, tmp_path):
    """The model of a few steps gives the same vectors elsewhere, by sentence-transformers and by onnxruntime."""
    folder = write_transformer(tmp_path / kind, kind)
    values = {"corpus__max_length": 20, "training__learning_rate": 0.003, "training__warmup_steps": 4}
    fit(tiny_run(tmp_path, encoder=encoder_of(folder), **values), tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    folder.rename(tmp_path / "gone")
    model = load(tmp_path / "moved")
    start = load(f"hf:{tmp_path / 'gone'}").encode(TEXT, normalize_embeddings=True)
    assert np.abs(model.encode(TEXT, towers="f") - start).max() > 1e-3
    for target in ("sentence-transformers", "onnx"):
        pytest.importorskip("onnxruntime" if target == "onnx" else "sentence_transformers")
        done = export(tmp_path / "moved", tmp_path / target, to=target)
        assert done.check.num_other_ids == 0
        assert done.check.num_sentences == 200
    card = (tmp_path / "onnx" / "README.md").read_text()
    assert "np.full((len(rows), max(map(len, rows))), -1, np.int64)" in card
    np.testing.assert_allclose(load(f"st:{tmp_path / 'sentence-transformers'}").encode(TEXT), model.encode(TEXT))
    assert str(tmp_path) not in (tmp_path / "sentence-transformers" / "raysent.json").read_text()


def test_first_layers_alone_are_read(bert):
    """The sizes that are not given are the folder's."""
    model, whole = build(bert, num_layers=1), build(bert)
    assert (model.config.encoder.num_layers, model.config.encoder.hidden_size) == (1, 16)
    torch.testing.assert_close(model.f.layers[0].up.weight, whole.f.layers[0].up.weight, rtol=0, atol=0)
    assert not np.allclose(model.encode(TEXT), whole.encode(TEXT), atol=1e-3)


def test_subwords_are_those_of_the_tokenizer(bert):
    """Between the special tokens, which also end a truncated sentence; an empty one has them alone."""
    from transformers import AutoTokenizer

    vocabulary, reference = SubwordVocabulary.read(bert), AutoTokenizer.from_pretrained(bert)
    for longest in (30, 6):
        ids = vocabulary.ids(TEXT, max_length=longest)
        rows = [row.tolist() for row in np.split(ids.ids, np.cumsum(ids.lengths)[:-1])]
        assert rows == reference(TEXT, truncation=True, max_length=longest)["input_ids"]
    assert vocabulary.tokenize(["a cat sleeps"]) == [["a", "cat", "sleep", "##s"]]
    assert (len(vocabulary), vocabulary.id("cat"), vocabulary.id("cow")) == (len(WORDS), 6, vocabulary.unknown_id)
    with pytest.raises(ConfigError, match=r"^max_length: must be more than the 2 special sub-words; given 2$"):
        vocabulary.ids(TEXT, max_length=2)


def test_subwords_are_read_as_they_were_saved(bert, tmp_path):
    """From the file of a model, and in another process."""
    vocabulary = SubwordVocabulary.read(bert)
    vocabulary.save(tmp_path / "vocabulary.txt")
    for again in (Vocabulary.load(tmp_path / "vocabulary.txt"), pickle.loads(pickle.dumps(vocabulary))):
        np.testing.assert_array_equal(again.ids(TEXT, max_length=9).ids, vocabulary.ids(TEXT, max_length=9).ids)
        assert again.key_values == vocabulary.key_values
    old = (tmp_path / "vocabulary.txt").read_text().replace("#tokenizer of sentences", "#tokenizer", 1)
    (tmp_path / "vocabulary.txt").write_text(old)
    with pytest.raises(ArtifactError, match=r"read sub-words of words, not of sentences; make it again"):
        Vocabulary.load(tmp_path / "vocabulary.txt")
    (tmp_path / "vocabulary.txt").write_text("#tokenizer of sentences\n{}\n")
    with pytest.raises(ArtifactError, match=r"vocabulary\.txt: not a tokenizer: "):
        Vocabulary.load(tmp_path / "vocabulary.txt")


def test_corpus_holds_the_ids_of_its_sentences(bert, tmp_path):
    """Those of the text as it is written; another vocabulary gives another corpus."""
    config = run_of(tmp_path, bert)
    data = open_training_data(config)
    assert isinstance(data.vocabulary, SubwordVocabulary)
    stored = data.text.train.sentences(0, 20)
    lines = [line for line in (tmp_path / "text.txt").read_text().split("\n") if line]
    known = {tuple(data.vocabulary.ids([line], max_length=20).ids.tolist()) for line in lines}
    rows = np.split(stored.ids, np.cumsum(stored.lengths)[:-1])
    assert all(tuple(row.tolist()) in known for row in rows)
    assert data.text.key != prepare(config.corpus, VocabularyConfig()).key
    assert data.text.unknown_share == 0


def test_training_lowers_the_loss_and_the_model_needs_no_folder(bert, tmp_path):
    """The same run gives the same weights; the saved model gives the same bits where the folder is gone."""
    own = write_bert(tmp_path / "bert", max_position_embeddings=30)
    config = run_of(tmp_path, own, training__epochs=2.0)
    outcome = fit(config, tmp_path / "one")
    fit(config, tmp_path / "two")
    reports = [json.loads(line) for line in (tmp_path / "one/reports.jsonl").read_text().splitlines()]
    assert outcome.status == "finished"
    assert reports[-1]["metrics"]["loss"] < reports[0]["metrics"]["loss"]
    first = load_tensors(tmp_path / "one/model.safetensors")
    second = load_tensors(tmp_path / "two/model.safetensors")
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    own.rename(tmp_path / "elsewhere")
    model = load(tmp_path / "one")
    assert model.get_sentence_embedding_dimension() == 32
    untrained = load(f"hf:{tmp_path / 'elsewhere'}").encode(TEXT, normalize_embeddings=True)
    assert not np.allclose(model.encode(TEXT, towers="f"), untrained, atol=1e-3)


def test_run_that_was_stopped_continues_to_the_same_weights(bert, tmp_path):
    """No randomness is outside of the checkpoint."""
    check_resumed(run_of(tmp_path, bert), tmp_path)


def test_run_starts_with_a_trained_transformer(bert, tmp_path):
    """Its sub-words and weights, without the pretrained folder's."""
    fit(run_of(tmp_path, bert), tmp_path / "one")
    config = tiny_run(tmp_path, encoder=None, initial=str(tmp_path / "one"), corpus__max_length=20)
    model = build_model(config, open_training_data(config))
    np.testing.assert_array_equal(model.eval().encode(TEXT), load(tmp_path / "one").encode(TEXT))


def test_learning_rate_is_lower_in_lower_layers(bert, tmp_path):
    """By `layer_decay` for each layer below the last, under the factor of the encoder."""
    settings = {"learning_rate_factor": 0.5, "layer_decay": 0.1}
    config = tiny_run(tmp_path, encoder=encoder_of(bert, **settings), second_encoder=encoder_of(bert))
    model = build_model(config, open_training_data(config)).train()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = Optimizer(model, config.training, num_steps=10)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for table in model.tables:
        rows = torch.arange(len(table.weight))
        table.weight.grad = torch.sparse_coo_tensor(
            rows[None], torch.ones(table.weight.shape), is_coalesced=True, check_invariants=False
        )
        optimizer.catch_up(rows)
    optimizer.step(0)
    optimizer.flush()
    moved = {name: float((value.detach() - before[name]).abs().mean()) for name, value in model.named_parameters()}
    rate = config.training.learning_rate
    expected = {"g.norm.weight": 1, "f.layers.1.up.weight": 0.5, "f.layers.0.up.weight": 0.05, "f.positions": 0.005}
    assert {name: moved[name] for name in expected} == pytest.approx(
        {n: f * rate for n, f in expected.items()}, rel=0.01
    )
    assert moved["f.table.weight"] == pytest.approx(0.005 * rate, rel=0.01)
    assert moved["g.table.weight"] == pytest.approx(rate, rel=0.01)


def test_record_of_a_sweep_is_read_without_the_folder(bert, tmp_path, monkeypatch):
    """From any working directory; a searched folder is not fixed."""
    own = write_bert(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    base = {"encoder": {"type": "transformer", "path": "own"}, "objective": {"type": "context_prediction"}}
    values = {"base": base, "search": {"encoder.num_layers": {"choice": [1, 2]}}}
    space = parse_space(Document(values, source="s.yaml"), name="s")
    expected = space.config(space.first_params()).encoder
    recorded = SweepRecord(space, seed=0).values()["space"]
    searched = {"base": base, "search": {"encoder.path": {"choice": ["own", str(bert)]}}}
    kept = SweepRecord(parse_space(Document(searched, source="s.yaml"), name="s"), seed=0).values()["space"]
    assert kept["base"]["encoder"] == base["encoder"]
    own.rename(tmp_path / "gone")
    monkeypatch.chdir("/")
    again = parse_space(Document(recorded, source="sweep.json"), name="s")
    assert again.config(space.first_params()).encoder == expected


def test_wrong_folder_is_refused(bert, tmp_path):
    """Another kind, no tokenizer, a missing weight, another size; each in one line."""
    with pytest.raises(ValueError, match="path must be the folder of a pretrained BERT, .*; given /nowhere"):
        build(Path("/nowhere"))
    own = write_bert(tmp_path / "own")
    about = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**about, "model_type": "gpt2"}))
    with pytest.raises(
        ValueError, match=r"must be the folder of a pretrained BERT.* with gelu.*given model_type gpt2 .*name it hf:"
    ):
        build(own)
    (own / "config.json").write_text(json.dumps(about))
    with pytest.raises(
        ArtifactError, match=r"must hold every weight of the encoder; encoder\.layer\.2\.\S+ is missing"
    ):
        build(own, num_layers=3)
    with pytest.raises(ArtifactError, match=r"embeddings\.word_embeddings\.weight must have the size of the encoder's"):
        build(own, hidden_size=8)
    tensors = load_tensors(own / "model.safetensors")
    save_tensors(own / "model.safetensors", {f"bert.{name}": value for name, value in tensors.items()}, metadata={})
    np.testing.assert_array_equal(build(own).encode(TEXT), build(write_bert(tmp_path / "same")).encode(TEXT))
    (own / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"^encoder\.path: must hold tokenizer\.json; found none in "):
        build(own)


def test_parts_that_do_not_fit_are_refused(bert, tmp_path):
    """Longer sentences, another folder's sub-words, an objective that predicts words, and new words."""
    config = run_of(tmp_path, bert, corpus__max_length=40)
    with pytest.raises(
        ConfigError, match=r"^encoder\.max_positions: must be at least the longest sentence, 40; given 30"
    ):
        check_run(config, open_training_data(config))
    other = write_bert(tmp_path / "other")
    with pytest.raises(ValueError, match=r"encoder\.path and second_encoder\.path must be one folder; given "):
        tiny_run(tmp_path, encoder=encoder_of(bert), second_encoder=encoder_of(other))
    config = run_of(tmp_path, bert, objective={"type": "sentence_decoding"})
    with pytest.raises(ConfigError, match="sentence_decoding reads word vectors; the encoder must have some"):
        build_model(config, open_training_data(config))
    with pytest.raises(ConfigError, match=r"^MODEL: must have words of its own to be expanded"):
        expand(build(bert), None)  # type: ignore[arg-type]
