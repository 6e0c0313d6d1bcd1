"""The validation pool: its blocks, its scores, and what they do not depend on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_run import tiny_run, write_corpus
from torch import Tensor

from raysent.data.corpus import prepare
from raysent.data.vocabulary import Sentences
from raysent.errors import DataError
from raysent.models import SentenceModel
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.validation import (
    ValidationConfig,
    ValidationPool,
    Validator,
    baseline_scores,
    block_starts,
    chance_of,
    metrics_of,
    neighbours,
    similarity_scores,
)
from raysent.training.validation.metrics import Documents


def test_block_starts_do_not_overlap_and_depend_on_the_seed_only() -> None:
    """The same seed chooses the same blocks."""
    config = ValidationConfig(num_candidates=10, num_sentences=45)
    starts, num_candidates = block_starts(1000, config)
    assert (len(starts), num_candidates) == (4, 10)
    assert (np.diff(starts) >= 10).all()
    assert (starts == block_starts(1000, config)[0]).all()
    assert (starts != block_starts(1000, ValidationConfig(num_candidates=10, num_sentences=45, seed=1))[0]).any()


def test_block_starts_of_a_small_split_are_one_smaller_block() -> None:
    """A split smaller than a block is one block."""
    starts, num_candidates = block_starts(7, ValidationConfig(num_candidates=10, num_sentences=100))
    assert (starts.tolist(), num_candidates) == ([0], 7)


def test_neighbours_are_of_the_same_document() -> None:
    """None across a boundary, and never the sentence itself."""
    found = neighbours(np.array([0, 0, 0, 1, 1]), context_size=1)
    assert np.argwhere(found).tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [3, 4], [4, 3]]


def test_block_scores_equal_their_restatement() -> None:
    """The sums over rows are those of loops over sentences."""
    generator = torch.Generator().manual_seed(0)
    f, g = torch.randn(6, 3, generator=generator), torch.randn(6, 3, generator=generator)
    near = neighbours(np.array([0, 0, 0, 0, 1, 2]), context_size=2)
    correct, nll = 0.0, 0.0
    for i in range(6):
        others = [j for j in range(6) if j != i]
        inside = [j for j in others if near[i, j]]
        if inside:
            scores = {j: float(f[i] @ g[j]) for j in others}
            total = math.log(sum(math.exp(score) for score in scores.values()))
            correct += max(scores, key=lambda j: scores[j]) in inside
            nll -= sum(scores[j] - total for j in inside) / len(inside)
    assert similarity_scores(f @ g.T, torch.from_numpy(near)) == pytest.approx((correct, nll), rel=1e-5)


def test_baselines_equal_their_restatement(tmp_path: Path) -> None:
    """Cosines of TF-IDF and of random word vectors, counted by loops; unknown words count for nothing."""
    lines = ["cat sat mat", "cat sat sat", "dog ran far", "dog ran rare", "owl", "owl cat owl"]
    (tmp_path / "text.txt").write_text("\n".join(lines * 20) + "\n")
    config = tiny_run(tmp_path, vocabulary__size=8, validation__num_candidates=6, validation__num_sentences=24)
    data = open_training_data(config)
    pool = ValidationPool(data.text, config.validation)
    validator = Validator(config.metrics, config.validation, vocabulary=data.vocabulary, corpus=data.text)
    found = baseline_scores("context_accuracy", validator, data.sample(500), num_words=len(data.vocabulary))
    random = np.random.default_rng(0).standard_normal((len(data.vocabulary), 300), dtype=np.float32)
    sample = _rows(data.sample(500))
    expected = {"tfidf": 0.0, "random": 0.0}
    for sentences, near in pool.blocks():
        vectors = {
            "tfidf": [_tfidf(row, sample) for row in _rows(sentences)],
            "random": [
                {k: float(sum(random[word, k] for word in row)) for k in range(300)} for row in _rows(sentences)
            ],
        }
        for name, rows in vectors.items():
            for i in np.flatnonzero(near.any(axis=1)):
                cosines = {j: round(_cosine(rows[i], row), 5) for j, row in enumerate(rows) if j != i}
                top = [j for j, value in cosines.items() if value == max(cosines.values())]
                expected[name] += sum(near[i, j] for j in top) / len(top)
    assert found == pytest.approx({name: total / pool.num_sources for name, total in expected.items()})
    assert found["tfidf"] > 1.5 * pool.facts["chance_accuracy"]


def _rows(sentences: Sentences) -> list[list[int]]:
    """Return the known words of each sentence."""
    ends = np.cumsum(sentences.lengths)
    return [[word for word in row if word > 1] for row in np.split(sentences.ids, ends[:-1])]


def _tfidf(row: list[int], sample: list[list[int]]) -> dict[int, float]:
    """Return (1 + log tf) (1 + log((1 + n) / (1 + df))) of each word."""
    frequencies = {word: sum(word in other for other in sample) for word in row}
    return {
        word: (1 + math.log(row.count(word))) * (1 + math.log((1 + len(sample)) / (1 + frequency)))
        for word, frequency in frequencies.items()
    }


def _cosine(one: dict[int, float], other: dict[int, float]) -> float:
    norms = [math.sqrt(sum(value**2 for value in row.values())) for row in (one, other)]
    product = sum(value * other.get(key, 0.0) for key, value in one.items())
    return product / (norms[0] * norms[1]) if all(norms) else 0.0


def test_pool_scores_of_equal_vectors_are_chance(tmp_path: Path) -> None:
    """A collapsed model does not exceed chance."""
    config = tiny_run(tmp_path)
    pool = ValidationPool(prepare(config.corpus, config.vocabulary), config.validation)
    scores = pool.context_metrics(lambda sentences: (torch.zeros(len(sentences.lengths), 2),) * 2)
    assert scores["context_accuracy"] == pytest.approx(pool.facts["chance_accuracy"])
    assert scores["context_nll"] == pytest.approx(pool.facts["chance_nll"]) == pytest.approx(math.log(19))


def test_pool_scores_do_not_depend_on_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding three sentences at a time gives the same scores."""
    config = tiny_run(tmp_path)
    pool = ValidationPool(prepare(config.corpus, config.vocabulary), config.validation)

    def encode(sentences: Sentences) -> tuple[Tensor, Tensor]:
        starts = np.cumsum(sentences.lengths) - sentences.lengths
        sums = np.add.reduceat(np.sin(sentences.ids.astype(np.float64)), starts)
        vectors = torch.from_numpy(np.stack([sums, sums**2], axis=1)).float()
        return vectors, vectors

    whole = pool.context_metrics(encode)
    monkeypatch.setattr("raysent.training.validation.pool._CHUNK", 3)
    assert pool.context_metrics(encode) == whole


def test_pool_hash_is_of_the_text_not_of_the_trial(tmp_path: Path) -> None:
    """Batch, context and vocabulary of a trial do not change it; the validation seed does."""
    hashes = []
    for changes in (
        {},
        {"training__batch_size": 12, "objective__context_size": 3},
        {"vocabulary__size": 10},
        {"validation__seed": 1},
    ):
        config = tiny_run(tmp_path, **changes)
        hashes.append(ValidationPool(prepare(config.corpus, config.vocabulary), config.validation).hash)
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]


def test_pool_without_neighbours_raises_one_clear_error(tmp_path: Path) -> None:
    """Documents of one sentence each have no contexts."""
    write_corpus(tmp_path, num_documents=30, num_sentences=1)
    config = tiny_run(tmp_path)
    with pytest.raises(DataError, match="holds no two neighbouring sentences"):
        ValidationPool(prepare(config.corpus, config.vocabulary), config.validation)


def _write_novels(folder: Path, *, num_documents: int = 14, num_sentences: int = 120) -> None:
    """Write documents whose sentences begin with a word of their own."""
    documents = [
        "\n".join(f"novel{number} w{line % 9} w{line % 7} end" for line in range(num_sentences))
        for number in range(num_documents)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def test_document_accuracy_is_that_of_a_probe_on_sentences_of_documents(tmp_path: Path) -> None:
    """A vector that shows the document is right always; one that is the same for all is right by chance."""
    _write_novels(tmp_path)
    config = tiny_run(tmp_path, validation__documents=10)
    data = open_training_data(config)
    found = Documents(data.text, 10)

    def first_word(sentences: Sentences) -> Tensor:
        first = np.cumsum(np.concatenate([[0], sentences.lengths[:-1]]))
        return torch.eye(len(data.vocabulary))[torch.from_numpy(sentences.ids[first].astype(np.int64))]

    assert found.document_metrics(first_word) == {"document_accuracy": 100.0}
    same = found.document_metrics(lambda sentences: torch.ones(len(sentences.lengths), 3))
    assert same["document_accuracy"] == pytest.approx(10.0)
    assert found.hash == Documents(data.text, 10).hash != Documents(data.text, 9).hash
    assert metrics_of(config.objective, config.validation) == ("context_accuracy", "context_nll", "document_accuracy")


def test_baselines_of_document_accuracy_are_probes_on_words(tmp_path: Path) -> None:
    """Documents that have a word of their own are found by words, not by chance."""
    _write_novels(tmp_path)
    config = tiny_run(tmp_path, vocabulary__size=50, validation__documents=10)
    data = open_training_data(config)
    validator = Validator(config.metrics, config.validation, vocabulary=data.vocabulary, corpus=data.text)
    found = baseline_scores("document_accuracy", validator, data.sample(500), num_words=len(data.vocabulary))
    assert found["tfidf"] == 100.0
    assert found["random"] > 90.0
    assert chance_of("document_accuracy", validator.as_json()) == 10.0


def test_run_reports_document_accuracy(tmp_path: Path) -> None:
    """The last report has that of the saved model."""
    _write_novels(tmp_path)
    config = tiny_run(tmp_path, validation__documents=10, training__max_steps=2, training__num_reports=1)
    outcome = fit(config, tmp_path / "run")
    model = SentenceModel.load(tmp_path / "run")
    again = Documents(open_training_data(config).text, 10).document_metrics(model.encode_ids)
    assert outcome.metrics["document_accuracy"] == pytest.approx(again["document_accuracy"], abs=0.5)


def test_documents_must_be_large_enough(tmp_path: Path) -> None:
    """One line says how many there are; a run on pairs has none."""
    _write_novels(tmp_path, num_sentences=90)
    corpus = open_training_data(tiny_run(tmp_path)).text
    with pytest.raises(DataError, match="^validation.documents: must be at most 0, the documents .* 100 sentences"):
        Documents(corpus, 10)
    with pytest.raises(DataError, match="^validation.documents: needs running text"):
        Validator(["document_accuracy"], ValidationConfig(documents=10), vocabulary=corpus.vocabulary)
