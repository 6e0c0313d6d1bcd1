"""Answers that memory should not hold at once: files are read in blocks, and give what arrays give."""

import tracemalloc

import numpy as np
import pytest
from test_ensemble_methods import drawn

from raysent.ensembles import METHODS, fit
from raysent.ensembles import predictions as answers
from raysent.ensembles.methods import convex_pool
from raysent.ensembles.predictions import Answers

MIB = 2**20


@pytest.fixture
def files(tmp_path):
    """Return members' files of 12 x 400 x 40 in single precision, 0.7 MiB, and the rows' classes."""
    members, labels = drawn(np.random.default_rng(0), members=12, rows=400, classes=40, signal=3)
    paths = [tmp_path / f"{number}.npy" for number in range(len(members))]
    for path, member in zip(paths, members, strict=True):
        np.save(path, member.astype(np.float32))
    return paths, labels


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"stack"}))
def test_files_in_blocks_give_what_arrays_give(files, method, monkeypatch):
    """Whatever the size of a block."""
    paths, labels = files
    monkeypatch.setattr(convex_pool, "STRENGTHS", (0.01,))
    whole = np.stack([np.load(path) for path in paths])
    wanted = fit(whole, labels, method=method).combination(whole)
    monkeypatch.setattr(answers, "BLOCK_BYTES", MIB // 16)
    streamed = Answers(paths)
    assert sum(1 for _ in streamed.blocks()) > 20
    np.testing.assert_allclose(fit(streamed, labels, method=method).combination(streamed), wanted, atol=1e-6)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"stack"}))
def test_fit_holds_a_block_and_not_all_members(files, method, monkeypatch):
    """In float64 all members are 1.5 MiB; a fit that reads 1/16 MiB at once never holds half of that."""
    paths, labels = files
    monkeypatch.setattr(convex_pool, "STRENGTHS", (0.01,))
    monkeypatch.setattr(answers, "BLOCK_BYTES", MIB // 16)
    tracemalloc.start()
    try:
        fit(Answers(paths), labels, method=method)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.75 * MIB


def test_answers_of_some_rows_and_members_read_only_those(files):
    """`take` and `select` go together, by numbers or flags, one upon another."""
    paths, _ = files
    whole = np.stack([np.load(path) for path in paths])
    some = Answers(paths).take(np.arange(400) % 2 == 0).select([3, 1]).take(np.array([5, 0]))
    ((_, block),) = some.blocks()
    np.testing.assert_array_equal(block, whole[[3, 1]][:, [10, 0]])
    assert some.shape == (2, 2, 40)
