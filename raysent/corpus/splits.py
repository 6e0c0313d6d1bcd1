"""Which documents validate. In: where documents begin. Out: runs of consecutive sentences for either split."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raysent.errors import DataError

_LEAST = 2  # A sentence needs a neighbour, so a split of fewer sentences says nothing.


class Run(NamedTuple):
    """Consecutive sentences `start` to `stop` (excluded) of the text, and the sizes of the documents they make up."""

    start: int
    stop: int
    document_sizes: list[int]


class Splits(NamedTuple):
    """The runs of the training and of the validation sentences, each in the order of the text."""

    train: list[Run]
    validation: list[Run]


def choose_splits(starts: np.ndarray, *, fraction: float, seed: int, name: str) -> Splits:
    """Choose whole documents at random until they hold `fraction` of the sentences.

    A document that would overshoot twice that share is passed over. Where that leaves none (a single document, or a
    few large ones), the tail of the longest document serves instead and counts as a document of its own.

    Args:
        starts: int64 [documents + 1], first sentence of each document, then the number of sentences.
        fraction: Share of the sentences to hold out.
        seed: Decides the documents.
        name: The corpus, for messages.

    Raises:
        DataError: If the text has too few sentences for two splits.
    """
    num_sentences = int(starts[-1])
    if num_sentences < 2 * _LEAST:
        raise DataError(
            f"corpus.path: {name}: must hold at least {2 * _LEAST} sentences, two to train on and two to validate "
            f"with; given {num_sentences}"
        )
    wanted = max(_LEAST, round(fraction * num_sentences))
    chosen = _choose(np.diff(starts), wanted, np.random.default_rng(seed))
    if not chosen.any():
        starts, chosen = _cut_tail(starts, wanted)
    if len(chosen) == 1 or starts[-1] - np.diff(starts)[chosen].sum() < _LEAST:
        raise DataError(
            f"corpus.path: {name}: must leave sentences to train on beside those that validate; "
            f"given {num_sentences} sentences in {len(starts) - 1} documents; add text"
        )
    return Splits(train=_runs(starts, ~chosen), validation=_runs(starts, chosen))


def _choose(sizes: np.ndarray, wanted: int, generator: np.random.Generator) -> np.ndarray:
    """Return a mask over documents, bool [documents], whose sentences reach `wanted` or are none at all."""
    chosen = np.zeros(len(sizes), dtype=bool)
    total = 0
    for document in generator.permutation(len(sizes)):
        if total + sizes[document] <= 2 * wanted:
            chosen[document] = True
            total += int(sizes[document])
        if total >= wanted:
            return chosen
    return np.zeros(len(sizes), dtype=bool)


def _cut_tail(starts: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts with the longest document cut in two, and a mask that holds its second part alone."""
    longest = int(np.argmax(np.diff(starts)))
    cut = max(int(starts[longest + 1]) - wanted, int(starts[longest]) + 1)
    starts = np.insert(starts, longest + 1, cut)
    chosen = np.zeros(len(starts) - 1, dtype=bool)
    chosen[longest + 1] = starts[longest + 2] - cut >= _LEAST
    return starts, chosen


def _runs(starts: np.ndarray, mask: np.ndarray) -> list[Run]:
    """Return the masked documents as runs of neighbours."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [
        Run(int(starts[first]), int(starts[last]), np.diff(starts[first : last + 1]).tolist())
        for first, last in zip(edges[::2], edges[1::2], strict=True)
    ]
