"""Tokens <-> ids. In: sentences as text. Out: ragged int32 ids, and the words that they stand for.

A token never reaches across white space, so a text is cut at white space first and each distinct chunk is tokenised
only once, by a Rust pre-tokeniser; the rest is table look-up. On novels that is 10 times as fast as matching the
pattern over the running text.

Tokens follow the Penn Treebank, so that running text and text that is tokenised already give the same ones:
clitics stand alone (``do n't``, ``it 's``, ``can not``), punctuation too, while hyphenated words, decimals, dotted
names and common abbreviations (``Mr.``, ``U.S.``) stay whole. Differs: every double quotation mark (typographic,
``` `` ``` or ``''``) becomes ``"``, every single one ``'``, dashes ``--``, and ``-LRB-`` and its like the brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from raysent import artifacts
from raysent.config import StrictModel
from raysent.errors import ArtifactError

PAD_ID = 0
UNK_ID = 1
PAD_WORD = "<pad>"
UNK_WORD = "<unk>"
# Changes whenever the same text may give other tokens: it is part of every cache key.
TOKENIZER_VERSION = 1

_REPLACEMENTS = (
    *((quote, '"') for quote in ("“", "”", "„", "«", "»", "``", "''")),
    *((quote, "'") for quote in ("‘", "’", "‚", "`")),
    *((dash, "--") for dash in ("—", "–", "―")),
    ("…", "..."),
    ("\\/", "/"),
    ("-LRB-", "("), ("-RRB-", ")"), ("-LSB-", "["), ("-RSB-", "]"), ("-LCB-", "{"), ("-RCB-", "}"),
    ("-lrb-", "("), ("-rrb-", ")"), ("-lsb-", "["), ("-rsb-", "]"), ("-lcb-", "{"), ("-rcb-", "}"),
)  # fmt: skip
_ABBREVIATIONS = (
    "Mr|Mrs|Ms|Dr|St|Prof|Rev|Hon|Capt|Col|Gen|Lieut|Lt|Sgt|Gov|Sen|Rep|Messrs|Mme|Mlle|Jr|Sr|Esq|"
    "vs|etc|cf|al|Vol|vol|Fig|fig|No|Nos|pp|Inc|Ltd|Co|Corp|Bros|Mt|Ft"
)
_CLITIC = r"(?i:s|m|d|ll|re|ve)(?!\w)"
# The first alternative that matches wins. `\n` is a token, so that a list of chunks can be tokenised in one call.
_PATTERN = "|".join(
    (
        r"\n",
        r"<unk>",
        r"(?:\p{L}\.){2,}",  # U.S., e.g.
        rf"(?:{_ABBREVIATIONS})\.(?!\w)",
        r"(?i:can)(?=(?i:not)(?!\w))",
        r"\p{L}+?(?=n'(?i:t)(?!\w))|\p{L}+?(?=N'T(?!\w))",
        r"(?i:n't)(?!\w)",
        rf"'{_CLITIC}",
        rf"\w+(?:[-.](?!\w*n'(?i:t))\w+|,\d+|'(?!{_CLITIC})\w+)*",
        r"\.{2,}|-{2,}",
        r"[^\s\w]",
    )
)
_MAX_CHUNKS = 2_000_000


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


class Sentences(NamedTuple):
    """Ragged rows of ids.

    Attributes:
        ids: int32 [tokens], the sentences one after the other.
        lengths: int64 [batch], tokens of each sentence, at least 1.
    """

    ids: np.ndarray
    lengths: np.ndarray


class ChunkTable:
    """Text -> ids through a table of the distinct chunks between white space.

    Args:
        word_id: Gives the id of a token; called once for a token of each distinct chunk.
        max_chunks: The table is emptied when it holds more, which bounds memory and changes no id.
    """

    def __init__(self, word_id: Callable[[str], int], *, max_chunks: int = _MAX_CHUNKS) -> None:
        self._word_id = word_id
        self._max_chunks = max_chunks
        self._clear()

    def _clear(self) -> None:
        self._chunks = _Numbering()
        self._ids = np.empty(0, dtype=np.int32)
        self._starts = np.zeros(1, dtype=np.int64)

    def encode(self, sentences: Sequence[str]) -> Sentences:
        """Return the ids of all tokens; a sentence without one has length 0 here."""
        if len(self._chunks) > self._max_chunks:
            self._clear()
        split = [sentence.split() for sentence in sentences]
        flat = map(self._chunks.__getitem__, chain.from_iterable(split))
        num_chunks = np.fromiter(map(len, split), dtype=np.int64, count=len(split))
        chunks = np.fromiter(flat, dtype=np.int64, count=int(num_chunks.sum()))
        self._learn_new()
        starts, lengths = self._starts[chunks], self._starts[chunks + 1] - self._starts[chunks]
        ids = self._ids[ragged_indices(starts, lengths)]
        return Sentences(ids, ragged_sums(lengths, num_chunks))

    def _learn_new(self) -> None:
        """Tokenise the chunks that the table has numbered since the last call."""
        new = list(islice(self._chunks, len(self._starts) - 1, None))
        if not new:
            return
        tokens = [[self._word_id(token) for token in chunk] for chunk in tokenize_chunks(new)]
        lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
        ids = np.fromiter(chain.from_iterable(tokens), dtype=np.int32, count=int(lengths.sum()))
        self._ids = np.concatenate([self._ids, ids])
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])


class _Numbering(dict[str, int]):
    """Numbers its keys in the order in which they are first asked for."""

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        return number


def ragged_indices(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return int64 [sum of lengths]: starts[0], starts[0]+1, …, then the same for every later row."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - ends + lengths, lengths) + np.arange(total, dtype=np.int64)


def ragged_sums(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the sum of each row's values, int64 [rows]; an empty row sums to 0."""
    totals = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(lengths)
    sums: np.ndarray = totals[ends] - totals[ends - lengths]
    return sums


def as_rows(encoded: Sentences, *, max_length: int) -> Sentences:
    """Return rows fit for an encoder: cut to `max_length` tokens; one without a known word is a single UNK_ID."""
    starts = np.cumsum(encoded.lengths) - encoded.lengths
    known = ragged_sums(encoded.ids != UNK_ID, encoded.lengths) > 0
    lengths = np.where(known, np.minimum(encoded.lengths, max_length), 1)
    if known.all():
        return Sentences(encoded.ids[ragged_indices(starts, lengths)], lengths)
    # Rows without a known word read the UNK_ID that is appended behind the last token.
    ids = np.append(encoded.ids, np.int32(UNK_ID))
    return Sentences(ids[ragged_indices(np.where(known, starts, len(ids) - 1), lengths)], lengths)


_pre_tokenizer = Split(Regex(_PATTERN), "removed", invert=True)


def tokenize_chunks(chunks: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each chunk; a chunk holds no white space."""
    text = "\n".join(chunks)
    for typographic, plain in _REPLACEMENTS:
        text = text.replace(typographic, plain)
    rows: list[list[str]] = [[]]
    for token, _ in _pre_tokenizer.pre_tokenize_str(text):
        if token == "\n":
            rows.append([])
        else:
            rows[-1].append(token)
    return rows


class Vocabulary:
    """The words that have an id, in the order of their ids.

    Args:
        words: ``<pad>``, ``<unk>``, then words by falling frequency, ties in alphabetical order.
        lowercase: Whether text is lowered before look-up.

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
        if self.lowercase:
            sentences = [sentence.lower() for sentence in sentences]
        return [list(chain.from_iterable(tokenize_chunks(s.split()))) for s in sentences]

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
        if self.lowercase:
            sentences = [sentence.lower() for sentence in sentences]
        return as_rows(self._table.encode(sentences), max_length=max_length)

    def id(self, token: str) -> int:
        """Return the id of a token, UNK_ID where it has none."""
        return self._index.get(token, UNK_ID)

    def save(self, path: Path) -> None:
        """Write one word a line; the first line says whether text is lowered."""
        artifacts.write_text(path, f"#lowercase={str(self.lowercase).lower()}\n" + "\n".join(self.words) + "\n")

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
