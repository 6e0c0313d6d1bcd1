"""Files of pretrained word vectors: GloVe or word2vec text, fastText ``.vec``, word2vec ``.bin``, each also ``.gz``.

Only the words that are asked for are kept; the rest of the file streams by.

Word vectors counted from the corpus itself: a fixed channel where no file of vectors is at hand.

Source: Levy, Goldberg and Dagan 2015, "Improving distributional similarity with lessons learned from word embeddings":
positive pointwise mutual information, context distribution smoothed by 0.75, truncated SVD, singular values at the
power 1/2. The SVD is the randomised one of Halko, Martinsson and Tropp 2011 with two power iterations.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, Protocol

import filelock
import numpy as np
from scipy import sparse

from raysent import storage
from raysent.data.vocabulary.tokens import PAD_ID, Sentences
from raysent.data.vocabulary.words import Vocabulary
from raysent.errors import DataError

_BLOCK_BYTES = 1 << 22
_MAX_WORD_BYTES = 4_096


class WordVectors(NamedTuple):
    """Words and their vectors.

    Attributes:
        words: Distinct, in the order of the file.
        vectors: float32 [words, dim].
    """

    words: list[str]
    vectors: np.ndarray


def read_word_vectors(path: str | Path, *, words: Collection[str] | None = None) -> WordVectors:
    """Read the vectors of some words, or of all.

    A text file may begin with a line of two numbers (words, dimensions); ``.bin`` says word2vec's binary form. Of a
    word that occurs twice, the first vector counts.

    Args:
        path: The file.
        words: Words to keep; None keeps all.

    Raises:
        DataError: If the file is missing, truncated, ragged or holds a value that is not a finite number (only the
            kept words' values are looked at); with the number of the line.
    """
    path = Path(path)
    wanted = None if words is None else frozenset(words)
    read = _read_binary if path.name.removesuffix(".gz").endswith(".bin") else _read_text
    kept: dict[str, np.ndarray] = {}
    with _opened(path) as stream:
        for where, word, vector in read(path, stream, wanted):
            if not np.isfinite(vector).all():
                raise DataError(f"{where}: must hold finite numbers; given NaN or infinity for the word '{word}'")
            kept.setdefault(word, vector)
    if not kept:
        what = "any of the words asked for" if wanted is not None else "vectors"
        raise DataError(f"{path}: must hold {what}; given none; check case and format")
    return WordVectors(list(kept), np.stack(list(kept.values())))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacked, with one line for whatever is wrong with it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream  # type: ignore[misc]  # GzipFile reads like any other, but typeshed does not say so.
    except FileNotFoundError:
        raise DataError(f"{path}: no such file of word vectors") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or not gzip ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read_text(path: Path, stream: IO[bytes], wanted: frozenset[str] | None) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield place, word and vector of each wanted line of a text file."""
    dim = num_words = None
    number = num_read = 0
    for number, line in enumerate(stream, start=1):
        fields = line.rstrip()
        if number == 1 and (header := _header(fields)):
            num_words, dim = header
            continue
        where = f"{path}:{number}"
        if dim is None:
            dim = fields.count(b" ")
        if dim < 1 or fields.count(b" ") < dim:
            _ragged(where, line, dim)
        num_read += 1
        # A word may hold spaces itself; a vector never does.
        word = _decoded(fields.rsplit(b" ", dim)[0] if fields.count(b" ") > dim else fields.split(b" ", 1)[0])
        if b" " in fields and " " in word and _is_number(word.rsplit(" ", 1)[1]):
            _ragged(where, line, dim)
        if wanted is None or word in wanted:
            yield where, word, _numbers(where, fields, dim)
    if num_words is not None and num_read < num_words:
        raise DataError(f"{path}:{number}: truncated: must hold {num_words} words; given {num_read}; fetch it again")


def _header(fields: bytes) -> tuple[int, int] | None:
    """Return words and dimensions if the line is a header."""
    parts = fields.split()
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else None


def _ragged(where: str, line: bytes, dim: int) -> NoReturn:
    torn = "" if line.endswith(b"\n") else "; the file ends here: is it truncated?"
    given = max(len(line.split()) - 1, 0)
    raise DataError(f"{where}: must be a word and {max(dim, 1)} numbers; given {given} numbers{torn}")


def _decoded(word: bytes) -> str:
    # GoogleNews and its like hold a few torn words, which no text can ask for.
    return word.decode("utf-8", errors="replace")


def _is_number(text: str) -> bool:
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


def _read_binary(path: Path, stream: IO[bytes], wanted: frozenset[str] | None) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield place, word and vector of each wanted word of word2vec's binary form."""
    header = _header(stream.readline(_MAX_WORD_BYTES).rstrip())
    if header is None or header[1] < 1:
        raise DataError(f"{path}:1: must begin with the number of words and of dimensions; is it word2vec's .bin?")
    num_words, dim = header
    data, start = b"", 0
    for index in range(num_words):
        where = f"{path}: word {index + 1}"
        end = data.find(b" ", start)
        while end < 0 or end + 1 + 4 * dim > len(data):
            more = stream.read(_BLOCK_BYTES)
            if not more:
                raise DataError(f"{where}: truncated: must hold {num_words} words; given {index}; fetch it again")
            data, start = data[start:] + more, 0
            end = data.find(b" ")
        word = _decoded(data[start:end].lstrip(b"\n"))
        start = end + 1 + 4 * dim
        if wanted is None or word in wanted:
            yield where, word, np.frombuffer(data, dtype="<f4", count=dim, offset=end + 1).astype(np.float32)


_WINDOW = 5
_SMOOTHING = 0.75
_NUM_CONTEXTS = 10_000  # The most frequent words; rarer ones add memory and little else.
_MAX_TOKENS = 10_000_000
_BLOCK_SENTENCES = 20_000
_OVERSAMPLING = 16
_NUM_POWER_ITERATIONS = 2


class CountedSplit(Protocol):
    """The sentences to count in."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""

    def __len__(self) -> int: ...

    def sentences(self, start: int, stop: int) -> Sentences:
        """Return the sentences `start` to `stop` (excluded)."""


class CountedCorpus(Protocol):
    """What is needed of a corpus, without knowing how one is corpus."""

    folder: Path

    @property
    def vocabulary(self) -> Vocabulary:
        """The words that have an id."""

    @property
    def train(self) -> CountedSplit:
        """The training sentences."""


def corpus_word_vectors(corpus: CountedCorpus, *, dim: int, seed: int) -> np.ndarray:
    """Return vectors counted from the training sentences; kept beside the corpus.

    Of a corpus of more than 10 million tokens, evenly spaced blocks of that many are counted.

    Args:
        corpus: A prepared corpus.
        dim: Length of a vector.
        seed: Of the SVD's random start.

    Returns:
        float32 [vocabulary, dim], scaled so that all values of the words have variance 1; the padding's row is 0.

    Raises:
        DataError: If the vocabulary has fewer words than the vectors have dimensions.
    """
    if dim > len(corpus.vocabulary):
        raise DataError(
            f"embedding.vectors: 'ppmi' with {dim} dimensions must have as many words; given {len(corpus.vocabulary)}"
            " in the vocabulary; lower embedding.dim"
        )
    file = corpus.folder / f"ppmi-{dim}-{seed}.npz"
    # The workers of a node ask for the same vectors at once: one counts, the others wait.
    with storage.storage_errors(file), filelock.FileLock(file.with_suffix(".lock")):
        if file.is_file():
            return storage.load_arrays(file)["vectors"]
        counts = _count_pairs(corpus.train, len(corpus.vocabulary))
        vectors = _factorize(_positive_information(counts), dim, np.random.default_rng(seed))
        vectors[PAD_ID] = 0
        vectors /= max(float(vectors[PAD_ID + 1 :].std()), 1e-12)
        storage.save_arrays(file, {"vectors": vectors})
    return vectors


def _count_pairs(split: CountedSplit, num_words: int) -> Any:
    """Return how often a context stands near a word, weighted 1/distance: sparse [vocabulary, contexts]."""
    num_contexts = min(num_words, _NUM_CONTEXTS)
    counts = sparse.csr_matrix((num_words, num_contexts), dtype=np.float32)
    blocks = range(0, len(split), _BLOCK_SENTENCES)
    stride = -(-split.num_tokens // _MAX_TOKENS)
    for start in blocks[::stride]:
        counts = counts + _block_pairs(split.sentences(start, min(start + _BLOCK_SENTENCES, len(split))), counts.shape)
    return counts


def _block_pairs(sentences: Sentences, shape: tuple[int, int]) -> Any:
    """Return the pairs of one block, both ways."""
    ids = sentences.ids
    sentence = np.repeat(np.arange(len(sentences.lengths)), sentences.lengths)
    total = sparse.csr_matrix(shape, dtype=np.float32)
    for distance in range(1, min(_WINDOW, len(ids) - 1) + 1):
        same = sentence[:-distance] == sentence[distance:]
        left, right = ids[:-distance][same], ids[distance:][same]
        rows, columns = np.concatenate([left, right]), np.concatenate([right, left])
        inside = columns < shape[1]
        values = np.full(int(inside.sum()), 1 / distance, dtype=np.float32)
        total = total + sparse.csr_matrix((values, (rows[inside], columns[inside])), shape=shape)
    return total


def _positive_information(counts: Any) -> Any:
    """Return max(0, log p(word, context) / (p(word) p(context))) with smoothed contexts, sparse."""
    pairs = counts.tocoo()
    words = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    contexts = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel() ** _SMOOTHING
    ratio = pairs.data * contexts.sum() / (words[pairs.row] * contexts[pairs.col])
    information = np.maximum(np.log(ratio), 0).astype(np.float32)
    positive = sparse.csr_matrix((information, (pairs.row, pairs.col)), shape=counts.shape)
    positive.eliminate_zeros()
    return positive


def _factorize(matrix: Any, dim: int, generator: np.random.Generator) -> np.ndarray:
    """Return U S^(1/2) of the leading singular vectors, float32 [rows, dim]; 0 beyond the matrix's rank."""
    rank = min(dim + _OVERSAMPLING, *matrix.shape)
    basis = matrix @ generator.standard_normal((matrix.shape[1], rank), dtype=np.float32)
    for _ in range(_NUM_POWER_ITERATIONS):
        basis = matrix @ (matrix.T @ np.linalg.qr(basis)[0])
    basis = np.linalg.qr(basis)[0]
    left, singular, _ = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
    vectors = np.zeros((matrix.shape[0], dim), dtype=np.float32)
    kept = min(dim, rank)
    vectors[:, :kept] = (basis @ left[:, :kept]) * np.sqrt(singular[:kept])
    return vectors
