"""`encode` and its companions have the arguments, order and results of sentence-transformers."""

import inspect

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import raysent
from raysent.data.vocabulary import Vocabulary
from raysent.errors import ConfigError, DataError, RaysentError
from raysent.models import ModelConfig, SentenceModel
from raysent.models.schemes.hash import HashEncoder
from raysent.models.sentence_encoder import JoinedEncoders

TEXT = ["a good film", "", "a bad film", "what a film"]
VOCABULARY = Vocabulary(["<pad>", "<unk>", "a", "good", "bad", "film", "what"])
ENCODER = HashEncoder(12)


def build(**sections) -> SentenceModel:
    """Return a small untrained model."""
    encoder = {"type": "gru", "hidden_size": 6, "embedding": {"dim": 5}}
    objective = {"type": "context_prediction"}
    config = ModelConfig.model_validate({"encoder": encoder, "objective": objective, **sections})
    return SentenceModel.build(config, VOCABULARY, seed=1, max_length=20).eval()


@pytest.mark.parametrize(
    "kind", [tuple, np.array, pd.Series, lambda rows: np.array(rows, dtype=object)]
)
def test_encode_takes_any_sequence(kind) -> None:
    """The vectors are those of a list."""
    np.testing.assert_array_equal(ENCODER.encode(kind(TEXT)), ENCODER.encode(TEXT))


def test_encode_of_one_string_is_one_vector() -> None:
    """Without the first axis, as an array and as a tensor."""
    expected = ENCODER.encode(TEXT)[0]
    np.testing.assert_array_equal(ENCODER.encode(TEXT[0]), expected)
    assert torch.equal(ENCODER.encode(TEXT[0], convert_to_tensor=True), torch.from_numpy(expected))


def test_encode_returns_arrays_a_tensor_or_a_list_of_tensors() -> None:
    """All hold the same numbers."""
    expected = ENCODER.encode(TEXT)
    tensor = ENCODER.encode(TEXT, convert_to_tensor=True)
    rows = ENCODER.encode(TEXT, convert_to_numpy=False)
    assert isinstance(tensor, torch.Tensor)
    assert isinstance(rows, list)
    np.testing.assert_array_equal(tensor.numpy(), expected)
    np.testing.assert_array_equal(torch.stack(rows).numpy(), expected)


@pytest.mark.parametrize("precision", ["float32", "ubinary"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_encode_refuses_vectors_that_are_not_finite(precision, value) -> None:
    """The line names the first such text; bits would hide it."""

    class Broken(HashEncoder):
        def encode_texts(self, sentences, **_):
            vectors = super().encode_texts(sentences)
            vectors[2, 1] = value
            return vectors

    with pytest.raises(
        DataError,
        match=r"^Broken: 'a bad film': the vector must be finite; given NaN or infinity; ",
    ):
        Broken(12).encode(TEXT, precision=precision)


def test_encode_truncates_before_it_normalizes() -> None:
    """The shorter vectors have unit length."""
    cut = ENCODER.encode(TEXT, truncate_dim=5, normalize_embeddings=True)
    assert cut.shape == (4, 5)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)


def test_encode_quantizes_as_sentence_transformers_does() -> None:
    """Bytes and their type are equal."""
    quantize = pytest.importorskip(
        "sentence_transformers.util", reason="pip install raysent[sentence-transformers]"
    ).quantize_embeddings
    encoder = HashEncoder(16)
    for precision in ("binary", "ubinary"):
        found = encoder.encode(TEXT, precision=precision)
        np.testing.assert_array_equal(found, quantize(encoder.encode(TEXT), precision))
        assert found.dtype == quantize(encoder.encode(TEXT), precision).dtype


def test_encode_of_a_code_packs_its_bits() -> None:
    """`ubinary` is `encode_packed`."""
    model = build(code={"type": "threshold"})
    np.testing.assert_array_equal(
        model.encode(TEXT, precision="ubinary"), model.encode_packed(TEXT)
    )


def test_encode_puts_a_prompt_before_each_sentence() -> None:
    """By name, as text, and that of queries; there is none for documents."""

    class Prompted(HashEncoder):
        prompts = {"query": "query: "}  # noqa: RUF012

    model = Prompted(12)
    expected = ENCODER.encode([f"query: {text}" for text in TEXT])
    for found in (
        model.encode_query(TEXT),
        model.encode(TEXT, "query"),
        model.encode(TEXT, prompt="query: "),
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model.encode_document(TEXT), ENCODER.encode(TEXT))


def test_prompts_are_named_by_the_first_that_a_model_has() -> None:
    """Of several encoders each looks for its own; the text of a prompt is what stands before a text."""

    class Prompted(HashEncoder):
        prompts = {"passage": "passage: ", "own": "own: "}  # noqa: RUF012
        default_prompt_name = "own"

    model = Prompted(12)
    assert model.prompt_for(("document", "passage")) == "passage"
    assert model.prompt_for(("query",)) == []
    assert model.prompt_text("passage") == "passage: "
    assert model.prompt_text() == "own: "
    joined = JoinedEncoders([HashEncoder(12), model])
    assert joined.prompt_for(("document", "passage")) == ["document", "passage"]
    assert joined.prompt_for(("query",)) == []
    with pytest.raises(ConfigError, match=r"^prompt_name: must be one of the model's prompts"):
        model.prompt_text("query")


@pytest.mark.parametrize(("prompt", "first"), [(None, "own: "), ("given: ", "given: "), ("", "")])
def test_prompt_of_joined_encoders_replaces_their_own(prompt, first) -> None:
    """It stands once before each text; without one, each encoder takes its default."""

    class Prompted(HashEncoder):
        prompts = {"own": "own: "}  # noqa: RUF012
        default_prompt_name = "own"

    joined = JoinedEncoders([JoinedEncoders([Prompted(12)]), Prompted(12)])
    expected = ENCODER.encode([first + text for text in TEXT], normalize_embeddings=True)
    np.testing.assert_allclose(
        joined.encode(TEXT, prompt=prompt), np.hstack([expected, expected]), atol=1e-6
    )


def test_missing_gpu_is_refused(monkeypatch) -> None:
    """In one line, of a loaded model too."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for device in ("cuda", "cuda:1"):
        with pytest.raises(
            ConfigError, match=rf"^device {device}: must be .* PyTorch finds 0 GPUs; choose cpu$"
        ):
            build().encode(TEXT, device=device)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8"}, r"^precision: must be float32, ubinary or binary; given 'int8'$"),
        (
            {"output_value": "token_embeddings"},
            r"^output_value: must be 'sentence_embedding'; given 'token_em",
        ),
        ({"truncate_dim": 0}, r"^truncate_dim: must be a whole number of at least 1; given 0$"),
        (
            {"prompt_name": "query"},
            r"^prompt_name: must be one of the model's prompts \(none\); given 'query'$",
        ),
        ({"device": "cuda"}, r"^device: must be cpu for HashEncoder; given cuda$"),
    ],
)
def test_encode_refuses_what_it_does_not_support(options, message) -> None:
    """One line with what is supported."""
    with pytest.raises(ConfigError, match=message):
        ENCODER.encode(TEXT, **options)


def test_encode_shows_progress_and_returns_the_same(capsys) -> None:
    """Also of no sentence."""
    np.testing.assert_array_equal(
        ENCODER.encode(TEXT, show_progress_bar=True), ENCODER.encode(TEXT)
    )
    assert "Encoding" in capsys.readouterr().err
    assert ENCODER.encode([], show_progress_bar=True).shape == (0, 12)


def test_encode_has_the_positional_order_of_sentence_transformers() -> None:
    """From the second argument, whose name is `sentences` here, to `truncate_dim`."""
    theirs = pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    expected, given = (
        list(inspect.signature(kind.encode).parameters)[2:13]
        for kind in (theirs.SentenceTransformer, SentenceModel)
    )
    assert given == expected


@pytest.mark.parametrize("sections", [{}, {"code": {"type": "threshold"}}], ids=["vectors", "code"])
def test_similarity_is_that_of_sentence_transformers(sections) -> None:
    """By the measure that `similarity_fn_name` names, tensors in and tensors out."""
    util = pytest.importorskip(
        "sentence_transformers.util", reason="pip install raysent[sentence-transformers]"
    )
    model = build(**sections)
    vectors = model.encode(TEXT, convert_to_tensor=True)
    to_pairs = util.SimilarityFunction.to_similarity_fn(model.similarity_fn_name)
    to_rows = util.SimilarityFunction.to_similarity_pairwise_fn(model.similarity_fn_name)
    assert isinstance(model.similarity(vectors, vectors), torch.Tensor)
    np.testing.assert_allclose(
        model.similarity(vectors, vectors[:2]), to_pairs(vectors, vectors[:2]), atol=1e-6
    )
    np.testing.assert_allclose(
        model.similarity_pairwise(vectors, vectors.flip(0)),
        to_rows(vectors, vectors.flip(0)),
        atol=1e-6,
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_evaluators_and_searches_of_sentence_transformers_run_on_a_model() -> None:
    """The scores are those of the vectors."""
    pytest.importorskip(
        "sentence_transformers", reason="pip install raysent[sentence-transformers]"
    )
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.util import paraphrase_mining, semantic_search

    model = build()
    pairs = (["a good film", "what", "a bad film"], ["a bad film", "film", "a bad film"])
    scores = [0.5, 0.1, 1.0]
    found = EmbeddingSimilarityEvaluator(*pairs, scores, name="pairs", write_csv=False)(model)
    cosines = model.similarity_pairwise(*map(model.encode, pairs))
    expected = pd.Series(cosines).corr(pd.Series(scores), method="spearman")
    assert found["pairs_spearman_cosine"] == pytest.approx(expected)
    assert model.model_card_data.metrics["pairs"] == found

    mined = paraphrase_mining(model, ["a good film", "what", "a good film"])
    assert mined[0][1:] == [0, 2]
    corpus, query = (
        model.encode(TEXT, convert_to_tensor=True),
        model.encode_query("a bad film", convert_to_tensor=True),
    )
    assert semantic_search(query, corpus, top_k=1)[0][0]["corpus_id"] == 2


TABLES = {
    "a frame": pd.DataFrame({"text": ["a good film", "a bad film"], "label": [1, 0]}),
    "an Arrow table": pa.table({"text": ["a good film"]}),
    "a set": {"a good film", "a bad film"},
    "a frozen set": frozenset({"a good film"}),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_or_a_set_is_refused_in_a_line(case, tmp_path) -> None:
    """Names of columns are no texts, and a set has another order in every process; a series is a column."""
    model = HashEncoder(8)
    given = TABLES[case]
    expected = "must be in an order" if "set" in case else "must be one column of texts"
    for call in (model.encode, model.encode_query, model.encode_document):
        with pytest.raises(RaysentError, match=expected) as found:
            call(given)
        assert "\n" not in str(found.value)
    with pytest.raises(RaysentError, match="must be the name of a file"):
        raysent.predict(model, given)
    with pytest.raises(RaysentError, match="must be the name of a file"):
        raysent.label(model, given)
    if "set" not in case:
        with pytest.raises(RaysentError, match="must be the name of a file"):
            raysent.index("hash:8", given, tmp_path / "index")
    texts = pd.Series(["a good film", "a bad film"], index=[7, 3])
    assert np.array_equal(model.encode(texts), model.encode(texts.tolist()))


def test_predict_and_search_refuse_tables_and_sets(tmp_path) -> None:
    """A task's texts, and queries of an index."""
    texts = [f"{row * 7919} {'good' if row % 2 else 'bad'} {row**3}" for row in range(40)]
    frame = pd.DataFrame({"text": texts, "label": [1, 0] * 20})
    made = raysent.ensemble(
        "hash:8",
        tasks=[raysent.Task(frame, name="own")],
        output=tmp_path / "made",
        baselines=False,
        progress=False,
    )
    (tmp_path / "texts.txt").write_text("a good film\na bad film\n")
    raysent.index("hash:8", tmp_path / "texts.txt", tmp_path / "index", progress=False)
    for given in (frame, {"a good film"}):
        with pytest.raises(RaysentError, match="own: sentences: must be"):
            made.predict(given)
        with pytest.raises(RaysentError, match="queries: must be"):
            raysent.search(tmp_path / "index", given)
