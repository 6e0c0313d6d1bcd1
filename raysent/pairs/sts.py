"""The sets of an STS folder in SentEval's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raysent.errors import DataError
from raysent.pairs.files import opened
from raysent.pairs.texts import PairTexts


def read_sts(folder: str | Path) -> dict[str, PairTexts]:
    """Read the sets of an STS folder in SentEval's layout: ``STS.input.NAME.txt`` beside ``STS.gs.NAME.txt``.

    Pairs without a score are left out.

    Raises:
        DataError: If there is no set, or a set's files do not fit.
    """
    inputs = sorted(Path(folder).rglob("STS.input.*.txt"))
    if not inputs:
        raise DataError(
            f"validation.sts: {folder}: must hold STS.input.NAME.txt and STS.gs.NAME.txt; given none; put an STS year "
            "of SentEval's data there, such as STS14-en-test"
        )
    return {path.name.removeprefix("STS.input.").removesuffix(".txt"): _read_sts_set(path) for path in inputs}


def _read_sts_set(path: Path) -> PairTexts:
    """Return the scored pairs of one set."""
    gold = path.with_name(path.name.replace("STS.input.", "STS.gs.", 1))
    with opened(path) as lines:
        pairs = [line.split("\t") for line in lines]
    with opened(gold) as lines:
        scores = [line.strip() for line in lines]
    if len(pairs) != len(scores):
        raise DataError(f"{gold}: must hold a line for each of the {len(pairs)} pairs; given {len(scores)}")
    scored = [(pair, float(score)) for pair, score in zip(pairs, scores, strict=True) if score]
    numbers = np.array([score for _, score in scored], dtype=np.float64)
    return PairTexts([pair[0] for pair, _ in scored], [pair[1] for pair, _ in scored], scores=numbers)
