"""The vocabulary: tokens <-> ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic import Field

from raysent import storage
from raysent.config import StrictModel
from raysent.data.vocabulary.tokens import PAD_WORD, UNK_ID, UNK_WORD, ChunkTable, Sentences, as_rows, tokenize
from raysent.errors import ArtifactError
from raysent.reading import read_text

# Far more than 20 million words; the list of words takes several times the size of the file.
_MAX_FILE_BYTES = 1 << 28


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
    """

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

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[list[str], bool]]:
        return _revive, (self.words, self.lowercase)

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

    def save(self, path: Path) -> None:
        """Write one word per line, after a first line that records `lowercase`."""
        storage.write_text(path, f"#lowercase={str(self.lowercase).lower()}\n" + "\n".join(self.words) + "\n")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a file that `save` wrote.

        Raises:
            ArtifactError: If the file is missing, truncated, of another kind, or larger than 256 MiB.
        """
        lines = read_text(path, max_bytes=_MAX_FILE_BYTES).replace("\r\n", "\n").split("\n")
        head, *words, end = lines if len(lines) > 1 else ["", ""]
        if end or head not in ("#lowercase=true", "#lowercase=false") or words[:2] != [PAD_WORD, UNK_WORD]:
            raise ArtifactError(f"{path}: truncated or not a vocabulary; restore it or train again")
        # A file of word vectors may have vectors for these two.
        counts = Counter(word for word in words if word not in (PAD_WORD, UNK_WORD))
        word, count = next(iter(counts.most_common(1)), ("", 0))
        if count > 1:
            raise ArtifactError(f"{path}: must name each word once; given {count} times '{word}'; restore it")
        return cls(words, lowercase=head == "#lowercase=true")


def _revive(words: list[str], lowercase: bool) -> Vocabulary:
    return Vocabulary(words, lowercase=lowercase)


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
    kept = [word for word, count in totals.items() if count >= config.min_count]
    kept.sort(key=lambda word: (-totals[word], word))
    return Vocabulary([PAD_WORD, UNK_WORD, *kept[: config.size - 2]], lowercase=config.lowercase)
