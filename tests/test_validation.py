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
    block_starts,
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
    assert (
        starts
        != block_starts(1000, ValidationConfig(num_candidates=10, num_sentences=45, seed=1))[0]
    ).any()


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
    assert similarity_scores(f @ g.T, torch.from_numpy(near)) == pytest.approx(
        (correct, nll), rel=1e-5
    )


def test_pool_scores_of_equal_vectors_are_chance(tmp_path: Path) -> None:
    """A collapsed model does not exceed chance."""
    config = tiny_run(tmp_path)
    pool = ValidationPool(prepare(config.corpus, config.vocabulary), config.validation)
    scores = pool.context_metrics(lambda sentences: (torch.zeros(len(sentences.lengths), 2),) * 2)
    assert scores["context_accuracy"] == pytest.approx(pool.facts["chance_accuracy"])
    assert (
        scores["context_nll"]
        == pytest.approx(pool.facts["chance_nll"])
        == pytest.approx(math.log(19))
    )


def test_pool_scores_do_not_depend_on_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        hashes.append(
            ValidationPool(prepare(config.corpus, config.vocabulary), config.validation).hash
        )
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
        return torch.eye(len(data.vocabulary))[
            torch.from_numpy(sentences.ids[first].astype(np.int64))
        ]

    assert found.document_metrics(first_word) == {"document_accuracy": 100.0}
    same = found.document_metrics(lambda sentences: torch.ones(len(sentences.lengths), 3))
    assert same["document_accuracy"] == pytest.approx(10.0)
    assert found.hash == Documents(data.text, 10).hash != Documents(data.text, 9).hash
    assert metrics_of(config.objective, config.validation) == (
        "context_accuracy",
        "context_nll",
        "document_accuracy",
    )


def test_run_reports_document_accuracy(tmp_path: Path) -> None:
    """The last report has that of the saved model."""
    _write_novels(tmp_path)
    config = tiny_run(
        tmp_path, validation__documents=10, training__max_steps=2, training__num_reports=1
    )
    outcome = fit(config, tmp_path / "run")
    model = SentenceModel.load(tmp_path / "run")
    again = Documents(open_training_data(config).text, 10).document_metrics(model.encode_ids)
    assert outcome.metrics["document_accuracy"] == pytest.approx(
        again["document_accuracy"], abs=0.5
    )


def test_documents_must_be_large_enough(tmp_path: Path) -> None:
    """One line says how many there are; a run on pairs has none."""
    _write_novels(tmp_path, num_sentences=90)
    corpus = open_training_data(tiny_run(tmp_path)).text
    with pytest.raises(
        DataError, match="^validation.documents: must be at most 0, the documents .* 100 sentences"
    ):
        Documents(corpus, 10)
    with pytest.raises(DataError, match="^validation.documents: needs running text"):
        Validator(
            ["document_accuracy"], ValidationConfig(documents=10), vocabulary=corpus.vocabulary
        )
