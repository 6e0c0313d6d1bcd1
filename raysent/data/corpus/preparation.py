"""Prepare a corpus in the cache, in two stages; each stage is a folder that appears whole or not at all.

Stage 1 is keyed by the content of the files and how they are read: the text as ids of all its distinct words. A folder
``text/<text key>/`` contains ``words.txt`` (one word per line, in order of first appearance), ``counts.npy``,
``tokens.bin`` (int32), ``offsets.bin`` (int64 [sentences + 1]) and ``documents.npy`` (int64 [documents + 1], first
sentence of each document, then the number of sentences). Only white space is lost. Several processes read a large text.
Each has a `_PassageReader`, whose passages have ids of their own; `_write_text` numbers words in order of their first
appearance in the text, so the files do not depend on the number of processes.

For sub-words, stage 1 is the text as it is written (`written`).

Stage 2 (`store`) adds the vocabulary and the splits, so that another vocabulary needs a pass over ids and not over
text. A file lock lets one process build while the others of the machine wait. Memory holds a few passages of the text
and, in each process, the distinct words.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from raysent import storage
from raysent.data.corpus.cache import build_once
from raysent.data.corpus.documents import (
    Passage,
    describe_reading,
    map_passages,
    read_passages,
    table_notes,
    text_language,
)
from raysent.data.corpus.sources import CorpusConfig, corpus_sources, find_sources
from raysent.data.corpus.store import Corpus
from raysent.data.corpus.written import StoredSentences, read_written, write_written
from raysent.data.sentences import SPLITTING_VERSION
from raysent.data.unicode_form import OF_NEW, UnicodeForm
from raysent.data.vocabulary import (
    TOKENIZER_VERSIONS,
    UNK_ID,
    ChunkTable,
    Numbering,
    Sentences,
    SubwordVocabulary,
    Vocabulary,
    VocabularyConfig,
    VocabularyType,
    as_rows,
    build_vocabulary,
    choose_type,
    train_subwords,
)
from raysent.errors import DataError
from raysent.parallel import Progress
from raysent.storage import cache_folder

FORMAT_VERSION = 1
_BLOCK_SENTENCES = 50_000
_SAMPLE_SENTENCES = 100  # that are drawn together
_MIN_SENTENCES = 2  # per split: a sentence needs a neighbour


def prepare(
    config: CorpusConfig,
    vocabulary: VocabularyConfig,
    *,
    words: Vocabulary | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Return the prepared corpus; it is built if the cache does not have it.

    Args:
        config: Which text, and how to read and split it.
        vocabulary: Which words have an id.
        words: The words themselves, such as those of a trained model; None to choose them from the text. Words of the
            text that are none of them are unknown.
        progress: Called with the name of a stage (``reading``, ``encoding``), the number of sentences done, and the
            total or None.

    Raises:
        DataError: If the text cannot be read or has too few sentences for two splits.
        ArtifactError: If the cache cannot be written.
    """
    own_words = None if isinstance(words, SubwordVocabulary) else words
    if own_words is None:
        unicode_form = vocabulary.unicode_form
    else:
        unicode_form = own_words.unicode_form
    text = _Text(config, progress, unicode_form)
    settings = config.model_dump(
        include={"across_documents", "validation_fraction", "max_length", "seed"}
    )
    if words is None:
        vocabulary = vocabulary.model_copy(
            update={"type": _vocabulary_type(text, config, vocabulary)[0]}
        )
    elif own_words is not None and own_words.words == _choose_words(text.words(), vocabulary).words:
        # The corpus that was prepared for the model is used again.
        words = None
        vocabulary = vocabulary.model_copy(update={"type": "words"})
    if words is None:
        vocabulary_key = vocabulary.key_values
    else:
        vocabulary_key = words.key_values
    key = storage.content_key(FORMAT_VERSION, text.key, vocabulary_key, settings)

    def build_corpus(folder: Path) -> dict[str, Any]:
        # Sub-words read sentences as they are written, and words the ids of tokens.
        if words is None:
            reads_sentences = vocabulary.type == "subwords"
        else:
            reads_sentences = isinstance(words, SubwordVocabulary)
        stored_text: TextStore | StoredSentences
        if reads_sentences:
            stored_text = text.written()
        else:
            stored_text = text.words()
        corpus_vocabulary = words or _chosen(stored_text, config, vocabulary)
        keys = {"key": key, "text_key": text.key, "language": text.language.code}
        return keys | _build_corpus(
            folder, stored_text, config, corpus_vocabulary, text.key, progress
        )

    return Corpus(build_once(cache_folder(config.cache_dir), f"corpora/{key}", build_corpus))


def vocabulary_type(
    config: CorpusConfig, vocabulary: VocabularyConfig, *, progress: Progress | None = None
) -> tuple[VocabularyType, str]:
    """Return what `prepare` takes for a type of `auto`, and why, in words.

    Raises:
        DataError: If the text cannot be read or has too few sentences for two splits.
        ArtifactError: If the cache cannot be written.
    """
    text = _Text(config, progress, vocabulary.unicode_form)
    return _vocabulary_type(text, config, vocabulary)


def _vocabulary_type(
    text: _Text, config: CorpusConfig, vocabulary: VocabularyConfig
) -> tuple[VocabularyType, str]:
    return choose_type(
        vocabulary,
        language=lambda: text.language.code,
        unknown_share=lambda: _unknown_share(text.words(), config, vocabulary),
    )


def _unknown_share(words: TextStore, config: CorpusConfig, vocabulary: VocabularyConfig) -> float:
    """Return the part of the tokens of held-out text that words of the training text leave unknown."""
    splits = _splits(words, config)
    counts = _word_counts(words, splits.train)
    train_vocabulary = build_vocabulary(zip(words.words, counts.tolist(), strict=True), vocabulary)
    is_unknown = np.fromiter(
        (train_vocabulary.id(word) == UNK_ID for word in words.words),
        dtype=bool,
        count=len(words.words),
    )
    held_out = _word_counts(words, splits.validation)
    return float(held_out[is_unknown].sum() / max(1, held_out.sum()))


def _word_counts(text: TextStore, split: Split) -> np.ndarray:
    counts = np.zeros(len(text.words), dtype=np.int64)
    for first, last in split.bounds:
        for start in range(first, last, _BLOCK_SENTENCES):
            words = text.sentences(start, min(start + _BLOCK_SENTENCES, last)).ids
            counts += np.bincount(words, minlength=len(counts))
    return counts


class SentenceTexts:
    """The text of the sentences of a prepared corpus, in its order: tokens between blanks, none truncated or unknown.

    Args:
        store: The tokens of the text.
        order: Place in the text of each sentence of the corpus, int64 [sentences].
    """

    def __init__(self, store: TextStore, order: np.ndarray) -> None:
        self._store = store
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def texts(self, positions: np.ndarray) -> list[str]:
        """Return the sentences at the given positions of the corpus, int64 [batch]."""
        words = self._store.words
        tokens = self._store.tokens
        text_positions = self._order[positions]
        bounds = zip(
            self._store.offsets[text_positions].tolist(),
            self._store.offsets[text_positions + 1].tolist(),
            strict=True,
        )
        return [
            " ".join(words[token] for token in tokens[start:stop].tolist())
            for start, stop in bounds
        ]


def sentence_texts(
    config: CorpusConfig,
    *,
    unicode_form: UnicodeForm = OF_NEW,
    progress: Progress | None = None,
) -> SentenceTexts:
    """Return the text of the corpus that `prepare` makes of the same configuration.

    Raises:
        DataError: If the text cannot be read or has too few sentences for two splits.
        ArtifactError: If the cache cannot be written.
    """
    text = _Text(config, progress, unicode_form).words()
    splits = _splits(text, config)
    bounds = np.concatenate([splits.train.bounds, splits.validation.bounds])
    ranges = [np.arange(start, stop, dtype=np.int64) for start, stop in bounds]
    return SentenceTexts(text, np.concatenate(ranges))


def count_text(
    config: CorpusConfig,
    *,
    unicode_form: UnicodeForm = OF_NEW,
    progress: Progress | None = None,
) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the number of sentences, the count of each word, int64 [words], and the sizes of training documents.

    The text is read if the cache does not have it; the corpus that `prepare` makes of it later does not read it again.

    Args:
        config: Which text, and how to read it.
        unicode_form: The form of Unicode in which words are read.
        progress: As for `prepare`.

    Raises:
        DataError: If the text cannot be read or has too few sentences for two splits.
        ArtifactError: If the cache cannot be written.
    """
    text = _Text(config, progress, unicode_form).words()
    return len(text.offsets) - 1, text.counts, _splits(text, config).train.document_sizes


def corpus_sizes(config: CorpusConfig) -> np.ndarray:
    """Return the number of sentences of each document of a corpus, int64 [documents], in the order of the text.

    Raises:
        DataError: If the text cannot be read.
        ArtifactError: If the cache cannot be written.
    """
    return np.diff(_Text(config, None, OF_NEW).words().documents)


def corpus_notes(config: CorpusConfig) -> list[str]:
    """Return which columns of a corpus' tables are read, and how their rows become documents, for the user to see.

    Raises:
        DataError: If a table cannot be read.
    """
    if config.path == "docs":
        return []
    return table_notes(find_sources(config.path), config)


def corpus_language(config: CorpusConfig) -> str:
    """Return the code of the language of a corpus, or of most of it.

    Raises:
        DataError: If a file cannot be read.
    """
    return text_language(corpus_sources(config), config).code


class _Text:
    """A text in the cache, where it is built when it is opened, by a hash of its content and how it is read."""

    def __init__(
        self, config: CorpusConfig, progress: Progress | None, unicode_form: UnicodeForm
    ) -> None:
        self._config = config
        self._progress = progress
        self._unicode_form: UnicodeForm = unicode_form
        self._sources = corpus_sources(config, progress)
        self.language = text_language(self._sources, config)
        tokenizer_version = TOKENIZER_VERSIONS[unicode_form]
        versions = [FORMAT_VERSION, SPLITTING_VERSION, tokenizer_version, self.language]
        self.key = storage.content_key(versions, *describe_reading(self._sources, config))

    def words(self) -> TextStore:
        """Return the text as ids of its words."""

        def build(folder: Path) -> dict[str, Any]:
            reader = _PassageReader(self._unicode_form)
            with closing(map_passages(reader, self._sources, self._config)) as groups:
                files = _write_text(
                    folder,
                    groups,
                    max_sentences=self._config.max_sentences,
                    progress=self._progress,
                )
            return {
                "num_sentences": self._checked(files.num_sentences),
                "num_tokens": files.num_tokens,
            }

        return TextStore(
            build_once(cache_folder(self._config.cache_dir), f"text/{self.key}", build)
        )

    def written(self) -> StoredSentences:
        """Return the text as it is written."""

        def build(folder: Path) -> dict[str, Any]:
            with closing(map_passages(read_written, self._sources, self._config)) as groups:
                max_sentences = self._config.max_sentences
                num_sentences = write_written(
                    folder, groups, max_sentences=max_sentences, progress=self._progress
                )
            return {"num_sentences": self._checked(num_sentences)}

        return StoredSentences(
            build_once(cache_folder(self._config.cache_dir), f"written/{self.key}", build)
        )

    def _checked(self, num_sentences: int) -> int:
        if num_sentences == 0:
            raise DataError(f"corpus.path: {self._config.name}: must hold sentences; given none")
        return num_sentences


def _splits(text: TextStore | StoredSentences, config: CorpusConfig) -> Splits:
    return choose_splits(
        text.documents, fraction=config.validation_fraction, seed=config.seed, name=config.name
    )


class _EncodedPassages(NamedTuple):
    """Passages as ids of their own words.

    Attributes:
        words: Their distinct words, in order of first appearance.
        sentences: Places of all tokens in `words`.
        ends: Number of sentences before each end of a document, int64 [ends].
    """

    words: list[str]
    sentences: Sentences
    ends: np.ndarray


class _PassageReader:
    """Encodes passages; it knows the words of earlier ones, to tokenize each once. Pickles as a new reader."""

    def __init__(self, unicode_form: UnicodeForm) -> None:
        self._unicode_form: UnicodeForm = unicode_form
        self._numbers = Numbering()

    @cached_property
    def _table(self) -> ChunkTable:
        number_of = self._numbers.__getitem__
        return ChunkTable(number_of, is_compiled=True, unicode_form=self._unicode_form)

    def __reduce__(self) -> tuple[type[_PassageReader], tuple[UnicodeForm]]:
        return _PassageReader, (self._unicode_form,)

    def __call__(self, passages: Sequence[Passage]) -> _EncodedPassages:
        sentences, ends = read_passages(passages)
        ids, lengths = self._table.encode(sentences)
        distinct_words, firsts, word_positions = np.unique(
            ids, return_index=True, return_inverse=True
        )
        # `unique` sorts by id, and words are numbered by their first appearance.
        order = np.argsort(firsts)
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order))
        known_words = list(self._numbers)
        words = [known_words[word] for word in distinct_words[order].tolist()]
        return _EncodedPassages(
            words,
            Sentences(rank[word_positions.reshape(-1)], lengths),
            np.array(ends, dtype=np.int64),
        )


class _SentenceFiles:
    """Writes sentences of ids into a file of the folder, and where they begin into `offsets.bin`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ids = (folder / name).open("wb")
        self._offsets = (folder / "offsets.bin").open("wb")
        self._offsets.write(np.zeros(1, dtype=np.int64).data)
        self.num_sentences = 0
        self.num_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._ids.close()
        self._offsets.close()

    def add(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        self._ids.write(ids.data)
        self._offsets.write((self.num_tokens + np.cumsum(lengths)).data)
        self.num_sentences += len(lengths)
        self.num_tokens += len(ids)


def _write_text(
    folder: Path,
    groups: Iterable[_EncodedPassages],
    *,
    max_sentences: int | None,
    progress: Progress | None,
) -> _SentenceFiles:
    """Stage 1: write all passages, up to the maximum number of sentences."""
    numbers = Numbering()
    counts = np.zeros(1, dtype=np.int64)
    boundaries = array("q", [0])  # 8 bytes a document
    with _SentenceFiles(folder, "tokens.bin") as files:
        for group in groups:
            ends = np.unique(files.num_sentences + group.ends)
            boundaries.frombytes(ends[ends > boundaries[-1]].tobytes())
            word_positions, lengths = group.sentences
            if max_sentences is not None:
                lengths = lengths[: max_sentences - files.num_sentences]
                word_positions = word_positions[: int(lengths.sum())]
            # Words are in order of first appearance: those of the sentences that are left are the first.
            words = group.words[: int(word_positions.max(initial=-1)) + 1]
            ids = np.array([numbers[word] for word in words], dtype=np.int32)[word_positions]
            files.add(ids, lengths)
            group_counts = np.bincount(ids, minlength=len(numbers))
            group_counts[: len(counts)] += counts[: len(group_counts)]
            counts = group_counts
            if progress:
                progress("reading", files.num_sentences, max_sentences)
            if files.num_sentences == max_sentences:
                break
    starts = np.frombuffer(boundaries, dtype=np.int64)
    inner = starts[: np.searchsorted(starts, files.num_sentences)]
    np.save(folder / "documents.npy", np.append(inner, files.num_sentences))
    np.save(folder / "counts.npy", counts[: len(numbers)])
    with (folder / "words.txt").open("w", encoding="utf-8") as stream:
        stream.writelines(word + "\n" for word in numbers)
    return files


class TextStore:
    """The folder of a text, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tokens = np.asarray(np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r"))
        self.offsets = np.asarray(np.memmap(folder / "offsets.bin", dtype=np.int64, mode="r"))
        self.documents = np.load(folder / "documents.npy")
        self.counts = np.load(folder / "counts.npy")
        self.words = (folder / "words.txt").read_text(encoding="utf-8").split("\n")[:-1]

    def sentences(self, start: int, stop: int) -> Sentences:
        """Return the sentences `start` to `stop` (exclusive) as words of the text.

        They are read, as pages of a mapping that is read from one end to the other stay in memory.
        """
        offsets = np.fromfile(
            self._folder / "offsets.bin", np.int64, stop + 1 - start, offset=8 * start
        )
        first = int(offsets[0])
        last = int(offsets[-1])
        words = np.fromfile(self._folder / "tokens.bin", np.int32, last - first, offset=4 * first)
        return Sentences(words, np.diff(offsets))


class Split(NamedTuple):
    """The sentences of a split, in text order.

    Attributes:
        bounds: First sentence in the text and the end (exclusive) of each range of consecutive ones, int64 [ranges, 2].
        document_sizes: Sentences of each document, int64 [documents].
    """

    bounds: np.ndarray
    document_sizes: np.ndarray

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return int(self.document_sizes.sum())


class Splits(NamedTuple):
    """Training and validation."""

    train: Split
    validation: Split


def choose_splits(starts: np.ndarray, *, fraction: float, seed: int, name: str) -> Splits:
    """Choose random whole documents for validation until they have `fraction` of the sentences.

    A document that would exceed twice that number of sentences is skipped. If no choice is possible (a single document,
    or a few large ones), the tail of the longest document is used and counts as a document of its own.

    Args:
        starts: First sentence of each document, then the number of sentences, int64 [documents + 1].
        fraction: Fraction of the sentences to hold out.
        seed: Seed of the choice.
        name: Name of the corpus, for error messages.

    Raises:
        DataError: If the text has too few sentences for two splits.
    """
    num_sentences = int(starts[-1])
    if num_sentences < 2 * _MIN_SENTENCES:
        raise DataError(
            f"corpus.path: {name}: must hold at least {2 * _MIN_SENTENCES} sentences, two for training and two for "
            f"validation; given {num_sentences}"
        )
    num_wanted = max(_MIN_SENTENCES, round(fraction * num_sentences))
    is_chosen = _choose(np.diff(starts), num_wanted, np.random.default_rng(seed))
    if not is_chosen.any():
        starts, is_chosen = _cut_tail(starts, num_wanted)
    if len(is_chosen) == 1 or starts[-1] - np.diff(starts)[is_chosen].sum() < _MIN_SENTENCES:
        raise DataError(
            f"corpus.path: {name}: must have sentences for training besides those for validation; "
            f"given {num_sentences} sentences in {len(starts) - 1} documents; add text"
        )
    return Splits(train=_split(starts, ~is_chosen), validation=_split(starts, is_chosen))


def _choose(sizes: np.ndarray, num_wanted: int, generator: np.random.Generator) -> np.ndarray:
    """Return the chosen documents, bool [documents], with `wanted` sentences or more, or none if that is impossible."""
    is_chosen = np.zeros(len(sizes), dtype=bool)
    total = 0
    limit = min(2 * num_wanted, int(sizes.sum()) - _MIN_SENTENCES)
    for document in generator.permutation(len(sizes)):
        if total + sizes[document] <= limit:
            is_chosen[document] = True
            total += int(sizes[document])
        if total >= num_wanted:
            return is_chosen
    return np.zeros(len(sizes), dtype=bool)


def _cut_tail(starts: np.ndarray, num_wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts with the longest document split in two, and a mask of its second part."""
    longest = int(np.argmax(np.diff(starts)))
    cut = max(int(starts[longest + 1]) - num_wanted, int(starts[longest]) + 1)
    starts = np.insert(starts, longest + 1, cut)
    is_chosen = np.zeros(len(starts) - 1, dtype=bool)
    is_chosen[longest + 1] = starts[longest + 2] - cut >= _MIN_SENTENCES
    return starts, is_chosen


def _split(starts: np.ndarray, mask: np.ndarray) -> Split:
    # Where the mask changes, a range of documents begins or ends; both are taken in turn.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return Split(starts[edges].reshape(-1, 2), np.diff(starts)[mask])


def _build_corpus(
    folder: Path,
    text: TextStore | StoredSentences,
    config: CorpusConfig,
    vocabulary: Vocabulary,
    text_key: str,
    progress: Progress | None,
) -> dict[str, Any]:
    """Stage 2: write the sentences as ids of the vocabulary, the training documents first."""
    splits = _splits(text, config)
    vocabulary.save(folder / "vocabulary.txt")
    num_train = splits.train.num_sentences
    num_unknown = 0
    encode = _encoder_of(text, vocabulary, max_length=config.max_length)
    with _SentenceFiles(folder, "ids.bin") as files:
        for first, last in np.concatenate([splits.train.bounds, splits.validation.bounds]):
            for start in range(first, last, _BLOCK_SENTENCES):
                rows = encode(start, min(start + _BLOCK_SENTENCES, last))
                files.add(rows.ids, rows.lengths)
                num_unknown += int(np.count_nonzero(rows.ids == vocabulary.unknown_id))
            if progress:
                progress(
                    "encoding", files.num_sentences, num_train + splits.validation.num_sentences
                )
    sizes = np.concatenate([[0], splits.train.document_sizes, splits.validation.document_sizes])
    np.save(folder / "documents.npy", np.cumsum(sizes))
    return {
        "num_sentences": files.num_sentences,
        "num_tokens": files.num_tokens,
        "num_documents": len(sizes) - 1,
        "unknown_share": num_unknown / files.num_tokens,
        "across_documents": config.across_documents,
        "train": _describe_split(text_key, splits.train, 0),
        "validation": _describe_split(text_key, splits.validation, num_train),
    }


def _chosen(
    text: TextStore | StoredSentences, config: CorpusConfig, vocabulary: VocabularyConfig
) -> Vocabulary:
    if isinstance(text, TextStore):
        return _choose_words(text, vocabulary)
    # Neighbours are read together, which is faster than single sentences, and blocks are in random order.
    num_blocks = -(-len(text) // _SAMPLE_SENTENCES)
    blocks = np.random.default_rng(config.seed).permutation(num_blocks)
    starts = (blocks * _SAMPLE_SENTENCES).tolist()
    sample = (text.read(start, min(start + _SAMPLE_SENTENCES, len(text))) for start in starts)
    return train_subwords(chain.from_iterable(sample), vocabulary)


def _choose_words(text: TextStore, config: VocabularyConfig) -> Vocabulary:
    return build_vocabulary(zip(text.words, text.counts.tolist(), strict=True), config)


def _describe_split(text_key: str, split: Split, first: int) -> dict[str, Any]:
    # The text key identifies the text, so with the ranges it identifies the text of the split.
    text_hash = storage.content_key(text_key, split.bounds.tolist())
    return {"first": first, "num_sentences": split.num_sentences, "text_hash": text_hash}


def _encoder_of(
    text: TextStore | StoredSentences, vocabulary: Vocabulary, *, max_length: int
) -> Callable[[int, int], Sentences]:
    if isinstance(text, StoredSentences):
        assert isinstance(vocabulary, SubwordVocabulary)
        vocabulary.compile()
        return lambda start, stop: vocabulary.ids(text.read(start, stop), max_length=max_length)
    ids = np.fromiter(map(vocabulary.id, text.words), dtype=np.int32, count=len(text.words))

    def encode(start: int, stop: int) -> Sentences:
        words, lengths = text.sentences(start, stop)
        return as_rows(Sentences(ids[words], lengths), max_length=max_length)

    return encode
