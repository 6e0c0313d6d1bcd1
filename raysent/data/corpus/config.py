"""What a run says about its corpus."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysent.config import StrictModel


class CorpusConfig(StrictModel):
    """Which text to learn from and how to read it.

    Attributes:
        path: ``docs`` for the embedded corpus; else files, folders, globs, ``.gz``, ``.jsonl(.gz)`` or ``s3://``.
        format: ``sentences``: one a line, blank lines between documents. ``text``: running text or one paragraph a
            line, one document a file. ``auto`` decides for each file from its first lines.
        text_field: Where an object of a ``.jsonl`` file keeps its running text; ``sentences`` and ``paragraphs``
            are understood too.
        across_documents: Whether windows may cross the boundary between two documents.
        max_sentences: Sentences read at most.
        validation_fraction: Share of the sentences held out, by whole documents.
        max_length: Tokens kept of a longer sentence.
        cache_dir: Where prepared corpora are kept; default ``$RAYSENT_CACHE``, else the user's cache folder.
        seed: Chooses the validation documents.
        num_processes: Processes that read the text; default as many as the machine has cores and memory for, where
            there is enough text. The result is the same.
    """

    path: str | list[str] = "docs"
    format: Literal["auto", "sentences", "text"] = "auto"
    text_field: str = "text"
    across_documents: bool = False
    max_sentences: int | None = Field(default=None, ge=4)
    validation_fraction: float = Field(default=0.05, gt=0, le=0.5)
    max_length: int = Field(default=50, ge=1)
    cache_dir: str | None = None
    seed: int = Field(default=0, ge=0)
    num_processes: int | None = Field(default=None, ge=1)
