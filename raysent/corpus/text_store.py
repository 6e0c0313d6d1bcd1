"""Stage 1 of preparation: text -> ids of all its distinct words, on disk; holds for every vocabulary.

A folder ``text/<text key>/``: ``words.txt`` (one a line, in order of first appearance), ``counts.npy``,
``tokens.bin`` (int32), ``offsets.bin`` (int64 [sentences + 1]), ``documents.npy`` (int64 [documents + 1], first
sentence of each document, then the number of sentences). It loses nothing of the text but its white space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from raysent.corpus.documents import Piece
from raysent.vocabulary import ChunkTable, Numbering

Progress = Callable[[str, int, int | None], None]

_BLOCK_SENTENCES = 20_000


class TextWriter:
    """Takes pieces of documents and writes the folder, holding one block of sentences at a time.

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
        self._table = ChunkTable(self._words.__getitem__)
        self._block: list[str] = []
        self._boundaries = [0]
        self.num_sentences = 0
        self.num_tokens = 0

    def write(self, pieces: Iterable[Piece]) -> None:
        """Write everything, up to the limit."""
        with self._files() as (tokens, offsets):
            offsets.write(np.zeros(1, dtype=np.int64).data)
            for piece in pieces:
                self._block += piece.sentences
                num_read = self.num_sentences + len(self._block)
                if piece.ends_document and num_read > self._boundaries[-1]:
                    self._boundaries.append(num_read)
                is_full = self._max_sentences is not None and num_read >= self._max_sentences
                if is_full or len(self._block) >= _BLOCK_SENTENCES:
                    self._write_block(tokens, offsets)
                if is_full:
                    break
            self._write_block(tokens, offsets)
        self._finish()

    @contextlib.contextmanager
    def _files(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        with (self._folder / "tokens.bin").open("wb") as tokens, (self._folder / "offsets.bin").open("wb") as offsets:
            yield tokens, offsets

    def _write_block(self, tokens: IO[bytes], offsets: IO[bytes]) -> None:
        block, self._block = self._block, []
        if self._max_sentences is not None:
            block = block[: self._max_sentences - self.num_sentences]
        if not block:
            return
        encoded = self._table.encode(block)
        tokens.write(encoded.ids.data)
        offsets.write((self.num_tokens + np.cumsum(encoded.lengths)).data)
        self.num_sentences += len(block)
        self.num_tokens += len(encoded.ids)
        counts = np.bincount(encoded.ids, minlength=len(self._words))
        counts[: len(self._counts)] += self._counts[: len(counts)]
        self._counts = counts
        if self._progress:
            self._progress("reading", self.num_sentences, self._max_sentences)

    def _finish(self) -> None:
        boundaries = [b for b in self._boundaries if b < self.num_sentences]
        np.save(self._folder / "documents.npy", np.array([*boundaries, self.num_sentences], dtype=np.int64))
        np.save(self._folder / "counts.npy", self._counts[: len(self._words)])
        with (self._folder / "words.txt").open("w", encoding="utf-8") as stream:
            stream.writelines(word + "\n" for word in self._words)


class TextStore:
    """What a `TextWriter` wrote, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.tokens = np.asarray(np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r"))
        self.offsets = np.asarray(np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r"))
        self.documents = np.load(folder / "documents.npy")
        self.counts = np.load(folder / "counts.npy")
        self.words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")[:-1]
