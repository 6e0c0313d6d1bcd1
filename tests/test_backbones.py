"""Pretrained encoders: the vectors of sentence-transformers before the first step, training from there, and exports."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import combinations, pairwise
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from backbones import FURTHER, KINDS, write_backbone, write_sentence_transformer
from small_bert import write_bert
from tiny_run import check_resumed, check_weights, tiny_run
from torch.nn import functional

from benchmarks.pretrain import write_start
from raysent.config import Document
from raysent.data.vocabulary import SubwordVocabulary
from raysent.ensembles import Ensemble
from raysent.ensembles.ensemble import LoadedMember
from raysent.errors import ArtifactError, ConfigError, RaysentError
from raysent.evaluation.members import saved_path
from raysent.exports import export
from raysent.exports.formats import FORMATS
from raysent.exports.formats.onnx import _Graph
from raysent.exports.modeling_raysent import activation_of
from raysent.exports.tokenizer import build_tokenizer, exported_ids, pad_id
from raysent.integrations import mteb
from raysent.kernels import packed_attention
from raysent.kernels.devices import acting_as_gpu
from raysent.kernels.padding import similar_lengths
from raysent.models import SentenceModel, load
from raysent.models.backbone import _SIDE_BY_SIDE, Backbone, read_backbone, read_tokenizer
from raysent.models.config import ModelConfig
from raysent.models.derived import bag_of_words, expand
from raysent.models.encoders import count_parameters
from raysent.models.encoders.pretrained import _CPU_COST
from raysent.models.schemes import find_scheme
from raysent.models.sentence_encoder import JoinedEncoders
from raysent.report.run import read_run
from raysent.storage import load_tensors, save_tensors
from raysent.sweeps.record import SweepRecord
from raysent.sweeps.space import parse_space
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.optimization import Optimizer
from raysent.training.plan import build_model, check_run

library = pytest.importorskip("sentence_transformers", reason="pip install raysent[pretrained]")
pytest.importorskip("peft", reason="pip install raysent[pretrained]")

TEXT = [
    "a cat",
    "The dog runs to the cat, and a man",
    "",
    "zzz",
    "a cat sleeps?",
    "日本 cat",
    "the " * 60,
]
FOLDERS: dict[str, dict[str, Any]] = {
    "mean": {"pooling": "mean"},
    "cls": {"pooling": "cls", "normalize": True, "prompts": {"query": "cat: ", "document": ""}},
    "last": {"pooling": "lasttoken", "dense": 8, "normalize": True, "prompts": {"query": "cat: "}},
    "both": {
        "pooling": ["max", "mean"],
        "dense": 8,
        "prompts": {"of": "the: "},
        "default_prompt": "of",
    },
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small BERT."""
    return write_backbone(tmp_path_factory.mktemp("models") / "bert", "bert")


def build(folder: Path | str, **settings: Any) -> SentenceModel:
    """Return an untrained model of one tower."""
    config = ModelConfig.model_validate(
        {
            "encoder": {"type": "pretrained", "path": str(folder), **settings},
            "objective": {"type": "paraphrase_margin"},
        }
    )
    words = SubwordVocabulary(read_tokenizer(config.encoder.tokenizer))
    return SentenceModel.build(
        config, words, seed=0, max_length=config.encoder.encoded_length(30)
    ).eval()


def run_of(
    folder: Path, bert: Path, *, encoder: dict[str, Any] | None = None, **changes: Any
) -> Any:
    """Return a run of 12 steps."""
    values = {
        "corpus__max_length": 20,
        "training__learning_rate": 0.003,
        "training__warmup_steps": 4,
        **changes,
    }
    return tiny_run(
        folder, encoder={"type": "pretrained", "path": str(bert), **(encoder or {})}, **values
    )


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_sentence_transformers(kind, tmp_path):
    """Before any training, with the folder's pooling, further modules, lengths and prompts."""
    backbone = write_backbone(tmp_path / kind, kind)
    for name, settings in FOLDERS.items():
        folder = write_sentence_transformer(tmp_path / name, backbone, **settings)
        model, reference = build(folder), library.SentenceTransformer(str(folder), device="cpu")
        assert (
            model.config.encoder.dim
            == model.get_sentence_embedding_dimension()
            == reference.get_embedding_dimension()
        )
        for method in ("encode", "encode_query", "encode_document"):
            vectors, expected = getattr(model, method)(TEXT), getattr(reference, method)(TEXT)
            np.testing.assert_allclose(vectors, expected, atol=1e-5)
        assert np.abs(expected[0] - expected[1]).max() > 1e-3
        assert settings.get("normalize", False) == np.allclose(np.linalg.norm(vectors, axis=1), 1)


def test_prompts_that_a_folder_lacks_are_those_of_sentence_transformers(bert, tmp_path):
    """Empty ones, in place of the default one too, as in folders of its earlier versions."""
    for name, prompts in (
        ("default", {"of": "the: "}),
        ("passage", {"of": "the: ", "passage": "cat: "}),
    ):
        folder = write_sentence_transformer(
            tmp_path / name, bert, prompts=prompts, default_prompt="of"
        )
        path = folder / "config_sentence_transformers.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "prompts": prompts}))
        model, reference = build(folder), library.SentenceTransformer(str(folder), device="cpu")
        for method in ("encode", "encode_query", "encode_document"):
            vectors, expected = getattr(model, method)(TEXT), getattr(reference, method)(TEXT)
            np.testing.assert_allclose(vectors, expected, atol=1e-5, err_msg=f"{name} {method}")


@pytest.mark.parametrize("scheme", ["st", "hf"])
def test_frozen_members_honour_pooling_and_prompts(scheme, bert, tmp_path):
    """By themselves, and side by side: each encoder takes its own prompt."""
    folder = write_sentence_transformer(tmp_path / "own", bert, **FOLDERS["last"])
    own, reference = (
        load(f"{scheme}:{folder}"),
        library.SentenceTransformer(str(folder), device="cpu"),
    )
    for method in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(
            getattr(own, method)(TEXT), getattr(reference, method)(TEXT), atol=1e-6
        )
    both = JoinedEncoders([own, load(f"hf:{bert}")], normalizes=False)
    np.testing.assert_allclose(
        both.encode_query(TEXT)[:, :8], reference.encode_query(TEXT), atol=1e-6
    )
    np.testing.assert_allclose(
        both.encode_query(TEXT)[:, 8:], load(f"hf:{bert}").encode(TEXT), atol=1e-6
    )
    asked = mteb.MtebModel.encode(
        SimpleNamespace(encoder=own), [{"text": TEXT}], prompt_type="query"
    )
    np.testing.assert_array_equal(asked, own.encode_query(TEXT))
    np.testing.assert_array_equal(own.encode(TEXT, prompt=""), own.encode(TEXT))


def test_start_of_measurements_reads_any_text(tmp_path):
    """`benchmarks.pretrain` begins with sub-words of the books, and bytes for what they lack."""
    (tmp_path / "books").mkdir()
    (tmp_path / "books/one.txt").write_text(
        "The cat runs after the dog, and the dog after a cat.\n" * 200
    )
    write_start(tmp_path / "books", tmp_path / "start", seed=0)
    model, text = build(tmp_path / "start"), ["The cat runs.", "日本 <0x41> 🎉", ""]
    assert model.vocabulary.unknown_id not in model.vocabulary.ids(text, max_length=60).ids
    assert model.vocabulary.words[model.vocabulary.mask_id] == "[MASK]"
    expected = library.SentenceTransformer(str(tmp_path / "start"), device="cpu").encode(text)
    np.testing.assert_allclose(model.encode(text), expected, atol=1e-5)


def test_model_of_the_hub_is_read_from_its_cache(bert, tmp_path, monkeypatch):
    """By its name; the record has the commit, and an ensemble keeps the name."""
    commit, cache = (
        "0123456789012345678901234567890123456789",
        tmp_path / "hub/models--owner--small",
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    write_sentence_transformer(cache / "snapshots" / commit, bert, **FOLDERS["cls"])
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(commit)
    model = build("owner/small")
    assert (model.config.encoder.path, model.config.encoder.backbone.revision) == (
        "owner/small",
        commit,
    )
    np.testing.assert_allclose(model.encode(TEXT), load("st:owner/small").encode(TEXT), atol=1e-6)
    assert saved_path("st:owner/small", tmp_path / "both") == f"st:owner/small@{commit}"
    np.testing.assert_array_equal(
        load(f"st:owner/small@{commit}").encode(TEXT), load("st:owner/small").encode(TEXT)
    )
    assert find_scheme("st:owner/small")[0].label("owner/small") == "small"
    with pytest.raises(
        ArtifactError,
        match=r"^hf:owner/other: must be .*; given owner/other: no such folder, and the hub gives none: ",
    ):
        load("hf:owner/other")


def test_settings_replace_what_the_folder_says(bert, tmp_path):
    """Pooling, length, unit vectors and prompts; without a folder of sentence-transformers, the mean."""
    plain = build(bert)
    np.testing.assert_allclose(plain.encode(TEXT), load(f"hf:{bert}").encode(TEXT), atol=1e-5)
    own = write_sentence_transformer(tmp_path / "own", bert, pooling="cls", normalize=True)
    expected = library.SentenceTransformer(str(own), device="cpu").encode(["cat: a cat"])
    model = build(bert, pooling="cls", normalize=True, prompts={"query": "cat: "}, max_tokens=9)
    np.testing.assert_allclose(model.encode_query(["a cat"]), expected, atol=1e-5)
    assert model.max_seq_length == 9
    np.testing.assert_allclose(model.encode("the " * 50), model.encode("the " * 7), atol=1e-6)


def test_record_names_the_license_and_what_the_folder_says(bert, tmp_path):
    """For the model card and for reading it where the folder is not."""
    folder = write_sentence_transformer(tmp_path / "own", bert, **FOLDERS["last"])
    found = read_backbone(str(folder))
    assert (found.license, found.pooling, found.max_tokens, found.dim) == (
        "mit",
        ["lasttoken"],
        40,
        8,
    )
    assert found.prompts["query"] == "cat: "
    assert "added_tokens_decoder" not in found.tokenizer
    assert found.tokenizer["pad_token"] == "<pad>"


@pytest.mark.parametrize("encoder", [{}, {"lora": {"rank": 2}}], ids=["weights", "adapters"])
def test_training_lowers_the_loss_and_the_model_needs_no_folder(encoder, tmp_path):
    """The same run gives the same weights; adapters leave the others as they were."""
    own = write_sentence_transformer(
        tmp_path / "bert", write_backbone(tmp_path / "plain", "bert"), **FOLDERS["cls"]
    )
    config = run_of(tmp_path, own, encoder=encoder, training__epochs=2.0)
    start = build_model(config, open_training_data(config)).tensors()
    outcome = fit(config, tmp_path / "one")
    fit(config, tmp_path / "two")
    reports = [
        json.loads(line) for line in (tmp_path / "one/reports.jsonl").read_text().splitlines()
    ]
    assert outcome.status == "finished"
    assert reports[-1]["metrics"]["loss"] < reports[0]["metrics"]["loss"]
    first, second = (load_tensors(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    moved = {name for name, value in first.items() if not torch.equal(value, start[name])}
    assert moved
    assert all("lora_" in name for name in moved) == bool(encoder)
    own.rename(tmp_path / "elsewhere")
    model = load(tmp_path / "one")
    assert (model.get_sentence_embedding_dimension(), model.max_seq_length) == (32, 40)
    assert model.prompts["query"] == "cat: "
    untrained = load(f"st:{tmp_path / 'elsewhere'}")
    assert not np.allclose(model.encode(TEXT, towers="f"), untrained.encode(TEXT), atol=1e-3)
    trained, fixed = count_parameters(config.model.towers, 100)
    assert trained + fixed == 2 * sum(value.numel() for value in model.f.parameters())
    assert (fixed > trained) == bool(encoder)


def test_run_that_was_stopped_continues_to_the_same_weights(bert, tmp_path):
    """Dropout's masks follow from the run's generator; nothing is drawn from torch's own."""
    encoder = {"dropout": 0.2, "lora": {"rank": 2, "dropout": 0.1}, "gradient_checkpointing": True}
    config = run_of(tmp_path, bert, encoder=encoder)
    assert config.encoder.has_dropout
    check_resumed(config, tmp_path)


def test_dropout_follows_from_the_generator(bert):
    """Two masks differ; the same generator gives the same one; without training there is none."""
    model, ids = build(bert, dropout=0.3).train(), build(bert).vocabulary.ids(TEXT, max_length=20)

    def vectors(seed: int) -> torch.Tensor:
        return model.vectors(ids, generator=torch.Generator().manual_seed(seed))[0]

    assert torch.equal(vectors(0), vectors(0))
    assert not torch.allclose(vectors(0), vectors(1), atol=1e-2)
    np.testing.assert_allclose(model.encode(TEXT), build(bert).encode(TEXT), atol=1e-6)


def test_run_starts_with_a_trained_model(bert, tmp_path):
    """Its sub-words and weights, without the pretrained folder's."""
    fit(run_of(tmp_path, bert), tmp_path / "one")
    config = tiny_run(tmp_path, encoder=None, initial=str(tmp_path / "one"), corpus__max_length=20)
    model = build_model(config, open_training_data(config))
    np.testing.assert_array_equal(model.eval().encode(TEXT), load(tmp_path / "one").encode(TEXT))


def test_learning_rate_is_lower_in_lower_layers(bert, tmp_path):
    """By `layer_decay` for each layer below the last, under the factor of the encoder."""
    config = run_of(
        tmp_path,
        bert,
        encoder={"learning_rate_factor": 0.5, "layer_decay": 0.1},
        training__warmup_steps=0,
    )
    model = build_model(config, open_training_data(config)).train()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = Optimizer(model, config.training, num_steps=10)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0)
    rate = config.training.learning_rate
    layers = {"encoder.layer.1": 0.5, "encoder.layer.0": 0.05}
    expected = {
        f"f.model.{layer}.output.dense.weight": factor * rate for layer, factor in layers.items()
    }
    expected["f.model.embeddings.word_embeddings.weight"] = 0.005 * rate
    moved = {
        name: float((model.get_parameter(name) - before[name]).detach().abs().mean())
        for name in expected
    }
    assert moved == pytest.approx(expected, rel=0.01)


def test_adamw_is_that_of_torch_without_decay_of_biases_and_norms(bert, tmp_path):
    """Tables and matrices shrink; without decay the weights are those of Adam; resume is exact."""
    changes = {
        "training__optimizer": "adamw",
        "training__weight_decay": 0.3,
        "training__warmup_steps": 0,
    }
    config = run_of(tmp_path, bert, **changes)
    model, other = (build_model(config, open_training_data(config)).train() for _ in range(2))
    rate, matrices = (
        config.training.learning_rate,
        [one for one in other.parameters() if one.requires_grad],
    )
    groups = [
        {"params": [one for one in matrices if one.ndim > 1], "weight_decay": 0.3},
        {"params": [one for one in matrices if one.ndim == 1], "weight_decay": 0.0},
    ]
    own, reference = (
        Optimizer(model, config.training, num_steps=9),
        torch.optim.AdamW(groups, lr=rate),
    )
    for step in range(3):
        for one, same in zip(model.parameters(), other.parameters(), strict=True):
            one.grad = same.grad = (
                torch.full_like(one, 1e-3 * (step + 1)) if one.requires_grad else None
            )
        own.step(step)
        reference.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(value, other.get_parameter(name), rtol=0, atol=1e-7)
    check_resumed(run_of(tmp_path, bert, **changes), tmp_path)
    for folder, optimizer in (("adam", {}), ("plain", {**changes, "training__weight_decay": 0.0})):
        fit(
            tiny_run(
                tmp_path,
                **{name: value for name, value in optimizer.items() if "warmup" not in name},
            ),
            tmp_path / folder,
        )
    check_weights(tmp_path / "adam", tmp_path / "plain")
    with pytest.raises(
        ValueError, match="weight_decay must be left out with optimizer adam; set optimizer: adamw"
    ):
        tiny_run(tmp_path, training__weight_decay=0.1)


def test_record_of_a_sweep_is_read_without_the_folder(bert, tmp_path, monkeypatch):
    """From any working directory; a searched folder is not fixed."""
    own = write_bert(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    base = {
        "encoder": {"type": "pretrained", "path": "own"},
        "objective": {"type": "context_prediction"},
    }
    values = {"base": base, "search": {"training.learning_rate": {"choice": [0.1, 0.2]}}}
    space = parse_space(Document(values, source="s.yaml"), name="s")
    expected = space.config(space.first_params()).encoder
    recorded = SweepRecord(space, seed=0).values()["space"]
    searched = {"base": base, "search": {"encoder.path": {"choice": ["own", str(bert)]}}}
    backbones = parse_space(Document(searched, source="s.yaml"), name="s")
    assert SweepRecord(backbones, seed=0).values()["space"]["base"]["encoder"] == base["encoder"]
    sizes = [
        backbones.config({"encoder.path": path}).encoder.num_parameters(1)
        for path in ("own", str(bert))
    ]
    assert sizes[0] != sizes[1]
    own.rename(tmp_path / "gone")
    monkeypatch.chdir("/")
    again = parse_space(Document(recorded, source="sweep.json"), name="s")
    assert again.config(space.first_params()).encoder == expected


def test_changed_folder_is_read_again(bert, tmp_path):
    """In the same process, whatever was read before."""
    own = _copy(bert, tmp_path / "own")
    before = read_backbone(str(own))
    assert read_backbone(str(own)) is before
    (own / "config.json").write_text(json.dumps({**before.config, "hidden_size": 64}))
    assert read_backbone(str(own)).hidden_size == 64 != before.hidden_size


@pytest.mark.parametrize("name", ["0_Transformer", "transformer"])
def test_transformer_in_a_folder_of_its_own_is_read(name, bert, tmp_path):
    """Whatever `modules.json` calls it; weights of half precision become float32 there too."""
    folder = write_sentence_transformer(tmp_path / "own", bert, **FOLDERS["last"])
    tensors = {
        key: value.half() for key, value in load_tensors(folder / "model.safetensors").items()
    }
    save_tensors(folder / "model.safetensors", tensors, metadata={"format": "pt"})
    about = {**json.loads((folder / "config.json").read_text()), "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(about))
    expected = build(folder).encode(TEXT), load(f"st:{folder}").encode(TEXT)
    (folder / name).mkdir()
    for file in (path for path in folder.iterdir() if path.is_file()):
        if file.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            file.rename(folder / name / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([{**modules[0], "path": name}, *modules[1:]]))
    np.testing.assert_array_equal(build(folder).encode(TEXT), expected[0])
    np.testing.assert_array_equal(load(f"st:{folder}").encode(TEXT), expected[1])


def test_wrong_folder_is_refused(bert, tmp_path, monkeypatch):
    """No model, another architecture, modules that cannot be trained, missing and wrong weights; each in one line."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("/nowhere", "owner/name"):
        with pytest.raises(
            ValueError,
            match=rf"must be a model's folder, its name on the hub [^\n]*; given {name}: [^\n]*\n",
        ):
            build(name)
    own = write_bert(tmp_path / "own")
    about = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**about, "model_type": "other"}))
    with pytest.raises(
        ConfigError,
        match="must be an architecture of transformers; given other; as a member, name it",
    ):
        build(own)
    (own / "config.json").write_text(
        json.dumps({**about, "num_hidden_layers": 3, "vocab_size": 25})
    )
    with pytest.raises(
        ArtifactError, match=r"must hold every weight; encoder\.layer\.2\.\S+ is missing"
    ):
        build(_copy(own, tmp_path / "short"))
    (own / "config.json").write_text(json.dumps(about))
    tensors = load_tensors(own / "model.safetensors")
    tensors["encoder.layer.0.output.dense.weight"][0, 0] = np.nan
    save_tensors(own / "model.safetensors", tensors, metadata={"format": "pt"})
    with pytest.raises(
        ArtifactError, match=r"must be finite; given NaN or infinity in encoder\.layer\.0\.output"
    ):
        build(_copy(own, tmp_path / "nan"))
    folder = write_sentence_transformer(tmp_path / "st", bert)
    modules = json.loads((folder / "modules.json").read_text())
    modules.append(
        {"idx": 2, "name": "2", "path": "2_CNN", "type": "sentence_transformers.models.CNN"}
    )
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(
        ValueError,
        match="must consist of Transformer, Pooling, Dense and Normalize .* Pooling, CNN; as",
    ):
        build(folder)
    (own / "config.json").write_text(
        json.dumps({**about, "model_type": "roberta", "pad_token_id": None})
    )
    with pytest.raises(
        ValueError, match=r"config\.json: must name a pad_token_id, after .*; given null"
    ):
        build(own)
    with pytest.raises(
        ValueError,
        match="backbone is read from the folder; leave it out, and set max_tokens, pooling",
    ):
        build(bert, backbone={"max_tokens": 9})
    with pytest.raises(ConfigError, match=r"encoder\.lora\.targets: "):
        build(bert, lora={"targets": ["nothing"]})


@pytest.mark.parametrize(
    "name",
    [
        "torch.nn.functional.torch.os.abort",
        "torch.nn.modules.module.torch.sys.exit",
        "torch.nn.parallel.distributed.os.fork",
        "torch.nn.functional.relu",
        "torch.nn.Parameter",
        "torch.nn.modules.container.Tanh",
        "torch.nn.Linear",
        "torch.nn.Module",
        "torch.nn.GLU",
        "os.abort",
        "Tanh",
        "",
    ],
)
def test_activation_of_a_folder_is_a_class_of_torch(bert, tmp_path, name):
    """A stranger's folder names nothing else that is called: no function, however its name begins, and no other class."""
    folder = write_sentence_transformer(tmp_path / "st", bert, dense=6)
    settings = json.loads((folder / "2_Dense/config.json").read_text())
    changed = {**settings, "activation_function": name}
    (folder / "2_Dense/config.json").write_text(json.dumps(changed))
    with pytest.raises(ArtifactError, match=r"st: activation_function must .* given ") as caught:
        build(folder)
    assert str(caught.value).endswith(f"given {name}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["torch.nn.ReLU", "torch.nn.modules.linear.Identity"])
def test_activation_of_a_folder_is_computed(bert, tmp_path, name):
    """By its short name and by that of its module, as sentence-transformers writes it; exports compute the same."""
    folder = write_sentence_transformer(tmp_path / "st", bert, dense=6)
    settings = json.loads((folder / "2_Dense/config.json").read_text())
    changed = {**settings, "activation_function": name}
    (folder / "2_Dense/config.json").write_text(json.dumps(changed))
    kind = resolve_name(name)
    assert [type(one) for one in build(folder).f.heads[1].modules()].count(kind) == 1
    assert type(activation_of(name)) is kind


def test_activation_of_an_export_is_a_class_of_torch():
    """The module that reads exports calls nothing else either."""
    for name in ("torch.nn.functional.torch.os.abort", "torch.nn.functional.relu", "os.abort"):
        with pytest.raises(ValueError, match="must be a class of torch.nn; given "):
            activation_of(name)


_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
_OWN_CODE = {
    "config.json": {
        "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"},
        "model_type": "own",
    }
}


class _Opens:
    """Writes a file where a pickle of it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"model.safetensors": _POINTER},
            "model.safetensors is a pointer of Git LFS, not the file; get the file by",
        ),
        (
            {"tokenizer.json": _POINTER, "vocab.txt": _POINTER},
            "tokenizer.json is a pointer of Git LFS, not the file",
        ),
        (
            {"config.json": _POINTER},
            r"config.json: a pointer of Git LFS, not the file; get the file by 'git lfs pull' ",
        ),
        (
            {"tokenizer_config.json": _POINTER},
            "tokenizer_config.json: a pointer of Git LFS, not the file; get the file",
        ),
        ({"config.json": "{"}, "config.json: truncated or not JSON"),
        ({"config.json": None}, "config.json: no such file"),
        ({"model.safetensors": 5000}, "incomplete metadata, file not fully covered"),
        ({"model.safetensors": None}, "no file named model.safetensors, or pytorch_model.bin"),
        (
            {"model.safetensors": None, "model.safetensors.index.json": "shards"},
            "No such file .*-00001-of-00002.safe",
        ),
        (_OWN_CODE, "must be an architecture of transformers; given own; as a member, name it st:"),
        (
            {"model.safetensors": None, "pytorch_model.bin": "pickle"},
            "a damaged pickle, or one with more than tensors",
        ),
    ],
)
def test_damaged_folder_is_refused_in_one_line(files, message, bert, tmp_path, monkeypatch):
    """Pointers of Git LFS, half a download, code of its own, pickles; none of its code runs, and nothing is asked."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    folder, ran = _copy(bert, tmp_path / "copy"), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    for name, change in files.items():
        path = folder / name
        if change is None:
            path.unlink()
        elif isinstance(change, int):
            path.write_bytes(path.read_bytes()[:change])
        elif change == "pickle":
            torch.save({"embeddings.word_embeddings.weight": _Opens(ran)}, path)
        elif change == "shards":
            shards = {"embeddings.word_embeddings.weight": "model-00001-of-00002.safetensors"}
            path.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
        else:
            known = json.loads(path.read_text()) if isinstance(change, dict) else None
            path.write_text(change if known is None else json.dumps({**known, **change}))
    with pytest.raises((RaysentError, ValueError), match=message) as error:
        build(folder)
    said = error.value.errors()[0]["msg"] if hasattr(error.value, "errors") else str(error.value)
    assert "\n" not in said
    assert not ran.exists()


def test_folder_with_pickled_tensors_or_unused_code_is_read(bert, tmp_path, monkeypatch):
    """Pickles of tensors alone; a known architecture beside code of its own, which does not run."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    folder, ran = _copy(bert, tmp_path / "copy"), tmp_path / "ran"
    torch.save(load_tensors(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "auto_map": {"AutoModel": "own.Own"}}))
    np.testing.assert_array_equal(build(folder).encode(TEXT), build(bert).encode(TEXT))
    assert not ran.exists()


def _copy(folder: Path, other: Path) -> Path:
    """Return a copy of a folder."""
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    return other


def test_parts_that_do_not_fit_are_refused(bert, tmp_path):
    """Longer sentences, another folder's sub-words, an objective that predicts words, and new words."""
    config = run_of(tmp_path, bert, corpus__max_length=50)
    with pytest.raises(
        ConfigError, match=r"^encoder: must read at least the longest sentence, 50; given 40"
    ):
        check_run(config, open_training_data(config))
    other = {"type": "pretrained", "path": str(write_bert(tmp_path / "other"))}
    with pytest.raises(
        ValueError, match=r"encoder\.path and second_encoder\.path must be one folder; given "
    ):
        run_of(tmp_path, bert, second_encoder=other)
    config = run_of(tmp_path, bert, objective={"type": "sentence_decoding"})
    with pytest.raises(
        ConfigError, match="sentence_decoding reads word vectors; the encoder must have some"
    ):
        build_model(config, open_training_data(config))
    with pytest.raises(ConfigError, match=r"^MODEL: must read words to be expanded"):
        expand(build(bert), None)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError,
        match=r"^MODEL: must have word vectors of its own; it reads sub-words of a pretr",
    ):
        bag_of_words(build(bert))
    old = {"type": "transformer", "path": str(bert), "norm_epsilon": 1e-12}
    with pytest.raises(
        ValueError, match=r"train .* again, with encoder: \{type: pretrained, path: FOLDER\}"
    ):
        tiny_run(tmp_path, encoder=old)


@pytest.mark.parametrize(
    ("kind", "name", "encoder"),
    [
        *((kind, "last", {"lora": {"rank": 2}}) for kind in KINDS),
        *(("bert", name, {}) for name in FOLDERS),
    ],
)
def test_export_is_a_standard_folder(kind, name, encoder, tmp_path):
    """Without code of raysent: the vectors of the trained model by sentence-transformers' own modules and prompts."""
    folder = write_sentence_transformer(
        tmp_path / "own", write_backbone(tmp_path / kind, kind), **FOLDERS[name]
    )
    model = build(folder, **encoder)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    done = export(model, tmp_path / "out")
    assert done.check.num_other_ids == 0
    assert not list((tmp_path / "out").rglob("*.py"))
    again = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXT), model.encode(TEXT), atol=1e-5)
    np.testing.assert_allclose(again.encode_query(TEXT), model.encode_query(TEXT), atol=1e-5)
    assert again.max_seq_length == model.max_seq_length
    card = (tmp_path / "out/README.md").read_text()
    assert "Started from `own`, license mit." in card
    assert 'license: "mit"' in card
    assert "trust_remote_code" not in card


@pytest.mark.parametrize("target", ["sentence-transformers", "onnx"])
def test_two_towers_are_exported_with_their_module(target, bert, tmp_path):
    """And adapters, and a transformer from scratch; the folder is read again without names of this machine."""
    fit(run_of(tmp_path, bert, encoder={"lora": {"rank": 2}, "pooling": "cls"}), tmp_path / "run")
    scratch = {
        "type": "transformer",
        "hidden_size": 8,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 8,
    }
    fit(tiny_run(tmp_path, encoder=scratch), tmp_path / "scratch")
    for name in ("run", "scratch") if target != "onnx" else ("run",):  # see test_languages.py
        done = export(tmp_path / name, tmp_path / target / name, to=target)
        assert done.check.num_sentences == 200
        card = (tmp_path / target / name / "README.md").read_text()
        assert (str(tmp_path) in card, "Text: `text.txt`" in card) == (False, True)
        assert ("pretrained(path bert," in card, "Started from `bert`" in card) == (
            name == "run",
            name == "run",
        )
    if target == "sentence-transformers":
        again = load(f"st:{tmp_path / target / 'run'}")
        np.testing.assert_allclose(
            again.encode(TEXT), load(tmp_path / "run").encode(TEXT), atol=1e-5
        )
        assert str(tmp_path) not in (tmp_path / target / "run/raysent.json").read_text()


def test_default_prompt_is_put_before_text_in_exports(bert, tmp_path):
    """By the code of an ensemble, each member its own; before a graph by its user, as the lines of its card do."""
    folder = write_sentence_transformer(tmp_path / "own", bert, **FOLDERS["both"])
    models = [build(folder), build(bert)]
    (tmp_path / "joined").mkdir()
    FORMATS["sentence-transformers"].write(models, tmp_path / "joined")
    again = library.SentenceTransformer(
        str(tmp_path / "joined"), device="cpu", trust_remote_code=True
    )
    for options in ({}, {"prompt": ""}, {"prompt": "cat: "}):
        expected = JoinedEncoders(models).encode(TEXT, **options)
        np.testing.assert_allclose(again.encode(TEXT, **options), expected, atol=1e-5)
    pytest.importorskip("onnxruntime", reason="pip install raysent[onnx]")
    for number, model in enumerate(models):
        assert export(model, tmp_path / f"graph{number}", to="onnx").check.num_sentences == 200
        _, code, _ = (tmp_path / f"graph{number}/README.md").read_text().split("```")
        exec(
            code.removeprefix("python").replace("FOLDER", str(tmp_path / f"graph{number}")),
            names := {},
        )
        np.testing.assert_allclose(
            names["vectors"], model.encode(["A sentence.", "Another one."]), atol=1e-5
        )


def test_queries_and_documents_have_each_members_prompts_in_exports(bert, tmp_path):
    """As raysent puts them: by name, else the default one; of an ensemble each member its own."""
    folder = write_sentence_transformer(tmp_path / "own", bert, **FOLDERS["both"])
    named = build(bert, prompts={"query": "cat: ", "passage": "dog: "})
    models = [
        named,
        build(folder),
        build(bert, pooling="cls", prompts={"passage": "the runs "}),
        build(bert),
    ]
    members = [LoadedMember(str(number), model) for number, model in enumerate(models)]
    result = SimpleNamespace(tasks={}, protocol="fast", members=[member.name for member in members])
    ensemble = Ensemble(members, folder=tmp_path / "ensemble", result=result)
    for name, model in (("one", named), ("all", ensemble)):
        assert export(model, tmp_path / name).check.holds
        again = library.SentenceTransformer(
            str(tmp_path / name), device="cpu", trust_remote_code=True
        )
        for method in ("encode", "encode_query", "encode_document"):
            for options in ({}, {"prompt": "runs "}):
                vectors, expected = (
                    getattr(again, method)(TEXT, **options),
                    getattr(model, method)(TEXT, **options),
                )
                np.testing.assert_allclose(
                    vectors, expected, atol=1e-5, err_msg=f"{name} {method} {options}"
                )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bert"])
def test_every_architecture_has_a_graph(kind, tmp_path):
    """Its vectors by onnxruntime are those of the model, on real texts and hostile ones."""
    pytest.importorskip("onnxruntime", reason="pip install raysent[onnx]")
    folder = write_sentence_transformer(
        tmp_path / "own", write_backbone(tmp_path / kind, kind), **FOLDERS["last"]
    )
    assert export(build(folder), tmp_path / "out", to="onnx").check.num_sentences == 200


def test_text_without_a_token_is_an_unknown_one_in_exports(tmp_path):
    """Where the tokenizer adds no special tokens; also where all texts of a graph's batch are empty."""
    folder = write_backbone(tmp_path / "qwen3", "qwen3")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    model = build(folder)
    assert export(model, tmp_path / "out").check.num_sentences == 200
    graph, padding = _Graph(model).eval(), pad_id(model.vocabulary)
    for texts in (["", ""], ["a cat", "", "the dog runs"]):
        rows = exported_ids(build_tokenizer(model.vocabulary, max_length=model.max_length), texts)
        ids = torch.tensor(
            [row + [padding] * (max(map(len, rows)) - len(row)) for row in rows], dtype=torch.long
        )
        np.testing.assert_allclose(graph(ids).detach(), model.encode(texts), atol=1e-5)


def places_of(lengths: np.ndarray, cuts: Any) -> list[int]:
    """Return the places of each group of decreasing lengths that begins and ends at some cuts."""
    return [int((end - first) * lengths[first]) for first, end in pairwise(cuts)]


@pytest.mark.parametrize("cost", [0, 1, 5, 40, 1000])
def test_groups_of_similar_length_are_the_best(cost):
    """Of all ways to cut small batches; none divides sentences of one length."""
    random = np.random.default_rng(cost)
    for _ in range(30):
        lengths = np.sort(random.integers(1, 30, size=random.integers(1, 9)))[::-1]
        cuts = [0, *(end for _, end in similar_lengths(lengths, group_cost=cost))]
        assert cuts == [
            0,
            *(first for first, _ in similar_lengths(lengths, group_cost=cost)[1:]),
            len(lengths),
        ]
        inner = range(1, len(lengths))
        ways = (
            places_of(lengths, [0, *way, len(lengths)])
            for n in range(9)
            for way in combinations(inner, n)
        )
        assert sum(places_of(lengths, cuts)) + cost * (len(cuts) - 1) == min(
            sum(way) + cost * len(way) for way in ways
        )
        assert all(lengths[cut - 1] > lengths[cut] for cut in cuts[1:-1])


def test_groups_hold_little_padding():
    """Of many sentences less than a tenth, in few groups; a few sentences stay together."""
    lengths = np.sort(np.random.default_rng(0).integers(1, 60, size=400))[::-1]
    groups = similar_lengths(lengths, group_cost=_CPU_COST)
    padded = sum(places_of(lengths, [0, *(end for _, end in groups)]))
    assert 1 - lengths.sum() / padded < 0.1 < 1 - lengths.sum() / (400 * lengths[0])
    assert len(groups) < 30
    assert similar_lengths(np.array([9, 7, 6, 4]), group_cost=_CPU_COST) == [(0, 4)]


def num_readings(result: torch.Tensor, table: torch.Tensor) -> int:
    """Return how many gradients of a table the backward of a result adds up."""
    left, seen, count = [result.grad_fn], set[Any](), 0
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        count += sum(getattr(one, "variable", None) is table for one, _ in node.next_functions)
        left.extend(one for one, _ in node.next_functions)
    return count


def attend_plainly(
    query, key, value, starts, key_starts, longest, key_longest, *, scale, window_size, enable_gqa
):
    """PyTorch's attention over rows, sentence by sentence; a CPU has none."""
    assert torch.equal(starts, key_starts)
    assert starts.dtype == torch.int32
    assert int(starts.diff().max()) == longest == key_longest
    parts = []
    for first, end in pairwise(starts.tolist()):
        own = (part[first:end].transpose(0, 1) for part in (query, key, value))
        found = functional.scaled_dot_product_attention(
            *own, scale=scale, is_causal=window_size == (-1, 0), enable_gqa=enable_gqa
        )
        parts.append(found.transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("kind", sorted(_SIDE_BY_SIDE))
def test_sentences_in_a_row_have_the_vectors_and_gradients_of_groups(kind, tmp_path, monkeypatch):
    """What a GPU with flash attention reads: all sentences in one row, padded for pooling alone."""
    folder = write_sentence_transformer(
        tmp_path / "own", write_backbone(tmp_path / kind, kind), **FOLDERS["both"]
    )
    model, found = build(folder), []
    transformer = model.towers[0].model
    shapes = list[tuple[int, ...]]()
    transformer.register_forward_pre_hook(
        lambda *call: shapes.append(tuple(call[-1]["inputs_embeds"].shape)), with_kwargs=True
    )
    text = [f"{'the cat ' * length}runs" for length in (0, 0, 7, 1, 0, 3, 3, 1, 0, 0, 2, 7, 0)]
    monkeypatch.setattr("raysent.kernels.packed_attention._library", lambda _: attend_plainly)
    monkeypatch.setattr("raysent.models.encoders.pretrained.reads_rows", lambda *_, **__: True)
    for mode in (nullcontext(), acting_as_gpu()):
        with mode:
            packed = model.pack(model.vocabulary.ids(text, max_length=30))
            vectors = model.vectors(packed)[0]
            words = model.vectors(packed, tokens=True)[0]
        (vectors.square().sum() + words.sin().sum()).backward()
        gradients = [one.grad.clone() for one in transformer.parameters() if one.grad is not None]
        model.zero_grad()
        found.append([vectors.detach(), words.detach(), *gradients])
    assert shapes[-1][:2] == (1, packed.num_tokens)
    for one, same in zip(*found, strict=True):
        torch.testing.assert_close(
            same, one, rtol=1e-4, atol=1e-5 * max(1.0, float(one.abs().max()))
        )


# PyTorch's compiler warns of the gradient of what it looks at.
@pytest.mark.filterwarnings("ignore")
def test_compiled_layers_have_the_vectors_and_gradients_of_plain_ones(tmp_path, monkeypatch):
    """By a backend that needs no compiler; a copy for `merged` and what is saved are as before."""
    folder = write_sentence_transformer(
        tmp_path / "own", write_backbone(tmp_path / "bert", "bert"), **FOLDERS["both"]
    )
    found = []
    for is_compiled in (False, True):
        model = build(folder)
        names = set(model.tensors())
        if is_compiled:
            model.towers[0].compile_layers(backend="eager")
        for text in (["the cat runs", "runs"], ["the the cat", "cat", "the dog runs"]):
            vectors = model.vectors(model.pack(model.vocabulary.ids(text, max_length=30)))[0]
        vectors.square().sum().backward()
        transformer = model.towers[0].model
        gradients = [one.grad.clone() for one in transformer.parameters() if one.grad is not None]
        found.append([vectors.detach(), *gradients])
        assert set(model.tensors()) == names
        assert model.towers[0].merged() is not transformer
    for one, same in zip(*found, strict=True):
        torch.testing.assert_close(same, one, rtol=1e-4, atol=1e-5)


def test_compile_is_a_setting_of_the_run(bert, tmp_path, monkeypatch):
    """It compiles each tower once, and without it the key of a run is as it was."""
    compiled = []
    monkeypatch.setattr(
        "raysent.models.encoders.pretrained.Encoder.compile_layers",
        lambda self, **_: compiled.append(self),
    )
    objective = {"type": "contrast", "positives": "context"}
    for is_set in (False, True):
        config = run_of(tmp_path, bert, objective=objective, training__compile=is_set)
        fit(config, tmp_path / str(is_set))
    assert len(compiled) == 1
    plain = run_of(tmp_path, bert, objective=objective)
    assert plain.key == run_of(tmp_path, bert, objective=objective, training__compile=False).key
    assert plain.key != config.key


@pytest.mark.parametrize(
    ("name", "found", "size", "low", "is_read"),
    [
        ("cuda", (9, 0), 64, True, True),
        ("cuda", (7, 5), 64, True, False),
        ("cuda", (9, 0), 64, False, False),
        ("cuda", (9, 0), 512, True, False),
        ("cuda", (9, 0), 12, True, False),
        ("cpu", (9, 0), 64, True, False),
    ],
)
def test_rows_are_read_where_pytorch_has_their_attention(
    monkeypatch, name, found, size, low, is_read
):
    """By device, products and size of a head."""
    packed_attention._library.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: found)
    dtype = torch.bfloat16 if low else torch.float32
    monkeypatch.setattr(packed_attention, "product_dtype", lambda _: dtype)
    assert packed_attention.reads_rows(torch.device(name), head_size=size) == is_read
    packed_attention._library.cache_clear()


@pytest.mark.parametrize("kind", [*KINDS, *FURTHER])
def test_groups_change_no_vector_and_no_gradient(kind, tmp_path, monkeypatch):
    """Of one group, the best groups, sentences of one length, and all of them side by side where that can be.

    A mask is given exactly where there is padding; side by side one that leaves transformers none to make.
    """
    folder = write_sentence_transformer(
        tmp_path / "own", write_backbone(tmp_path / kind, kind), **FOLDERS["both"]
    )
    model, masks = build(folder), list[torch.Tensor | None]()
    transformer = model.towers[0].model
    transformer.register_forward_pre_hook(
        lambda *call: masks.append(call[-1].get("attention_mask")), with_kwargs=True
    )
    # Long ones beside single words: nearly all of their group's places are padding.
    text = [f"{'the cat ' * length}runs" for length in (0, 0, 7, 1, 0, 3, 3, 1, 0, 0, 2, 7, 0)]
    found, kinds = [], _SIDE_BY_SIDE
    ways = [
        (1 << 40, 1, 1, set()),
        (9, 3, 1, set()),
        (0, 5, 0, set()),
        *([(9, 1, 1, kinds)] if kind in kinds else []),
    ]
    for cost, groups, masked, side_by_side in ways:
        masks.clear()
        monkeypatch.setattr("raysent.models.encoders.pretrained._CPU_COST", cost)
        monkeypatch.setattr("raysent.models.backbone._SIDE_BY_SIDE", side_by_side)
        packed = model.pack(model.vocabulary.ids(text, max_length=30))
        vectors = model.vectors(packed)[0]
        words = model.vectors(packed, tokens=True)[0]
        assert (len(masks), sum(mask is not None for mask in masks)) == (2 * groups, 2 * masked)
        assert all(mask is None or not mask.all() for mask in masks)
        assert [
            num_readings(one, transformer.get_input_embeddings().weight) for one in (vectors, words)
        ] == [1, 1]
        (vectors.square().sum() + words.sin().sum()).backward()
        gradients = [one.grad.clone() for one in transformer.parameters() if one.grad is not None]
        model.zero_grad()
        found.append([vectors.detach(), words.detach(), *gradients])
    for other in found[1:]:
        assert len(other) == len(found[0]) > 3
        for one, same in zip(found[0], other, strict=True):
            torch.testing.assert_close(
                same, one, rtol=1e-4, atol=1e-5 * max(1.0, float(one.abs().max()))
            )


def test_texts_stand_side_by_side_where_each_layer_attends_to_all_of_a_text():
    """Each architecture that is named has the test above; windows are not in what takes attention's place."""
    assert {*KINDS, *FURTHER} >= _SIDE_BY_SIDE
    about = {"model_type": "qwen3", "use_sliding_window": False}
    assert Backbone(config=about).first_position == 0
    assert Backbone(config={**about, "use_sliding_window": True}).first_position is None
    assert Backbone(config={"model_type": "modernbert"}).first_position is None


def test_report_of_a_run_without_metrics_shows_its_loss(bert, tmp_path):
    """Contrast of neighbours has no metric of its own."""
    settings = {"type": "contrast", "positives": "context"}
    fit(run_of(tmp_path, bert, objective=settings), tmp_path / "run")
    assert read_run(tmp_path / "run").metric == "loss"
