"""Features of words alone that stand beside vectors: of a pair's words and numbers, and naive-Bayes log-ratios.

Source: Socher et al., 2011, section 4.3 (pairs); Wang and Manning, 2012, section 2 (naive Bayes); both as used by Kiros
et al., 2015.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

SMOOTHING = 1.0


def pair_features(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return six features of pairs, float32 [rows, 6].

    Both sentences have the same numbers; the same and at least one; the numbers of one are among those of the other;
    the share of the first's words that the second has; of the second's that the first has; and the mean of the two
    ratios of their lengths.
    """
    return np.array([_features(a.split(), b.split()) for a, b in zip(first, second, strict=True)], dtype=np.float32)


def _features(first: list[str], second: list[str]) -> list[float]:
    one, other = set(first), set(second)
    numbers, others = ({word for word in words if _is_number(word)} for words in (one, other))
    shared = len(one & other)
    ratio = (len(first) / len(second) + len(second) / len(first)) / 2 if first and second else 0.0
    return [
        float(numbers == others),
        float(numbers == others and bool(numbers)),
        float(numbers <= others or others <= numbers),
        shared / len(one) if one else 0.0,
        shared / len(other) if other else 0.0,
        ratio,
    ]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class NaiveBayes:
    """Words and pairs of neighbouring words of some sentences, weighed by how much they speak for a class."""

    def __init__(self, sentences: Sequence[str]) -> None:
        """Count words and pairs of words in sentences [rows]."""
        counter = CountVectorizer(ngram_range=(1, 2), tokenizer=str.split, token_pattern=None, lowercase=False)
        self.counts = counter.fit_transform(sentences).tocsr().astype(np.float64)
        self.present = (self.counts > 0).astype(np.float64)

    def features(self, train: np.ndarray, labels: np.ndarray) -> sparse.csr_matrix:
        """Return ln(p / q) where a word or pair is present and 0 elsewhere, [rows, words and pairs].

        p and q are the smoothed shares of a word among those of the second class and of the first, counted in
        training rows; a word that these do not have is not used.

        Args:
            train: The rows that train, int64 [train rows].
            labels: All rows' classes, 0 or 1, [rows].
        """
        sums = [self.counts[train[labels[train] == label]].sum(axis=0).A1 for label in (0, 1)]
        known = (sums[0] + sums[1]) > 0
        shares = [(total + SMOOTHING) / (total + SMOOTHING)[known].sum() for total in sums]
        ratios = np.where(known, np.log(shares[1] / shares[0]), 0.0)
        return self.present.multiply(ratios).tocsr()
