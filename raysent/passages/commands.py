"""The commands `index`, a folder of passages, and `search`, those that are nearest to queries."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import raysent
from raysent import passages
from raysent.cli.console import print_json, print_table
from raysent.cli.options import JsonOption, ModelArgument, SetOption, arguments_of
from raysent.cli.wings import Command
from raysent.errors import ConfigError, ExitCode
from raysent.progress import messages


def index(
    model: ModelArgument,
    input: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Files, folders, globs or s3:// addresses of passages."
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder to write, also in s3://, and to add to."
        ),
    ],
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a folder of passages that 'raysent search' searches, by vectors and by words.

    Each line or row is a passage. The same command adds files that are new or have changed, and continues where it
    stopped. Needs raysent[search]. --set takes what encode-corpus takes: column=NAME of tables; precision=int8, of
    which a search holds 1/32 of the bytes in memory; precision=ubinary, bits of a model with a code, or signs alone;
    time=30m and address=ADDR.
    """
    options = arguments_of(raysent.encode_corpus, overrides)
    index_report = raysent.index(model, input, output, progress=not as_json, **options)
    if as_json:
        print_json(asdict(index_report))
    else:
        precision = options.get("precision", "float32")
        messages.print(index_report.sentence("passages", precision=precision), soft_wrap=True)
        if index_report.rest:
            messages.print(index_report.rest, style="red", soft_wrap=True)
    raise typer.Exit(ExitCode.INCOMPLETE if index_report.stopped else ExitCode.DONE)


def search(
    index: Annotated[
        str,
        typer.Argument(metavar="INDEX", help="Folder that 'raysent index' wrote, also in s3://."),
    ],
    query: Annotated[list[str] | None, typer.Argument(metavar="QUERY", help="Queries.")] = None,
    queries: Annotated[
        str | None,
        typer.Option(
            "--queries",
            metavar="FILE",
            help="More queries: lines, or a table's column 'query' or 'text'.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", min=1, help="Passages of each query.")] = 10,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="NAME",
            help="vectors, words or fused.  [default: as the model was chosen, else vectors]",
        ),
    ] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the passages nearest to queries, by vectors, by words, or by both.

    The search is exact: by cosine, or by Hamming distance for a model with a code, and by BM25 for words. --set takes
    weight=0.4, of words in fused, by default what was fitted for the model, else reciprocal ranks; and model=PATH, if
    the model that encoded the folder is elsewhere by now.
    """
    all_queries = [*(query or []), *([] if queries is None else passages.read_queries(queries))]
    if not all_queries:
        raise ConfigError("query: must be given at least once, or a file of queries; given none")
    options = arguments_of(raysent.search, overrides)
    search_index = raysent.SearchIndex(index, model=options.pop("model", None))
    hits_of_queries = search_index.search(all_queries, k=k, by=by, **options)
    by = by or search_index.by
    if as_json:
        print_json(
            {
                "queries": all_queries,
                "by": by,
                "results": [[asdict(hit) for hit in hits] for hits in hits_of_queries],
            }
        )
        return
    weight = options.get("weight", search_index.word_weight)
    weighting = ""
    if by == "fused" and weight is None:
        weighting = " (reciprocal ranks)"
    elif by == "fused":
        weighting = f" (words weigh {weight:g})"
    messages.print(f"{search_index.num_passages:,} passages ranked by {by}{weighting}")
    for text, hits in zip(all_queries, hits_of_queries, strict=True):
        print_table(
            [text, "score", "place"],
            [(hit.text or "", f"{hit.score:.4f}", hit.place) for hit in hits],
        )


COMMANDS = {
    "index": Command(index, "Text and vectors", before="label"),
    "search": Command(search, "Text and vectors", before="label"),
}
