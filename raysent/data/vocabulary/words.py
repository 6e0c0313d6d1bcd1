"""The vocabulary: tokens <-> ids.

`Vocabulary` has an id for each word, `SubwordVocabulary` the sub-words of a tokenizer, which reads whole sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from raysent import storage
from raysent.config import StrictModel
from raysent.data.unicode_form import OF_EARLIER, OF_NEW, UnicodeForm
from raysent.data.vocabulary.tokens import (
    PAD_WORD,
    SURROGATE,
    UNK_ID,
    UNK_WORD,
    ChunkTable,
    as_rows,
    tokenize,
)
from raysent.errors import ArtifactError, ConfigError
from raysent.kernels.ragged import Sentences
from raysent.reading import read_text

# Far more than 20 million words; the list of words takes several times the size of the file.
_MAX_FILE_BYTES = 1 << 28
# The first line of a file of sub-words; the second is the content of `tokenizer.json`.
_SUBWORDS_HEAD = "#tokenizer of sentences"
_TOKENIZER_FILE = "tokenizer.json"
_MASKS = ("[MASK]", "<mask>")
# Of chunks of text whose sub-words are kept.
_MAX_TABLE_BYTES = 64 << 20


VocabularyType = Literal["words", "subwords", "auto"]

# The first line of a file of words, by `lowercase` and form; a version without a form wrote none.
_HEADS: dict[tuple[bool, UnicodeForm], str] = {
    (False, OF_EARLIER): "#lowercase=false",
    (True, OF_EARLIER): "#lowercase=true",
    (False, "NFC"): "#lowercase=false unicode_form=NFC",
    (True, "NFC"): "#lowercase=true unicode_form=NFC",
}


class VocabularyConfig(StrictModel):
    """Which words or sub-words have an id of their own.

    Attributes:
        type: ``subwords`` are trained on the text, and leave nothing unknown. ``auto`` takes them where text writes no
            blanks, or where words would leave more than 2 % of the tokens of held-out text unknown; else words.
        size: Maximum number of ids, including the unknown word and the padding.
        min_count: Minimum frequency; rarer words are unknown, rarer characters are read as bytes.
        lowercase: Whether to lowercase tokens.
        unicode_form: The form of Unicode in which words are read: composed, or as they are written, as runs that an
            earlier version began do.
    """

    type: VocabularyType = "words"
    size: int = Field(default=50_000, ge=3)
    min_count: int = Field(default=1, ge=1)
    lowercase: bool = False
    unicode_form: UnicodeForm = OF_NEW

    @property
    def key_values(self) -> dict[str, Any]:
        """What the ids of a text depend on, as plain values for a key; those of words are as before sub-words.

        The form of Unicode is part of the text's own key.
        """
        if self.type == "words":
            return self.model_dump(exclude={"type", "unicode_form"})
        # Version 2 marks where words begin.
        return {**self.model_dump(exclude={"unicode_form"}), "version": 2}


class Vocabulary:
    """The words that have an id, in the order of their ids.

    Args:
        words: ``<pad>``, ``<unk>``, then words by decreasing frequency, ties in alphabetical order.
        lowercase: Whether tokens are lowercased before look-up.
        unicode_form: The form of Unicode in which text is read; that of the words.

    Attributes:
        words: The words; ``words[id]`` is the word of an id.
        lowercase: Whether tokens are lowercased before look-up.
        unicode_form: The form of Unicode in which text is read; sub-words have rules of their own, and read text as it
            is written.
        unknown_id: The id of a token that has none of its own.
        mask_id: The id that stands for a hidden word: of the tokenizer's mask, else of the unknown word.
        special_ids: The ids of what is no word of a text.
        has_padding: Whether the first two ids are the padding and the unknown word, and occur in no known word.
    """

    unknown_id: int = UNK_ID
    mask_id: int = UNK_ID
    special_ids: frozenset[int] = frozenset(range(UNK_ID + 1))
    has_padding: bool = True

    def __init__(
        self,
        words: Sequence[str],
        *,
        lowercase: bool = False,
        unicode_form: UnicodeForm = OF_NEW,
    ) -> None:
        self.words = list(words)
        self.lowercase = lowercase
        self.unicode_form: UnicodeForm = unicode_form
        if self.words[:2] != [PAD_WORD, UNK_WORD]:
            raise ArtifactError(
                f"vocabulary: must start with {PAD_WORD} and {UNK_WORD}; given {self.words[:2]}"
            )
        self._index = {word: index for index, word in enumerate(self.words)}
        self._table = ChunkTable(self.id, unicode_form=unicode_form)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[Any, ...]]:
        make = partial(Vocabulary, lowercase=self.lowercase, unicode_form=self.unicode_form)
        return make, (self.words,)

    def tokenize(self, sentences: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each sentence, lowercased if the vocabulary is."""
        rows = [tokenize(sentence, unicode_form=self.unicode_form) for sentence in sentences]
        if self.lowercase:
            return [[token.lower() for token in row] for row in rows]
        return rows

    def ids(self, sentences: Sequence[str], *, max_length: int) -> Sentences:
        """Return the ids of sentences; any number of threads may call this at the same time.

        Args:
            sentences: Text [batch]; any string, see `tokens`.
            max_length: Maximum number of tokens of a sentence; longer ones are truncated.

        Returns:
            Rows of at least one id; a sentence without a known word is a single UNK_ID.
        """
        return as_rows(self._table.encode(sentences), max_length=max_length)

    def id(self, token: str) -> int:
        """Return the id of a token, or UNK_ID if it has none."""
        # Lowercase only here: the tokenizer recognizes abbreviations by their case.
        return self._index.get(token.lower() if self.lowercase else token, UNK_ID)

    @property
    def key_values(self) -> dict[str, Any]:
        """What the ids of a text depend on, as plain values for a key."""
        return {"words": self.words, "lowercase": self.lowercase}

    def save(self, path: Path) -> None:
        """Write one word per line, after a first line that records `lowercase` and, where it has one, the form."""
        head = _HEADS[self.lowercase, self.unicode_form]
        storage.write_text(path, "\n".join([head, *self.words]) + "\n")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a file that `save` wrote, of words or of sub-words.

        Raises:
            ArtifactError: If the file is missing, truncated, of another kind, or larger than 256 MiB.
        """
        lines = read_text(path, max_bytes=_MAX_FILE_BYTES).replace("\r\n", "\n").split("\n")
        head, *words, end = lines if len(lines) > 1 else ["", ""]
        if head == _SUBWORDS_HEAD and len(words) == 1 and not end:
            return SubwordVocabulary(words[0], source=path)
        options = {recorded_head: form for form, recorded_head in _HEADS.items()}.get(head)
        if end or options is None or words[:2] != [PAD_WORD, UNK_WORD]:
            raise ArtifactError(f"{path}: truncated or not a vocabulary; restore it or train again")
        # A file of word vectors may have vectors for these two.
        counts = Counter(word for word in words if word not in (PAD_WORD, UNK_WORD))
        word, count = next(iter(counts.most_common(1)), ("", 0))
        if count > 1:
            raise ArtifactError(
                f"{path}: must name each word once; given {count} times '{word}'; restore it"
            )
        lowercase, unicode_form = options
        return cls(words, lowercase=lowercase, unicode_form=unicode_form)


class _SubwordTable(ChunkTable):
    """Reads each distinct chunk between white space once, where a tokenizer reads nothing across it."""

    def __init__(
        self, rows: Callable[[Sequence[str]], list[list[int]]], *, is_compiled: bool = False
    ) -> None:
        # The tokenizer has a normalization of its own.
        super().__init__(
            len, max_bytes=_MAX_TABLE_BYTES, is_compiled=is_compiled, unicode_form="as_written"
        )
        self._rows = rows

    def _ids(self, chunks: list[str], sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        del sizes
        sentences = _as_sentences(self._rows(chunks))
        return sentences.ids, sentences.lengths


def _as_sentences(rows: Sequence[Sequence[int]]) -> Sentences:
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return Sentences(
        np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum())), lengths
    )


class SubwordVocabulary(Vocabulary):
    """The sub-words of a tokenizer of the `tokenizers` library, which reads whole sentences.

    A sentence is read as its text is written, and begins and ends with the tokenizer's special tokens, if it has any; a
    longer one is truncated before the last of them.

    Args:
        tokenizer: The content of `tokenizer.json`.
        source: Its file, for messages.
    """

    def __init__(self, tokenizer: str, *, source: Path | str = _TOKENIZER_FILE) -> None:
        # Not super().__init__: the first ids are the tokenizer's, and no table of words is needed.
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer)
        except Exception as error:  # the library raises Exception itself
            raise ArtifactError(
                f"{source}: not a tokenizer: {' '.join(str(error).split())}"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        num_ids = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        self.words = [self._tokenizer.id_to_token(word) or "" for word in range(num_ids)]
        self.lowercase = False
        self.unicode_form = "as_written"
        self._index = {word: index for index, word in enumerate(self.words)}
        encoded = self._tokenizer.encode("a")
        is_special = encoded.special_tokens_mask
        own_words = [position for position, special in enumerate(is_special) if not special]
        self._start: list[int] = []
        self._end: list[int] = []
        if own_words:
            self._start = encoded.ids[: own_words[0]]
            self._end = encoded.ids[own_words[-1] + 1 :]
        # Those of `train_subwords`. Where a text can name the padding, as an added token, it is none.
        is_own = not self._tokenizer.get_added_tokens_decoder() and not self.num_special
        self.has_padding = is_own and self.words[:2] == [PAD_WORD, UNK_WORD]
        self._table = _SubwordTable(self._rows)
        unknown = next((word for word in ("[UNK]", UNK_WORD) if word in self._index), None)
        self.unknown_id = 0 if unknown is None else self._index[unknown]
        self.mask_id = next(
            (self._index[word] for word in _MASKS if word in self._index), self.unknown_id
        )
        padding = self.special_ids if self.has_padding else ()
        self.special_ids = frozenset(
            (*padding, *self._start, *self._end, self.unknown_id, self.mask_id)
        )

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[Any, ...]]:
        return SubwordVocabulary, (self._tokenizer.to_str(),)

    def compile(self) -> None:
        """Read text by the compiled kernel from now on, if there is a compiler: for large texts. The ids are equal."""
        self._table = _SubwordTable(self._rows, is_compiled=True)

    @property
    def num_special(self) -> int:
        """Special tokens that the tokenizer adds to each sentence."""
        return len(self._start) + len(self._end)

    def tokenize(self, sentences: Sequence[str]) -> list[list[str]]:
        """Return the sub-words of each sentence, without special tokens."""
        return [[self.words[part] for part in row] for row in self._rows(sentences)]

    def ids(self, sentences: Sequence[str], *, max_length: int) -> Sentences:
        """Return the ids of sentences; any number of threads may call this at the same time.

        Args:
            sentences: Text [batch]; any string.
            max_length: Maximum number of sub-words of a sentence, special ones included; longer ones are truncated.

        Returns:
            Rows of at least one id; a sentence without a sub-word has the special ones, or a single unknown one.

        Raises:
            ConfigError: If `max_length` has no room beside the special ones.
        """
        room = max_length - self.num_special
        if room < 1:
            raise ConfigError(
                f"max_length: must be more than the {self.num_special} special sub-words; given {max_length}"
            )
        if self.has_padding:
            return as_rows(self._table.encode(sentences), max_length=max_length)
        return _as_sentences(
            [
                self._start + row[:room] + self._end or [self.unknown_id]
                for row in self._rows(sentences)
            ]
        )

    def _rows(self, sentences: Sequence[str]) -> list[list[int]]:
        # A lone surrogate is no text for the tokenizer.
        texts = [
            sentence if sentence.isascii() else SURROGATE.sub("\ufffd", sentence)
            for sentence in sentences
        ]
        return [
            encoded.ids
            for encoded in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def id(self, token: str) -> int:
        """Return the id of a sub-word, or `unknown_id`."""
        return self._index.get(token, self.unknown_id)

    @property
    def tokenizer(self) -> Tokenizer:
        """A copy of the tokenizer."""
        return Tokenizer.from_str(self._tokenizer.to_str())

    @property
    def key_values(self) -> dict[str, Any]:
        """What the ids of a text depend on, as plain values for a key."""
        return {"tokenizer": self._tokenizer.to_str()}

    def save(self, path: Path) -> None:
        """Write a first line that names the kind, and the tokenizer in one line."""
        storage.write_text(path, f"{_SUBWORDS_HEAD}\n{self._tokenizer.to_str()}\n")


# Words leave a larger share of held-out text unknown: `auto` takes sub-words.
MAX_UNKNOWN_SHARE = 0.02


def build_vocabulary(counts: Iterable[tuple[str, int]], config: VocabularyConfig) -> Vocabulary:
    """Return the vocabulary of the most frequent words.

    Args:
        counts: Every distinct word, case preserved, and its frequency.
        config: Size, minimum frequency and case.
    """
    totals: dict[str, int] = {}
    for word, count in counts:
        key = word.lower() if config.lowercase else word
        totals[key] = totals.get(key, 0) + count
    totals.pop(UNK_WORD, None)
    num_words = config.size - 2
    # The frequency of the last word: only words that can be among the first need an order.
    last_count = sorted(totals.values(), reverse=True)[:num_words][-1:]
    frequent_words = [
        word for word, count in totals.items() if count >= max(config.min_count, *last_count)
    ]
    frequent_words.sort(key=lambda word: (-totals[word], word))
    return Vocabulary(
        [PAD_WORD, UNK_WORD, *frequent_words[:num_words]],
        lowercase=config.lowercase,
        unicode_form=config.unicode_form,
    )
