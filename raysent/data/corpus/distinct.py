"""The distinct sentences of a text, memory-mapped, in order of first appearance.

A folder ``distinct/<key>/`` of the cache contains ``text.bin`` (UTF-8, no separators) and ``offsets.bin`` (int64
[sentences + 1], in bytes). Sentences that differ in white space only are equal. Memory holds one block of text and
about 100 bytes per distinct sentence.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raysent import storage
from raysent.data.corpus.cache import build_once
from raysent.data.corpus.documents import Passage, describe_reading, map_passages, read_passage
from raysent.data.corpus.sources import CorpusConfig, corpus_sources
from raysent.data.corpus.written import StoredSentences
from raysent.data.sentences import SPLITTING_VERSION
from raysent.errors import DataError
from raysent.parallel import Progress
from raysent.storage import cache_folder

_FORMAT_VERSION = 1
_DIGEST_BYTES = 16  # the probability of a collision among 10⁹ sentences is 10⁻²¹


class DistinctSentences(StoredSentences):
    """The sentences of a text, each once."""


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
            num_distinct = _write_first(folder, blocks, config.max_sentences, progress)
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


def _write_first(folder: Path, blocks: Iterable[_Block], limit: int | None, progress: Progress | None) -> int:
    """Write the first of equal sentences among the first `limit`, and return how many these are."""
    num_sentences, seen, ends = 0, set[bytes](), array("q", [0])
    with storage.storage_errors(folder), (folder / "text.bin").open("wb") as text:
        for block in blocks:
            remaining = None if limit is None else limit - num_sentences
            for sentence, digest in zip(block.sentences[:remaining], block.digests[:remaining], strict=True):
                if digest not in seen:
                    seen.add(digest)
                    text.write(sentence)
                    ends.append(ends[-1] + len(sentence))
            num_sentences += len(block.sentences[:remaining])
            if progress:
                progress("reading", num_sentences, None)
            if num_sentences == limit:
                break
        np.frombuffer(ends, dtype=np.int64).tofile(folder / "offsets.bin")
    return len(seen)
