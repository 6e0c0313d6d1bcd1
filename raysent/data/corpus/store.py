"""A prepared corpus: memory-mapped ids, read-only, cheap to open in every worker.

A folder ``corpora/<key>/`` contains ``corpus.json``, ``vocabulary.txt``, ``ids.bin`` (int32), ``offsets.bin`` (int64
[sentences + 1]) and ``documents.npy`` (int64 [documents + 1]). The training documents come first, in text order, then
the validation documents, so that each split is one range of the ids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raysent import storage
from raysent.data.vocabulary import Sentences, Vocabulary
from raysent.errors import DataError
from raysent.kernels.ragged import ragged_indices


class Corpus:
    """A prepared corpus. Files are opened on first use; it pickles as the path of its folder.

    Args:
        folder: The folder that `prepare` wrote.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Path]]:
        return Corpus, (self.folder,)

    @cached_property
    def _summary(self) -> dict[str, Any]:
        return dict(storage.read_json(self.folder / "corpus.json"))

    @property
    def key(self) -> str:
        """Hash of the content and all settings."""
        return str(self._summary["key"])

    @property
    def text_key(self) -> str:
        """Hash of the content and of how it was split into sentences, independent of vocabulary and splits."""
        return str(self._summary["text_key"])

    @property
    def num_sentences(self) -> int:
        """Number of sentences of both splits."""
        return int(self._summary["num_sentences"])

    @property
    def num_tokens(self) -> int:
        """Number of tokens of both splits, after truncation to `CorpusConfig.max_length`."""
        return int(self._summary["num_tokens"])

    @property
    def num_documents(self) -> int:
        """Number of documents of both splits."""
        return int(self._summary["num_documents"])

    @property
    def language(self) -> str:
        """Code of the language of most of the text."""
        return str(self._summary.get("language", "en"))

    @property
    def unknown_share(self) -> float:
        """Fraction of the tokens that are not in the vocabulary."""
        return float(self._summary["unknown_share"])

    @property
    def across_documents(self) -> bool:
        """Whether windows may cross the boundary between two documents."""
        return bool(self._summary["across_documents"])

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary."""
        return Vocabulary.load(self.folder / "vocabulary.txt")

    @cached_property
    def train(self) -> CorpusSplit:
        """The training sentences."""
        return CorpusSplit(self, "train")

    @cached_property
    def validation(self) -> CorpusSplit:
        """The validation sentences."""
        return CorpusSplit(self, "validation")

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of all tokens, int32 [tokens], memory-mapped."""
        return np.asarray(np.memmap(self.folder / "ids.bin", dtype=np.int32, mode="r"))

    @cached_property
    def offsets(self) -> np.ndarray:
        """First token of each sentence, then the number of tokens, int64 [sentences + 1], memory-mapped."""
        return np.asarray(np.memmap(self.folder / "offsets.bin", dtype=np.int64, mode="r"))

    @cached_property
    def document_starts(self) -> np.ndarray:
        """First sentence of each document, then the number of sentences, int64 [documents + 1]."""
        return np.asarray(np.load(self.folder / "documents.npy"))


class CorpusSplit:
    """The training or the validation sentences, numbered from 0.

    Args:
        corpus: The corpus.
        name: ``train`` or ``validation``.

    Attributes:
        corpus: The corpus.
        name: ``train`` or ``validation``.
        first: Global index of the split's first sentence.
        text_hash: Hash of the text of the split, independent of the vocabulary.
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
        """Number of tokens of the split."""
        offsets = self.corpus.offsets
        return int(offsets[self.first + len(self)] - offsets[self.first])

    @property
    def num_documents(self) -> int:
        """Number of documents of the split."""
        bounds = np.searchsorted(
            self.corpus.document_starts[:-1], [self.first, self.first + len(self)]
        )
        return int(bounds[1] - bounds[0])

    def sentences(self, start: int, stop: int) -> Sentences:
        """Return the sentences `start` to `stop` (exclusive) of the split, as new arrays."""
        self._check(start, stop)
        offsets = self.corpus.offsets[self.first + start : self.first + stop + 1]
        if stop > start:
            ids = np.array(self.corpus.ids[offsets[0] : offsets[-1]])
        else:
            ids = np.empty(0, dtype=np.int32)
        return Sentences(ids, np.diff(offsets))

    def sentences_at(self, positions: np.ndarray) -> Sentences:
        """Return the sentences at the given positions of the split, int64 [batch], in that order."""
        starts = self.corpus.offsets[self.first + positions]
        lengths = self.corpus.offsets[self.first + positions + 1] - starts
        return Sentences(self.corpus.ids[ragged_indices(starts, lengths)], lengths)

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Return the document of each sentence, int64 [stop - start]; all 0 if windows may cross documents."""
        self._check(start, stop)
        return self.documents_at(np.arange(start, stop, dtype=np.int64))

    def documents_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the document of each sentence at the given positions, as `documents` does."""
        if self.corpus.across_documents:
            return np.zeros(len(positions), dtype=np.int64)
        starts = self.corpus.document_starts
        return np.searchsorted(starts, self.first + positions, side="right").astype(np.int64) - 1

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise DataError(
                f"corpus {self.name}: range must be within 0 to {len(self)}; given {start} to {stop}"
            )
