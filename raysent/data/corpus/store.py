"""Stage 1 of preparation: text -> ids of all its distinct words, on disk; holds for every vocabulary.

A folder ``text/<text key>/``: ``words.txt`` (one a line, in order of first appearance), ``counts.npy``,
``tokens.bin`` (int32), ``offsets.bin`` (int64 [sentences + 1]), ``documents.npy`` (int64 [documents + 1], first
sentence of each document, then the number of sentences). It loses nothing of the text but its white space.

`PassageReader`, of which every process has its own, makes numbers of text; `TextWriter` puts the readers' numbers
together. Words are numbered as they first appear in the text, so the files do not tell how many readers there were.

Which documents validate. In: where documents begin. Out: runs of consecutive sentences for either split.

A prepared corpus: memory-mapped ids, read-only, cheap to open in every worker.

A folder ``corpora/<key>/``: ``corpus.json``, ``vocabulary.txt``, ``ids.bin`` (int32), ``offsets.bin`` (int64
[sentences + 1]), ``documents.npy`` (int64 [documents + 1]). The training documents come first, in their order in the
text, then the validation documents, so that each split is one stretch of the ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from raysent import storage
from raysent.data.corpus.documents import Passage, read_passage
from raysent.data.vocabulary import ChunkTable, Numbering, Sentences, Vocabulary, ragged_indices
from raysent.errors import DataError

Progress = Callable[[str, int, int | None], None]

_NOT_NUMBERED = -1


class EncodedPassages(NamedTuple):
    """What a reader makes of some passages.

    Attributes:
        reader: Whose numbers they are.
        new_words: Words that this reader had not met before; it numbers words as it meets them.
        sentences: Ids in the reader's numbers, of all tokens.
        ends: int64 [documents that end], the number of sentences before each end.
    """

    reader: int
    new_words: list[str]
    sentences: Sentences
    ends: np.ndarray


class PassageReader:
    """Passages -> their words in numbers of its own. Pickles as a new one."""

    def __init__(self) -> None:
        self._words = Numbering()
        self._new_words: list[str] = []
        self._table = ChunkTable(self._number)

    def __reduce__(self) -> tuple[type[PassageReader], tuple[()]]:
        return PassageReader, ()

    def __call__(self, passages: Sequence[Passage]) -> EncodedPassages:
        """Read some passages."""
        sentences: list[str] = []
        ends = []
        for passage in passages:
            for piece in read_passage(passage):
                sentences += piece.sentences
                if piece.ends_document:
                    ends.append(len(sentences))
        encoded = self._table.encode(sentences)
        new_words, self._new_words = self._new_words, []
        return EncodedPassages(os.getpid(), new_words, encoded, np.array(ends, dtype=np.int64))

    def _number(self, word: str) -> int:
        if word not in self._words:
            self._new_words.append(word)
        return self._words[word]


class TextWriter:
    """Takes readers' numbers and writes the folder, holding those of a few passages at a time.

    Args:
        folder: An existing, empty folder.
        max_sentences: Sentences kept at most.
        progress: Told ``"reading"``, the sentences so far and the most there can be.
    """

    def __init__(self, folder: Path, *, max_sentences: int | None, progress: Progress | None) -> None:
        self._folder = folder
        self._max_sentences = max_sentences
        self._progress = progress
        self._words = Numbering()
        self._counts = np.zeros(1, dtype=np.int64)
        self._readers: dict[int, _ReaderVocabulary] = {}
        self._boundaries = [0]
        self.num_sentences = 0
        self.num_tokens = 0

    def write(self, read: Iterable[EncodedPassages]) -> None:
        """Write everything, up to the limit."""
        with (self._folder / "tokens.bin").open("wb") as tokens, (self._folder / "offsets.bin").open("wb") as offsets:
            offsets.write(np.zeros(1, dtype=np.int64).data)
            for numbers in read:
                self._write_some(numbers, tokens, offsets)
                if self.num_sentences == self._max_sentences:
                    break
        self._finish()

    def _write_some(self, numbers: EncodedPassages, tokens: IO[bytes], offsets: IO[bytes]) -> None:
        self._boundaries += [end for end in (self.num_sentences + numbers.ends).tolist() if end > self._boundaries[-1]]
        own, lengths = numbers.sentences
        if self._max_sentences is not None:
            lengths = lengths[: self._max_sentences - self.num_sentences]
            own = own[: int(lengths.sum())]
        readers_words = self._readers.setdefault(numbers.reader, _ReaderVocabulary())
        ids = readers_words.renumbered(own, numbers.new_words, self._words)
        tokens.write(ids.data)
        offsets.write((self.num_tokens + np.cumsum(lengths)).data)
        self.num_sentences += len(lengths)
        self.num_tokens += len(ids)
        counts = np.bincount(ids, minlength=len(self._words))
        counts[: len(self._counts)] += self._counts[: len(counts)]
        self._counts = counts
        if self._progress:
            self._progress("reading", self.num_sentences, self._max_sentences)

    def _finish(self) -> None:
        boundaries = [b for b in dict.fromkeys(self._boundaries) if b < self.num_sentences]
        np.save(self._folder / "documents.npy", np.array([*boundaries, self.num_sentences], dtype=np.int64))
        np.save(self._folder / "counts.npy", self._counts[: len(self._words)])
        with (self._folder / "words.txt").open("w", encoding="utf-8") as stream:
            stream.writelines(word + "\n" for word in self._words)


class _ReaderVocabulary:
    """One reader's words, and what their numbers are in the text."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._numbers = np.empty(0, dtype=np.int32)

    def renumbered(self, ids: np.ndarray, new_words: list[str], words: Numbering) -> np.ndarray:
        """Return the text's numbers of a reader's, int32 [tokens], numbering words that appear for the first time."""
        self._words += new_words
        unknown = np.full(len(new_words), _NOT_NUMBERED, dtype=np.int32)
        self._numbers = np.concatenate([self._numbers, unknown])
        found: np.ndarray = self._numbers[ids]
        places = np.flatnonzero(found == _NOT_NUMBERED)
        if len(places):
            for own in dict.fromkeys(ids[places].tolist()):
                self._numbers[own] = words[self._words[own]]
            found[places] = self._numbers[ids[places]]
        return found


class TextStore:
    """What a `TextWriter` wrote, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.tokens = np.asarray(np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r"))
        self.offsets = np.asarray(np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r"))
        self.documents = np.load(folder / "documents.npy")
        self.counts = np.load(folder / "counts.npy")
        self.words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")[:-1]


_LEAST = 2  # A sentence needs a neighbour, so a split of fewer sentences says nothing.


class SentenceRange(NamedTuple):
    """Consecutive sentences `start` to `stop` (excluded) of the text, and the sizes of the documents they make up."""

    start: int
    stop: int
    document_sizes: list[int]


class Splits(NamedTuple):
    """The runs of the training and of the validation sentences, each in the order of the text."""

    train: list[SentenceRange]
    validation: list[SentenceRange]


def choose_splits(starts: np.ndarray, *, fraction: float, seed: int, name: str) -> Splits:
    """Choose whole documents at random until they hold `fraction` of the sentences.

    A document that would overshoot twice that share is passed over. Where that leaves none (a single document, or a
    few large ones), the tail of the longest document serves instead and counts as a document of its own.

    Args:
        starts: int64 [documents + 1], first sentence of each document, then the number of sentences.
        fraction: Share of the sentences to hold out.
        seed: Decides the documents.
        name: The corpus, for messages.

    Raises:
        DataError: If the text has too few sentences for two splits.
    """
    num_sentences = int(starts[-1])
    if num_sentences < 2 * _LEAST:
        raise DataError(
            f"corpus.path: {name}: must hold at least {2 * _LEAST} sentences, two to train on and two to validate "
            f"with; given {num_sentences}"
        )
    wanted = max(_LEAST, round(fraction * num_sentences))
    chosen = _choose(np.diff(starts), wanted, np.random.default_rng(seed))
    if not chosen.any():
        starts, chosen = _cut_tail(starts, wanted)
    if len(chosen) == 1 or starts[-1] - np.diff(starts)[chosen].sum() < _LEAST:
        raise DataError(
            f"corpus.path: {name}: must leave sentences to train on beside those that validate; "
            f"given {num_sentences} sentences in {len(starts) - 1} documents; add text"
        )
    return Splits(train=_runs(starts, ~chosen), validation=_runs(starts, chosen))


def _choose(sizes: np.ndarray, wanted: int, generator: np.random.Generator) -> np.ndarray:
    """Return a mask over documents, bool [documents], whose sentences reach `wanted` or are none at all."""
    chosen = np.zeros(len(sizes), dtype=bool)
    total = 0
    for document in generator.permutation(len(sizes)):
        if total + sizes[document] <= 2 * wanted:
            chosen[document] = True
            total += int(sizes[document])
        if total >= wanted:
            return chosen
    return np.zeros(len(sizes), dtype=bool)


def _cut_tail(starts: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts with the longest document cut in two, and a mask that holds its second part alone."""
    longest = int(np.argmax(np.diff(starts)))
    cut = max(int(starts[longest + 1]) - wanted, int(starts[longest]) + 1)
    starts = np.insert(starts, longest + 1, cut)
    chosen = np.zeros(len(starts) - 1, dtype=bool)
    chosen[longest + 1] = starts[longest + 2] - cut >= _LEAST
    return starts, chosen


def _runs(starts: np.ndarray, mask: np.ndarray) -> list[SentenceRange]:
    """Return the masked documents as runs of neighbours."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [
        SentenceRange(int(starts[first]), int(starts[last]), np.diff(starts[first : last + 1]).tolist())
        for first, last in zip(edges[::2], edges[1::2], strict=True)
    ]


class Corpus:
    """A prepared corpus. Opens its files when they are first needed; pickles as its folder's path.

    Args:
        folder: What `prepare` wrote.

    Attributes:
        folder: See above.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Path]]:
        return Corpus, (self.folder,)

    @cached_property
    def _summary(self) -> dict[str, Any]:
        return dict(storage.read_json(self.folder / "corpus.json"))

    @property
    def key(self) -> str:
        """Names the content and every setting."""
        return str(self._summary["key"])

    @property
    def text_key(self) -> str:
        """Names the content and how it was split into sentences, whatever the vocabulary and the splits are."""
        return str(self._summary["text_key"])

    @property
    def num_sentences(self) -> int:
        """Sentences of both splits."""
        return int(self._summary["num_sentences"])

    @property
    def num_tokens(self) -> int:
        """Tokens of both splits, as far as sentences are kept (`CorpusConfig.max_length`)."""
        return int(self._summary["num_tokens"])

    @property
    def num_documents(self) -> int:
        """Documents of both splits."""
        return int(self._summary["num_documents"])

    @property
    def unknown_share(self) -> float:
        """Share of the tokens that have no id of their own."""
        return float(self._summary["unknown_share"])

    @property
    def across_documents(self) -> bool:
        """Whether windows may cross the boundary between two documents."""
        return bool(self._summary["across_documents"])

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words that have an id."""
        return Vocabulary.load(self.folder / "vocabulary.txt")

    @cached_property
    def train(self) -> CorpusSplit:
        """The sentences to learn from."""
        return CorpusSplit(self, "train")

    @cached_property
    def validation(self) -> CorpusSplit:
        """The sentences held out."""
        return CorpusSplit(self, "validation")

    @cached_property
    def ids(self) -> np.ndarray:
        """int32 [tokens], memory-mapped."""
        return np.asarray(np.memmap(self.folder / "ids.bin", dtype=np.int32, mode="r"))

    @cached_property
    def offsets(self) -> np.ndarray:
        """int64 [sentences + 1], memory-mapped: the first token of each sentence."""
        return np.asarray(np.memmap(self.folder / "offsets.bin", dtype=np.int64, mode="r"))

    @cached_property
    def document_starts(self) -> np.ndarray:
        """int64 [documents + 1]: the first sentence of each document, then the number of sentences."""
        return np.asarray(np.load(self.folder / "documents.npy"))


class CorpusSplit:
    """The training or the validation sentences, numbered from 0.

    Args:
        corpus: The corpus they belong to.
        name: ``train`` or ``validation``.

    Attributes:
        corpus: See above.
        name: See above.
        first: Global index of the split's first sentence.
        text_hash: Names the text of the split, whatever the vocabulary is.
    """

    def __init__(self, corpus: Corpus, name: str) -> None:
        self.corpus = corpus
        self.name = name
        summary = corpus._summary[name]
        self.first: int = summary["first"]
        self.text_hash: str = summary["text_hash"]
        self._num_sentences: int = summary["num_sentences"]

    def __reduce__(self) -> tuple[Callable[..., CorpusSplit], tuple[Corpus, str]]:
        return CorpusSplit, (self.corpus, self.name)

    def __len__(self) -> int:
        return self._num_sentences

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        offsets = self.corpus.offsets
        return int(offsets[self.first + len(self)] - offsets[self.first])

    @property
    def num_documents(self) -> int:
        """Documents of the split."""
        bounds = np.searchsorted(self.corpus.document_starts[:-1], [self.first, self.first + len(self)])
        return int(bounds[1] - bounds[0])

    def sentences(self, start: int, stop: int) -> Sentences:
        """Return the sentences `start` to `stop` (excluded) of the split, as fresh arrays."""
        self._check(start, stop)
        offsets = self.corpus.offsets[self.first + start : self.first + stop + 1]
        ids = np.array(self.corpus.ids[offsets[0] : offsets[-1]]) if stop > start else np.empty(0, dtype=np.int32)
        return Sentences(ids, np.diff(offsets))

    def sentences_at(self, positions: np.ndarray) -> Sentences:
        """Return the sentences with the given numbers within the split, int64 [batch], in that order."""
        starts = self.corpus.offsets[self.first + positions]
        lengths = self.corpus.offsets[self.first + positions + 1] - starts
        return Sentences(self.corpus.ids[ragged_indices(starts, lengths)], lengths)

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Return the document of each sentence, int64 [stop - start]; all 0 where windows may cross documents."""
        self._check(start, stop)
        return self.documents_at(np.arange(start, stop, dtype=np.int64))

    def documents_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the document of each given sentence, as `documents` does."""
        if self.corpus.across_documents:
            return np.zeros(len(positions), dtype=np.int64)
        starts = self.corpus.document_starts
        return np.searchsorted(starts, self.first + positions, side="right").astype(np.int64) - 1

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"corpus {self.name}: must be asked for 0 to {len(self)}; given {start} to {stop}")
