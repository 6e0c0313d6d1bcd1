"""The cache of prepared corpora: folders that appear whole or not at all, built by one process of a machine.

Passages of text -> what a function makes of them, in order, by as many processes as pay.

Text -> a prepared corpus in the cache. Two stages, each a folder that appears whole or not at all.

Stage 1 (`text_store`) is keyed by the content of the files and how they are read; stage 2 (`store`) adds the
vocabulary and the splits, so that another vocabulary costs a pass over numbers and not over text. A file lock lets one
process build while the others of the machine wait. A large text is read by several processes (`parallel`). Memory holds
a few passages of the text and, in each process, the distinct words.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from raysent import storage
from raysent.data.corpus.cache import build_once
from raysent.data.corpus.config import CorpusConfig
from raysent.data.corpus.documents import SPLITTING_VERSION, Passage, passages
from raysent.data.corpus.embedded import docs_source
from raysent.data.corpus.sources import Source, find_sources
from raysent.data.corpus.store import (
    Corpus,
    PassageReader,
    Progress,
    SentenceRange,
    TextStore,
    TextWriter,
    choose_splits,
)
from raysent.data.vocabulary import (
    TOKENIZER_VERSION,
    UNK_ID,
    Sentences,
    Vocabulary,
    VocabularyConfig,
    as_rows,
    build_vocabulary,
)
from raysent.errors import DataError
from raysent.parallel import map_in_processes, num_processes_for
from raysent.storage import cache_folder

SUMMARY = "corpus.json"
# Files up to this size are compared with their hash when a folder is opened; larger ones with their size.
_HASHED_BYTES = 32 << 20


Result = TypeVar("Result")

# Passages are handed over in groups of at least so many characters: a file may be a line long.
_GROUP_CHARACTERS = 1 << 19
# So many are read in a second or two.
_NUM_FIRST_GROUPS = 8
# A process with its libraries, the distinct words of a large text and the passages at hand.
_PROCESS_BYTES = 600 << 20


def read_in_processes(
    function: Callable[[Sequence[Passage]], Result], sources: Sequence[Source], config: CorpusConfig
) -> Generator[Result]:
    """Yield what a function makes of the passages of all sources, in order.

    Where the number is left to the machine, this process reads what takes less time than to start others.

    Raises:
        DataError: If the text cannot be read.
    """
    reading = {"format": config.format, "text_field": config.text_field}
    groups = _grouped(passage for source in sources for passage in passages(source, **reading))
    if config.num_processes is None:
        yield from map(function, islice(groups, _NUM_FIRST_GROUPS))
        first = list(islice(groups, 1))
        if not first:
            return
        groups = chain(first, groups)
    num_processes = num_processes_for(config.num_processes, bytes_each=_PROCESS_BYTES)
    with closing(map_in_processes(function, groups, num_processes=num_processes)) as results:
        yield from results


def _grouped(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Yield passages in groups of about equal size."""
    group: list[Passage] = []
    num_characters = 0
    for passage in passages:
        group.append(passage)
        num_characters += len(passage.text)
        if num_characters >= _GROUP_CHARACTERS:
            yield group
            group, num_characters = [], 0
    if group:
        yield group


FORMAT_VERSION = 1
_BLOCK_SENTENCES = 50_000


def prepare(config: CorpusConfig, vocabulary: VocabularyConfig, *, progress: Progress | None = None) -> Corpus:
    """Build the corpus, or open it where the cache has it.

    Args:
        config: Which text, and how it is read and split.
        vocabulary: Which words get an id.
        progress: Told a stage's name (``reading``, ``encoding``), what is done and, where known, of how much.

    Raises:
        DataError: If the text cannot be read or leaves nothing to train on or to validate with.
        ArtifactError: If the cache cannot be written.
    """
    cache = cache_folder(config.cache_dir)
    sources = [docs_source(cache, progress)] if config.path == "docs" else find_sources(config.path)
    text_key = _text_key(sources, config)
    settings = config.model_dump(include={"across_documents", "validation_fraction", "max_length", "seed"})
    key = storage.content_key(FORMAT_VERSION, text_key, vocabulary.model_dump(), settings)

    def build_text(folder: Path) -> dict[str, Any]:
        return _build_text(folder, sources, config, progress)

    def build_corpus(folder: Path) -> dict[str, Any]:
        text = TextStore(build_once(cache, f"text/{text_key}", build_text))
        keys = {"key": key, "text_key": text_key}
        return keys | _build_corpus(folder, text, config, vocabulary, text_key, progress)

    return Corpus(build_once(cache, f"corpora/{key}", build_corpus))


def _text_key(sources: list[Source], config: CorpusConfig) -> str:
    """Return what names the sentences: the files' content, wherever they lie, and how they are read."""
    reading = config.model_dump(include={"format", "text_field", "max_sentences"})
    versions = [FORMAT_VERSION, SPLITTING_VERSION, TOKENIZER_VERSION]
    contents = [[source.is_json, source.fingerprint()] for source in sources]
    return storage.content_key(versions, contents, reading)


def _build_text(folder: Path, sources: list[Source], config: CorpusConfig, progress: Progress | None) -> dict[str, Any]:
    """Stage 1: write all sentences as ids of distinct words."""
    writer = TextWriter(folder, max_sentences=config.max_sentences, progress=progress)
    with closing(read_in_processes(PassageReader(), sources, config)) as numbers:
        writer.write(numbers)
    if writer.num_sentences == 0:
        raise DataError(f"corpus.path: {_shown(config)}: must hold sentences; given none")
    return {"num_sentences": writer.num_sentences, "num_tokens": writer.num_tokens}


def _shown(config: CorpusConfig) -> str:
    return config.path if isinstance(config.path, str) else ", ".join(config.path)


def _build_corpus(
    folder: Path,
    text: TextStore,
    config: CorpusConfig,
    vocabulary_config: VocabularyConfig,
    text_key: str,
    progress: Progress | None,
) -> dict[str, Any]:
    """Stage 2: write the ids of the vocabulary's words, the training documents first."""
    splits = choose_splits(text.documents, fraction=config.validation_fraction, seed=config.seed, name=_shown(config))
    vocabulary = build_vocabulary(zip(text.words, text.counts.tolist(), strict=True), vocabulary_config)
    vocabulary.save(folder / "vocabulary.txt")
    writer = _IdWriter(folder, text, vocabulary, config.max_length, progress)
    runs = splits.train + splits.validation
    writer.write(runs)
    num_train = sum(run.stop - run.start for run in splits.train)
    num_validation = writer.num_sentences - num_train
    np.save(folder / "documents.npy", np.cumsum([0, *(size for run in runs for size in run.document_sizes)]))
    return {
        "num_sentences": writer.num_sentences,
        "num_tokens": writer.num_tokens,
        "num_documents": sum(len(run.document_sizes) for run in runs),
        "unknown_share": writer.num_unknown / writer.num_tokens,
        "across_documents": config.across_documents,
        "train": _describe_split(text_key, splits.train, 0, num_train),
        "validation": _describe_split(text_key, splits.validation, num_train, num_validation),
    }


def _describe_split(text_key: str, runs: list[SentenceRange], first: int, num_sentences: int) -> dict[str, Any]:
    # The text key names every sentence of the text, so the sentences' places in it name the split's own.
    places = [[run.start, run.stop] for run in runs]
    return {"first": first, "num_sentences": num_sentences, "text_hash": storage.content_key(text_key, places)}


class _IdWriter:
    """Writes runs of sentences as ids of a vocabulary, block by block."""

    def __init__(
        self, folder: Path, text: TextStore, vocabulary: Vocabulary, max_length: int, progress: Progress | None
    ) -> None:
        self._folder = folder
        self._text = text
        self._max_length = max_length
        self._progress = progress
        self._ids = np.fromiter(map(vocabulary.id, text.words), dtype=np.int32, count=len(text.words))
        self.num_sentences = self.num_tokens = self.num_unknown = 0

    def write(self, runs: list[SentenceRange]) -> None:
        total = sum(run.stop - run.start for run in runs)
        with (self._folder / "ids.bin").open("wb") as ids, (self._folder / "offsets.bin").open("wb") as offsets:
            offsets.write(np.zeros(1, dtype=np.int64).data)
            for run in runs:
                for start in range(run.start, run.stop, _BLOCK_SENTENCES):
                    rows = self._rows(start, min(start + _BLOCK_SENTENCES, run.stop))
                    ids.write(rows.ids.data)
                    offsets.write((self.num_tokens + np.cumsum(rows.lengths)).data)
                    self.num_sentences += len(rows.lengths)
                    self.num_tokens += len(rows.ids)
                    self.num_unknown += int(np.count_nonzero(rows.ids == UNK_ID))
                if self._progress:
                    self._progress("encoding", self.num_sentences, total)

    def _rows(self, start: int, stop: int) -> Sentences:
        offsets = self._text.offsets[start : stop + 1]
        ids = self._ids[self._text.tokens[offsets[0] : offsets[-1]]]
        return as_rows(Sentences(ids, cast(np.ndarray, np.diff(offsets))), max_length=self._max_length)
