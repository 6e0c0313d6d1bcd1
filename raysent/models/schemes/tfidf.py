"""`tfidf` and `tfidf:chars`: words or characters weighted by TF-IDF, the baseline that any encoder should beat.

It has no vectors of a fixed size: a task's own texts decide its vocabulary. So it answers tasks, as a model or as a
member of an ensemble, and compares pairs of texts; it cannot encode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from raysent.data.languages import unspaced_language
from raysent.data.unicode_form import OF_EARLIER, OF_NEW, UnicodeForm, in_form
from raysent.errors import ConfigError, did_you_mean
from raysent.models.sentence_encoder import WithoutVectors
from raysent.storage import content_key

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

FORM = "tfidf[:chars]"

# Words and pairs of words; or parts of words, of one to four characters.
_ANALYZERS = {
    "words": {"analyzer": "word", "ngram_range": (1, 2), "token_pattern": r"\S+"},
    "chars": {"analyzer": "char_wb", "ngram_range": (1, 4)},
}
# Of text that writes no blanks between words, whose words are shorter: parts of a single row, of which a clause has
# hundreds, teach nothing of others and took most of the time.
_UNSPACED = {"ngram_range": (1, 3), "min_df": 2}
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


def _read(text: str, *, unicode_form: UnicodeForm) -> str:
    """Return a text as words and characters are counted in it."""
    return in_form(text, unicode_form).lower()


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

    def vectorizer(self, vocabulary: dict[str, int] | None = None) -> TfidfVectorizer:
        """Return a vectorizer of these words or characters, not fitted."""
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415 - it takes seconds to import, and most commands do without

        options = {**_ANALYZERS[self.analyzer], **(_UNSPACED if self.is_unspaced else {})}
        read = partial(_read, unicode_form=self.unicode_form)
        return TfidfVectorizer(
            preprocessor=read, sublinear_tf=True, vocabulary=vocabulary, **options
        )

    @property
    def cannot_encode(self) -> str:
        """Why it has no vectors."""
        return (
            "tfidf: cannot encode, as it has no vectors of a fixed size; it answers tasks: use it with evaluate, or as "
            "a member of an ensemble, which predicts"
        )

    def restored(self, arrays: Mapping[str, np.ndarray]) -> TfidfVectorizer:
        """Return a fitted vectorizer from its `words`, UTF-8 bytes with one a line, and their weights `idf` [words].

        An array `is_unspaced` says that its texts write no blanks, and an array `reads_nfc` that they were composed.
        """
        model = LexicalModel(
            self.analyzer,
            is_unspaced="is_unspaced" in arrays,
            unicode_form="NFC" if "reads_nfc" in arrays else OF_EARLIER,
        )
        words = bytes(arrays["words"].tobytes()).decode().split("\n")
        vectorizer = model.vectorizer({word: place for place, word in enumerate(words)})
        vectorizer.idf_ = arrays["idf"].astype(np.float64)
        return vectorizer
