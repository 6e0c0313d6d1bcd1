"""`bm25`: passages ranked by the words that they share with a query, the baseline that any search should beat.

It has no vectors: it ranks the passages of tasks with queries, alone or beside an encoder. Words are runs of letters
and digits, with their marks, in lower case and in one form of Unicode (NFKC); where a script writes no blanks, pairs of
characters, and single ones of Chinese, which are words too. No word is left out and none is stemmed, so that every
language is treated alike. The script decides, not the language: a query is too short for its language to be found.

Source: Robertson and Zaragoza, 2009 (BM25); Lù, 2024, "BM25S", whose default form, Lucene's with k1 = 1.5 and b = 0.75,
is used.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raysent.errors import ConfigError
from raysent.models.sentence_encoder import WithoutVectors
from raysent.storage import content_key

FORM = "bm25"

# Changes whenever rankings may change.
VERSION = 2
# Vowels and tones of Thai and Hindi are marks, which are no letters.
_MARKS = "".join(
    chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)).startswith("M")
)
_WORD = re.compile(rf"\w[\w{_MARKS}]*")
# Thai, Lao, Tibetan and Burmese; Khmer; kana; Chinese characters, the last of which are words of their own.
_CHINESE = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_UNSPACED = re.compile(rf"([\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff{_CHINESE}]+)")
_IS_CHINESE = re.compile(f"[{_CHINESE}]")


def label(rest: str) -> str:
    """Return the name itself."""
    if rest:
        raise ConfigError(f"bm25:{rest}: must be bm25, which has no other form")
    return "bm25"


def key(rest: str) -> str:
    """Return a key of the name, which determines the ranking of passages."""
    return content_key(VERSION, label(rest))


def load(rest: str) -> Bm25Model:
    """Return the model."""
    label(rest)
    return Bm25Model()


class Bm25Model(WithoutVectors):
    """A model that ranks passages by words."""

    @property
    def cannot_encode(self) -> str:
        """Why it has no vectors."""
        return "bm25: cannot encode, as it has no vectors; it ranks passages: use it on tasks with queries"


def words(text: str) -> list[str]:
    """Return the words of a text, in order; of a script without blanks pairs of characters, and Chinese ones alone."""
    text_words: list[str] = []
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    for run in _WORD.findall(text.lower()):
        # What splits a run is kept, in every second part.
        for index, part in enumerate(_UNSPACED.split(run)):
            is_unspaced = index % 2 == 1
            if is_unspaced and len(part) > 1:
                text_words += [part[start : start + 2] for start in range(len(part) - 1)]
                text_words += _IS_CHINESE.findall(part)
            elif part:
                text_words.append(part)
    return text_words


class Bm25Index:
    """Passages, searched by words."""

    def __init__(self, index: Any) -> None:
        """Hold an index of bm25s; `of` makes one of passages and `load` reads one."""
        self._index = index

    @classmethod
    def of(cls, passages: Sequence[str]) -> Bm25Index:
        """Return the index of passages.

        Raises:
            ConfigError: If bm25s is not installed.
        """
        vocabulary: dict[str, int] = {}
        passage_ids = []
        for text in passages:
            ids = [vocabulary.setdefault(word, len(vocabulary)) for word in words(text)]
            passage_ids.append(ids)
        index = _library().BM25()
        # bm25s cannot do with an empty vocabulary, and divides by the mean length, which may be 0.
        with np.errstate(invalid="ignore"):
            index.index((passage_ids, vocabulary or {"": 0}), show_progress=False)
        return cls(index)

    def save(self, folder: Path) -> None:
        """Write the index into a folder."""
        self._index.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, *, num_passages: int) -> Bm25Index:
        """Read an index, memory-mapped.

        Raises:
            ConfigError: If bm25s is not installed.
            ValueError: If it is not one of so many passages: a search would end in the midst.
        """
        index = cls(_library().BM25.load(folder, mmap=True))
        index._check(num_passages)
        return index

    def _check(self, num_passages: int) -> None:
        scores = self._index.scores
        starts = np.asarray(scores["indptr"])
        rows = np.asarray(scores["indices"])
        num_words = len(starts) - 1
        # The library adds a word without characters, which no text has.
        numbers = [number for word, number in self._index.vocab_dict.items() if word]
        is_right = (
            scores["num_docs"] == num_passages
            and len(scores["data"]) == len(rows)
            and (starts[0], starts[-1]) == (0, len(rows))
            and bool((np.diff(starts) >= 0).all())
            and int(rows.max(initial=-1)) < num_passages
            and int(rows.min(initial=0)) >= 0
            and all(type(number) is int and 0 <= number < num_words for number in numbers)
        )
        if not is_right:
            raise ValueError(f"{num_passages:,} passages")

    def __len__(self) -> int:
        """Return the number of passages."""
        return int(self._index.scores["num_docs"])

    def search(
        self, queries: Sequence[str], k: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the best passages of each query, [queries, k], -1 where there are fewer, and their scores."""
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.zeros((len(queries), k), np.float32)
        for query_index, query in enumerate(queries):
            top_rows, top_scores = self.top(query, k)
            rows[query_index, : len(top_rows)] = top_rows
            scores[query_index, : len(top_rows)] = top_scores
        return rows, scores

    def top(self, query: str, k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the best passages and their scores, at most k, best first; of equal ones the first.

        A passage without any word of the query is none of them.
        """
        vocabulary = self._index.vocab_dict
        ids = [vocabulary[word] for word in words(query) if word in vocabulary]
        if not ids:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        scores = np.asarray(self._index.get_scores_from_ids(ids), np.float32)
        rows = np.flatnonzero(scores > 0)
        if len(rows) > k:
            # Sorting all passages would take most of the time of a search.
            kth_score = np.partition(scores[rows], -k)[-k]
            rows = rows[scores[rows] >= kth_score]
        order = np.lexsort((rows, -scores[rows]))[:k]
        return rows[order], scores[rows[order]]


def _library() -> Any:
    if find_spec("bm25s") is None:
        raise ConfigError("bm25: needs the package bm25s; install raysent[search]")
    return import_module("bm25s")
