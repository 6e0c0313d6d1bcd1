"""`raysent neighbours`, `analogies` and `rank`: what is typed, and what is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

import raysent
from raysent.analysis.analogies import AnalogyScore, read_analogies, score_analogies
from raysent.analysis.image_ranking import RankingScore, rank_images, read_ranking_data
from raysent.analysis.neighbours import Comparison, Neighbour, save_comparison
from raysent.analysis.neighbours import neighbours as find_neighbours
from raysent.cli.console import ProgressLines, messages, print_json, print_table, results
from raysent.cli.reading import read_lines
from raysent.data.corpus import CorpusConfig
from raysent.data.corpus.distinct import distinct_sentences
from raysent.errors import ConfigError
from raysent.evaluation.members import expand, model_folder
from raysent.kernels.devices import set_matmul_precision
from raysent.models.schemes import is_scheme_name
from raysent.storage import address_of
from raysent.storage.layout import TRIALS_FOLDER


def neighbours(
    models: Sequence[str],
    corpus: str,
    *,
    queries: Sequence[str],
    file: Path | None,
    k: int,
    includes_query: bool,
    max_sentences: int | None,
    as_json: bool,
) -> int:
    """Print what each model finds nearest to each query, and keep it for the report."""
    asked = [*queries, *(read_lines(file) if file else [])]
    if not asked:
        raise ConfigError("--query: must be given at least once, or --queries FILE; given neither")
    _check_corpus(corpus)
    set_matmul_precision()
    config = CorpusConfig(path=corpus, max_sentences=max_sentences)
    with ProgressLines(is_quiet=as_json) as progress:
        found = find_neighbours(models, config, asked, k=k, includes_query=includes_query, progress=progress)
    folder = next((Path(model) for model in models if Path(model).is_dir()), None)
    path = None if folder is None else save_comparison(folder, found)
    if as_json:
        print_json(found.values())
        return 0
    _print_comparison(found)
    if folder is not None and path is not None:
        messages.print(f"kept in {address_of(path)}; 'raysent report {address_of(folder)}' shows it", soft_wrap=True)
    return 0


def analogies(
    models: Sequence[str],
    file: Path,
    *,
    pool: str | None,
    asks_all_four: bool,
    excludes_inputs: bool,
    as_json: bool,
) -> int:
    """Print how many analogies each model completes, by category."""
    questions = read_analogies(read_lines(file), name=str(file))
    members = expand(models)
    set_matmul_precision()
    with ProgressLines(is_quiet=as_json) as progress:
        sentences = None if pool is None else distinct_sentences(CorpusConfig(path=pool), progress=progress)
        scores = [
            score_analogies(
                member,
                raysent.load(member.path),
                questions,
                pool=sentences,
                asks_all_four=asks_all_four,
                excludes_inputs=excludes_inputs,
                progress=progress,
            )
            for member in members
        ]
    if as_json:
        print_json({"file": str(file), "pool": pool, "results": [asdict(score) for score in scores]})
    else:
        _print_analogies(scores)
    return 0


def _print_analogies(scores: Sequence[AnalogyScore]) -> None:
    """Print a row a category, and for each model its accuracy and how often it gave C back."""
    headings = ["category", "questions"]
    for score in scores:
        headings += [score.model, "gave C"]
    columns = [[*score.categories, score.total] for score in scores]
    rows = []
    for of_models in zip(*columns, strict=True):
        figures = [f"{value:.1f}" for one in of_models for value in (one.accuracy, one.returned_c)]
        rows.append((of_models[0].category, f"{of_models[0].num_questions:,}", *figures))
    print_table(headings, rows)
    inputs = "left out" if scores[0].excludes_inputs else "may be answers, as in the paper"
    results.print(f"percent of questions; {scores[0].num_candidates:,} candidates; A, B and C {inputs}", soft_wrap=True)


def rank(
    models: Sequence[str],
    images: Path,
    captions: Path,
    *,
    protocol: str,
    seed: int,
    fold_size: int,
    as_json: bool,
) -> int:
    """Print how well each model's sentences and the images find each other."""
    expand(models)  # a wrong name is told before any file is read
    set_matmul_precision()
    data = read_ranking_data(images, captions)
    with ProgressLines(is_quiet=as_json) as progress:
        scores = rank_images(models, data, protocol=protocol, seed=seed, fold_size=fold_size, progress=progress)
    if as_json:
        print_json({"results": [asdict(score) for score in scores]})
    else:
        _print_ranking(scores)
    return 0


def _print_ranking(scores: Sequence[RankingScore]) -> None:
    """Print both directions beside each other, a row a model."""
    one_way = ["R@1", "R@5", "R@10", "median"]
    rows = []
    for score in scores:
        ways = (score.test.captions_of_image, score.test.images_of_caption)
        figures = [f"{value:.1f}" for way in ways for value in (way.r1, way.r5, way.r10, way.median_rank)]
        rows.append((score.model, *figures))
    print_table(
        [f"test, protocol {scores[0].protocol}", "captions: R@1", *one_way[1:], "images: R@1", *one_way[1:]], rows
    )
    what = f"one fold of {scores[0].num_images:,} images"
    if scores[0].num_folds > 1:
        what = f"mean of {scores[0].num_folds} folds of {scores[0].num_images:,} images"
    results.print(f"{what}; captions of an image, then images of a caption", soft_wrap=True)


def _check_corpus(corpus: str) -> None:
    """Refuse a model in the place of the text, the likeliest slip with a list of models before it.

    Raises:
        ConfigError: If the name is a model's.
    """
    if is_scheme_name(corpus) or model_folder(Path(corpus)) or (Path(corpus) / TRIALS_FOLDER).is_dir():
        raise ConfigError(
            f"CORPUS: the last name must be a text to search; given the model {corpus}; add 'docs' or a file"
        )


def _print_comparison(found: Comparison) -> None:
    """Print a table a query: a row a rank, a column a model."""
    results.print(f"{found.num_sentences:,} sentences of {found.corpus}", soft_wrap=True)
    for number, query in enumerate(found.queries):
        results.print()
        table = Table(box=None, pad_edge=False, header_style="bold", title=query, title_justify="left")
        table.title_style = "bold"
        table.add_column("", justify="right")
        for column in found.columns:
            table.add_column(column.measure, justify="right", no_wrap=True)
            table.add_column(column.model, ratio=1, overflow="fold")
        answers = [column.neighbours[number] for column in found.columns]
        for rank in range(max(map(len, answers))):
            cells = [cell for answer in answers for cell in _cells(answer, rank)]
            table.add_row(str(rank + 1), *cells)
        results.print(table)


def _cells(answer: Sequence[Neighbour], rank: int) -> tuple[str, str]:
    """Return a neighbour's figure and sentence; blanks where fewer were found."""
    if rank >= len(answer):
        return "", ""
    one = answer[rank]
    return (str(one.score) if isinstance(one.score, int) else f"{one.score:.4f}"), one.sentence
