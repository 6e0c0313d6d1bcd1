"""Text -> tokens -> ragged ids.

A token never reaches across white space, so a text is cut at white space first and each distinct chunk is tokenised
only once, by a Rust pre-tokeniser; the rest is table look-up. On novels that is 10 times as fast as matching the
pattern over the running text.

Tokens follow the Penn Treebank, so that running text and text that is tokenised already give the same ones:
clitics stand alone (``do n't``, ``it 's``, ``can not``), punctuation too, while hyphenated words, decimals, dotted
names and common abbreviations (``Mr.``, ``U.S.``) stay whole. Differs: every double quotation mark (typographic,
``` `` ``` or ``''``) becomes ``"``, every single one ``'``, dashes ``--``, and ``-LRB-`` and its like the brackets.
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
# Changes whenever the same text may give other tokens: it is part of every cache key.
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
# The first alternative that matches wins. `\n` is a token, so that a list of chunks can be tokenised in one call.
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
# Stands between two sentences of a block; no text holds it.
_BREAK, _BREAK_CHUNK = "\0", 0


class Sentences(NamedTuple):
    """Ragged rows of ids.

    Attributes:
        ids: int32 [tokens], the sentences one after the other.
        lengths: int64 [batch], tokens of each sentence, at least 1.
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
    """Text -> ids through a table of the distinct chunks between white space.

    Args:
        word_id: Gives the id of a token; called once for a token of each distinct chunk.
        max_chunks: The table is emptied when it holds more, which bounds memory and changes no id.
    """

    def __init__(self, word_id: Callable[[str], int], *, max_chunks: int = _MAX_CHUNKS) -> None:
        self._word_id = word_id
        self._max_chunks = max_chunks
        self._clear()

    def _clear(self) -> None:
        self._chunks = Numbering({_BREAK: _BREAK_CHUNK})
        self._ids = np.empty(0, dtype=np.int32)
        self._starts = np.zeros(2, dtype=np.int64)  # The break has no token.

    def encode(self, sentences: Sequence[str]) -> Sentences:
        """Return the ids of all tokens; a sentence without one has length 0 here."""
        if not sentences:
            return Sentences(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))
        if len(self._chunks) > self._max_chunks:
            self._clear()
        text = f" {_BREAK} ".join(sentences)
        if text.count(_BREAK) != len(sentences) - 1:
            text = f" {_BREAK} ".join(sentence.replace(_BREAK, " ") for sentence in sentences)
        # One list for the whole block: a list for each sentence would double the time.
        chunks = np.fromiter(map(self._chunks.__getitem__, text.split()), dtype=np.int64)
        self._learn_new()
        starts, lengths = self._starts[chunks], self._starts[chunks + 1] - self._starts[chunks]
        ids = self._ids[ragged_indices(starts, lengths)]
        ends = np.append(np.flatnonzero(chunks == _BREAK_CHUNK), len(chunks) - 1)
        return Sentences(ids, ragged_sums(lengths, np.diff(ends, prepend=-1)))

    def _learn_new(self) -> None:
        """Tokenise the chunks that the table has numbered since the last call."""
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
    """EncodedPassages its keys in the order in which they are first asked for."""

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        return number


def ragged_indices(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return int64 [sum of lengths]: starts[0], starts[0]+1, …, then the same for every later row."""
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
    """Return rows fit for an encoder: cut to `max_length` tokens; one without a known word is a single UNK_ID."""
    starts = np.cumsum(encoded.lengths) - encoded.lengths
    known = ragged_sums(encoded.ids != UNK_ID, encoded.lengths) > 0
    lengths = np.where(known, np.minimum(encoded.lengths, max_length), 1)
    if known.all():
        return Sentences(encoded.ids[ragged_indices(starts, lengths)], lengths)
    # Rows without a known word read the UNK_ID that is appended behind the last token.
    ids = np.append(encoded.ids, np.int32(UNK_ID))
    return Sentences(ids[ragged_indices(np.where(known, starts, len(ids) - 1), lengths)], lengths)


_pre_tokenizer = Split(Regex(_PATTERN), "removed", invert=True)


def tokenize_chunks(chunks: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each chunk; a chunk holds no white space."""
    rows = [_plain_tokens(chunk) for chunk in chunks]
    others = _matched_tokens([chunk for chunk, row in zip(chunks, rows, strict=True) if row is None])
    return [next(others) if row is None else row for row in rows]


def _plain_tokens(chunk: str) -> list[str] | None:
    """Return the tokens of a chunk of letters, with or without one mark behind them; None for any other.

    Most chunks are such, and the pattern would take ten times as long to say the same.
    """
    stem, mark = (chunk[:-1], chunk[-1:]) if chunk[-1:] in _CLOSING_MARKS else (chunk, "")
    if not stem.isalpha() or stem.lower() == "cannot" or (mark == "." and stem in _IS_ABBREVIATED):
        return None
    return [stem, mark] if mark else [stem]


def _matched_tokens(chunks: Sequence[str]) -> Iterator[list[str]]:
    """Yield the tokens of each chunk by the pattern."""
    text = "\n".join(chunks)
    for typographic, plain in _REPLACEMENTS:
        text = text.replace(typographic, plain)
    tokens = (token for token, _ in _pre_tokenizer.pre_tokenize_str(text + "\n"))
    for _ in chunks:
        yield list(iter(tokens.__next__, "\n"))
