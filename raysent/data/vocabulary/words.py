"""The vocabulary: tokens <-> ids.

`Vocabulary` has an id for each word, `SubwordVocabulary` the sub-words of a pretrained tokenizer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from raysent import storage
from raysent.config import StrictModel
from raysent.data.vocabulary.tokens import PAD_WORD, UNK_ID, UNK_WORD, ChunkTable, as_rows, tokenize
from raysent.errors import ArtifactError, ConfigError
from raysent.kernels.ragged import Sentences, ragged_indices
from raysent.reading import parse_json, read_text

# Far more than 20 million words; the list of words takes several times the size of the file.
_MAX_FILE_BYTES = 1 << 28
# The first line of a file of sub-words; the second is the content of `tokenizer.json`.
_SUBWORDS_HEAD = "#tokenizer"
_TOKENIZER_FILE = "tokenizer.json"
# Words whose sub-words are kept.
_MAX_KEPT_WORDS = 1 << 20


class VocabularyConfig(StrictModel):
    """Which words have an id of their own.

    Attributes:
        size: Maximum number of ids, including the unknown word and the padding.
        min_count: Minimum frequency; rarer words are unknown.
        lowercase: Whether to lowercase tokens.
    """

    size: int = Field(default=50_000, ge=3)
    min_count: int = Field(default=1, ge=1)
    lowercase: bool = False


class Vocabulary:
    """The words that have an id, in the order of their ids.

    Args:
        words: ``<pad>``, ``<unk>``, then words by decreasing frequency, ties in alphabetical order.
        lowercase: Whether tokens are lowercased before look-up.

    Attributes:
        words: The words; ``words[id]`` is the word of an id.
        lowercase: Whether tokens are lowercased before look-up.
        unknown_id: The id of a token that has none of its own.
    """

    unknown_id: int = UNK_ID

    def __init__(self, words: Sequence[str], *, lowercase: bool = False) -> None:
        self.words = list(words)
        self.lowercase = lowercase
        if self.words[:2] != [PAD_WORD, UNK_WORD]:
            raise ArtifactError(f"vocabulary: must start with {PAD_WORD} and {UNK_WORD}; given {self.words[:2]}")
        self._index = {word: index for index, word in enumerate(self.words)}
        self._table = ChunkTable(self.id)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[Any, ...]]:
        return partial(Vocabulary, lowercase=self.lowercase), (self.words,)

    def tokenize(self, sentences: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each sentence, lowercased if the vocabulary is."""
        rows = list(map(tokenize, sentences))
        return [[token.lower() for token in row] for row in rows] if self.lowercase else rows

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

    def word_rows(self, words: Sequence[str]) -> Sentences:
        """Return the ids of each token: one, or those of its sub-words."""
        ids = np.fromiter(map(self.id, words), dtype=np.int32, count=len(words))
        return Sentences(ids, np.ones(len(words), dtype=np.int64))

    def finished(self, encoded: Sentences, *, max_length: int) -> Sentences:
        """Return ids of whole sentences as rows for an encoder; see `ids`."""
        return as_rows(encoded, max_length=max_length)

    @property
    def key_values(self) -> dict[str, Any]:
        """What the ids of a text depend on, as plain values for a key."""
        return {"words": self.words, "lowercase": self.lowercase}

    def save(self, path: Path) -> None:
        """Write one word per line, after a first line that records `lowercase`."""
        storage.write_text(path, f"#lowercase={str(self.lowercase).lower()}\n" + "\n".join(self.words) + "\n")

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
        if end or head not in ("#lowercase=true", "#lowercase=false") or words[:2] != [PAD_WORD, UNK_WORD]:
            raise ArtifactError(f"{path}: truncated or not a vocabulary; restore it or train again")
        # A file of word vectors may have vectors for these two.
        counts = Counter(word for word in words if word not in (PAD_WORD, UNK_WORD))
        word, count = next(iter(counts.most_common(1)), ("", 0))
        if count > 1:
            raise ArtifactError(f"{path}: must name each word once; given {count} times '{word}'; restore it")
        return cls(words, lowercase=head == "#lowercase=true")


class SubwordVocabulary(Vocabulary):
    """The sub-words of a pretrained tokenizer.

    Text is divided into words by `tokenize`, as everywhere, and each word into sub-words; where the tokenizer marks
    sub-words that follow a space, the first of each word is marked so. A sentence begins and ends with the tokenizer's
    special tokens; a longer one is truncated before the last of them.

    Args:
        tokenizer: The content of `tokenizer.json`.
        source: Its file, for messages.
    """

    def __init__(self, tokenizer: str, *, source: Path | str = _TOKENIZER_FILE) -> None:
        # Not super().__init__: the first ids are the tokenizer's, and no table of words is needed.
        try:
            self._tokenizer = Tokenizer.from_str(_after_spaces(tokenizer))
        except Exception as error:  # the library raises Exception itself
            raise ArtifactError(f"{source}: not a tokenizer: {' '.join(str(error).split())}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.words = [self._tokenizer.id_to_token(word) or "" for word in range(_num_ids(self._tokenizer))]
        self.lowercase = False
        self._index = {word: index for index, word in enumerate(self.words)}
        encoded = self._tokenizer.encode("a")
        is_special = encoded.special_tokens_mask
        first = next((place for place, special in enumerate(is_special) if not special), 0)
        last = len(is_special) - next((place for place, special in enumerate(is_special[::-1]) if not special), 0)
        self._start, self._end = encoded.ids[:first], encoded.ids[last:]
        unknown = next((word for word in ("[UNK]", "<unk>") if word in self._index), None)
        self.unknown_id = 0 if unknown is None else self._index[unknown]
        self._parts: dict[str, list[int]] = {}

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[Any, ...]]:
        return SubwordVocabulary, (self._tokenizer.to_str(),)

    @classmethod
    def read(cls, folder: Path) -> SubwordVocabulary:
        """Read `tokenizer.json` of a pretrained model's folder.

        Raises:
            ConfigError: If the folder has none.
        """
        path = folder / _TOKENIZER_FILE
        if not path.is_file():
            raise ConfigError(
                f"encoder.path: must hold {_TOKENIZER_FILE}; found none in {folder}; save a fast tokenizer"
            )
        return cls(read_text(path, max_bytes=_MAX_FILE_BYTES), source=path)

    def tokenize(self, sentences: Sequence[str]) -> list[list[str]]:
        """Return the sub-words of each sentence, without special tokens."""
        return [[self.words[part] for word in tokenize(one) for part in self._parts_of(word)] for one in sentences]

    def ids(self, sentences: Sequence[str], *, max_length: int) -> Sentences:
        """Return the ids of sentences; any number of threads may call this at the same time.

        Args:
            sentences: Text [batch]; any string.
            max_length: Maximum number of sub-words of a sentence, special ones included; longer ones are truncated.

        Returns:
            Rows of at least one id; a sentence without a word has the special ones, or a single unknown one.
        """
        rows = [list(chain.from_iterable(map(self._parts_of, tokenize(sentence)))) for sentence in sentences]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum()))
        return self.finished(Sentences(ids, lengths), max_length=max_length)

    def id(self, token: str) -> int:
        """Return the id of a sub-word, or `unknown_id`."""
        return self._index.get(token, self.unknown_id)

    def word_rows(self, words: Sequence[str]) -> Sentences:
        """Return the ids of the sub-words of each word."""
        rows = [one.ids for one in self._tokenizer.encode_batch(list(words), add_special_tokens=False)]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return Sentences(np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum())), lengths)

    def finished(self, encoded: Sentences, *, max_length: int) -> Sentences:
        """Return ids of whole sentences between the special tokens; see `ids`."""
        start, end = np.array(self._start, dtype=np.int32), np.array(self._end, dtype=np.int32)
        num_special = len(start) + len(end)
        if max_length <= num_special:
            raise ConfigError(f"max_length: must be more than the {num_special} special sub-words; given {max_length}")
        firsts = np.cumsum(encoded.lengths) - encoded.lengths
        kept = np.minimum(encoded.lengths, max_length - num_special)
        lengths = np.maximum(kept + num_special, 1)
        ids = np.full(int(lengths.sum()), self.unknown_id, dtype=np.int32)
        starts = np.cumsum(lengths) - lengths
        ids[(starts[:, None] + np.arange(len(start))).ravel()] = np.tile(start, len(lengths))
        ids[ragged_indices(starts + len(start), kept)] = encoded.ids[ragged_indices(firsts, kept)]
        ids[(starts[:, None] + (lengths - len(end))[:, None] + np.arange(len(end))).ravel()] = np.tile(
            end, len(lengths)
        )
        return Sentences(ids, lengths)

    @property
    def tokenizer(self) -> Tokenizer:
        """A copy of the tokenizer of words."""
        return Tokenizer.from_str(self._tokenizer.to_str())

    @property
    def key_values(self) -> dict[str, Any]:
        """What the ids of a text depend on, as plain values for a key."""
        return {"tokenizer": self._tokenizer.to_str()}

    def save(self, path: Path) -> None:
        """Write a first line that names the kind, and the tokenizer in one line."""
        storage.write_text(path, f"{_SUBWORDS_HEAD}\n{self._tokenizer.to_str()}\n")

    def _parts_of(self, word: str) -> list[int]:
        found = self._parts.get(word)
        if found is None:
            found = self._tokenizer.encode(word, add_special_tokens=False).ids
            if len(self._parts) >= _MAX_KEPT_WORDS:
                self._parts = {}
            self._parts[word] = found
        return found


def _after_spaces(tokenizer: str) -> str:
    """Return a `tokenizer.json` that reads each word as if it followed a space, also the first."""
    values = parse_json(tokenizer)
    before = values.get("pre_tokenizer") or {}
    for step in (before, *before.get("pretokenizers", ())):
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = True
    return json.dumps(values, ensure_ascii=False)


def _num_ids(tokenizer: Tokenizer) -> int:
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)


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
    kept = [word for word, count in totals.items() if count >= max(config.min_count, *last_count)]
    kept.sort(key=lambda word: (-totals[word], word))
    return Vocabulary([PAD_WORD, UNK_WORD, *kept[:num_words]], lowercase=config.lowercase)
