"""Queries -> what each of several models finds nearest to them, side by side.

Source: nearest neighbours of Logeswaran & Lee 2018, Kiros et al. 2015 and Shen et al. 2019 (table 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raysent.analysis.neighbours.search import Hits, Index, Measure, encoded, open_index
from raysent.data.corpus import CorpusConfig, Progress
from raysent.data.corpus.distinct import distinct_sentences, normalize_whitespace
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Load
from raysent.evaluation.members import Member, expand
from raysent.models import load as load_model
from raysent.storage import read_json, write_json
from raysent.storage.layout import NEIGHBOURS_FILE

_KIND = "raysent-neighbours-table"


@dataclass(frozen=True)
class Neighbour:
    """A sentence that was found, and its cosine, or how many bits of its code differ."""

    sentence: str
    score: float


@dataclass(frozen=True)
class Column:
    """What one model finds.

    Attributes:
        model: The model's name.
        measure: ``cosine``, or ``hamming`` for a model with a code.
        neighbours: Of every query, the nearest first.
    """

    model: str
    measure: Measure
    neighbours: tuple[tuple[Neighbour, ...], ...]


@dataclass(frozen=True)
class Comparison:
    """Several models' answers to the same queries over the same sentences.

    Attributes:
        corpus: The text as it was named.
        num_sentences: Its distinct sentences.
        sentences_key: Names them.
        queries: What was asked.
        columns: One a model.
    """

    corpus: str
    num_sentences: int
    sentences_key: str
    queries: tuple[str, ...]
    columns: tuple[Column, ...]

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def neighbours(
    models: Sequence[str | Path],
    corpus: CorpusConfig,
    queries: Sequence[str],
    *,
    k: int = 5,
    includes_query: bool = False,
    load: Load | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return the sentences nearest to each query, by each model.

    A sentence that occurs several times counts once. Two sentences are the same where they differ in white space alone.

    Args:
        models: Models' folders, ``hash:DIM``, or a sweep's folder, which stands for its trials that have a model.
        corpus: Where neighbours are looked for.
        queries: Sentences; they need not be in the corpus.
        k: Neighbours of each query.
        includes_query: Whether a query that is in the corpus is its own neighbour.
        load: Path -> encoder; `raysent.models.load` by default.
        progress: Called with what is being done.

    Raises:
        ConfigError: If there is no query or an empty one, or `k` is below 1.
        DataError: If the corpus cannot be read or a model gives NaN.
        ArtifactError: If a model cannot be loaded or the cache cannot be written.
    """
    if k < 1:
        raise ConfigError(f"k: must be at least 1; given {k}")
    asked = _checked(queries)
    members = expand(models)
    sentences = distinct_sentences(corpus, progress=progress)
    columns = []
    for member in members:
        encoder = (load or load_model)(member.path)
        index = open_index(member, encoder, sentences, cache_dir=corpus.cache_dir, progress=progress)
        vectors = encoded(encoder, asked, measure=index.measure, name=member.name)
        # One more than wanted: the query itself may be among them.
        hits = index.search(vectors, k=k + (not includes_query))
        columns.append(_column(member, index, hits, asked=None if includes_query else asked, k=k))
    name = corpus.path if isinstance(corpus.path, str) else ", ".join(corpus.path)
    return Comparison(name, len(sentences), sentences.key, tuple(asked), tuple(columns))


def save_comparison(folder: Path, comparison: Comparison) -> Path:
    """Write `neighbours.json`, which a report shows, and return its path.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    path = folder / NEIGHBOURS_FILE
    write_json(path, {"kind": _KIND, **comparison.values()})
    return path


def read_comparison(folder: Path) -> Comparison | None:
    """Return what was saved last; None where nothing was.

    Raises:
        ArtifactError: If the file is broken or of another kind.
    """
    path = folder / NEIGHBOURS_FILE
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        if values["kind"] != _KIND:
            raise KeyError("kind")
        columns = tuple(_read_column(column) for column in values["columns"])
        names = ("corpus", "num_sentences", "sentences_key")
        return Comparison(**{name: values[name] for name in names}, queries=tuple(values["queries"]), columns=columns)
    except (KeyError, TypeError):
        raise ArtifactError(
            f"{path}: not a table of neighbours of this version; run 'raysent neighbours' again"
        ) from None


def _read_column(values: Mapping[str, Any]) -> Column:
    found = tuple(tuple(Neighbour(**one) for one in of_query) for of_query in values["neighbours"])
    return Column(values["model"], values["measure"], found)


def _checked(queries: Sequence[str]) -> list[str]:
    """Return the queries with single blanks."""
    asked = [normalize_whitespace(query) for query in queries]
    if not asked:
        raise ConfigError("queries: must be at least one sentence; given none")
    if "" in asked:
        raise ConfigError(f"queries: must be sentences; number {asked.index('') + 1} is empty")
    return asked


def _column(member: Member, index: Index, hits: Hits, *, asked: list[str] | None, k: int) -> Column:
    """Return the sentences of the rows that were found, without the queries themselves where these are given."""
    answers = []
    for number, (rows, scores) in enumerate(zip(hits.rows, hits.scores, strict=True)):
        texts = index.sentences.texts(rows.tolist())
        found = [Neighbour(text, score) for text, score in zip(texts, scores.tolist(), strict=True)]
        if asked is not None:
            found = [one for one in found if one.sentence != asked[number]]
        answers.append(tuple(found[:k]))
    return Column(member.name, index.measure, tuple(answers))
