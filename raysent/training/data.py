"""The text of a run: a corpus or pairs, as its objective reads, and the vocabulary of either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from raysent.data.batches import SentenceTargets
from raysent.data.corpus import Corpus, count_text, prepare, vocabulary_type
from raysent.data.pairs import PairCorpus, PairsConfig, vocabulary_type_of
from raysent.data.vocabulary import Sentences, SubwordVocabulary, Vocabulary, VocabularyType
from raysent.errors import ConfigError
from raysent.models.backbone import read_tokenizer
from raysent.models.objectives import TargetBatches
from raysent.parallel import Progress
from raysent.storage import open_folder
from raysent.storage.layout import MODEL_FILE, VOCABULARY_FILE
from raysent.training.labels import LabelledRows, LabelsConfig
from raysent.training.run import RunConfig
from raysent.training.targets import open_targets

Part = TypeVar("Part")

_SAMPLE_BLOCKS = 100
_COUNTED_SENTENCES = 200_000


@dataclass(frozen=True)
class TrainingData:
    """The text of a run.

    Attributes:
        vocabulary: The words that have an id.
        corpus: Running text; None for a run on pairs.
        pairs: Pairs; None for a run on running text.
        labels: Training rows of a task; None for a run that reads no labels.
        max_length: Tokens kept of a longer sentence.
        targets: What a teacher returned for each sentence of the corpus; None for a run without a teacher.
    """

    vocabulary: Vocabulary
    corpus: Corpus | None = None
    pairs: PairCorpus | None = None
    labels: LabelledRows | None = None
    max_length: int = 50
    targets: SentenceTargets | None = None

    @property
    def text(self) -> Corpus:
        """The corpus of a run on running text."""
        return read_part(self.corpus)

    @property
    def num_classes(self) -> int:
        """Labels of the pairs or of the task; 0 where they have none."""
        if self.labels is not None:
            return self.labels.num_classes
        if self.pairs is not None:
            return len(self.pairs.train.classes)
        return 0

    def sample(self, num_sentences: int) -> Sentences:
        """Return sentences of the training text: evenly spaced blocks of a corpus, or the first pairs' sentences."""
        if self.pairs is not None:
            pairs = self.pairs.train
            text = [*pairs.first[: num_sentences // 2], *pairs.second[: num_sentences // 2]]
            return self.vocabulary.ids(text, max_length=self.max_length)
        if self.labels is not None:
            text = self.labels.train[:num_sentences]
            return self.vocabulary.ids(text, max_length=self.max_length)
        train = self.text.train
        if len(train) <= num_sentences:
            return train.sentences(0, len(train))
        size = max(1, num_sentences // _SAMPLE_BLOCKS)
        last_start = max(0, len(train) - size)
        starts = np.unique(np.linspace(0, last_start, _SAMPLE_BLOCKS).astype(np.int64))
        blocks = [
            train.sentences(start, min(start + size, len(train))) for start in starts.tolist()
        ]
        return Sentences(
            np.concatenate([block.ids for block in blocks]),
            np.concatenate([block.lengths for block in blocks]),
        )

    def word_counts(self) -> npt.NDArray[np.int64]:
        """Return how often each word occurs [vocabulary], in a sample of a large corpus."""
        return np.bincount(self.sample(_COUNTED_SENTENCES).ids, minlength=len(self.vocabulary))

    def facts(self) -> dict[str, Any]:
        """Return sizes and keys, as plain values."""
        parts = (self.corpus, self.pairs, self.labels)
        text = next((part for part in parts if part is not None), None)
        if text is None:
            return {}
        facts: dict[str, Any] = {"key": text.key, "text_key": text.key}
        if self.corpus is not None:
            # A corpus has a key of its text apart from that of its vocabulary.
            facts["text_key"] = self.corpus.text_key
            facts["num_sentences"] = self.corpus.num_sentences
            facts["num_documents"] = self.corpus.num_documents
            facts["num_tokens"] = self.corpus.num_tokens
            facts["language"] = self.corpus.language
        facts["vocabulary"] = "words"
        if isinstance(self.vocabulary, SubwordVocabulary):
            facts["vocabulary"] = "subwords"
        facts["num_train"] = len(text.train)
        facts["num_validation"] = len(text.validation)
        return facts


def read_part(part: Part | None) -> Part:
    """Return a part of `TrainingData` that the run's objective reads, so that it is there."""
    assert part is not None
    return part


@dataclass(frozen=True)
class TextSize:
    """How much text a run reads, before a vocabulary is chosen.

    Attributes:
        num_train: Sentences or pairs that are trained on.
        num_sentences: Sentences in all.
        num_tokens: Words of all sentences.
        word_counts: How often each distinct word or sub-word occurs, int64 [words].
        documents: Sentences for training of each document, int64 [documents]; empty for pairs.
    """

    num_train: int
    num_sentences: int
    num_tokens: int
    word_counts: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]

    def num_words(self, *, min_count: int) -> int:
        """Return how many distinct words occur at least `min_count` times."""
        return int((self.word_counts >= min_count).sum())

    def facts(self) -> dict[str, int]:
        """Return the sizes under the names of `TrainingData.facts`."""
        return {
            "num_train": self.num_train,
            "num_sentences": self.num_sentences,
            "num_tokens": self.num_tokens,
        }


def text_size(config: RunConfig, *, progress: Progress | None = None) -> TextSize:
    """Return how much text a run reads; the text is read once, and kept in the cache where it is a corpus.

    Raises:
        DataError: If the text cannot be read.
    """
    if isinstance(config.source, PairsConfig):
        pairs = PairCorpus(config.source, unicode_form=config.vocabulary.unicode_form)
        return _size_of_columns(pairs.train.columns, pairs.vocabulary(config.vocabulary), config)
    if isinstance(config.source, LabelsConfig):
        labels = LabelledRows(config.source)
        return _size_of_columns([labels.train], labels.vocabulary(config.vocabulary), config)
    type_of_vocabulary, _ = vocabulary_type(config.corpus, config.vocabulary, progress=progress)
    if type_of_vocabulary == "subwords":
        # How many sub-words a text has is known once they are found.
        corpus = prepare(config.corpus, config.vocabulary, progress=progress)
        return TextSize(
            num_train=len(corpus.train),
            num_sentences=corpus.num_sentences,
            num_tokens=corpus.num_tokens,
            word_counts=np.bincount(corpus.ids, minlength=len(corpus.vocabulary)),
            documents=np.diff(corpus.document_starts)[: corpus.train.num_documents],
        )
    num_sentences, counts, document_sizes = count_text(
        config.corpus, unicode_form=config.vocabulary.unicode_form, progress=progress
    )
    return TextSize(
        num_train=int(document_sizes.sum()),
        num_sentences=num_sentences,
        num_tokens=int(counts.sum()),
        word_counts=counts,
        documents=document_sizes,
    )


def _size_of_columns(
    columns: Sequence[list[str]], vocabulary: Vocabulary, config: RunConfig
) -> TextSize:
    """Return the size of the training texts of pairs or of a task [columns, rows]."""
    ids = [vocabulary.ids(column, max_length=config.max_length).ids for column in columns]
    counts = np.bincount(np.concatenate(ids), minlength=len(vocabulary))
    num_rows = len(columns[0])
    return TextSize(
        num_train=num_rows,
        num_sentences=len(columns) * num_rows,
        num_tokens=int(counts.sum()),
        word_counts=counts,
        documents=np.empty(0, dtype=np.int64),
    )


def chosen_vocabulary_type(
    config: RunConfig, *, progress: Progress | None = None
) -> tuple[VocabularyType, str]:
    """Return the type of vocabulary that ``auto`` takes for a run's text, and why, in words.

    Raises:
        DataError: If the text cannot be read.
    """
    if isinstance(config.source, PairsConfig):
        pairs = PairCorpus(config.source, unicode_form=config.vocabulary.unicode_form)
        return vocabulary_type_of(pairs.train.columns, config.vocabulary)
    if isinstance(config.source, LabelsConfig):
        return vocabulary_type_of([LabelledRows(config.source).train], config.vocabulary)
    return vocabulary_type(config.corpus, config.vocabulary, progress=progress)


def source_key(config: RunConfig) -> str:
    """Return a key of the files and settings that `open_training_data` reads, so that equal ones are opened once."""
    parts = [
        config.source.model_dump_json(),
        str(config.max_length),
        config.vocabulary.model_dump_json(),
    ]
    if config.initial:
        parts.append(config.initial)
    elif config.tokenizer:
        parts.append(config.tokenizer.model_dump_json())
    if isinstance(config.objective.batches, TargetBatches):
        parts.append(repr(config.objective.batches))
    return "".join(parts)


def _initial_words(initial: str) -> Vocabulary:
    """Return the words of the model that a run starts with.

    Raises:
        ConfigError: If the folder has no trained model.
    """
    folder = open_folder(initial)
    if not (folder / MODEL_FILE).exists():
        raise ConfigError(
            f"initial: must be the folder of a trained model; found none in {initial}"
        )
    return Vocabulary.load(folder / VOCABULARY_FILE)


def open_training_data(config: RunConfig, *, progress: Progress | None = None) -> TrainingData:
    """Build or open the corpus, or read the pairs.

    The words are those of the model that the run starts with, or the sub-words of a pretrained encoder, if any.

    Raises:
        ConfigError: If the run is to start with a model that does not exist, or a teacher's target loses too much.
        DataError: If the text cannot be read.
        ArtifactError: If a teacher cannot be loaded.
    """
    words = None if config.initial is None else _initial_words(config.initial)
    if words is None and config.tokenizer is not None:
        words = SubwordVocabulary(read_tokenizer(config.tokenizer))
    length = config.max_length
    if isinstance(config.source, PairsConfig):
        pairs = PairCorpus(config.source, unicode_form=config.vocabulary.unicode_form)
        return TrainingData(
            words or pairs.vocabulary(config.vocabulary), pairs=pairs, max_length=length
        )
    if isinstance(config.source, LabelsConfig):
        labels = LabelledRows(config.source)
        return TrainingData(
            words or labels.vocabulary(config.vocabulary), labels=labels, max_length=length
        )
    corpus = prepare(config.corpus, config.vocabulary, words=words, progress=progress)
    batches = config.objective.batches
    targets = None
    if isinstance(batches, TargetBatches):
        targets = open_targets(batches, config.corpus, corpus, progress)
    return TrainingData(corpus.vocabulary, corpus=corpus, max_length=length, targets=targets)
