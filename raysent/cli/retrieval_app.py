"""The commands that search: `neighbours`, `analogies`, `rank`.

Each parses its options and calls one verb; torch is imported only by that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysent.cli.options import JsonOption, ModelsArgument

retrieval_app = typer.Typer()


@retrieval_app.command()
def neighbours(
    models: ModelsArgument,
    corpus: Annotated[
        str,
        typer.Argument(metavar="CORPUS", help="Text to search, the last name: file, folder, glob, s3://, or 'docs'."),
    ],
    query: Annotated[list[str] | None, typer.Option("--query", metavar="TEXT", help="A sentence. Repeatable.")] = None,
    queries: Annotated[Path | None, typer.Option("--queries", metavar="FILE", help="More of them, one a line.")] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="Neighbours of each query.")] = 5,
    include_query: Annotated[
        bool, typer.Option("--include-query", help="Let a query that is in the corpus find itself.")
    ] = False,
    max_sentences: Annotated[
        int | None, typer.Option("--max-sentences", metavar="N", min=4, help="Sentences of the text read at most.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the sentences of a text nearest to others, by each model.

    Exact: by cosine, or by Hamming distance for a model with a code. A sentence that occurs several times is shown
    once, and a query that is itself in the corpus is left out. The vectors are kept in the cache, so that asking again
    costs the search alone; the answer is kept in neighbours.json of the first folder named, for its report.
    """
    from raysent.cli import retrieval  # torch comes with it

    raise typer.Exit(
        retrieval.neighbours(
            models,
            corpus,
            queries=query or [],
            file=queries,
            k=k,
            includes_query=include_query,
            max_sentences=max_sentences,
            as_json=as_json,
        )
    )


@retrieval_app.command()
def analogies(
    models: ModelsArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Lines ': category', and lines of A, B, C and D with tabs between.")
    ],
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="CORPUS", help="Text whose sentences may be answers beside those of FILE."),
    ] = None,
    all_four: Annotated[
        bool,
        typer.Option("--all-four", help="Ask for each of the four sentences, as the paper does.  [default: for D]"),
    ] = False,
    exclude_inputs: Annotated[
        bool,
        typer.Option("--exclude-inputs", help="Never answer with A, B or C.  [default: as the paper, they may be]"),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Complete analogies among sentences: A is to B as C is to what?

    The answer is the sentence nearest to v(C) + v(B) - v(A) by cosine. Prints the share of right answers of each
    category, and of answers that are C itself, the usual failure.
    """
    from raysent.cli import retrieval  # torch comes with it

    raise typer.Exit(
        retrieval.analogies(
            models, file, pool=pool, asks_all_four=all_four, excludes_inputs=exclude_inputs, as_json=as_json
        )
    )


@retrieval_app.command()
def rank(
    models: ModelsArgument,
    images: Annotated[Path, typer.Argument(metavar="IMAGES.npy", help="Features of images, a row each.")],
    captions: Annotated[
        Path,
        typer.Argument(
            metavar="CAPTIONS.tsv", help="Columns image (its row, from 0), split (train, dev, test), caption."
        ),
    ],
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="NAME", help="How the maps are trained: kiros or senteval.")
    ] = "kiros",
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of everything random.")] = 1234,
    fold_size: Annotated[
        int, typer.Option("--fold-size", metavar="N", min=1, help="Images ranked at once; up to five such folds.")
    ] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Rank images by captions and captions by images.

    Trains a linear map of the sentence vectors and one of the image features on train, chooses the best on dev, and
    prints the recall at 1, 5 and 10 and the median rank on test, the mean of up to five folds.
    """
    from raysent.cli import retrieval  # torch comes with it

    raise typer.Exit(
        retrieval.rank(models, images, captions, protocol=protocol, seed=seed, fold_size=fold_size, as_json=as_json)
    )
