"""Tokenization: text -> tokens -> ragged ids.

A token never spans white space, so text is split at white space first. Each distinct chunk is tokenized once, by a Rust
pre-tokenizer, and the rest is table look-up: a text repeats its words, and matching the pattern is slow.

Tokens follow the Penn Treebank, so that raw text and tokenized text give the same tokens: clitics (``do n't``, ``it
's``, ``can not``) and punctuation are separate tokens, while hyphenated words, decimals, dotted names and common
abbreviations (``Mr.``, ``U.S.``) are one token.

Every string has tokens:

- NUL is white space;
- a byte order mark (U+FEFF) is removed wherever it occurs;
- a lone surrogate, which is no character, is replaced by U+FFFD, as decoders of UTF-8 do;
- it is read in the form of Unicode that the reader names, by default the composed one, see `unicode_form`;
- a combining mark belongs to the word before it; where there is none, it begins a word;
- a chunk of more than 65,536 characters is read in pieces of that length.

The tokens of a sentence depend on nothing else, and take time and memory in proportion to its length.

Differs: every double quotation mark (typographic, ``` `` ``` or ``''``) becomes ``"``, every single one ``'``, dashes
become ``--``, and ``-LRB-`` and similar tokens become brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, repeat

import numpy as np
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from raysent.data.text_files import grouped
from raysent.data.unicode_form import OF_NEW, UnicodeForm, in_form
from raysent.kernels.ragged import Sentences as Sentences  # noqa: PLC0414 - a public name of this package
from raysent.kernels.ragged import ragged_indices, ragged_sums
from raysent.kernels.text import CompiledChunkRows, ascii_tokens, has_compiled_text
from raysent.parallel import lock_for_forks

PAD_ID = 0
UNK_ID = 1
PAD_WORD = "<pad>"
UNK_WORD = "<unk>"
# Begins the first sub-word of a word.
WORD_START = "\u2581"
# By form: part of every cache key. It must change whenever the same text gives different tokens.
TOKENIZER_VERSIONS: dict[UnicodeForm, int] = {"as_written": 2, "NFC": 3}

REPLACEMENTS = (
    *((quote, '"') for quote in ("“", "”", "„", "«", "»", "``", "''")),
    *((quote, "'") for quote in ("‘", "’", "‚", "`")),
    *((dash, "--") for dash in ("—", "–", "―")),
    ("…", "..."),
    ("\\/", "/"),
    ("\ufeff", ""),
    ("-LRB-", "("), ("-RRB-", ")"), ("-LSB-", "["), ("-RSB-", "]"), ("-LCB-", "{"), ("-RCB-", "}"),
    ("-lrb-", "("), ("-rrb-", ")"), ("-lsb-", "["), ("-rsb-", "]"), ("-lcb-", "{"), ("-rcb-", "}"),
)  # fmt: skip
ABBREVIATIONS = (
    "Mr|Mrs|Ms|Dr|St|Prof|Rev|Hon|Capt|Col|Gen|Lieut|Lt|Sgt|Gov|Sen|Rep|Messrs|Mme|Mlle|Jr|Sr|Esq|"
    "vs|etc|cf|al|Vol|vol|Fig|fig|No|Nos|pp|Inc|Ltd|Co|Corp|Bros|Mt|Ft"
)
_IS_ABBREVIATED = frozenset(ABBREVIATIONS.split("|"))
_CLOSING_MARKS = frozenset(',;:!?."')
_CLITIC = r"(?i:s|m|d|ll|re|ve)(?!\w)"
# The first matching alternative is used. `\n` is a token, so that a list of chunks can be tokenized in one call.
PATTERN = "|".join(
    (
        r"\n",
        r"<unk>",
        r"(?:\p{L}\.){2,}",  # U.S., e.g.
        rf"(?:{ABBREVIATIONS})\.(?!\w)",
        r"(?i:can)(?=(?i:not)(?!\w))",
        r"\p{L}+?(?=n'(?i:t)(?!\w))|\p{L}+?(?=N'T(?!\w))",
        r"(?i:n't)(?!\w)",
        rf"'{_CLITIC}",
        rf"\w+(?:[-.](?!\w*n'(?i:t))\w+|,\d+|'(?!{_CLITIC})\w+)*",
        r"\.{2,}|-{2,}",
        r"[^\s\w]",
    )
)
SURROGATE = re.compile("[\ud800-\udfff]")
# The pattern's engine keeps a stack while it reads a word, and gives up after 10 million characters.
_MAX_PIECE = 1 << 16
# Text that is tokenized at once; bounds memory.
_MAX_BLOCK = 1 << 20
# A longer chunk hardly occurs twice, and is not kept.
_MAX_KEPT = 256
_MAX_TABLE_BYTES = 256 << 20
_ENTRY_BYTES = 240  # of a chunk in a dictionary, without its characters
# Separates the sentences of a block; text never contains it.
_BREAK = "\0"
_BREAK_ROW = 0
_UNKNOWN = -1


class _ChunkRows(dict[str, int]):
    """The rows of known chunks; `kernels.text` has the same functions in C++."""

    def find(self, text: str) -> tuple[np.ndarray, list[str]]:
        """Return the row of each chunk of a text, -1 - i for the i-th unknown one, int32; and the unknown chunks."""
        # One list for all sentences, since a list for each of many short sentences takes longer.
        chunks = text.split()
        rows = np.fromiter(
            map(self.get, chunks, repeat(_UNKNOWN)), dtype=np.int32, count=len(chunks)
        )
        is_unknown = rows == _UNKNOWN
        number = Numbering()
        if is_unknown.any():
            numbers = np.fromiter(
                map(number.__getitem__, compress(chunks, is_unknown.tolist())), dtype=np.int32
            )
            rows[is_unknown] = -1 - numbers
        return rows, list(number)

    def add(self, chunks: Sequence[str], rows: np.ndarray) -> None:
        """Add chunks and their rows, int64 [chunks]."""
        self.update(zip(chunks, rows.tolist(), strict=True))

    def expand(
        self, rows: np.ndarray, ids: np.ndarray, starts: np.ndarray, *, break_row: int
    ) -> Sentences:
        """Return the ids of rows of chunks, int32 [chunks], as sentences, which are separated by `break_row`."""
        firsts = starts[rows]
        lengths = starts[rows + 1] - starts[rows]
        ends = np.append(np.flatnonzero(rows == break_row), len(rows) - 1)
        return Sentences(
            ids[ragged_indices(firsts, lengths)], ragged_sums(lengths, np.diff(ends, prepend=-1))
        )


@dataclass
class _Table:
    """Chunks and the ids of their tokens, one row per chunk; it only grows.

    Readers take no lock: they look chunks up first and take the arrays then, and a writer does the reverse, so that all
    rows that a reader has found are complete in its arrays. A writer that is interrupted leaves nothing that is read.

    Attributes:
        known: Chunk -> its row.
        ids: The concatenated rows, then free space, int32.
        starts: First id of each row, then the end of the last row, then free space, int64.
        num_rows: Number of complete rows.
        num_bytes: Memory of chunks and rows.
    """

    known: _ChunkRows | CompiledChunkRows
    ids: np.ndarray = field(default_factory=lambda: np.empty(256, dtype=np.int32))
    starts: np.ndarray = field(default_factory=lambda: np.zeros(256, dtype=np.int64))
    num_rows: int = 1  # the break has no token
    num_bytes: int = 0

    def __post_init__(self) -> None:
        self.known.add([_BREAK], np.array([_BREAK_ROW]))

    def append(self, ids: np.ndarray, lengths: np.ndarray) -> int:
        """Add rows, and return the number of the first; rows that readers may know stay where they are."""
        first = self.num_rows
        end = int(self.starts[self.num_rows])
        self.ids = _with_space(self.ids, end, len(ids))
        self.starts = _with_space(self.starts, first + 1, len(lengths))
        self.ids[end : end + len(ids)] = ids
        self.starts[first + 1 : first + 1 + len(lengths)] = end + np.cumsum(lengths)
        self.num_bytes += ids.nbytes + lengths.nbytes
        self.num_rows += len(lengths)
        return first


def _with_space(values: np.ndarray, used: int, more: int) -> np.ndarray:
    """Return the array, or a larger copy if it has no space for `more` values after the used ones."""
    if used + more <= len(values):
        return values
    larger = np.empty(max(2 * len(values), used + more), dtype=values.dtype)
    larger[:used] = values[:used]
    return larger


# Held while any table changes.
_CHANGING = lock_for_forks()


class ChunkTable:
    """Encodes text with a table of the distinct chunks between white space.

    Any number of threads may encode at the same time. The table is a cache: it changes no id, and a call that raises
    leaves no trace in it. When it exceeds its size, an empty one takes its place.

    Args:
        word_id: Returns the id of a token. Called in one thread at a time, once for each token of a new chunk, in the
            order of the text.
        max_bytes: Size of the table.
        is_compiled: Whether to use the compiled kernel if there is a compiler: for large texts. The ids are equal.
        unicode_form: The form in which text is read.
    """

    def __init__(
        self,
        word_id: Callable[[str], int],
        *,
        max_bytes: int = _MAX_TABLE_BYTES,
        is_compiled: bool = False,
        unicode_form: UnicodeForm = OF_NEW,
    ) -> None:
        self._word_id = word_id
        self._max_bytes = max_bytes
        self._unicode_form = unicode_form
        self._is_compiled = is_compiled and has_compiled_text()
        self._table = self._new_table()

    def encode(self, sentences: Sequence[str]) -> Sentences:
        """Return the ids of all tokens; a sentence without tokens has length 0."""
        if not sentences:
            return Sentences(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))
        text = f" {_BREAK} ".join(sentences)
        if text.count(_BREAK) != len(sentences) - 1:
            text = f" {_BREAK} ".join(sentence.replace(_BREAK, " ") for sentence in sentences)
        table = self._table
        rows, new = table.known.find(text)
        if new:
            is_new = rows < 0
            # The i-th new chunk stands as -1 - i, so that -1 - (-1 - i) is its place among the rows that were added.
            rows[is_new] = self._add(table, new)[-1 - rows[is_new]]
        return table.known.expand(rows, table.ids, table.starts, break_row=_BREAK_ROW)

    def _new_table(self) -> _Table:
        return _Table(CompiledChunkRows() if self._is_compiled else _ChunkRows())

    def _add(self, table: _Table, chunks: list[str]) -> np.ndarray:
        """Add distinct chunks to a table; a long one gets a row, but stays unknown. Return their rows, int32."""
        with _CHANGING:
            # Another thread may have added some since they were looked up.
            rows, new = table.known.find(" ".join(chunks))
            sizes = np.fromiter(map(len, new), dtype=np.int64, count=len(new))
            first = table.append(*self._ids(new, sizes))
            new_rows = np.arange(first, first + len(new))
            rows[rows < 0] = new_rows
            is_kept = sizes <= _MAX_KEPT
            table.num_bytes += _ENTRY_BYTES * len(new) + 4 * int(sizes[is_kept].sum())
            table.known.add(list(compress(new, is_kept.tolist())), new_rows[is_kept])
            if table.num_bytes > self._max_bytes and self._table is table:
                self._table = self._new_table()
        return rows

    def _ids(self, chunks: list[str], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the tokens of chunks of given sizes, int32 [tokens], and their number, int64 [chunks]."""
        if self._unicode_form != "as_written":
            chunks = [in_form(chunk, self._unicode_form) for chunk in chunks]
            sizes = np.fromiter(map(len, chunks), dtype=np.int64, count=len(chunks))
        num_pieces = -(-sizes // _MAX_PIECE)
        pieces = chunks
        if (num_pieces > 1).any():
            pieces = list(chain.from_iterable(map(_pieces, chunks)))
        ids = [np.empty(0, dtype=np.int32)]
        lengths = [np.empty(0, dtype=np.int64)]
        tokenized = _compiled_tokens if self._is_compiled else _tokens_of_chunks
        blocks: Iterable[list[str]] = [pieces]
        if sizes.sum() > _MAX_BLOCK:
            blocks = grouped(pieces, len, at_least=_MAX_BLOCK)
        for block in blocks:
            tokens, counts = tokenized(block)
            lengths.append(counts)
            ids.append(np.fromiter(map(self._word_id, tokens), dtype=np.int32, count=len(tokens)))
        return np.concatenate(ids), ragged_sums(np.concatenate(lengths), num_pieces)


class Numbering(dict[str, int]):
    """A dictionary that numbers its keys in the order of their first look-up."""

    def __missing__(self, key: str) -> int:
        number = len(self)
        self[key] = number
        return number


def as_rows(encoded: Sentences, *, max_length: int) -> Sentences:
    """Return rows truncated to `max_length` tokens; a row without a known word becomes a single UNK_ID."""
    starts = np.cumsum(encoded.lengths) - encoded.lengths
    has_known = ragged_sums(encoded.ids != UNK_ID, encoded.lengths) > 0
    lengths = np.where(has_known, np.minimum(encoded.lengths, max_length), 1)
    if has_known.all():
        return Sentences(encoded.ids[ragged_indices(starts, lengths)], lengths)
    # Rows without a known word read the UNK_ID appended after the last token.
    ids = np.append(encoded.ids, np.int32(UNK_ID))
    return Sentences(
        ids[ragged_indices(np.where(has_known, starts, len(ids) - 1), lengths)], lengths
    )


_pre_tokenizer = Split(Regex(PATTERN), "removed", invert=True)


def tokenize(sentence: str, *, unicode_form: UnicodeForm = OF_NEW) -> list[str]:
    """Return the tokens of a sentence, read in a form of Unicode."""
    chunks = in_form(sentence, unicode_form).replace(_BREAK, " ").split()
    pieces = chain.from_iterable(map(_pieces, chunks))
    return list(
        chain.from_iterable(
            _tokens_of_chunks(block)[0] for block in grouped(pieces, len, at_least=_MAX_BLOCK)
        )
    )


def _pieces(chunk: str) -> list[str]:
    if len(chunk) <= _MAX_PIECE:
        return [chunk]
    return [chunk[first : first + _MAX_PIECE] for first in range(0, len(chunk), _MAX_PIECE)]


def _tokens_of_chunks(chunks: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the tokens of chunks without white space, concatenated; and their number, int64 [chunks]."""
    rows = [_plain_tokens(chunk) for chunk in chunks]
    matched = _matched_tokens(
        _plain_text([chunk for chunk, row in zip(chunks, rows, strict=True) if row is None])
    )
    tokens = [next(matched) if row is None else row for row in rows]
    return list(chain.from_iterable(tokens)), np.fromiter(
        map(len, tokens), dtype=np.int64, count=len(tokens)
    )


def _compiled_tokens(chunks: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return what `_tokens_of_chunks` returns; only chunks with other than ASCII characters need the pattern."""
    text = _plain_text(chunks)
    tokens, counts = ascii_tokens(text, abbreviations=ABBREVIATIONS)
    other_chunks = np.flatnonzero(counts < 0)
    if len(other_chunks) == 0:
        return tokens, counts
    counts[other_chunks] = 0
    ends = np.cumsum(counts)[other_chunks].tolist()
    lines = text.split("\n")
    other_text = "".join(lines[chunk] + "\n" for chunk in other_chunks.tolist())
    matched = _matched_tokens(other_text)
    merged: list[str] = []
    starts = [0, *ends]
    for chunk, start, end, row in zip(other_chunks.tolist(), starts, ends, matched, strict=False):
        merged += tokens[start:end]
        merged += row
        counts[chunk] = len(row)
    return merged + tokens[ends[-1] :], counts


def _plain_tokens(chunk: str) -> list[str] | None:
    """Return the tokens of a chunk of letters, optionally followed by one punctuation mark, or None for any other.

    Most chunks are of this form, and the pattern would take far longer.
    """
    stem = chunk
    mark = ""
    if chunk[-1:] in _CLOSING_MARKS:
        stem = chunk[:-1]
        mark = chunk[-1:]
    if not stem.isalpha() or stem.lower() == "cannot" or (mark == "." and stem in _IS_ABBREVIATED):
        return None
    return [stem, mark] if mark else [stem]


def _plain_text(chunks: Sequence[str]) -> str:
    """Return chunks, each followed by a line feed, with plain characters for typographic ones."""
    text = "".join(f"{chunk}\n" for chunk in chunks)
    for typographic, plain in REPLACEMENTS:
        text = text.replace(typographic, plain)
    return SURROGATE.sub("\ufffd", text)


def _matched_tokens(text: str) -> Iterator[list[str]]:
    tokens = (token for token, _ in _pre_tokenizer.pre_tokenize_str(text))
    for _ in range(text.count("\n")):
        yield list(iter(tokens.__next__, "\n"))
