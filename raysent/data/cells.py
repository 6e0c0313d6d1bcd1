"""Cells of the CSV and TSV files that commands write: the one owner of which of them a spreadsheet may compute.

A spreadsheet takes a text for a formula if it begins with ``= + - @``, a tab or a line break. Cells that raysent itself
adds to a file (labels that are predicted, searched values) hold what a stranger's model or space says, and are never
formulas: they get an apostrophe in front. Cells of the user's own table are written as they were read, so that a table
that comes back is equal to the one that was given. JSON lines and Parquet have no formulas.
"""

from __future__ import annotations

import re

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet may compute a text, or take an apostrophe before it for a mark of its own.

    Numbers and lone signs, such as the labels ``-1`` and ``+``, are none.
    """
    is_plain = len(text) < 2 or _NUMBER.fullmatch(text) is not None
    return text.startswith(_FORMULA_STARTS) and not (is_plain and text not in ("\t", "\r", "\n"))


def without_formula(text: str) -> str:
    """Return a text as a cell that no spreadsheet computes; ``removeprefix("'")`` is the text itself, of every cell."""
    return f"'{text}" if is_formula(text) else text
