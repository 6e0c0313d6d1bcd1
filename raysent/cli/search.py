"""CLI of `raysent neighbours`, `index` and `analogies`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysent.cli.console import ProgressLines, messages, print_json, print_table, results
from raysent.cli.options import ColumnOption, JsonOption, ModelsArgument
from raysent.errors import ConfigError

if TYPE_CHECKING:
    from raysent.analysis import AnalogyScore, Comparison, Neighbour
    from raysent.data.corpus import CorpusConfig

search_app = typer.Typer()


@search_app.command()
def neighbours(
    models: ModelsArgument,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS",
            help="Text to search, the last name: file, folder, glob, s3://, or 'docs'; or a folder of vectors that "
            "'raysent encode --input' wrote.",
        ),
    ],
    query: Annotated[
        list[str] | None, typer.Option("--query", metavar="TEXT", help="A query sentence. Repeatable.")
    ] = None,
    column: ColumnOption = None,
    queries: Annotated[
        Path | None, typer.Option("--queries", metavar="FILE", help="More queries, one per line.")
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="Neighbours of each query.")] = 5,
    include_query: Annotated[
        bool, typer.Option("--include-query", help="Let a query that is in the corpus find itself.")
    ] = False,
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="FILE", help="Search the index that 'raysent index' wrote of the vectors."),
    ] = None,
    max_sentences: Annotated[
        int | None, typer.Option("--max-sentences", metavar="N", min=4, help="Most sentences to read of the text.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the nearest sentences of a text, by each model.

    The search is exact: by cosine, which needs raysent[faiss], or by Hamming distance for a model with a code. A
    sentence that occurs several times is listed once, and a query that is in the corpus is left out. Vectors are
    cached, so the next search of the same text is fast. A folder of vectors is searched without encoding its text
    again, by the model that encoded it. The result is stored in neighbours.json of the first folder named, for its
    report.
    """
    from raysent.analysis import find_neighbours, save_comparison, search_folder
    from raysent.data import read_lines
    from raysent.data.corpus import CorpusConfig
    from raysent.models import is_vector_folder
    from raysent.storage import address_of

    asked = [*(query or []), *(read_lines(queries) if queries else [])]
    if not asked:
        raise ConfigError("--query: must be given at least once, or --queries FILE; given neither")
    _check_corpus(corpus)
    options: dict[str, Any] = {"k": k, "includes_query": include_query}
    if is_vector_folder(corpus):
        if column is not None or max_sentences is not None:
            raise ConfigError("--column and --max-sentences: must be left out for a folder of vectors")
        with ProgressLines(is_quiet=as_json) as progress:
            found = search_folder(models, corpus, asked, index=index, progress=progress, **options)
    else:
        if index is not None:
            raise ConfigError(f"--index: must be used with a folder of vectors; given {corpus}; leave it out")
        config = CorpusConfig(path=corpus, max_sentences=max_sentences, text_field=column or "text")
        with ProgressLines(is_quiet=as_json) as progress:
            found = find_neighbours(models, config, asked, progress=progress, **options)
        _print_notes(config, is_quiet=as_json)
    folder = next((Path(model) for model in models if Path(model).is_dir()), None)
    path = None if folder is None else save_comparison(folder, found)
    if as_json:
        print_json(found.values())
        return
    _print_comparison(found)
    if folder is not None and path is not None:
        command = f"raysent report {address_of(folder)}"
        messages.print(f"stored in {address_of(path)}; '{command}' shows it", soft_wrap=True)


@search_app.command()
def index(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder of vectors that 'raysent encode --input' wrote, also in s3://.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The index file to write.")],
    ivf: Annotated[
        bool,
        typer.Option("--ivf", help="Divide the rows into cells and search some of them: fast, may miss neighbours."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write an index of FAISS of a folder of vectors.

    Compares by cosine, or by Hamming distance for codes. 'raysent neighbours --index FILE' searches it, and so does
    FAISS itself. FAISS holds an index in memory; needs raysent[faiss].
    """
    from raysent import pipeline

    made = pipeline.index_vectors(folder, output, ivf=ivf, progress=not as_json)
    if as_json:
        print_json({**asdict(made), "path": str(made.path)})
        return
    cells = f", {made.num_cells:,} cells" if made.num_cells else ", exact"
    results.print(f"{made.path}: {made.num_rows:,} vectors by {made.measure}{cells}", soft_wrap=True)


@search_app.command()
def analogies(
    models: ModelsArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Lines ': category', and lines of A, B, C and D separated by tabs.")
    ],
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="CORPUS", help="Text whose sentences are candidates too, beside those of FILE."),
    ] = None,
    column: ColumnOption = None,
    all_four: Annotated[
        bool,
        typer.Option("--all-four", help="Ask for each of the four sentences, as the paper does.  [default: for D]"),
    ] = False,
    exclude_inputs: Annotated[
        bool,
        typer.Option("--exclude-inputs", help="Leave out A, B and C as answers.  [default: keep them, as the paper]"),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Complete analogies among sentences: A is to B as C is to what?

    The answer is the sentence nearest to v(C) + v(B) - v(A) by cosine. Prints the share of right answers by category,
    and of answers that are C itself, the most common error.
    """
    from raysent.analysis import read_analogies, score_analogies
    from raysent.data import read_lines
    from raysent.data.corpus import CorpusConfig, distinct_sentences
    from raysent.evaluation import expand
    from raysent.models import load

    questions = read_analogies(read_lines(file), name=str(file))
    members = expand(models)
    config = None if pool is None else CorpusConfig(path=pool, text_field=column or "text")
    with ProgressLines(is_quiet=as_json) as progress:
        sentences = None if config is None else distinct_sentences(config, progress=progress)
        scores = [
            score_analogies(
                member,
                load(member.path),
                questions,
                pool=sentences,
                asks_all_four=all_four,
                excludes_inputs=exclude_inputs,
                progress=progress,
            )
            for member in members
        ]
    if config is not None:
        _print_notes(config, is_quiet=as_json)
    if as_json:
        print_json({"file": str(file), "pool": pool, "results": [asdict(score) for score in scores]})
    else:
        _print_analogies(scores)


def _print_notes(config: CorpusConfig, *, is_quiet: bool) -> None:
    """Print which columns of tables are read."""
    from raysent.data.corpus import corpus_notes

    for note in [] if is_quiet else corpus_notes(config):
        messages.print(note, style="dim", soft_wrap=True)


def _check_corpus(corpus: str) -> None:
    """Refuse a model in the place of the text, the most likely slip with a list of models before it.

    Raises:
        ConfigError: If the name is a model's.
    """
    from raysent.evaluation import is_model

    if is_model(corpus):
        raise ConfigError(
            f"CORPUS: the last name must be a text to search; given the model {corpus}; add 'docs' or a file"
        )


def _print_analogies(scores: Sequence[AnalogyScore]) -> None:
    """Print one row per category, with each model's accuracy and how often it returned C."""
    headings = ["category", "questions"]
    for score in scores:
        headings += [score.model, "returned C"]
    columns = [[*score.categories, score.total] for score in scores]
    rows = []
    for of_models in zip(*columns, strict=True):
        values = [f"{value:.1f}" for one in of_models for value in (one.accuracy, one.returned_c)]
        rows.append((of_models[0].category, f"{of_models[0].num_questions:,}", *values))
    print_table(headings, rows)
    inputs = "are left out" if scores[0].excludes_inputs else "are candidates, as in the paper"
    results.print(f"percent of questions; {scores[0].num_candidates:,} candidates; A, B and C {inputs}", soft_wrap=True)


def _print_comparison(found: Comparison) -> None:
    """Print one table per query: a row per rank, a column per model."""
    from rich.table import Table

    results.print(f"{found.num_sentences:,} sentences of {found.corpus}", soft_wrap=True)
    for number, query in enumerate(found.queries):
        results.print()
        table = Table(box=None, pad_edge=False, header_style="bold", title=query, title_justify="left")
        table.title_style = "bold"
        table.add_column("", justify="right")
        for column in found.columns:
            table.add_column(column.measure, justify="right", no_wrap=True)
            table.add_column(column.model, ratio=1, overflow="fold")
        neighbours_of = [column.neighbours[number] for column in found.columns]
        for place in range(max(map(len, neighbours_of))):
            cells = [cell for found_ones in neighbours_of for cell in _cells(found_ones, place)]
            table.add_row(str(place + 1), *cells)
        results.print(table)


def _cells(found: Sequence[Neighbour], place: int) -> tuple[str, str]:
    """Return a neighbour's score and sentence; empty if there are fewer."""
    if place >= len(found):
        return "", ""
    one = found[place]
    return (str(one.score) if isinstance(one.score, int) else f"{one.score:.4f}"), one.sentence
