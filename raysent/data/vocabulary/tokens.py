"""Tokenization: text -> tokens -> ragged ids.

A token never spans white space, so text is split at white space first. Each distinct chunk is tokenized once, by a Rust
pre-tokenizer, and the rest is table look-up. On novels this is 10 times as fast as matching the pattern over the
running text.

Tokens follow the Penn Treebank, so that raw text and tokenized text give the same tokens: clitics (``do n't``, ``it
's``, ``can not``) and punctuation are separate tokens, while hyphenated words, decimals, dotted names and common
abbreviations (``Mr.``, ``U.S.``) are one token.

Differs: every double quotation mark (typographic, ``` `` ``` or ``''``) becomes ``"``, every single one ``'``, dashes
become ``--``, and ``-LRB-`` and similar tokens become brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

PAD_ID = 0
UNK_ID = 1
PAD_WORD = "<pad>"
UNK_WORD = "<unk>"
# Part of every cache key: must change whenever the same text gives different tokens.
TOKENIZER_VERSION = 1

_REPLACEMENTS = (
    *((quote, '"') for quote in ("“", "”", "„", "«", "»", "``", "''")),
    *((quote, "'") for quote in ("‘", "’", "‚", "`")),
    *((dash, "--") for dash in ("—", "–", "―")),
    ("…", "..."),
    ("\\/", "/"),
    ("-LRB-", "("), ("-RRB-", ")"), ("-LSB-", "["), ("-RSB-", "]"), ("-LCB-", "{"), ("-RCB-", "}"),
    ("-lrb-", "("), ("-rrb-", ")"), ("-lsb-", "["), ("-rsb-", "]"), ("-lcb-", "{"), ("-rcb-", "}"),
)  # fmt: skip
_ABBREVIATIONS = (
    "Mr|Mrs|Ms|Dr|St|Prof|Rev|Hon|Capt|Col|Gen|Lieut|Lt|Sgt|Gov|Sen|Rep|Messrs|Mme|Mlle|Jr|Sr|Esq|"
    "vs|etc|cf|al|Vol|vol|Fig|fig|No|Nos|pp|Inc|Ltd|Co|Corp|Bros|Mt|Ft"
)
_IS_ABBREVIATED = frozenset(_ABBREVIATIONS.split("|"))
_CLOSING_MARKS = frozenset(',;:!?."')
_CLITIC = r"(?i:s|m|d|ll|re|ve)(?!\w)"
# The first matching alternative is used. `\n` is a token, so that a list of chunks can be tokenized in one call.
_PATTERN = "|".join(
    (
        r"\n",
        r"<unk>",
        r"(?:\p{L}\.){2,}",  # U.S., e.g.
        rf"(?:{_ABBREVIATIONS})\.(?!\w)",
        r"(?i:can)(?=(?i:not)(?!\w))",
        r"\p{L}+?(?=n'(?i:t)(?!\w))|\p{L}+?(?=N'T(?!\w))",
        r"(?i:n't)(?!\w)",
        rf"'{_CLITIC}",
        rf"\w+(?:[-.](?!\w*n'(?i:t))\w+|,\d+|'(?!{_CLITIC})\w+)*",
        r"\.{2,}|-{2,}",
        r"[^\s\w]",
    )
)
_MAX_CHUNKS = 2_000_000
# Separates the sentences of a block; text never contains it.
_BREAK, _BREAK_CHUNK = "\0", 0


class Sentences(NamedTuple):
    """Ragged rows of ids.

    Attributes:
        ids: The concatenated sentences, int32 [tokens].
        lengths: Number of tokens of each sentence, at least 1, int64 [batch].
    """

    ids: np.ndarray
    lengths: np.ndarray

    def split(self, size: int) -> Iterator[Sentences]:
        """Yield the sentences in order, at most `size` at a time."""
        ends = np.cumsum(self.lengths)
        for first in range(0, len(ends), size):
            lengths = self.lengths[first : first + size]
            stop = int(ends[first + len(lengths) - 1])
            yield Sentences(self.ids[stop - int(lengths.sum()) : stop], lengths)


class ChunkTable:
    """Encodes text with a table of the distinct chunks between white space.

    Args:
        word_id: Returns the id of a token; called once for each token of a distinct chunk.
        max_chunks: The table is cleared when it is larger, which bounds memory and changes no id.
    """

    def __init__(self, word_id: Callable[[str], int], *, max_chunks: int = _MAX_CHUNKS) -> None:
        self._word_id = word_id
        self._max_chunks = max_chunks
        self._clear()

    def _clear(self) -> None:
        self._chunks = Numbering({_BREAK: _BREAK_CHUNK})
        self._ids = np.empty(0, dtype=np.int32)
        self._starts = np.zeros(2, dtype=np.int64)  # the break has no token

    def encode(self, sentences: Sequence[str]) -> Sentences:
        """Return the ids of all tokens; a sentence without tokens has length 0."""
        if not sentences:
            return Sentences(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))
        if len(self._chunks) > self._max_chunks:
            self._clear()
        text = f" {_BREAK} ".join(sentences)
        if text.count(_BREAK) != len(sentences) - 1:
            text = f" {_BREAK} ".join(sentence.replace(_BREAK, " ") for sentence in sentences)
        # One list for the whole block: one list per sentence takes twice the time.
        chunks = np.fromiter(map(self._chunks.__getitem__, text.split()), dtype=np.int64)
        self._add_new_chunks()
        starts, lengths = self._starts[chunks], self._starts[chunks + 1] - self._starts[chunks]
        ids = self._ids[ragged_indices(starts, lengths)]
        ends = np.append(np.flatnonzero(chunks == _BREAK_CHUNK), len(chunks) - 1)
        return Sentences(ids, ragged_sums(lengths, np.diff(ends, prepend=-1)))

    def _add_new_chunks(self) -> None:
        """Tokenize the chunks that were numbered since the last call."""
        new = list(islice(self._chunks, len(self._starts) - 1, None))
        if not new:
            return
        tokens = tokenize_chunks(new)
        lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        flat = map(self._word_id, chain.from_iterable(tokens))
        ids = np.fromiter(flat, dtype=np.int32, count=int(lengths.sum()))
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])


class Numbering(dict[str, int]):
    """A dictionary that numbers its keys in the order of their first look-up."""

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        return number


def ragged_indices(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the indices starts[i], …, starts[i] + lengths[i] - 1 of all rows i, concatenated, int64."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + lengths, lengths) + np.arange(total, dtype=np.int64)


def ragged_sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the sum of each row's values, int64 [rows]; an empty row sums to 0."""
    totals = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(lengths)
    sums: np.ndarray = totals[ends] - totals[ends - lengths]
    return sums


def as_rows(encoded: Sentences, *, max_length: int) -> Sentences:
    """Return rows truncated to `max_length` tokens; a row without a known word becomes a single UNK_ID."""
    starts = np.cumsum(encoded.lengths) - encoded.lengths
    known = ragged_sums(encoded.ids != UNK_ID, encoded.lengths) > 0
    lengths = np.where(known, np.minimum(encoded.lengths, max_length), 1)
    if known.all():
        return Sentences(encoded.ids[ragged_indices(starts, lengths)], lengths)
    # Rows without a known word read the UNK_ID appended after the last token.
    ids = np.append(encoded.ids, np.int32(UNK_ID))
    return Sentences(ids[ragged_indices(np.where(known, starts, len(ids) - 1), lengths)], lengths)


_pre_tokenizer = Split(Regex(_PATTERN), "removed", invert=True)


def tokenize_chunks(chunks: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each chunk; a chunk contains no white space."""
    rows = [_plain_tokens(chunk) for chunk in chunks]
    others = _matched_tokens([chunk for chunk, row in zip(chunks, rows, strict=True) if row is None])
    return [next(others) if row is None else row for row in rows]


def _plain_tokens(chunk: str) -> list[str] | None:
    """Return the tokens of a chunk of letters, optionally followed by one punctuation mark, or None for any other.

    Most chunks are of this form, and the pattern would take ten times as long.
    """
    stem, mark = (chunk[:-1], chunk[-1:]) if chunk[-1:] in _CLOSING_MARKS else (chunk, "")
    if not stem.isalpha() or stem.lower() == "cannot" or (mark == "." and stem in _IS_ABBREVIATED):
        return None
    return [stem, mark] if mark else [stem]


def _matched_tokens(chunks: Sequence[str]) -> Iterator[list[str]]:
    """Yield the tokens of each chunk, split by the pattern."""
    text = "\n".join(chunks)
    for typographic, plain in _REPLACEMENTS:
        text = text.replace(typographic, plain)
    tokens = (token for token, _ in _pre_tokenizer.pre_tokenize_str(text + "\n"))
    for _ in chunks:
        yield list(iter(tokens.__next__, "\n"))
