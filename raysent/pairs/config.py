"""Which file of pairs, and which of its columns."""

from __future__ import annotations

from typing import Literal

import pydantic

from raysent.config import StrictModel

Column = int | str
"""A column's number from 0, or its name."""


class PairsConfig(StrictModel):
    """Which file of pairs, and which of its columns.

    Attributes:
        path: One file or several, each also gzipped.
        format: `tsv`; `ppdb` (fields between ``|||``, pairs in columns 1 and 2); `jsonl`. `auto` goes by the name, and
            by whether the first line holds ``|||``.
        first: Column of the first sentence: a number from 0, or a name of the header line or of a JSON key.
        second: Column of the second sentence. Both are 1 and 2 for PPDB where they are not set.
        label: Column of the pair's class; None where there is none.
        score: Column of a number that says how alike the two are; None where there is none.
        classes: Names of the classes in their order; None for those that occur, in alphabetical order.
        max_pairs: Pairs read at most.
        max_length: Tokens kept of a longer sentence.
        validation_path: Pairs to validate with; None holds some of the others out.
        validation_fraction: Share of the pairs held out.
        seed: Chooses the pairs that are held out.
    """

    path: str | list[str]
    format: Literal["auto", "tsv", "ppdb", "jsonl"] = "auto"
    first: Column = 0
    second: Column = 1
    label: Column | None = None
    score: Column | None = None
    classes: list[str] | None = None
    max_pairs: int | None = pydantic.Field(default=None, ge=4)
    max_length: int = pydantic.Field(default=50, ge=1)
    validation_path: str | None = None
    validation_fraction: float = pydantic.Field(default=0.05, gt=0, le=0.5)
    seed: int = pydantic.Field(default=0, ge=0)
