"""A prepared corpus: memory-mapped ids, read-only, cheap to open in every worker.

A folder ``corpora/<key>/``: ``corpus.json``, ``vocabulary.txt``, ``ids.bin`` (int32), ``offsets.bin`` (int64
[sentences + 1]), ``documents.npy`` (int64 [documents + 1]). The training documents come first, in their order in the
text, then the validation documents, so that each split is one stretch of the ids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raysent import artifacts
from raysent.errors import DataError
from raysent.vocabulary import Sentences, Vocabulary, ragged_indices


class Corpus:
    """A prepared corpus. Opens its files when they are first needed; pickles as its folder's path.

    Args:
        folder: What `prepare` wrote.

    Attributes:
        folder: See above.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Path]]:
        return Corpus, (self.folder,)

    @cached_property
    def _summary(self) -> dict[str, Any]:
        return dict(artifacts.read_json(self.folder / "corpus.json"))

    @property
    def key(self) -> str:
        """Names the content and every setting."""
        return str(self._summary["key"])

    @property
    def text_key(self) -> str:
        """Names the content and how it was split into sentences, whatever the vocabulary and the splits are."""
        return str(self._summary["text_key"])

    @property
    def num_sentences(self) -> int:
        """Sentences of both splits."""
        return int(self._summary["num_sentences"])

    @property
    def num_tokens(self) -> int:
        """Tokens of both splits, as far as sentences are kept (`CorpusConfig.max_length`)."""
        return int(self._summary["num_tokens"])

    @property
    def num_documents(self) -> int:
        """Documents of both splits."""
        return int(self._summary["num_documents"])

    @property
    def unknown_share(self) -> float:
        """Share of the tokens that have no id of their own."""
        return float(self._summary["unknown_share"])

    @property
    def across_documents(self) -> bool:
        """Whether windows may cross the boundary between two documents."""
        return bool(self._summary["across_documents"])

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words that have an id."""
        return Vocabulary.load(self.folder / "vocabulary.txt")

    @cached_property
    def train(self) -> CorpusSplit:
        """The sentences to learn from."""
        return CorpusSplit(self, "train")

    @cached_property
    def validation(self) -> CorpusSplit:
        """The sentences held out."""
        return CorpusSplit(self, "validation")

    @cached_property
    def ids(self) -> np.ndarray:
        """int32 [tokens], memory-mapped."""
        return np.asarray(np.memmap(self.folder / "ids.bin", dtype=np.int32, mode="r"))

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64 [sentences + 1], memory-mapped: the first token of each sentence."""
        return np.asarray(np.memmap(self.folder / "offsets.bin", dtype=np.int64, mode="r"))

    @cached_property
    def document_starts(self) -> np.ndarray:
        """int64 [documents + 1]: the first sentence of each document, then the number of sentences."""
        return np.asarray(np.load(self.folder / "documents.npy"))


class CorpusSplit:
    """The training or the validation sentences, numbered from 0.

    Args:
        corpus: The corpus they belong to.
        name: ``train`` or ``validation``.

    Attributes:
        corpus: See above.
        name: See above.
        first: Global index of the split's first sentence.
        text_hash: Names the text of the split, whatever the vocabulary is.
    """

    def __init__(self, corpus: Corpus, name: str) -> None:
        self.corpus = corpus
        self.name = name
        summary = corpus._summary[name]
        self.first: int = summary["first"]
        self.text_hash: str = summary["text_hash"]
        self._num_sentences: int = summary["num_sentences"]

    def __reduce__(self) -> tuple[Callable[..., CorpusSplit], tuple[Corpus, str]]:
        return CorpusSplit, (self.corpus, self.name)

    def __len__(self) -> int:
        return self._num_sentences

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        offsets = self.corpus.offsets
        return int(offsets[self.first + len(self)] - offsets[self.first])

    @property
    def num_documents(self) -> int:
        """Documents of the split."""
        bounds = np.searchsorted(self.corpus.document_starts[:-1], [self.first, self.first + len(self)])
        return int(bounds[1] - bounds[0])

    def sentences(self, start: int, stop: int) -> Sentences:
        """Return the sentences `start` to `stop` (excluded) of the split, as fresh arrays."""
        self._check(start, stop)
        offsets = self.corpus.offsets[self.first + start : self.first + stop + 1]
        ids = np.array(self.corpus.ids[offsets[0] : offsets[-1]]) if stop > start else np.empty(0, dtype=np.int32)
        return Sentences(ids, np.diff(offsets))

    def sentences_at(self, positions: np.ndarray) -> Sentences:
        """Return the sentences with the given numbers within the split, int64 [batch], in that order."""
        starts = self.corpus.offsets[self.first + positions]
        lengths = self.corpus.offsets[self.first + positions + 1] - starts
        return Sentences(self.corpus.ids[ragged_indices(starts, lengths)], lengths)

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Return the document of each sentence, int64 [stop - start]; all 0 where windows may cross documents."""
        self._check(start, stop)
        return self.documents_at(np.arange(start, stop, dtype=np.int64))

    def documents_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the document of each given sentence, as `documents` does."""
        if self.corpus.across_documents:
            return np.zeros(len(positions), dtype=np.int64)
        starts = self.corpus.document_starts
        return np.searchsorted(starts, self.first + positions, side="right").astype(np.int64) - 1

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"corpus {self.name}: must be asked for 0 to {len(self)}; given {start} to {stop}")
