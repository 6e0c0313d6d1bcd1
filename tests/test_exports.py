"""Exports equal their models; their tokenizers give raysent's ids; cards and errors say what a reader needs."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import raysent
from raysent.data.vocabulary import Vocabulary
from raysent.ensembles import Ensemble
from raysent.ensembles.ensemble import LoadedMember
from raysent.errors import ArtifactError, ConfigError
from raysent.exports import export, tokenizer
from raysent.exports import folder as checks
from raysent.exports.card import model_card
from raysent.exports.folder import Check, compare, other_ids
from raysent.exports.formats import FORMATS, trained_models
from raysent.exports.tokenizer import build_tokenizer
from raysent.models import ModelConfig, SentenceModel, load
from raysent.models.codes import CODES
from raysent.models.encoders import ENCODERS
from raysent.models.schemes import st
from raysent.models.schemes.hash import HashEncoder

WORDS = [
    "a",
    "the",
    "dog",
    "man",
    "is",
    "n't",
    "can",
    "not",
    "mr.",
    "u.s.",
    "it",
    "'s",
    "good",
    ",",
    ".",
    "?",
    "guitar",
    "playing",
    "in",
    "of",
    "1,000",
    "--",
    "(",
    ")",
]
VOCABULARY = Vocabulary(["<pad>", "<unk>", *WORDS], lowercase=True)
OBJECTIVE = {"type": "context_prediction"}
RECONSTRUCTION = {"type": "reconstruction"}
TEXT = ["a dog", "the man can't", "zzz"]
GRU = {"type": "gru", "hidden_size": 6, "bidirectional": True, "embedding": {"dim": 5}}
BAG = {"type": "bag", "embedding": {"dim": 5}}
FIXED = {"dim": 5, "vectors": "ppmi", "trained": False}


def build(encoder, vocabulary=VOCABULARY, seed=1, **sections) -> SentenceModel:
    """Return an untrained model whose parameters, also those that are fitted, are random."""
    config = ModelConfig.model_validate({"encoder": encoder, "objective": OBJECTIVE, **sections})
    vectors = np.random.default_rng(seed).normal(size=(len(vocabulary), 5)).astype(np.float32)
    model = SentenceModel.build(
        config, vocabulary, seed=seed, max_length=12, word_vectors=lambda _: vectors
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        # Initial values may give vectors so small that unit length magnifies float32's error.
        parameter.data.normal_(0, 0.5, generator=generator)
    sentences = vocabulary.ids(checks.check_sentences(vocabulary), max_length=12)
    if model.postprocessing.is_fitted_to_text:
        model.fit_postprocessing(sentences)
    model.fit_code(sentences)
    return model


def examples() -> dict[str, Callable[[], SentenceModel]]:
    """Return what builds a model for every example of every encoder, composition, postprocessing and code."""
    encoders = {
        f"{name}-{number}": config.model_dump(mode="json")
        for name, module in ENCODERS.items()
        if name not in ("pretrained", "transformer")  # see test_backbones.py
        for number, config in enumerate(module.Config.examples())
    }
    parts = {
        "shared": {
            "encoder": {"type": "concat", "members": {"a": {**GRU, "embedding": FIXED}, "b": GRU}}
        },
        "component": {"encoder": GRU, "postprocessing": {"remove_component": True}},
        "average": {
            "encoder": GRU,
            "second_encoder": GRU,
            "postprocessing": {"combine": "average"},
        },
        "any length": {"encoder": GRU, "postprocessing": {"unit_length": False}},
        "whitened": {"encoder": GRU, "second_encoder": GRU, "postprocessing": {"whitening": 7}},
        "whitened code": {
            "encoder": GRU,
            "postprocessing": {"remove_component": True, "combine": "average", "whitening": 2},
            "code": {"type": "threshold", "threshold": "mean"},
            "objective": RECONSTRUCTION,
        },
        "two": {"encoder": GRU, "second_encoder": {**BAG, "embedding": {"dim": 6}}},
        "code in training": {"encoder": GRU, "code": {"type": "threshold"}},
        **{
            f"{name}-{number}": {
                "encoder": GRU,
                "code": code.model_dump(mode="json"),
                "objective": RECONSTRUCTION,
            }
            for name, module in CODES.items()
            for number, code in enumerate(module.Config.examples())
        },
    }
    return {name: partial(build, encoder) for name, encoder in encoders.items()} | {
        name: partial(build, **sections) for name, sections in parts.items()
    }


def test_plain_implementation_equals_every_model(tmp_path) -> None:
    """Of each encoder, composition, postprocessing and code, by the module that sentence-transformers runs."""
    pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    for name, built in examples().items():
        model, folder = built(), tmp_path / name
        folder.mkdir()
        FORMATS["sentence-transformers"].check_model([model])
        FORMATS["sentence-transformers"].write([model], folder)
        check = compare(model, [model], FORMATS["sentence-transformers"].open(folder))
        assert check.holds, (name, check)


@pytest.mark.parametrize("name", ["autoencoder-0", "component", "whitened", "whitened code"])
def test_export_computes_in_half_precision(tmp_path, name) -> None:
    """As a user of sentence-transformers sets it: what follows the encoder takes its type too."""
    library = pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    model = examples()[name]()
    FORMATS["sentence-transformers"].write([model], tmp_path)
    opened = library.SentenceTransformer(str(tmp_path), trust_remote_code=True, device="cpu")
    texts = ["a dog", "the cat sat"]
    vectors = opened.half().encode(texts)
    expected = model.encode(texts)
    assert vectors.shape == expected.shape
    assert np.mean(np.abs(vectors - expected) < 0.05) > 0.9


# One of each kind of node: the graphs are traced from the plain implementation.
TRACED = (
    "cnn-0",
    "concat-0",
    "gru-4",
    "gru-5",
    "linear-0",
    "lstm-0",
    "whitened code",
    "autoencoder-0",
)


@pytest.mark.parametrize("name", TRACED)
def test_onnx_graph_equals_its_model(tmp_path, name) -> None:
    """Batches of any size and length; one row; texts without any word, of which a batch has no ids at all."""
    library = pytest.importorskip("onnxruntime", reason="pip install raysent[onnx]")
    model = examples()[name]()
    FORMATS["onnx"].check_model([model])
    FORMATS["onnx"].write([model], tmp_path)
    check = compare(model, [model], FORMATS["onnx"].open(tmp_path))
    assert check.holds, check
    session = library.InferenceSession(
        str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    assert [one.shape for one in session.get_inputs()] == [["batch", "time"]]
    for num_texts in (1, 2):
        vectors = session.run(None, {"ids": np.zeros((num_texts, 0), np.int64)})[0]
        np.testing.assert_allclose(vectors, model.encode(["\ufeff"] * num_texts), atol=1e-5)
    one = session.run(
        None, {"ids": VOCABULARY.ids(["a dog"], max_length=12).ids[None].astype(np.int64)}
    )[0]
    np.testing.assert_allclose(one, model.encode(["a dog"]), atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_export_of_an_ensemble_is_read_without_raysent(tmp_path) -> None:
    """In a process that cannot import raysent; saved again and reloaded, the vectors are bit-identical.

    What is no text is refused, not read as its Python form.
    """
    pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    models = [build(GRU), build(BAG, Vocabulary(["<pad>", "<unk>", "A", "Dog"]), seed=2)]
    folder, text = tmp_path / "st", ["A dog can't.", "", "a man"]
    folder.mkdir()
    FORMATS["sentence-transformers"].write(models, folder)
    script = f"""
import json, sys
sys.modules["raysent"] = None
from sentence_transformers import SentenceTransformer
model = SentenceTransformer({str(folder)!r}, trust_remote_code=True, device="cpu")
first = model.encode({text!r})
model.save({str(tmp_path / "again")!r})
again = SentenceTransformer({str(tmp_path / "again")!r}, trust_remote_code=True, device="cpu").encode({text!r})
assert (first == again).all()
for odd in (None, 123):
    try:
        model.encode(["text", odd])
    except Exception as error:
        assert f"given {{type(odd).__name__}}" in str(error), error
    else:
        raise AssertionError(f"{{odd}} was encoded")
print(json.dumps(first.tolist()))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    expected = np.concatenate(
        [model.encode(text, normalize_embeddings=True) for model in models], axis=1
    )
    np.testing.assert_allclose(json.loads(ran.stdout.splitlines()[-1]), expected, atol=1e-5)
    for place in (folder, tmp_path / "again"):
        np.testing.assert_array_equal(load(f"st:{place}").encode(text), expected)


def test_card_of_an_evaluated_ensemble_has_its_scores_and_members() -> None:
    """Of its predictions and of each member alone; what was not scored has no row."""
    models = {"0003": build(GRU), "0001": build(BAG)}
    row = SimpleNamespace(test=81.94, interval=(80.1, 83.6))
    task = SimpleNamespace(scores={"ensemble": row, "0003": row, "uniform": row})
    result = SimpleNamespace(tasks={"reviews": task}, protocol="fast", members=list(models))
    members = [LoadedMember(name, model) for name, model in models.items()]
    ensemble = Ensemble(members, folder=Path("e"), result=result)
    card = model_card(
        ensemble,
        list(models.values()),
        target=FORMATS["sentence-transformers"],
        check=str(Check(200, 0, 0.0)),
        folder=None,
        license=None,
    )
    assert "| reviews | fast | predictions of the ensemble | 81.9 | 80.1 to 83.6 |" in card
    assert "| reviews | fast | member 0003 | 81.9 | 80.1 to 83.6 |" in card
    assert "Not evaluated" not in card
    assert "member 0001 |" not in card
    assert "uniform" not in card
    assert "- 0001: bag as it was before its first training step; 26 words" in card


def _limits_of(models: list[SentenceModel], target: str = "sentence-transformers") -> str:
    members = [LoadedMember(str(number), model) for number, model in enumerate(models)]
    result = SimpleNamespace(tasks={}, protocol="fast", members=[member.name for member in members])
    card = model_card(
        models[0] if len(models) == 1 else Ensemble(members, folder=Path("e"), result=result),
        models,
        target=FORMATS[target],
        check=str(Check(200, 0, 0.0)),
        folder=None,
        license=None,
    )
    return card.partition("## Limits")[2]


def test_card_says_to_what_vectors_may_be_cut_where_training_said_so() -> None:
    """Of one model alone, without a code: of two the sizes need not be prefixes of their joint vectors."""
    contrast = {"type": "contrast", "prefixes": [2, 4]}
    nested = build(GRU, objective=contrast)
    cut = "Vectors may be cut to their first 2, 4 numbers: these were trained"
    assert f"{cut}, `SentenceTransformer(…, truncate_dim=2)`." in _limits_of([nested])
    assert f"{cut}." in _limits_of([nested], "onnx")
    assert "may be cut" not in _limits_of([nested, nested])
    assert "may be cut" not in _limits_of([build(GRU)])
    code = build(GRU, objective=contrast, code={"type": "threshold"})
    assert "may be cut" not in _limits_of([code])
    assert "Bits have no gradient: the folder cannot be trained on." in _limits_of([code])
    assert "no gradient" not in _limits_of([nested])


def test_card_says_what_is_not_read_and_whose_labels_were_learned() -> None:
    """Case and number of words of each member; each task once."""
    learned = build(GRU)
    learned.learned_tasks = {"reviews": "hash"}
    limits = _limits_of([learned, learned])
    words = f"{len(VOCABULARY)}, {len(VOCABULARY)} words, lower case"
    assert f"Words outside the vocabulary ({words}) are unknown" in limits
    assert "only the first words are read: 12, 12." in limits
    assert limits.count("trained on labels of the training rows of reviews") == 1
    assert "trained on labels" not in _limits_of([build(GRU)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_export_can_be_trained_on_where_it_has_a_gradient(tmp_path) -> None:
    """Encoders, but not codes, fixed word vectors and what was fitted to text; a step changes what is saved."""
    library = pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )

    def opened(name: str, model: SentenceModel):
        (tmp_path / name).mkdir()
        FORMATS["sentence-transformers"].write([model], tmp_path / name)
        return library.SentenceTransformer(
            str(tmp_path / name), trust_remote_code=True, device="cpu"
        )

    model = opened("gru", build(GRU, postprocessing={"whitening": 7}))
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    assert all("postprocessing" in name for name in frozen)
    assert len(frozen) == 2
    before = model.encode(TEXT)
    optimizer = torch.optim.SGD(
        [value for value in model.parameters() if value.requires_grad], lr=0.5
    )
    features = model.preprocess(TEXT)
    model(features)["sentence_embedding"][:, 0].sum().backward()
    optimizer.step()
    after = model.encode(TEXT)
    assert np.abs(after - before).max() > 1e-3
    model.save(str(tmp_path / "again"))
    again = library.SentenceTransformer(
        str(tmp_path / "again"), trust_remote_code=True, device="cpu"
    )
    np.testing.assert_array_equal(again.encode(TEXT), after)
    fixed = opened("fixed", build({**GRU, "embedding": FIXED}))
    assert [name for name, value in fixed.named_parameters() if not value.requires_grad] == [
        "0.members.0.f.words.weight"
    ]
    code = opened("code", build(GRU, code={"type": "threshold"}))
    assert not any(value.requires_grad for value in code.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_license_of_a_card_is_an_identifier_of_the_hub(tmp_path) -> None:
    """Or another's name, quoted; the hub's client reads the card."""
    pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    hub = pytest.importorskip("huggingface_hub")
    for license, message in (
        ("my licence: x [y", "must be an identifier of the hub"),
        ("other:", "must be an identifier of the hub"),
        ("other: a\nb: c", "must be an identifier of the hub"),
        ("other: a\x85b", "must be an identifier of the hub"),
    ):
        with pytest.raises(ConfigError, match=f"^license .*{message}"):
            export(build(BAG), tmp_path / "no", license=license)
    assert not (tmp_path / "no").exists()
    name = "my: 'licence' 🙂 [\"x"
    export(build(BAG, code={"type": "threshold"}), tmp_path / "out", license=f"other: {name}")
    card = hub.ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.license, card.data.license_name) == ("other", name)
    assert "cannot be trained on" in card.text
    export(build(BAG), tmp_path / "no", license="no")
    assert hub.ModelCard.load(tmp_path / "no" / "README.md").data.license == "no"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_static_export_equals_a_bag_of_one_tower(tmp_path) -> None:
    """Sums and means, without code of its own; anything else is refused."""
    pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    one = {"objective": {"type": "paraphrase_margin"}}
    for pooling in ("sum", "mean"):
        model = build({**BAG, "pooling": pooling}, **one)
        done = export(model, tmp_path / pooling, to="static")
        assert done.check.num_other_ids == 0
        assert not list((tmp_path / pooling).glob("*.py"))
        assert (
            "but text without any word one of zeros"
            in (tmp_path / pooling / "README.md").read_text()
        )
        np.testing.assert_allclose(
            load(f"st:{tmp_path / pooling}").encode(TEXT), model.encode(TEXT), atol=1e-6
        )
    for other in (
        build(BAG),
        build(GRU, **one),
        build(BAG, **one, postprocessing={"whitening": 2}),
    ):
        with pytest.raises(ConfigError, match=r"^to static: must be a bag of words of one tower"):
            export(other, tmp_path / "other", to="static")


@pytest.mark.parametrize("lowercase", [False, True])
def test_tokenizer_gives_the_ids_of_the_vocabulary(lowercase) -> None:
    """Of clitics, abbreviations, quotation marks, odd white space, and text without a known word."""
    text = [
        *checks.check_sentences(VOCABULARY),
        "Mr. Jones's U.S. can't",
        "N.Y. ISN'T",
        "a\x1cb\x00c",
        "\u2028 \x85 \u3000",
    ]
    bare = Vocabulary(["<pad>", "<unk>"], lowercase=lowercase)
    words = dict.fromkeys(token for row in bare.tokenize(text) for token in row if token != "<unk>")
    model = build(BAG, Vocabulary(["<pad>", "<unk>", *words], lowercase=lowercase))
    assert other_ids(model, text).sum() == 0
    built = build_tokenizer(model.vocabulary, max_length=model.max_length)
    assert type(built).from_str(built.to_str()).to_str() == built.to_str()


def test_other_ids_finds_a_difference(monkeypatch) -> None:
    """A tokenizer of other words is noticed."""
    model = build(BAG)
    other = Vocabulary(["<pad>", "<unk>", *WORDS[::-1]], lowercase=True)
    monkeypatch.setattr(
        tokenizer,
        "build_tokenizer",
        lambda _, *, max_length, build=build_tokenizer: build(other, max_length=max_length),
    )
    assert other_ids(model, ["a dog", "zzz"]).tolist() == [True, False]


def test_compare_measures_vectors_and_bits() -> None:
    """The largest difference of a number, by any method; of codes, the share of bits."""
    model, code = build(BAG), build(BAG, code={"type": "threshold"})
    text = ["a dog", "the man"]
    assert compare(
        model, [model], lambda rows: model.encode(rows) + 0.25, text
    ).difference == pytest.approx(0.25)

    def without_prompts(rows: list[str], method: str = "encode") -> np.ndarray:
        return model.encode(rows) + 0.25 * (method == "encode_query")

    for methods, expected in (
        (("encode_document",), 0.0),
        (("encode_document", "encode_query"), 0.25),
    ):
        assert compare(
            model, [model], without_prompts, text, methods=methods
        ).difference == pytest.approx(expected)

    def flipped(rows: list[str]) -> np.ndarray:
        bits = code.encode(rows)
        bits[0, :2] = 1 - bits[0, :2]
        return bits

    found = compare(code, [code], flipped, text)
    assert found.is_code
    assert found.difference == pytest.approx(2 / bits_of(code, text))


def bits_of(model: SentenceModel, text: list[str]) -> int:
    """Return the number of bits of all codes."""
    return model.encode(text).size


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (Check(200, 4, 1e-5), True),
        (Check(200, 5, 0.0), False),
        (Check(200, 0, 2e-5), False),
        (Check(200, 0, 2e-5, is_code=True), True),
        (Check(200, 0, 2e-4, is_code=True), False),
    ],
)
def test_check_holds_within_its_bounds(check, holds) -> None:
    """1e-5 for numbers, one bit in 10,000 for codes, other ids for 2 % of the sentences."""
    assert check.holds is holds


def test_export_on_a_full_disk_is_one_line(tmp_path, monkeypatch) -> None:
    """Whatever the format was writing; nothing is left."""

    def write(models: object, folder: Path) -> None:
        (folder / "model.bin").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FORMATS["static"], "write", write)
    output = tmp_path / "out"
    with pytest.raises(ArtifactError, match=f"^{output}: the disk is full; free some space"):
        export(build(BAG, objective={"type": "paraphrase_margin"}), output, to="static")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_export_writes_a_card_and_refuses_what_it_cannot_do(tmp_path, monkeypatch) -> None:
    """The folder appears whole or not at all."""
    pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    model = build(GRU)
    done = export(model, tmp_path / "out", license="apache-2.0")
    card = (tmp_path / "out" / "README.md").read_text()
    assert '\nlicense: "apache-2.0"\n' in card
    assert "It turns text into vectors of" in card
    assert str(done.check) in card
    assert (
        f"gru as it was before its first training step; {len(VOCABULARY)} words, "
        "at most 12 read of a sentence" in card
    )
    with pytest.raises(ArtifactError, match=r"out: exists; name a new folder$"):
        export(model, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"^to onx: unknown format; did you mean 'onnx'\?$"):
        export(model, tmp_path / "new", to="onx")
    with pytest.raises(
        ConfigError, match=r"^output s3://b/x: must be a folder of this machine; export there"
    ):
        export(model, "s3://b/x")
    with pytest.raises(ConfigError, match=r"^HashEncoder: cannot be exported"):
        export(HashEncoder(4), tmp_path / "new")
    monkeypatch.setattr(checks, "MAX_DIFFERENCE", -1.0)
    with pytest.raises(
        ArtifactError,
        match=r"^to sentence-transformers: the export must equal the model; given 200",
    ):
        export(model, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_export_into_a_folder_that_cannot_be_replaced_is_refused_in_one_line(
    tmp_path, monkeypatch
) -> None:
    """The working folder, or one that another command filled meanwhile; a link is followed."""
    write = SimpleNamespace(
        TARGET="own", EXTRA="", LIBRARY="numpy", USAGE="", DIFFERS_ON=(), check_model=list
    )
    write.write, write.open = (
        (lambda _, folder: (folder / "own").write_text("")),
        (lambda _: model.encode),
    )
    monkeypatch.setattr(type(FORMATS), "find", lambda *_, **__: write)
    model, there = build(BAG), tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    with pytest.raises(ArtifactError, match=r"^\.: cannot be written; name another folder$"):
        export(model, ".")

    def write_while_another_does(_, folder) -> None:
        (folder / "own").write_text("")
        (there / "other").write_text("")

    with monkeypatch.context() as patched:
        patched.setattr(write, "write", write_while_another_does)
        with pytest.raises(ArtifactError, match=r"there: cannot be written; name another folder$"):
            export(model, there)
    (there / "other").unlink()
    for name in ("there", "new"):
        Path(tmp_path / f"to_{name}").symlink_to(tmp_path / name)
        assert export(model, tmp_path / f"to_{name}").folder == tmp_path / f"to_{name}"
        assert (tmp_path / name / "own").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "new",
        "there",
        "to_new",
        "to_there",
    ]


def test_export_of_another_packages_encoder_is_refused() -> None:
    """Its code is not part of the exported module."""
    model = build(BAG)
    type(model.config.encoder).__module__, own = (
        "other.package",
        type(model.config.encoder).__module__,
    )
    try:
        with pytest.raises(
            ConfigError, match=r"^encoder bag: cannot be exported: another package defines it$"
        ):
            FORMATS["sentence-transformers"].check_model(trained_models(model))
    finally:
        type(model.config.encoder).__module__ = own


def test_load_of_an_export_runs_none_of_its_code(tmp_path) -> None:
    """Not even if the file were another; a folder with foreign code is refused."""
    model = build(GRU)
    FORMATS["sentence-transformers"].write([model], tmp_path)
    (tmp_path / "modeling_raysent.py").write_text("raise SystemExit")
    np.testing.assert_array_equal(load(f"st:{tmp_path}").encode(["a dog"]), model.encode(["a dog"]))
    (tmp_path / "raysent.json").unlink()
    pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    with pytest.raises(
        ConfigError,
        match=r"contains code of its own, modeling_raysent\.RaysentModule; to run it, set RAY",
    ):
        load(f"st:{tmp_path}")


def test_load_of_a_damaged_export_names_the_file(tmp_path) -> None:
    """Another kind, a missing key, and no folder at all."""
    FORMATS["sentence-transformers"].write([build(GRU)], tmp_path)
    path = tmp_path / "raysent.json"
    about = json.loads(path.read_text())
    del about["members"][0]["config"]
    path.write_text(json.dumps(about))
    with pytest.raises(ArtifactError, match=r"raysent\.json: changed or of another version"):
        load(f"st:{tmp_path}")
    path.write_text("{}")
    with pytest.raises(ArtifactError, match=r"raysent\.json: not an export of this version"):
        load(f"st:{tmp_path}")
    with pytest.raises(
        ArtifactError, match=r"^st:nowhere: must be a model's folder, .*: no such folder"
    ):
        load("st:nowhere")


def test_key_of_a_folder_depends_on_every_file_of_the_model(tmp_path: Path) -> None:
    """On contents and names."""
    (tmp_path / "a.json").write_text("1")
    first = st.key(str(tmp_path))
    assert st.key(str(tmp_path)) == first
    assert st.label(str(tmp_path)) == tmp_path.name
    (tmp_path / "a.json").rename(tmp_path / "b.json")
    second = st.key(str(tmp_path))
    (tmp_path / "b.json").write_text("2")
    assert len({first, second, st.key(str(tmp_path))}) == 3


def test_an_export_format_is_one_file(tmp_path) -> None:
    """A file that is dropped into the folder is a target, whose export is compared with the model before it is kept."""
    package = tmp_path / "raysent"
    shutil.copytree(
        Path(raysent.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "exports" / "formats" / "vectors.py").write_text(
        """
from pathlib import Path
import numpy as np
TARGET, EXTRA, LIBRARY, USAGE, DIFFERS_ON = "vectors", "", "numpy", "", ()
def check_model(models): pass
def write(models, folder): models[0].save(folder / "own")
def open(folder):
    from raysent.models import load
    return load(folder / "own").encode
"""
    )
    build(BAG).save(tmp_path / "model")
    command = [sys.executable, "-m", "raysent", "export", "model", "-o", "out", "--to", "vectors"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "largest difference 0.0e+00" in (tmp_path / "out" / "README.md").read_text()
