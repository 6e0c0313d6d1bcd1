"""Predictions in files: read in blocks, with the results that arrays give."""

import tracemalloc

import numpy as np
import pytest
from test_ensemble_methods import drawn

from raysent.ensembles import METHODS, fit, predictions
from raysent.ensembles.methods import convex_pool
from raysent.ensembles.predictions import MemberPredictions
from raysent.errors import ArtifactError

MIB = 2**20


@pytest.fixture
def files(tmp_path):
    """Return files of 12 members, 400 rows and 40 classes in single precision, 0.7 MiB, and the rows' classes."""
    members, labels = drawn(np.random.default_rng(0), members=12, rows=400, classes=40, signal=3)
    paths = [tmp_path / f"{number}.npy" for number in range(len(members))]
    for path, member in zip(paths, members, strict=True):
        np.save(path, member.astype(np.float32))
    return paths, labels


@pytest.mark.parametrize("method", sorted(METHODS))
def test_fit_of_files_equals_fit_of_arrays(files, method, monkeypatch):
    """Blocks of 1/16 MiB give the combination that one block gives."""
    paths, labels = files
    monkeypatch.setattr(convex_pool, "STRENGTHS", (0.01,))
    whole = np.stack([np.load(path) for path in paths])
    wanted = fit(whole, labels, method=method).combination(whole)
    monkeypatch.setattr(predictions, "BLOCK_BYTES", MIB // 16)
    streamed = MemberPredictions(paths)
    assert sum(1 for _ in streamed.blocks()) > 20
    np.testing.assert_allclose(
        fit(streamed, labels, method=method).combination(streamed), wanted, atol=1e-6
    )


@pytest.mark.parametrize("method", sorted(METHODS))
def test_fit_holds_one_block_in_memory(files, method, monkeypatch):
    """All members are 1.5 MiB in float64; a fit that reads 1/16 MiB at once never holds half of that."""
    paths, labels = files
    monkeypatch.setattr(convex_pool, "STRENGTHS", (0.01,))
    monkeypatch.setattr(convex_pool, "MAX_STEPS", 3)  # each step holds what the first one does
    monkeypatch.setattr(predictions, "BLOCK_BYTES", MIB // 16)
    tracemalloc.start()
    try:
        fit(MemberPredictions(paths), labels, method=method)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.75 * MIB, f"{peak / MIB:.2f} MiB"


def test_predictions_take_and_select_combine(files):
    """`take` and `select` apply one after another, with indices or a mask."""
    paths, _ = files
    whole = np.stack([np.load(path) for path in paths])
    some = (
        MemberPredictions(paths).take(np.arange(400) % 2 == 0).select([3, 1]).take(np.array([5, 0]))
    )
    ((_, block),) = some.blocks()
    np.testing.assert_array_equal(block, whole[[3, 1]][:, [10, 0]])
    assert some.shape == (2, 2, 40)


def test_predictions_refuse_a_file_that_holds_no_array(tmp_path):
    """A truncated or missing file is named."""
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(
        ArtifactError, match=r"a.npy: must be an array of log-probabilities \(.npy\)"
    ):
        MemberPredictions([tmp_path / "a.npy"])
    with pytest.raises(ArtifactError, match=r"b.npy: must be an array"):
        MemberPredictions([tmp_path / "b.npy"])
