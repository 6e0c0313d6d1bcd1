"""The distinct sentences of a text, memory-mapped, in order of first appearance.

A folder ``distinct/<key>/`` of the cache contains ``text.bin`` (UTF-8, no separators) and ``offsets.bin`` (int64
[sentences + 1], in bytes). Sentences that differ in white space only are equal. Memory holds one block of text and 16
bytes per sentence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from raysent import storage
from raysent.data.corpus.cache import build_once
from raysent.data.corpus.documents import Passage, describe_reading, map_passages, read_passage
from raysent.data.corpus.sources import CorpusConfig, corpus_sources
from raysent.data.sentences import SPLITTING_VERSION
from raysent.errors import DataError
from raysent.parallel import Progress
from raysent.storage import cache_folder

_FORMAT_VERSION = 1
_BLOCK_SENTENCES = 20_000
_DIGEST_BYTES = 16  # the probability of a collision among 10⁹ sentences is 10⁻²¹


class DistinctSentences:
    """The sentences of a text, each once.

    Attributes:
        key: Hash of the sentences and their order.
    """

    def __init__(self, folder: Path) -> None:
        self.key = folder.name
        self._folder = folder

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self._offsets) - 1

    def texts(self, rows: Iterable[int]) -> list[str]:
        """Return the sentences with the given indices."""
        text, offsets = self._text, self._offsets
        return [text[offsets[row] : offsets[row + 1]].tobytes().decode("utf-8") for row in rows]

    @cached_property
    def _text(self) -> np.ndarray:
        """Bytes of all sentences, uint8, memory-mapped."""
        return np.asarray(np.memmap(self._folder / "text.bin", dtype=np.uint8, mode="r"))

    @cached_property
    def _offsets(self) -> np.ndarray:
        """First byte of each sentence and the end of the last, int64 [sentences + 1], memory-mapped."""
        return np.asarray(np.memmap(self._folder / "offsets.bin", dtype=np.int64, mode="r"))


def normalize_whitespace(sentence: str) -> str:
    """Return a sentence with single blanks for its white space."""
    return " ".join(sentence.split())


def distinct_sentences(config: CorpusConfig, *, progress: Progress | None = None) -> DistinctSentences:
    """Return the distinct sentences of a text; they are computed and cached on first use.

    Args:
        config: Which text and how to read it; splits and lengths are ignored.
        progress: Called with ``reading``, the number of sentences so far, and the maximum number or None.

    Raises:
        DataError: If the text cannot be read or has no sentence.
        ArtifactError: If the cache cannot be written.
    """
    sources = corpus_sources(config, progress)
    key = storage.content_key(_FORMAT_VERSION, SPLITTING_VERSION, *describe_reading(sources, config))

    def build(folder: Path) -> dict[str, Any]:
        with closing(map_passages(_read, sources, config)) as blocks:
            _write_all(folder, blocks, config.max_sentences, progress)
        num_distinct = _keep_first(folder)
        if num_distinct == 0:
            raise DataError(f"corpus.path: {config.name}: must hold sentences; given none")
        return {"num_sentences": num_distinct}

    return DistinctSentences(build_once(cache_folder(config.cache_dir), f"distinct/{key}", build))


class _Block(NamedTuple):
    """Some sentences in UTF-8, and the digest of each."""

    sentences: list[bytes]
    digests: list[bytes]


def _read(passages: Sequence[Passage]) -> _Block:
    """Return the sentences of passages."""
    pieces = chain.from_iterable(map(read_passage, passages))
    sentences = chain.from_iterable(piece.sentences for piece in pieces)
    data = [sentence.encode("utf-8") for sentence in map(normalize_whitespace, sentences) if sentence]
    return _Block(data, [hashlib.blake2b(one, digest_size=_DIGEST_BYTES).digest() for one in data])


def _write_all(folder: Path, blocks: Iterable[_Block], limit: int | None, progress: Progress | None) -> None:
    """Write bytes, length and digest of every sentence, up to `limit` sentences."""
    num_sentences = 0
    with (
        storage.storage_errors(folder),
        (folder / "all.bin").open("wb") as text,
        (folder / "lengths.bin").open("wb") as lengths,
        (folder / "digests.bin").open("wb") as digests,
    ):
        for block in blocks:
            remaining = None if limit is None else limit - num_sentences
            data = block.sentences[:remaining]
            text.write(b"".join(data))
            lengths.write(np.array([len(one) for one in data], dtype=np.int64).data)
            digests.write(b"".join(block.digests[:remaining]))
            num_sentences += len(data)
            if progress:
                progress("reading", num_sentences, None)
            if num_sentences == limit:
                break


def _keep_first(folder: Path) -> int:
    """Copy the first of equal sentences to the final files, delete the temporary ones, and return their number."""
    digests = np.fromfile(folder / "digests.bin", dtype=np.uint64).reshape(-1, 2)
    lengths = np.fromfile(folder / "lengths.bin", dtype=np.int64)
    kept = _is_first(digests)
    with (
        storage.storage_errors(folder),
        (folder / "all.bin").open("rb") as source,
        (folder / "text.bin").open("wb") as text,
    ):
        for first in range(0, len(lengths), _BLOCK_SENTENCES):
            block = slice(first, first + _BLOCK_SENTENCES)
            _copy_kept(source, text, lengths[block], kept[block])
        np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int64).tofile(folder / "offsets.bin")
    for name in ("all.bin", "lengths.bin", "digests.bin"):
        (folder / name).unlink()
    return int(kept.sum())


def _copy_kept(source: IO[bytes], target: IO[bytes], lengths: np.ndarray, kept: np.ndarray) -> None:
    data = np.frombuffer(source.read(int(lengths.sum())), dtype=np.uint8)
    target.write(data[np.repeat(kept, lengths)].data)


def _is_first(digests: np.ndarray) -> np.ndarray:
    """Return for each digest, uint64 [rows, 2], whether no earlier row is equal, bool [rows]."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: the earliest of equal rows comes first
    is_first = np.ones(len(digests), dtype=bool)
    is_first[order[1:]] = (digests[order[1:]] != digests[order[:-1]]).any(axis=1)
    return is_first
