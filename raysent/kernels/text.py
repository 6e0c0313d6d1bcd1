"""Compiled text: sentences from a splitter's pieces, tokens of ASCII chunks, and look-up of chunks between white space.

The reference of each function is in Python, beside its rules: `data.sentences` and `data.vocabulary.tokens`.
Results are equal, so that a text is prepared alike with and without a compiler.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from raysent.kernels.native import try_load
from raysent.kernels.ragged import Sentences

# The classes of characters as the kernel reads them; it leaves text with later characters to the reference.
_SPACE = 1
_WORD = 2
_UPPER = 4
_NUM_CLASSES = 1 << 17
_NUL = "\0"


def has_compiled_text() -> bool:
    """Return whether the functions of this module can be called; if not, a first call says why, once."""
    return try_load("text") is not None


def compiled_sentences(text: str, segment: Callable[[str], Sequence[str]]) -> list[str] | None:
    """Return the sentences of a text.

    Args:
        text: Paragraphs.
        segment: Returns the pieces of the text in which misleading marks are hidden.

    Returns:
        The sentences; None if the text has a character that the kernel does not know: NUL, a lone surrogate, or one
        above U+1FFFF.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        return None
    if b"\0" in data:
        return None
    library = _library()
    classes = _classes()
    hidden = np.empty(len(data), dtype=np.uint8)
    num_hidden = library.text_hide_marks(data, _size(data), _pointer(classes), _pointer(hidden))
    if num_hidden < 0:
        return None
    pieces = _NUL.join([*segment(str(hidden[:num_hidden].data, "utf-8")), ""]).encode("utf-8")
    sentences = np.empty(2 * len(data) + 1, dtype=np.uint8)
    num_bytes = library.text_join_pieces(
        data,
        _size(data),
        _pointer(hidden),
        ctypes.c_int64(num_hidden),
        pieces,
        _size(pieces),
        _pointer(classes),
        _pointer(sentences),
    )
    return str(sentences[:num_bytes].data, "utf-8").split(_NUL)[:-1]


def ascii_tokens(chunks: str, *, abbreviations: str) -> tuple[list[str], np.ndarray]:
    """Return the tokens of chunks of ASCII characters.

    Args:
        chunks: Chunks without white space, each followed by a line feed.
        abbreviations: Words that keep their full stop, separated by ``|``.

    Returns:
        The tokens, concatenated; and the number of tokens of each chunk, int64 [chunks]: -1 for a chunk with other
        characters, whose tokens are missing.
    """
    data = chunks.encode("utf-8")
    tokens = np.empty(2 * len(data), dtype=np.uint8)
    counts = np.empty(chunks.count("\n"), dtype=np.int64)
    num_bytes = _library().text_tokens(
        data, _size(data), abbreviations.encode("ascii"), _pointer(tokens), _pointer(counts)
    )
    return str(tokens[:num_bytes].data, "ascii").split("\n")[:-1], counts


class CompiledChunkRows:
    """The rows of known chunks; any number of threads may call it."""

    def __init__(self) -> None:
        library = _library()
        self._table = ctypes.c_void_p(library.chunk_table_new())
        self._lock = threading.Lock()
        weakref.finalize(self, library.chunk_table_delete, self._table)

    def find(self, text: str) -> tuple[np.ndarray, list[str]]:
        """Return the row of each chunk of a text, and its distinct unknown chunks.

        Returns:
            Rows, int32 [chunks], with -1 - i for the i-th unknown chunk; and the unknown chunks in order of the text.
        """
        data = text.encode("utf-8", "surrogatepass")
        rows = np.empty(len(data) // 2 + 1, dtype=np.int32)
        unknown = np.empty(len(data) + 1, dtype=np.uint8)
        sizes = np.empty(2, dtype=np.int64)
        with self._lock:
            _library().chunk_table_find(
                self._table,
                data,
                _size(data),
                _pointer(_classes()),
                _pointer(rows),
                _pointer(unknown),
                _pointer(sizes),
            )
        num_chunks, num_bytes = sizes.tolist()
        unknown_lines = str(unknown[:num_bytes].data, "utf-8", "surrogatepass")
        return rows[:num_chunks], unknown_lines.split("\n")[:-1]

    def add(self, chunks: Sequence[str], rows: np.ndarray) -> None:
        """Add chunks, none of which is known, with their rows, int64 [chunks]."""
        data = " ".join(chunks).encode("utf-8", "surrogatepass")
        with self._lock:
            _library().chunk_table_add(
                self._table, data, _size(data), _pointer(_classes()), _pointer(rows)
            )

    def expand(
        self, rows: np.ndarray, ids: np.ndarray, starts: np.ndarray, *, break_row: int
    ) -> Sentences:
        """Return the ids of rows of chunks, int32 [chunks], as sentences, which are separated by `break_row`.

        Args:
            rows: Rows; row r has the ids ``ids[starts[r]:starts[r + 1]]``.
            ids: Ids, int32.
            starts: First id of each row, int64 [more than any row].
            break_row: A row without ids.
        """
        lengths = np.empty(np.count_nonzero(rows == break_row) + 1, dtype=np.int64)
        arguments = (
            _pointer(rows),
            ctypes.c_int64(len(rows)),
            ctypes.c_int32(break_row),
            _pointer(ids),
            _pointer(starts),
        )
        all_ids = np.empty(0, dtype=np.int32)
        num_ids = 2 * len(rows)  # hardly any text has more
        while num_ids > len(all_ids):
            all_ids = np.empty(num_ids, dtype=np.int32)
            size = ctypes.c_int64(len(all_ids))
            num_ids = _library().chunk_table_expand(
                *arguments, _pointer(all_ids), size, _pointer(lengths)
            )
        return Sentences(all_ids[:num_ids], lengths)


@lru_cache
def _library() -> ctypes.CDLL:
    library = try_load("text")
    assert library is not None, "callers ask has_compiled_text first"
    library.text_hide_marks.restype = ctypes.c_int64
    library.text_join_pieces.restype = ctypes.c_int64
    library.text_tokens.restype = ctypes.c_int64
    library.chunk_table_new.restype = ctypes.c_void_p
    library.chunk_table_expand.restype = ctypes.c_int64
    return library


@lru_cache
def _classes() -> np.ndarray:
    """Return the classes of the first characters, as Python and its regular expressions have them, uint8."""
    characters = [chr(code) for code in range(_NUM_CLASSES)]
    bits = [
        _SPACE * character.isspace()
        | _WORD * (character.isalnum() or character == "_")
        | _UPPER * character.isupper()
        for character in characters
    ]
    return np.array(bits, dtype=np.uint8)


def _pointer(values: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


def _size(data: bytes) -> ctypes.c_int64:
    return ctypes.c_int64(len(data))
