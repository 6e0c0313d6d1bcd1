"""Models looked at beyond their scores: analyses of tasks and runs, nearest sentences, analogies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysent.analysis import (
    AnalogyScore,
    Analysis,
    Comparison,
    compare_efficiency,
    compare_values,
    find_disagreements,
    find_neighbours,
    pick_examples,
    project,
    read_analogies,
    save_comparison,
    score_analogies,
    search_folder,
    write_analysis,
)
from raysent.data import read_lines
from raysent.data.corpus import CorpusConfig, distinct_sentences
from raysent.errors import ConfigError, did_you_mean
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand as expand_names
from raysent.evaluation.members import is_model
from raysent.evaluation.protocols import protocol_name
from raysent.evaluation.task import PROBED
from raysent.evaluation.tasks import resolve_tasks
from raysent.models import is_vector_folder
from raysent.models import load as load_model
from raysent.pipeline.arguments import print_corpus_notes
from raysent.pipeline.evaluation import scores_folder
from raysent.progress import ProgressLines
from raysent.storage import address_of
from raysent.storage.layout import EVALUATION_FOLDER

# Analysis -> the arguments that it takes beside models and tasks.
_ARGUMENTS = {
    "tsne": ("points", "seed"),
    "errors": ("protocol", "rows"),
    "examples": ("protocol", "rows", "seed"),
    "efficiency": ("metric", "target"),
    "parameter": ("setting", "by", "metric", "protocol"),
}


@dataclass(frozen=True)
class Analysed:
    """Results of an analysis.

    Attributes:
        results: One value for each model, task or comparison.
        paths: The files that keep them, as a user names them; the report of their folder shows them.
    """

    results: tuple[Analysis, ...]
    paths: tuple[str, ...]


def analyse(  # noqa: PLR0913 - the options of the command
    name: str,
    models: Sequence[str | Path],
    *,
    tasks: Sequence[str] | None = None,
    data: str | Path | None = None,
    into: str | Path | None = None,
    protocol: str = "fast",
    rows: int = 10,
    points: int = 2000,
    seed: int = 0,
    metric: str | None = None,
    target: float | None = None,
    setting: str | None = None,
    by: str = "",
    progress: bool = True,
) -> Analysed:
    """Look closer than scores; results are stored in the run's folder and shown in its report.

    Args:
        name: ``tsne``, the sentences of tasks on a plane; ``errors``, the rows on which two models differ most;
            ``examples``, predictions beside the right ones; ``efficiency``, scores of runs against hours of training;
            ``parameter``, a metric of runs between the values of one setting.
        models: Folders of trainings, trials or sweeps (all their trials); for the first three also other models, as
            for `evaluate`.
        tasks: As for `evaluate`; by default all with a probe. For ``parameter``, the mean test score of these instead
            of `metric`.
        data: Folder of task files.
        into: Folder for the results; by default the first model's.
        protocol: Protocol for tasks with a probe.
        rows: Rows to show of each kind, of ``errors`` and ``examples``.
        points: Most rows to show, of ``tsne``.
        seed: Seed of the sample, of ``tsne`` and ``examples``.
        metric: Validation metric, of ``efficiency`` and ``parameter``; by default ``downstream``, or one that all
            report.
        target: Score to reach, of ``efficiency``; by default the best that all runs reach.
        setting: Dotted name of a setting, of ``parameter``, such as ``encoder.hidden_size``.
        by: A second setting, of ``parameter``; each of its values gets a line.
        progress: Whether to show progress on standard error.

    Raises:
        RaysentError: If the analysis, a model, a task or an argument is wrong.
    """
    given = {"protocol": protocol, "rows": rows, "points": points, "seed": seed, "metric": metric, "target": target}
    given |= {"setting": setting, "by": by}
    _check_arguments(name, given)
    folder = Path(into) if into is not None else scores_folder(models)
    data_dir = None if data is None else Path(data)
    options: dict[str, Any] = {"scorings": PROBED} if name == "parameter" else {"default": PROBED}
    named: list[str] = []
    if name != "efficiency" and (name != "parameter" or tasks is not None):
        named = [task.spec for task in resolve_tasks(tasks, data_dir, **options)]
    found: list[Analysis]
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        evaluator = Evaluator(folder / EVALUATION_FOLDER, data_dir, protocol_name(protocol), progress=bar)
        match name:
            case "tsne":
                found = [*project(models, named, evaluator=evaluator, num_points=points, seed=seed)]
            case "errors":
                found = [find_disagreements(models, task, evaluator=evaluator, num_rows=rows) for task in named]
            case "examples":
                found = [
                    one
                    for task in named
                    for one in pick_examples(models, task, evaluator=evaluator, num_rows=rows, seed=seed)
                ]
            case "efficiency":
                found = [compare_efficiency(models, metric=metric, target=target)]
            case _:
                assert setting is not None
                found = [compare_values(models, setting, by=by, metric=metric, tasks=named, evaluator=evaluator)]
    return Analysed(tuple(found), tuple(address_of(write_analysis(folder, one)) for one in found))


def _check_arguments(name: str, given: dict[str, Any]) -> None:
    """Refuse an unknown analysis, and arguments of another one.

    Raises:
        ConfigError: With the argument.
    """
    if name not in _ARGUMENTS:
        raise ConfigError(f"analyse {name}: unknown analysis{did_you_mean(name, _ARGUMENTS)}")
    defaults: Mapping[str, Any] = analyse.__kwdefaults__ or {}
    wrong = next((key for key in given if given[key] != defaults[key] and key not in _ARGUMENTS[name]), None)
    if wrong is not None:
        known = ", ".join(_ARGUMENTS[name])
        raise ConfigError(f"{wrong}: is no argument of the analysis {name}, which takes {known}; leave it out")
    if name == "parameter" and given["setting"] is None:
        raise ConfigError("setting: must name the setting that is compared, such as encoder.hidden_size")


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
    options: dict[str, Any] = {"k": k, "includes_query": includes_query}
    name = str(corpus)
    if is_model(name):  # the most likely slip with a list of models before it
        raise ConfigError(f"corpus: must be a text to search; given the model {name}; add 'docs' or a file")
    if is_vector_folder(name):
        if column is not None or max_sentences is not None:
            raise ConfigError("column and max_sentences: must be left out for a folder of vectors")
        place = None if index is None else Path(index)
        with ProgressLines(is_quiet=not progress) as bar:
            found = search_folder(list(models), name, list(queries), index=place, progress=bar, **options)
    else:
        if index is not None:
            raise ConfigError(f"index: must be used with a folder of vectors; given {corpus}; leave it out")
        config = CorpusConfig(path=name, max_sentences=max_sentences, text_field=column or "text")
        with ProgressLines(is_quiet=not progress) as bar:
            found = find_neighbours(list(models), config, list(queries), progress=bar, **options)
        if progress:
            print_corpus_notes(config)
    folder = next((Path(model) for model in models if Path(model).is_dir()), None)
    if folder is not None:
        save_comparison(folder, found)
    return found


def analogies(
    models: Sequence[str | Path],
    file: str | Path,
    *,
    pool: str | Path | None = None,
    column: str | None = None,
    asks_all_four: bool = False,
    excludes_inputs: bool = False,
    progress: bool = True,
) -> list[AnalogyScore]:
    """Complete analogies among sentences, A is to B as C is to what: the sentence nearest to v(C) + v(B) - v(A).

    Args:
        models: As for `evaluate`.
        file: Lines ``: category``, and lines of A, B, C and D separated by tabs.
        pool: Text whose sentences are candidates too, beside those of the file.
        column: Column of the text of `pool`, if it is a table.
        asks_all_four: Whether each of the four sentences is asked for, as in the paper; by default D.
        excludes_inputs: Whether A, B and C are left out as answers; the paper keeps them.
        progress: Whether to show progress on standard error.

    Returns:
        For each model the percentage of right answers by category, and of answers that are C itself.

    Raises:
        RaysentError: If a model or a file cannot be used.
    """
    questions = read_analogies(read_lines(Path(file)), name=str(file))
    config = None if pool is None else CorpusConfig(path=str(pool), text_field=column or "text")
    with ProgressLines(is_quiet=not progress) as bar:
        sentences = None if config is None else distinct_sentences(config, progress=bar)
        scores = [
            score_analogies(
                member,
                load_model(member.path),
                questions,
                pool=sentences,
                asks_all_four=asks_all_four,
                excludes_inputs=excludes_inputs,
                progress=bar,
            )
            for member in expand_names(models)
        ]
    if config is not None and progress:
        print_corpus_notes(config)
    return scores
