"""Stage 1 of preparation: text -> ids of all its distinct words, on disk; holds for every vocabulary.

A folder ``text/<text key>/``: ``words.txt`` (one a line, in order of first appearance), ``counts.npy``,
``tokens.bin`` (int32), ``offsets.bin`` (int64 [sentences + 1]), ``documents.npy`` (int64 [documents + 1], first
sentence of each document, then the number of sentences). It loses nothing of the text but its white space.

`TextReader`, of which every process has its own, makes numbers of text; `TextWriter` puts the readers' numbers
together. Words are numbered as they first appear in the text, so the files do not tell how many readers there were.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from raysent.corpus.documents import Passage, read_passage
from raysent.vocabulary import ChunkTable, Numbering, Sentences

Progress = Callable[[str, int, int | None], None]

_NOT_NUMBERED = -1


class Numbers(NamedTuple):
    """What a reader makes of some passages.

    Attributes:
        reader: Whose numbers they are.
        new_words: Words that this reader had not met before; it numbers words as it meets them.
        sentences: Ids in the reader's numbers, of all tokens.
        ends: int64 [documents that end], the number of sentences before each end.
    """

    reader: int
    new_words: list[str]
    sentences: Sentences
    ends: np.ndarray


class TextReader:
    """Passages -> their words in numbers of its own. Pickles as a new one."""

    def __init__(self) -> None:
        self._words = Numbering()
        self._new_words: list[str] = []
        self._table = ChunkTable(self._number)

    def __reduce__(self) -> tuple[type[TextReader], tuple[()]]:
        return TextReader, ()

    def __call__(self, passages: Sequence[Passage]) -> Numbers:
        """Read some passages."""
        sentences: list[str] = []
        ends = []
        for passage in passages:
            for piece in read_passage(passage):
                sentences += piece.sentences
                if piece.ends_document:
                    ends.append(len(sentences))
        encoded = self._table.encode(sentences)
        new_words, self._new_words = self._new_words, []
        return Numbers(os.getpid(), new_words, encoded, np.array(ends, dtype=np.int64))

    def _number(self, word: str) -> int:
        if word not in self._words:
            self._new_words.append(word)
        return self._words[word]


class TextWriter:
    """Takes readers' numbers and writes the folder, holding those of a few passages at a time.

    Args:
        folder: An existing, empty folder.
        max_sentences: Sentences kept at most.
        progress: Told ``"reading"``, the sentences so far and the most there can be.
    """

    def __init__(self, folder: Path, *, max_sentences: int | None, progress: Progress | None) -> None:
        self._folder = folder
        self._max_sentences = max_sentences
        self._progress = progress
        self._words = Numbering()
        self._counts = np.zeros(1, dtype=np.int64)
        self._readers: dict[int, _ReadersWords] = {}
        self._boundaries = [0]
        self.num_sentences = 0
        self.num_tokens = 0

    def write(self, read: Iterable[Numbers]) -> None:
        """Write everything, up to the limit."""
        with (self._folder / "tokens.bin").open("wb") as tokens, (self._folder / "offsets.bin").open("wb") as offsets:
            offsets.write(np.zeros(1, dtype=np.int64).data)
            for numbers in read:
                self._write_some(numbers, tokens, offsets)
                if self.num_sentences == self._max_sentences:
                    break
        self._finish()

    def _write_some(self, numbers: Numbers, tokens: IO[bytes], offsets: IO[bytes]) -> None:
        self._boundaries += [end for end in (self.num_sentences + numbers.ends).tolist() if end > self._boundaries[-1]]
        own, lengths = numbers.sentences
        if self._max_sentences is not None:
            lengths = lengths[: self._max_sentences - self.num_sentences]
            own = own[: int(lengths.sum())]
        readers_words = self._readers.setdefault(numbers.reader, _ReadersWords())
        ids = readers_words.renumbered(own, numbers.new_words, self._words)
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
        boundaries = [b for b in dict.fromkeys(self._boundaries) if b < self.num_sentences]
        np.save(self._folder / "documents.npy", np.array([*boundaries, self.num_sentences], dtype=np.int64))
        np.save(self._folder / "counts.npy", self._counts[: len(self._words)])
        with (self._folder / "words.txt").open("w", encoding="utf-8") as stream:
            stream.writelines(word + "\n" for word in self._words)


class _ReadersWords:
    """One reader's words, and what their numbers are in the text."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._numbers = np.empty(0, dtype=np.int32)

    def renumbered(self, ids: np.ndarray, new_words: list[str], words: Numbering) -> np.ndarray:
        """Return the text's numbers of a reader's, int32 [tokens], numbering words that appear for the first time."""
        self._words += new_words
        unknown = np.full(len(new_words), _NOT_NUMBERED, dtype=np.int32)
        self._numbers = np.concatenate([self._numbers, unknown])
        found: np.ndarray = self._numbers[ids]
        places = np.flatnonzero(found == _NOT_NUMBERED)
        if len(places):
            for own in dict.fromkeys(ids[places].tolist()):
                self._numbers[own] = words[self._words[own]]
            found[places] = self._numbers[ids[places]]
        return found


class TextStore:
    """What a `TextWriter` wrote, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.tokens = np.asarray(np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r"))
        self.offsets = np.asarray(np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r"))
        self.documents = np.load(folder / "documents.npy")
        self.counts = np.load(folder / "counts.npy")
        self.words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")[:-1]
