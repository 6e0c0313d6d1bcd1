"""Files of pretrained word vectors: GloVe or word2vec text, fastText ``.vec``, word2vec ``.bin``, each also ``.gz``.

Files are streamed, and only the requested words are kept. A large file is parsed once: its vectors then lie in the
cache, memory-mapped, so that the next run reads the rows of its words alone.

A vocabulary is expanded by a linear map from pretrained vectors to a trained table, v' = W v + b, by least squares over
the shared words.

Source of the map: Kiros et al., 2015, section 2.2, and the released code, whose regression has the intercept b.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from raysent.data.corpus.cache import build_once
from raysent.data.text_files import open_bytes, reading_errors
from raysent.data.unicode_form import OF_EARLIER, OF_NEW, UnicodeForm, in_form, is_in_form
from raysent.data.vocabulary.tokens import UNK_ID
from raysent.data.vocabulary.words import Vocabulary
from raysent.errors import DataError
from raysent.storage import cache_folder, content_key, write_text

Float32 = npt.NDArray[np.float32]

_BLOCK_BYTES = 1 << 22
_MAX_WORD_BYTES = 4_096
# A smaller file is parsed in a few seconds at most.
_CACHED_BYTES = 64 << 20
_CACHE_FORMAT = 1
_WORDS_FILE = "words.txt"
_VALUES_FILE = "values.npy"
_MAX_DIGITS = 18
_MAX_DIM = 1 << 20


class WordVectors(NamedTuple):
    """Words and their vectors.

    Attributes:
        words: Distinct words, in the order of the file.
        vectors: One row per word, float32 [words, dim].
    """

    words: list[str]
    vectors: np.ndarray


def read_word_vectors(
    path: str | Path,
    *,
    words: Collection[str] | None = None,
    unicode_form: UnicodeForm = OF_NEW,
) -> WordVectors:
    """Read the vectors of some words, or of all; those of a large file from the cache, which the first call fills.

    A text file may start with a line of two numbers (words, dimensions); ``.bin`` is word2vec's binary format. If a
    word occurs twice, its first vector is used.

    Args:
        path: The file.
        words: Words to keep; None keeps all.
        unicode_form: The form of Unicode in which the file's words are read.

    Raises:
        DataError: If the file is missing, truncated or ragged, or a value of a kept word is not finite; with the line.
    """
    path = Path(path)
    wanted = None if words is None else frozenset(words)
    vectors = _cached(path)
    if vectors is not None:
        vectors = _first_of_each(vectors, wanted, unicode_form)
        # The file itself is read again to name the place of a wrong value.
        if vectors.words and np.isfinite(vectors.vectors).all():
            return vectors
    return _streamed(path, wanted, unicode_form)


def _first_of_each(
    vectors: WordVectors, wanted: frozenset[str] | None, unicode_form: UnicodeForm
) -> WordVectors:
    """Return the first vector of each wanted word, whose words are read in a form of Unicode."""
    if wanted is None and all(is_in_form(word, unicode_form) for word in vectors.words):
        return vectors
    rows: dict[str, int] = {}
    for row, written in enumerate(vectors.words):
        word = in_form(written, unicode_form)
        if wanted is None or word in wanted:
            rows.setdefault(word, row)
    return WordVectors(list(rows), np.array(vectors.vectors[list(rows.values())]))


def _streamed(path: Path, wanted: frozenset[str] | None, unicode_form: UnicodeForm) -> WordVectors:
    read = _reader_of(path)
    vectors: dict[str, np.ndarray] = {}
    with reading_errors(str(path)), open_bytes(str(path)) as stream:
        for where, word, vector in read(path, stream, _Wanted(wanted, unicode_form)):
            if not np.isfinite(vector).all():
                raise DataError(
                    f"{where}: must hold finite numbers; given NaN or infinity for the word '{word}'"
                )
            vectors.setdefault(word, vector)
    if not vectors:
        missing = "vectors"
        if wanted is not None:
            missing = "vectors of the requested words"
        raise DataError(f"{path}: must hold {missing}; given none; check case and format")
    return WordVectors(list(vectors), np.stack(list(vectors.values())))


def _cached(path: Path) -> WordVectors | None:
    """Return all vectors of a large file, memory-mapped, or None if it is small or cannot be parsed as a whole."""
    try:
        about = path.stat()
    except OSError:
        return None
    if about.st_size < _CACHED_BYTES:
        return None
    key = content_key(_CACHE_FORMAT, str(path.resolve()), about.st_size, about.st_mtime_ns)
    try:
        folder = build_once(
            cache_folder(), f"vectors/{key}", partial(_parse, path), is_shared=False
        )
    except DataError:  # reading the wanted words alone may still succeed, and names the line if not
        return None
    words = (folder / _WORDS_FILE).read_bytes().decode("utf-8").split("\n")
    return WordVectors(words, np.load(folder / _VALUES_FILE, mmap_mode="c", allow_pickle=False))


def _parse(path: Path, folder: Path) -> dict[str, Any]:
    """Write all words of a file and their vectors [words, dim] into a folder of the cache."""
    words: dict[str, None] = {}
    rows = folder / "rows"
    dim = 0
    with reading_errors(str(path)), open_bytes(str(path)) as stream, rows.open("wb") as out:
        # As they are written: a reader may want another form.
        for _, word, vector in _reader_of(path)(path, stream, _Wanted(None, OF_EARLIER)):
            if word not in words and "\n" not in word:
                words[word] = None
                dim = len(vector)
                out.write(vector.astype(np.float32).tobytes())
    if not words:
        raise DataError(f"{path}: must hold vectors; given none")
    np.save(
        folder / _VALUES_FILE, np.memmap(rows, dtype=np.float32, mode="r", shape=(len(words), dim))
    )
    rows.unlink()
    write_text(folder / _WORDS_FILE, "\n".join(words))
    return {"num_words": len(words)}


class _Wanted(NamedTuple):
    """Which words of a file are wanted, None for all, and the form of Unicode in which they are read."""

    words: frozenset[str] | None
    unicode_form: UnicodeForm

    def read(self, word: bytes) -> str:
        """Return a word of the file."""
        # Files such as GoogleNews contain a few words that are not valid UTF-8; no text contains such a word.
        return in_form(word.decode("utf-8", errors="replace"), self.unicode_form)

    def __contains__(self, word: object) -> bool:
        """Return whether a word that was read is wanted."""
        return self.words is None or word in self.words


def _reader_of(
    path: Path,
) -> Callable[[Path, IO[bytes], _Wanted], Iterator[tuple[str, str, np.ndarray]]]:
    if path.name.removesuffix(".gz").endswith(".bin"):
        return _read_binary
    return _read_text


def _read_text(
    path: Path, stream: IO[bytes], wanted: _Wanted
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield ``file:line``, word and vector of each wanted line of a text file."""
    num_words: int | None = None
    dim: int | None = None
    number = 0
    num_read = 0
    for number, line in enumerate(stream, start=1):
        fields = line.rstrip()
        header = _header(fields) if number == 1 else None
        if header is not None:
            num_words, dim = header
            continue
        where = f"{path}:{number}"
        if dim is None:
            dim = fields.count(b" ")
        if dim < 1 or fields.count(b" ") < dim:
            _ragged(where, line, dim)
        num_read += 1
        # The word may contain spaces; the vector has exactly `dim` fields.
        if fields.count(b" ") > dim:
            written = fields.rsplit(b" ", dim)[0]
        else:
            written = fields.split(b" ", 1)[0]
        word = wanted.read(written)
        if b" " in fields and " " in word and is_number(word.rsplit(" ", 1)[1]):
            _ragged(where, line, dim)
        if word in wanted:
            yield where, word, _numbers(where, fields, dim)
    if num_words is not None and num_read < num_words:
        raise DataError(
            f"{path}:{number}: truncated: must hold {num_words} words; given {num_read}; fetch it again"
        )


def _header(fields: bytes) -> tuple[int, int] | None:
    parts = fields.split()
    is_header = len(parts) == 2 and all(
        part.isdigit() and len(part) <= _MAX_DIGITS for part in parts
    )
    if not is_header:
        return None
    return int(parts[0]), int(parts[1])


def _ragged(where: str, line: bytes, dim: int) -> NoReturn:
    hint = "; the file ends here: is it truncated?"
    if line.endswith(b"\n"):
        hint = ""
    num_numbers = max(len(line.split()) - 1, 0)
    raise DataError(
        f"{where}: must be a word and {max(dim, 1)} numbers; given {num_numbers} numbers{hint}"
    )


def is_number(text: str) -> bool:
    """Return whether a text is a number as `float` reads it."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(where: str, fields: bytes, dim: int) -> np.ndarray:
    try:
        return np.array(fields.rsplit(b" ", dim)[1:], dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{where}: must be a word and {dim} numbers; {error}") from None


def _read_binary(
    path: Path, stream: IO[bytes], wanted: _Wanted
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield location, word and vector of each wanted word of word2vec's binary format."""
    header = _header(stream.readline(_MAX_WORD_BYTES).rstrip())
    if header is None or not 1 <= header[1] <= _MAX_DIM:
        raise DataError(
            f"{path}:1: must begin with the number of words and of dimensions; is it word2vec's .bin?"
        )
    num_words, dim = header
    buffer = b""
    start = 0
    for index in range(num_words):
        where = f"{path}: word {index + 1}"
        end = buffer.find(b" ", start)
        # A word ends at a blank, and its vector has 4 bytes a number, any of which may look like a blank.
        while end < 0 or end + 1 + 4 * dim > len(buffer):
            block = stream.read(_BLOCK_BYTES)
            if not block:
                raise DataError(
                    f"{where}: truncated: must hold {num_words} words; given {index}; fetch it again"
                )
            buffer = buffer[start:] + block
            start = 0
            end = buffer.find(b" ")
        word = wanted.read(buffer[start:end].lstrip(b"\n"))
        start = end + 1 + 4 * dim
        if word in wanted:
            numbers = np.frombuffer(buffer, dtype="<f4", count=dim, offset=end + 1)
            yield where, word, numbers.astype(np.float32)


@dataclass(frozen=True)
class LinearMap:
    """A map from one space of word vectors to another.

    Attributes:
        weight: float64 [dim of the source, dim of the target].
        intercept: float64 [dim of the target].
    """

    weight: npt.NDArray[np.float64]
    intercept: npt.NDArray[np.float64]

    def __call__(self, vectors: Float32) -> Float32:
        """Map vectors [rows, dim of the source] to float32 [rows, dim of the target]."""
        return (
            vectors @ self.weight.astype(np.float32) + self.intercept.astype(np.float32)
        ).astype(np.float32)


def fit_linear_map(sources: Float32, targets: Float32, *, has_intercept: bool = True) -> LinearMap:
    """Return the map with the least squared error.

    Args:
        sources: Pretrained vectors of the shared words [words, dim of the source].
        targets: Their vectors in the trained table [words, dim of the target].
        has_intercept: Whether to fit an intercept; the paper's text has none.
    """
    x = sources.astype(np.float64)
    y = targets.astype(np.float64)
    x_mean: np.ndarray = np.zeros(x.shape[1])
    y_mean: np.ndarray = np.zeros(y.shape[1])
    if has_intercept:
        x_mean = x.mean(axis=0)
        y_mean = y.mean(axis=0)
    weight = np.linalg.lstsq(x - x_mean, y - y_mean, rcond=None)[0]
    return LinearMap(weight, y_mean - x_mean @ weight)


def shared_words(
    vocabulary: Vocabulary, vectors: WordVectors
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the ids of the words that have a pretrained vector, and the rows of the vectors, int64 [words] each."""
    row = {word: number for number, word in enumerate(vectors.words)}
    pairs = [
        (number, row[word])
        for number, word in enumerate(vocabulary.words)
        if number > UNK_ID and word in row
    ]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def new_words(vocabulary: Vocabulary, vectors: WordVectors) -> npt.NDArray[np.int64]:
    """Return the rows of pretrained vectors whose words are not in the vocabulary, int64 [words].

    Phrases (words with ``_``) are left out; for a lowercase vocabulary, so are words with uppercase letters.
    """
    return np.array(
        [
            number
            for number, word in enumerate(vectors.words)
            if word not in vocabulary
            and "_" not in word
            and word.split() == [word]
            and not (vocabulary.lowercase and word != word.lower())
        ],
        dtype=np.int64,
    )
