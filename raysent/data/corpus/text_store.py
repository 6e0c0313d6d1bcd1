"""Stage 1 of preparation: text -> ids of all its distinct words, on disk; independent of the vocabulary.

A folder ``text/<text key>/`` contains ``words.txt`` (one word per line, in order of first appearance), ``counts.npy``,
``tokens.bin`` (int32), ``offsets.bin`` (int64 [sentences + 1]) and ``documents.npy`` (int64 [documents + 1], first
sentence of each document, then the number of sentences). Only white space is lost.

Every process has a `PassageReader`, which numbers words as it meets them; the `TextWriter` renumbers the words of all
readers in order of their first appearance in the text, so the files do not depend on the number of processes.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from raysent.data.corpus.documents import Passage, read_passage
from raysent.data.vocabulary import ChunkTable, Numbering, Sentences
from raysent.parallel import Progress

_NOT_NUMBERED = -1


class EncodedPassages(NamedTuple):
    """Passages as ids of one reader.

    Attributes:
        reader: Id of the reader.
        new_words: Words that the reader has met for the first time; their ids continue those of earlier words.
        sentences: Ids of all tokens, as the reader numbers words.
        ends: Number of sentences before each end of a document, int64 [ends].
    """

    reader: int
    new_words: list[str]
    sentences: Sentences
    ends: np.ndarray


class PassageReader:
    """Encodes passages with ids of its own. Pickles as a new reader."""

    def __init__(self) -> None:
        self._words = Numbering()
        self._num_sent = 0

    @cached_property
    def _table(self) -> ChunkTable:
        """The table, made in the process that uses it."""
        return ChunkTable(self._words.__getitem__, is_compiled=True)

    def __reduce__(self) -> tuple[type[PassageReader], tuple[()]]:
        return PassageReader, ()

    def __call__(self, passages: Sequence[Passage]) -> EncodedPassages:
        """Encode some passages."""
        sentences: list[str] = []
        ends = []
        for passage in passages:
            for piece in read_passage(passage):
                sentences += piece.sentences
                if piece.ends_document:
                    ends.append(len(sentences))
        encoded = self._table.encode(sentences)
        # The last words of the dictionary, which keeps their order.
        new_words = list(islice(reversed(self._words), len(self._words) - self._num_sent))[::-1]
        self._num_sent = len(self._words)
        return EncodedPassages(os.getpid(), new_words, encoded, np.array(ends, dtype=np.int64))


class TextWriter:
    """Writes the folder from the encoded passages of several readers.

    Args:
        folder: An existing, empty folder.
        max_sentences: Maximum number of sentences to write.
        progress: Called with ``reading``, the number of sentences so far, and the maximum number or None.
    """

    def __init__(self, folder: Path, *, max_sentences: int | None, progress: Progress | None) -> None:
        self._folder = folder
        self._max_sentences = max_sentences
        self._progress = progress
        self._words = Numbering()
        self._counts = np.zeros(1, dtype=np.int64)
        self._vocabularies: dict[int, _ReaderVocabulary] = {}
        self._boundaries = array("q", [0])  # 8 bytes a document
        self.num_sentences = 0
        self.num_tokens = 0

    def write(self, groups: Iterable[EncodedPassages]) -> None:
        """Write all passages, up to the maximum number of sentences."""
        with (self._folder / "tokens.bin").open("wb") as tokens, (self._folder / "offsets.bin").open("wb") as offsets:
            offsets.write(np.zeros(1, dtype=np.int64).data)
            for group in groups:
                self._write_group(group, tokens, offsets)
                if self.num_sentences == self._max_sentences:
                    break
        self._finish()

    def _write_group(self, group: EncodedPassages, tokens: IO[bytes], offsets: IO[bytes]) -> None:
        ends = np.unique(self.num_sentences + group.ends)
        self._boundaries.frombytes(ends[ends > self._boundaries[-1]].tobytes())
        reader_ids, lengths = group.sentences
        if self._max_sentences is not None:
            lengths = lengths[: self._max_sentences - self.num_sentences]
            reader_ids = reader_ids[: int(lengths.sum())]
        vocabulary = self._vocabularies.setdefault(group.reader, _ReaderVocabulary())
        ids = vocabulary.renumber(reader_ids, group.new_words, self._words)
        tokens.write(ids.data)
        offsets.write((self.num_tokens + np.cumsum(lengths)).data)
        self.num_sentences += len(lengths)
        self.num_tokens += len(ids)
        counts = np.bincount(ids, minlength=len(self._words))
        counts[: len(self._counts)] += self._counts[: len(counts)]
        self._counts = counts
        if self._progress:
            self._progress("reading", self.num_sentences, self._max_sentences)

    def _finish(self) -> None:
        boundaries = np.frombuffer(self._boundaries, dtype=np.int64)
        inner = boundaries[: np.searchsorted(boundaries, self.num_sentences)]
        np.save(self._folder / "documents.npy", np.append(inner, self.num_sentences))
        np.save(self._folder / "counts.npy", self._counts[: len(self._words)])
        with (self._folder / "words.txt").open("w", encoding="utf-8") as stream:
            stream.writelines(word + "\n" for word in self._words)


class _ReaderVocabulary:
    """The words of one reader and their ids in the text."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._text_ids = np.empty(0, dtype=np.int32)

    def renumber(self, reader_ids: np.ndarray, new_words: list[str], words: Numbering) -> np.ndarray:
        """Return the ids of the text for ids of the reader, int32 [tokens]; new words get the next ids in `words`."""
        self._words += new_words
        unknown = np.full(len(new_words), _NOT_NUMBERED, dtype=np.int32)
        self._text_ids = np.concatenate([self._text_ids, unknown])
        ids: np.ndarray = self._text_ids[reader_ids]
        missing = np.flatnonzero(ids == _NOT_NUMBERED)
        if len(missing):
            for reader_id in dict.fromkeys(reader_ids[missing].tolist()):
                self._text_ids[reader_id] = words[self._words[reader_id]]
            ids[missing] = self._text_ids[reader_ids[missing]]
        return ids


class TextStore:
    """The folder that a `TextWriter` wrote, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tokens = np.asarray(np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r"))
        self.offsets = np.asarray(np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r"))
        self.documents = np.load(folder / "documents.npy")
        self.counts = np.load(folder / "counts.npy")
        self.words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")[:-1]

    def sentences(self, start: int, stop: int) -> Sentences:
        """Return the sentences `start` to `stop` (exclusive) as words of the text.

        They are read, as pages of a mapping that is read from one end to the other stay in memory.
        """
        offsets = np.fromfile(self._folder / "offsets.bin", np.int64, stop + 1 - start, offset=8 * start)
        first, last = int(offsets[0]), int(offsets[-1])
        words = np.fromfile(self._folder / "tokens.bin", np.int32, last - first, offset=4 * first)
        return Sentences(words, np.diff(offsets))
