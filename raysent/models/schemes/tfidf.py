"""`tfidf` and `tfidf:chars`: words or characters weighted by TF-IDF, the baseline that any encoder should beat.

It has no vectors of a fixed size: a task's own texts decide its vocabulary. So it answers tasks, as a model or as a
member of an ensemble, and compares pairs of texts; it cannot encode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from raysent.data.languages import unspaced_language
from raysent.data.unicode_form import OF_EARLIER, OF_NEW, UnicodeForm, in_form
from raysent.errors import ConfigError, did_you_mean
from raysent.models.sentence_encoder import WithoutVectors
from raysent.storage import content_key

if TYPE_CHECKING:
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

FORM = "tfidf[:chars]"

# Words and pairs of words; or parts of words.
_ANALYZERS = ("words", "chars")
# Characters of a part at most. Of text that writes no blanks between words, whose words are shorter, parts have to be
# in two texts: those of a single row, of which a clause has hundreds, teach nothing of others and take most time.
_LONGEST_PART, _LONGEST_UNSPACED_PART = 4, 3
_UNSPACED_MIN_DF = 2
# Changes whenever predictions may change.
_VERSION = 6


def label(rest: str) -> str:
    """Return the name itself."""
    return "tfidf" if _analyzer(rest) == "words" else f"tfidf:{rest}"


def key(rest: str) -> str:
    """Return a key of the name, which determines the predictions of a task."""
    return content_key(_VERSION, f"tfidf:{_analyzer(rest)}")


def load(rest: str) -> LexicalModel:
    """Return the model.

    Raises:
        ConfigError: If there is no such model.
    """
    return LexicalModel(_analyzer(rest))


def _analyzer(rest: str) -> str:
    name = rest or "words"
    if name not in _ANALYZERS:
        raise ConfigError(f"tfidf:{rest}: unknown form of tfidf{did_you_mean(rest, _ANALYZERS)}")
    return name


class Vectorizer(Protocol):
    """What weighs the words of texts, fitted: scikit-learn's `TfidfVectorizer`, or `SavedVectorizer`.

    Attributes:
        vocabulary_: Word -> its column.
        idf_: The weights of words, float64 [words].
        min_df: In how many texts a word has to be.
    """

    vocabulary_: Mapping[str, int]
    idf_: npt.NDArray[np.float64]
    min_df: int

    def build_analyzer(self) -> Callable[[str], list[str]]:
        """Return what reads the words of a text, each as often as it occurs."""

    def transform(self, raw_documents: Sequence[str]) -> sparse.csr_matrix:
        """Return vectors of unit length, sparse float64 [texts, words]; of a text without a known word zero."""


class SavedVectorizer:
    """The words of a record with their weights: the vectors are those of the `TfidfVectorizer` that was fitted.

    It does without scikit-learn, whose import takes longer than to predict thousands of rows.

    Attributes:
        vocabulary_: As of `Vectorizer`, like the others.
        idf_: The weights.
        min_df: The least texts with a word.
    """

    def __init__(
        self, model: LexicalModel, words: Sequence[str], idf: npt.NDArray[np.float64]
    ) -> None:
        """Take what reads texts, the words in the order of their columns, and their weights [words]."""
        self._model = model
        self.vocabulary_: Mapping[str, int] = {word: column for column, word in enumerate(words)}
        self.idf_ = idf
        self.min_df = model.min_df

    def build_analyzer(self) -> Callable[[str], list[str]]:
        """Return what reads the words of a text."""
        return self._model.words_of

    def transform(self, raw_documents: Sequence[str]) -> sparse.csr_matrix:
        """Return vectors of unit length, sparse float64 [texts, words]; of a text without a known word zero."""
        from scipy import sparse  # noqa: PLC0415 - a tenth of a second for every process that loads a model

        columns: list[int] = []
        counts: list[int] = []
        ends = [0]
        for text in raw_documents:
            for word, count in Counter(self._model.words_of(text)).items():
                column = self.vocabulary_.get(word)
                if column is not None:
                    columns.append(column)
                    counts.append(count)
            ends.append(len(columns))
        weights = (np.log(counts) + 1) * self.idf_[columns] if columns else np.empty(0)
        shape = (len(raw_documents), len(self.idf_))
        vectors = sparse.csr_matrix((weights, columns, ends), shape=shape)
        vectors.sort_indices()
        lengths = np.sqrt(np.asarray(vectors.multiply(vectors).sum(axis=1)).ravel())
        vectors.data /= np.repeat(lengths, np.diff(vectors.indptr))
        return vectors


class LexicalModel(WithoutVectors):
    """A model whose features are those of a task's own texts.

    Attributes:
        analyzer: ``words`` or ``chars``.
        is_unspaced: Whether its texts write no blanks between words; see `of`.
        unicode_form: The form of Unicode in which it reads text.
    """

    def __init__(
        self, analyzer: str, *, is_unspaced: bool = False, unicode_form: UnicodeForm = OF_NEW
    ) -> None:
        """Make a model of words or characters."""
        self.analyzer = analyzer
        self.is_unspaced = is_unspaced
        self.unicode_form: UnicodeForm = unicode_form

    def of(self, texts: Sequence[str]) -> LexicalModel:
        """Return the model of a task's texts: characters of text without blanks are read as fewer parts."""
        is_unspaced = self.analyzer == "chars" and unspaced_language(texts) is not None
        return LexicalModel(self.analyzer, is_unspaced=is_unspaced, unicode_form=self.unicode_form)

    def vectorizer(self) -> TfidfVectorizer:
        """Return a vectorizer of these words or characters, not fitted."""
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - it takes seconds to import, and most commands do without

        return TfidfVectorizer(analyzer=self.words_of, sublinear_tf=True, min_df=self.min_df)

    @property
    def min_df(self) -> int:
        """In how many texts a word has to be."""
        return _UNSPACED_MIN_DF if self.is_unspaced else 1

    def words_of(self, text: str) -> list[str]:
        """Return the words and pairs of words of a text, or the parts of its words, each as often as it occurs."""
        words = in_form(text, self.unicode_form).lower().split()
        if self.analyzer == "words":
            return words + [f"{first} {second}" for first, second in pairwise(words)]
        longest = _LONGEST_UNSPACED_PART if self.is_unspaced else _LONGEST_PART
        return [part for word in words for part in _parts(f" {word} ", longest)]

    @property
    def cannot_encode(self) -> str:
        """Why it has no vectors."""
        return (
            "tfidf: cannot encode, as it has no vectors of a fixed size; it answers tasks: use it with evaluate, or as "
            "a member of an ensemble, which predicts"
        )

    def restored(self, arrays: Mapping[str, np.ndarray]) -> SavedVectorizer:
        """Return a fitted vectorizer from its `words`, UTF-8 bytes with one a line, and their weights `idf` [words].

        An array `is_unspaced` says that its texts write no blanks, and an array `reads_nfc` that they were composed.
        """
        model = LexicalModel(
            self.analyzer,
            is_unspaced="is_unspaced" in arrays,
            unicode_form="NFC" if "reads_nfc" in arrays else OF_EARLIER,
        )
        words = bytes(arrays["words"].tobytes()).decode().split("\n")
        return SavedVectorizer(model, words, arrays["idf"].astype(np.float64))


def _parts(word: str, longest: int) -> Iterator[str]:
    """Yield the parts of a word of one character up to so many; a shorter word itself is the last of them."""
    for size in range(1, longest + 1):
        if size >= len(word):
            yield word
            return
        for start in range(len(word) - size + 1):
            yield word[start : start + size]
