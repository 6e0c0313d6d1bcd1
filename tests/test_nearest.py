"""Exact search against a plain one, by cosine and by Hamming distance."""

from __future__ import annotations

from types import SimpleNamespace

import faiss
import numpy as np
import pytest
import reference
import torch

from raysent.errors import ConfigError
from raysent.evaluation import nearest
from raysent.evaluation.nearest import nearest_codes, nearest_vectors
from raysent.evaluation.retrieval import rank
from raysent.evaluation.task import RetrievalData
from raysent.kernels.native import try_load
from raysent.models.codes import pack_bits
from raysent.models.sentence_encoder import normalize_rows


@pytest.mark.parametrize("num_bytes", [1, 3, 8, 20, 25, 37, 64, 100, 128, 256, 320, 512])
@pytest.mark.parametrize("num_rows", [5, 333])
@pytest.mark.parametrize("has_kernel", [True, False])
def test_nearest_codes_equals_a_plain_search(monkeypatch, num_bytes, num_rows, has_kernel) -> None:
    """Bit by bit, by the kernel on three threads and by FAISS; many codes are equal, and these are in order of rows."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if not has_kernel:
        monkeypatch.setattr(nearest, "try_load", lambda _: None)
    elif try_load("hamming") is None:
        pytest.skip("no C++ compiler")
    generator = np.random.default_rng(num_bytes)
    codes = np.zeros((num_rows, num_bytes), np.uint8)
    codes[:, [0, -1]] = generator.integers(0, 4, (num_rows, 2))
    queries = codes[generator.integers(0, num_rows, 70)] ^ generator.integers(
        0, 2, (70, num_bytes), np.uint8
    )
    hits = nearest_codes(codes, queries, k=9)
    bits = np.unpackbits(codes, axis=1)
    for number in range(0, 70, 30):
        expected = reference.nearest_by_bits(bits, np.unpackbits(queries[number]), 9)
        assert (
            list(zip(hits.rows[number].tolist(), hits.scores[number].tolist(), strict=True))
            == expected
        )
    assert (hits.rows.dtype, hits.scores.dtype) == (np.int64, np.int64)
    if has_kernel:
        assert nearest_codes(codes, queries[:0], k=9).rows.shape == (0, min(9, num_rows))


def test_search_without_faiss_is_refused_in_one_line(monkeypatch) -> None:
    """The line names the extra."""
    monkeypatch.setattr(nearest, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError,
        match=r"^search of vectors: needs the package faiss-cpu; install raysent\[search\]$",
    ):
        nearest_vectors(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), k=1)


def test_nearest_vectors_equals_a_plain_search() -> None:
    """Rows and cosines are those of float64 products, one vector at a time; zeros have cosine 0."""
    generator = np.random.default_rng(0)
    vectors = normalize_rows(generator.standard_normal((500, 6)).astype(np.float32))
    vectors[17] = 0
    queries = normalize_rows(generator.standard_normal((70, 6)).astype(np.float32))
    hits = nearest_vectors(vectors, queries, k=9)
    for number in range(0, 70, 10):
        expected = reference.nearest_by_cosine(vectors, queries[number], 9)
        assert hits.rows[number].tolist() == [row for row, _ in expected]
        assert np.allclose(hits.scores[number], [cosine for _, cosine in expected], atol=1e-7)


def test_only_queries_with_ties_are_searched_again(monkeypatch) -> None:
    """A query among many equal vectors costs the others nothing."""
    searched: list[int] = []

    def knn(queries, *args, **options):
        searched.append(len(queries))
        return plain(queries, *args, **options)

    plain = faiss.knn
    monkeypatch.setattr(faiss, "knn", knn)
    vectors = normalize_rows(np.random.default_rng(0).standard_normal((300, 5)).astype(np.float32))
    vectors[100:] = vectors[100]
    hits = nearest_vectors(vectors, vectors[[3, 250, 7]], k=2)
    assert hits.rows[:, 0].tolist() == [3, 100, 7]
    assert searched[0] == 3
    assert set(searched[1:]) == {1}


def test_missing_faiss_is_found_before_passages_are_encoded(monkeypatch) -> None:
    """Of a large collection that takes hours."""
    monkeypatch.setattr(nearest, "find_spec", lambda _: None)
    none = np.zeros(0, np.int64)
    data = RetrievalData(
        "t", ["passage"], ("p",), ["query"], ("q",), ({0: 1.0},), none, none, np.array([0])
    )
    encoder = SimpleNamespace(
        fuses_words=False, similarity_measure="cosine"
    )  # has nothing to encode with
    with pytest.raises(ConfigError, match=r"^search of vectors: needs the package faiss-cpu"):
        rank(encoder, data, data.test)


@pytest.mark.parametrize("dim", [3, 48])
def test_nearest_vectors_orders_equal_ones_by_row(dim) -> None:
    """Rows with the same vector are in the order of the corpus, in every block and beside any other query."""
    one, other = normalize_rows(
        np.random.default_rng(0).standard_normal((2, dim)).astype(np.float32)
    )
    vectors = np.tile(other, (200_000, 1))
    places = [5, 70_001, 70_002, 150_000, 199_999]
    vectors[places] = one
    single = nearest_vectors(vectors, one[None], k=4)
    beside = nearest_vectors(vectors, np.stack([other, one, other]), k=4)
    assert single.rows.tolist() == [places[:4]]
    assert beside.rows.tolist() == [[0, 1, 2, 3], places[:4], [0, 1, 2, 3]]
    assert np.array_equal(single.scores[0], beside.scores[1])


def test_nearest_vectors_orders_by_float64(monkeypatch) -> None:
    """Cosines that differ by less than the rounding of a float32 product are ordered by float64."""
    generator = np.random.default_rng(1)
    base = generator.standard_normal(64)
    vectors = normalize_rows(
        (base + 1e-5 * generator.standard_normal((400, 64))).astype(np.float32)
    )
    query = normalize_rows(base.astype(np.float32)[None])
    exact = vectors.astype(np.float64) @ query[0].astype(np.float64)
    assert (
        nearest_vectors(vectors, query, k=20).rows[0].tolist()
        == np.argsort(-exact, kind="stable")[:20].tolist()
    )


def test_nearest_returns_all_rows_of_a_small_corpus() -> None:
    """Fewer rows than k are all returned."""
    vectors = normalize_rows(np.eye(3, dtype=np.float32))
    assert nearest_vectors(vectors, vectors[:1], k=10).rows.tolist() == [[0, 1, 2]]
    assert nearest_codes(
        pack_bits(np.eye(3, dtype=int)), pack_bits([[0, 0, 1]]), k=10
    ).rows.tolist() == [[2, 0, 1]]
