"""How rows are divided for cross-fitting: seeded, stratified by class."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raysent.ensembles.predictions import Int64
from raysent.evaluation.protocols.fast import stratified_folds

NUM_FOLDS = 5


FOLD_SEED = 2222


def divisions(labels: np.ndarray, *, seed: int = FOLD_SEED) -> Iterator[tuple[Int64, Int64]]:
    """Yield per fold the rows to fit on and the rows held out, int64; every row is held out once.

    Args:
        labels: The rows' classes, [rows]; fewer rows than folds make as many folds as rows, a single row none.
        seed: Fixes the draw; a division within a division takes another one.
    """
    num_folds = min(NUM_FOLDS, len(labels))
    if num_folds < 2:
        return
    folds = stratified_folds(labels, num_folds, seed=seed)
    for fold in range(num_folds):
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
