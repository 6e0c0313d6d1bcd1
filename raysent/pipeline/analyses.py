"""Models looked at beyond their scores: analyses of tasks and runs, and nearest sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysent.analysis import (
    Comparison,
    CorpusVectors,
    FolderVectors,
    find_neighbours,
    save_comparison,
)
from raysent.config import Document, validate
from raysent.data.corpus import CorpusConfig
from raysent.errors import ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import is_model
from raysent.models import is_vector_folder
from raysent.pipeline.arguments import print_corpus_notes
from raysent.pipeline.evaluation import scores_folder
from raysent.progress import ProgressLines
from raysent.report import ANALYSES, Analysis, write_analysis
from raysent.storage import address_of
from raysent.storage.layout import EVALUATION_FOLDER


@dataclass(frozen=True)
class Analysed:
    """Results of an analysis.

    Attributes:
        results: One value for each model, task or comparison.
        paths: The files that keep them, as a user names them; the report of their folder shows them.
    """

    results: tuple[Analysis, ...]
    paths: tuple[str, ...]


def analyse(
    name: str,
    models: Sequence[str | Path],
    *,
    tasks: Sequence[str] | None = None,
    data: str | Path | None = None,
    into: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Analysed:
    """Look closer than scores; results are stored in the run's folder and shown in its report.

    Args:
        name: ``errors``, the rows on which two models differ most; ``examples``, predictions beside the right ones; or
            one of another package.
        models: As for `evaluate`.
        tasks: As for `evaluate`; by default all with a probe.
        data: Folder of task files.
        into: Folder for the results; by default the first model's.
        progress: Whether to show progress on standard error.
        settings: Of ``errors``: rows, protocol. Of ``examples``: rows, protocol, seed. See `report/analyses`.

    Raises:
        RaysentError: If the analysis, a model, a task or a setting is wrong.
    """
    request = validate(ANALYSES.find(name, where=f"analyse {name}"), Document(settings))
    folder = Path(into) if into is not None else scores_folder(models)
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        evaluator = Evaluator(folder / EVALUATION_FOLDER, None if data is None else Path(data), progress=bar)
        found = tuple(request.compute(models, tasks, evaluator))
    return Analysed(found, tuple(address_of(write_analysis(folder, one)) for one in found))


def neighbours(  # noqa: PLR0913 - the options of the command
    models: Sequence[str | Path],
    corpus: str | Path,
    queries: Sequence[str],
    *,
    k: int = 5,
    includes_query: bool = False,
    index: str | Path | None = None,
    column: str | None = None,
    max_sentences: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Find the nearest sentences of a text by each model, exactly: by cosine, or by Hamming distance for codes.

    A sentence that occurs several times is listed once. Vectors are cached, so the next search of the same text is
    fast. The result is stored in ``neighbours.json`` of the first model with a folder, for its report.

    Args:
        models: As for `evaluate`.
        corpus: Text to search: a file, folder, glob, ``s3://`` address or ``docs``; or a folder of vectors that
            `encode_corpus` wrote, whose text is not encoded again.
        queries: The query sentences.
        k: Neighbours of each query.
        includes_query: Whether a query that is in the corpus finds itself.
        index: An index that `index_vectors` wrote of the folder of vectors.
        column: Column of the text of tables.
        max_sentences: Most sentences to read of the text.
        progress: Whether to show progress on standard error.

    Raises:
        RaysentError: If there is no query, or a model, the text or the index cannot be used.
    """
    if not queries:
        raise ConfigError("query: must be given at least once, or a file of queries; given neither")
    name = str(corpus)
    if is_model(name):  # the most likely slip with a list of models before it
        raise ConfigError(f"corpus: must be a text to search; given the model {name}; add 'docs' or a file")
    config = CorpusConfig(path=name, max_sentences=max_sentences, text_field=column or "text")
    is_folder = is_vector_folder(name)
    if is_folder and (column is not None or max_sentences is not None):
        raise ConfigError("column and max_sentences: must be left out for a folder of vectors")
    if index is not None and not is_folder:
        raise ConfigError(f"index: must be used with a folder of vectors; given {corpus}; leave it out")
    with ProgressLines(is_quiet=not progress) as bar:
        searched = FolderVectors(name, index=index, progress=bar) if is_folder else CorpusVectors(config, bar)
        found = find_neighbours(models, searched, queries, k=k, includes_query=includes_query)
    if progress and not is_folder:
        print_corpus_notes(config)
    folder = next((Path(model) for model in models if Path(model).is_dir()), None)
    if folder is not None:
        save_comparison(folder, found)
    return found
