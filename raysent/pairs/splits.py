"""Pairs to learn from and pairs held out, and the words of the first."""

from __future__ import annotations

import numpy as np

from raysent.artifacts import content_key
from raysent.pairs.config import PairsConfig
from raysent.pairs.files import read_pairs
from raysent.pairs.texts import PairTexts
from raysent.vocabulary import PAD_WORD, UNK_WORD, Vocabulary, VocabularyConfig, build_vocabulary


class PairCorpus:
    """Pairs to learn from and pairs held out.

    Attributes:
        train: The first.
        validation: The second.
        key: Names the text of both.
    """

    def __init__(self, config: PairsConfig) -> None:
        """Read the files.

        Raises:
            DataError: With the file and the line at fault.
        """
        pairs = read_pairs(config)
        if config.validation_path is None:
            self.train, self.validation = _hold_out(pairs, config)
        else:
            classes = list(pairs.classes) or None
            self.train = pairs
            self.validation = read_pairs(
                config.model_copy(update={"path": config.validation_path, "classes": classes}),
                path_name="validation_path",
            )
        self.key = content_key(self.train.key, self.validation.key)

    def vocabulary(self, config: VocabularyConfig) -> Vocabulary:
        """Return the words of the pairs to learn from."""
        tokens = Vocabulary([PAD_WORD, UNK_WORD], lowercase=False)
        counts: dict[str, int] = {}
        for side in (self.train.first, self.train.second):
            for row in tokens.tokenize(side):
                for word in row:
                    counts[word] = counts.get(word, 0) + 1
        return build_vocabulary(counts.items(), config)


def _hold_out(pairs: PairTexts, config: PairsConfig) -> tuple[PairTexts, PairTexts]:
    """Return the pairs to learn from and those held out; the same two sentences never stand in both."""
    number: dict[tuple[str, str], int] = {}
    distinct = [
        number.setdefault((min(pair), max(pair)), len(number)) for pair in zip(pairs.first, pairs.second, strict=True)
    ]
    order = np.random.default_rng(config.seed).permutation(len(number))
    held = np.zeros(len(number), dtype=bool)
    held[order[: max(1, round(config.validation_fraction * len(number)))]] = True
    mask = held[np.array(distinct)]
    return pairs.rows(np.flatnonzero(~mask)), pairs.rows(np.flatnonzero(mask))
