"""Tokens <-> ids. In: the counts of a corpus' words. Out: the vocabulary, which turns sentences into ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from pydantic import Field

from raysent import storage
from raysent.config import StrictModel
from raysent.data.vocabulary.tokens import PAD_WORD, UNK_ID, UNK_WORD, ChunkTable, Sentences, as_rows, tokenize_chunks
from raysent.errors import ArtifactError


class VocabularyConfig(StrictModel):
    """Which words get an id of their own.

    Attributes:
        size: Rows of the table at most: the words, the unknown word and the padding.
        min_count: A rarer word is unknown.
        lowercase: Whether case is dropped.
    """

    size: int = Field(default=50_000, ge=3)
    min_count: int = Field(default=1, ge=1)
    lowercase: bool = False


class Vocabulary:
    """The words that have an id, in the order of their ids.

    Args:
        words: ``<pad>``, ``<unk>``, then words by falling frequency, ties in alphabetical order.
        lowercase: Whether tokens are lowered before look-up.

    Attributes:
        words: See above; ``words[id]`` is the word of an id.
        lowercase: See above.
    """

    def __init__(self, words: Sequence[str], *, lowercase: bool = False) -> None:
        self.words = list(words)
        self.lowercase = lowercase
        if self.words[:2] != [PAD_WORD, UNK_WORD]:
            raise ArtifactError(f"vocabulary: must begin with {PAD_WORD} and {UNK_WORD}; given {self.words[:2]}")
        self._index = {word: index for index, word in enumerate(self.words)}
        self._table: ChunkTable | None = None

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._index

    def __reduce__(self) -> tuple[Callable[..., Vocabulary], tuple[list[str], bool]]:
        return _revive, (self.words, self.lowercase)

    def tokenize(self, sentences: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each sentence, lowered where the vocabulary is."""
        rows = [list(chain.from_iterable(tokenize_chunks(sentence.split()))) for sentence in sentences]
        return [[token.lower() for token in row] for row in rows] if self.lowercase else rows

    def ids(self, sentences: Sequence[str], *, max_length: int) -> Sentences:
        """Return the ids of sentences.

        Args:
            sentences: Text, [batch].
            max_length: Tokens kept of a longer sentence.

        Returns:
            Rows of at least one id; a sentence without a known word is a single UNK_ID.
        """
        if self._table is None:
            self._table = ChunkTable(self.id)
        return as_rows(self._table.encode(sentences), max_length=max_length)

    def id(self, token: str) -> int:
        """Return the id of a token, UNK_ID where it has none."""
        # Lowered only now: the tokeniser knows abbreviations by their case.
        return self._index.get(token.lower() if self.lowercase else token, UNK_ID)

    def save(self, path: Path) -> None:
        """Write one word a line; the first line says whether tokens are lowered."""
        storage.write_text(path, f"#lowercase={str(self.lowercase).lower()}\n" + "\n".join(self.words) + "\n")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read what `save` wrote.

        Raises:
            ArtifactError: If the file is missing, truncated or of another kind.
        """
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            raise ArtifactError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"{path}: cannot be read as a vocabulary: {error}") from None
        head, *words, end = lines if len(lines) > 1 else ["", ""]
        if end or head not in ("#lowercase=true", "#lowercase=false") or words[:2] != [PAD_WORD, UNK_WORD]:
            raise ArtifactError(f"{path}: truncated or not a vocabulary; restore it or train again")
        return cls(words, lowercase=head == "#lowercase=true")


def _revive(words: list[str], lowercase: bool) -> Vocabulary:
    return Vocabulary(words, lowercase=lowercase)


def build_vocabulary(counts: Iterable[tuple[str, int]], config: VocabularyConfig) -> Vocabulary:
    """Return the most frequent words of a corpus.

    Args:
        counts: Every distinct word, case kept, and how often it occurs.
        config: Size, least count and case.
    """
    totals: dict[str, int] = {}
    for word, count in counts:
        key = word.lower() if config.lowercase else word
        totals[key] = totals.get(key, 0) + count
    totals.pop(UNK_WORD, None)
    kept = [word for word, count in totals.items() if count >= config.min_count]
    kept.sort(key=lambda word: (-totals[word], word))
    return Vocabulary([PAD_WORD, UNK_WORD, *kept[: config.size - 2]], lowercase=config.lowercase)
