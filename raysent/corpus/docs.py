"""The embedded corpus `docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from raysent.corpus.sources import Source
from raysent.corpus.text_store import Progress


class DocsDocument(NamedTuple):
    """The prose of one module.

    Attributes:
        library: The library that it documents.
        module: The module's dotted name.
        sentences: Its sentences in order.
    """

    library: str
    module: str
    sentences: list[str]


def docs_documents() -> Iterator[DocsDocument]:
    raise NotImplementedError


def docs_source(cache: Path, progress: Progress | None) -> Source:
    raise NotImplementedError
