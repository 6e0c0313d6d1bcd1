"""What a run learns from: a corpus or pairs, whichever its objective reads, and the words of either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raysent.corpus import Corpus, prepare
from raysent.pairs import PairCorpus
from raysent.run import RunConfig
from raysent.vocabulary import Vocabulary

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Material:
    """What a run learns from.

    Attributes:
        vocabulary: Its words.
        corpus: Running text; None for a run on pairs.
        pairs: Pairs; None for a run on running text.
        max_length: Tokens kept of a longer sentence.
    """

    vocabulary: Vocabulary
    corpus: Corpus | None = None
    pairs: PairCorpus | None = None
    max_length: int = 50

    @property
    def num_classes(self) -> int:
        """Labels of the pairs; 0 where they have none."""
        return 0 if self.pairs is None else len(self.pairs.train.classes)

    def facts(self) -> dict[str, Any]:
        """Return sizes and keys, as plain values."""
        if self.corpus is not None:
            corpus = self.corpus
            return {
                "key": corpus.key,
                "text_key": corpus.text_key,
                "num_sentences": corpus.num_sentences,
                "num_documents": corpus.num_documents,
                "num_tokens": corpus.num_tokens,
                "num_train": len(corpus.train),
                "num_validation": len(corpus.validation),
            }
        if self.pairs is None:
            return {}
        return {
            "key": self.pairs.key,
            "text_key": self.pairs.key,
            "num_train": len(self.pairs.train),
            "num_validation": len(self.pairs.validation),
        }


def source_key(config: RunConfig) -> str:
    """Return what names the files and settings that `open_material` reads; equal ones need not be opened twice."""
    source = config.pairs if config.objective.reads == "pairs" else config.corpus
    return "" if source is None else source.model_dump_json() + config.vocabulary.model_dump_json()


def open_material(config: RunConfig, *, progress: Progress | None = None) -> Material:
    """Build or open the corpus, or read the pairs.

    Raises:
        DataError: If the text cannot be used.
    """
    if config.objective.reads == "pairs" and config.pairs is not None:
        pairs = PairCorpus(config.pairs)
        return Material(pairs.vocabulary(config.vocabulary), pairs=pairs, max_length=config.pairs.max_length)
    corpus = prepare(config.corpus, config.vocabulary, progress=progress)
    return Material(corpus.vocabulary, corpus=corpus, max_length=config.corpus.max_length)
