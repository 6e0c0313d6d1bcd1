"""The sentences of a text as they are written; sub-words read them.

A folder ``written/<text key>/`` of the cache contains ``text.bin`` (UTF-8, no separators), ``offsets.bin`` (int64
[sentences + 1], in bytes) and ``documents.npy`` (int64 [documents + 1], first sentence of each document, then the
number of sentences). Memory holds a few passages of the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from raysent.data.corpus.documents import Passage, read_passages
from raysent.parallel import Progress


class StoredSentences:
    """The sentences of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        """Return the number of sentences."""
        return int(self.documents[-1])

    def read(self, start: int, stop: int) -> list[str]:
        """Return the sentences `start` to `stop` (exclusive).

        They are read, as pages of a mapping that is read from one end to the other stay in memory.
        """
        offsets = np.fromfile(
            self._folder / "offsets.bin", np.int64, stop + 1 - start, offset=8 * start
        )
        first = int(offsets[0])
        with (self._folder / "text.bin").open("rb") as stream:
            stream.seek(first)
            content = stream.read(int(offsets[-1]) - first)
        bounds = (offsets - first).tolist()
        return [content[begin:end].decode("utf-8") for begin, end in pairwise(bounds)]

    @cached_property
    def documents(self) -> np.ndarray:
        """First sentence of each document, then the number of sentences, int64 [documents + 1]."""
        return np.asarray(np.load(self._folder / "documents.npy"))


def read_written(passages: Sequence[Passage]) -> tuple[list[bytes], list[int]]:
    """Return the sentences of passages in UTF-8, with single blanks, and how many are before each end of a document."""
    sentences, ends = read_passages(passages)
    written = [_with_single_blanks(sentence).encode("utf-8", "replace") for sentence in sentences]
    return written, ends


def _with_single_blanks(sentence: str) -> str:
    # Most text has no other white space, and is not split and joined for nothing.
    if sentence.isprintable() and "  " not in sentence:
        return sentence
    return " ".join(sentence.split())


def write_written(
    folder: Path,
    groups: Iterable[tuple[list[bytes], list[int]]],
    *,
    max_sentences: int | None,
    progress: Progress | None,
) -> int:
    """Write the sentences of all groups, up to the maximum number, and return how many these are."""
    num_sentences = 0
    num_bytes = 0
    starts = array("q", [0])  # 8 bytes a document
    with (folder / "text.bin").open("wb") as text, (folder / "offsets.bin").open("wb") as offsets:
        offsets.write(np.zeros(1, dtype=np.int64).data)
        for sentences, ends in groups:
            starts.extend(num_sentences + end for end in ends)
            new_sentences = sentences
            if max_sentences is not None:
                new_sentences = sentences[: max_sentences - num_sentences]
            text.write(b"".join(new_sentences))
            lengths = np.fromiter(map(len, new_sentences), dtype=np.int64, count=len(new_sentences))
            offsets.write((num_bytes + np.cumsum(lengths)).data)
            num_bytes += int(lengths.sum())
            num_sentences += len(new_sentences)
            if progress:
                progress("reading", num_sentences, max_sentences)
            if num_sentences == max_sentences:
                break
    inner = np.unique(np.frombuffer(starts, dtype=np.int64))
    np.save(folder / "documents.npy", np.append(inner[inner < num_sentences], num_sentences))
    return num_sentences
