"""Cells of a column of labels that may hold several labels, such as ``camera;battery``: they are asked about.

A cell holds several labels if what a separator divides it into stands alone in other cells, or with other labels. A
class that is called ``Food; drinks`` in each of its rows is one. Cities with their countries are such classes too, as
most of their parts are in one cell alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from raysent.data.tables import Table
from raysent.errors import DataError, shown
from raysent.evaluation.task_files.settings import TaskSettings, how_to

# Separators of labels -> the part of the labels that must be in several cells. The last ones are often parts of a name.
_SEPARATORS = {
    **dict.fromkeys((";", "|", "\n", "\uff1b", "\uff5c", "\u3001", "\u061b"), 0.0),
    **dict.fromkeys((",", "\uff0c", "\u060c", "/", "+", "\t"), 0.6),
}
# Decimal numbers, fractions and dates.
_NUMBERS = re.compile(r"[-+]?\d+([,/]\d+)+")
_LIST_MARKS = ("[]", "{}", "()")


def check_one_label(
    settings: TaskSettings, table: Table, label: str, column: Sequence[Any]
) -> None:
    """Refuse labels that may be several in one cell, as nothing says whether they are.

    Args:
        settings: The task's settings, which name no separator.
        table: The table.
        label: The column of the labels.
        column: Its cells.

    Raises:
        DataError: With what reads them as several labels, and what as one.
    """
    cells = {cell.strip() for cell in column if isinstance(cell, str)} - {""}
    where = f"{table.source}: label '{shown(label)}'"
    listed_cells = sorted(cell for cell in cells if cell[0] + cell[-1] in _LIST_MARKS)
    if len(listed_cells) > len(cells) / 2:
        raise DataError(
            f"{where}: must have one label a cell, or several between separators; given lists as text, "
            f"'{shown(listed_cells[0])}'; write them as in a;b and name the separator, or as lists of .jsonl"
        )
    for separator, least_share in _SEPARATORS.items():
        several = sorted(
            cell
            for cell in cells
            if len(_parts(cell, separator)) > 1 and _NUMBERS.fullmatch(cell) is None
        )
        if several and _share_of_shared(cells, separator) > least_share:
            raise DataError(
                f"{where}: may have several labels in a cell, as in '{shown(several[0])}'; "
                f"{how_to(settings, 'separator', separator)} reads them as yes/no tasks, "
                f"{how_to(settings, 'separator', False)} takes each cell for one class"
            )


def _share_of_shared(cells: Iterable[str], separator: str) -> float:
    """Return which part of the labels in cells of several is in other cells too."""
    counts = Counter(part for cell in cells for part in _parts(cell, separator))
    parts = {part for cell in cells if separator in cell for part in _parts(cell, separator)}
    return sum(counts[part] > 1 for part in parts) / max(1, len(parts))


def _parts(cell: str, separator: str) -> set[str]:
    """Return what a separator divides a cell into, without what is empty: `C++` has one part."""
    return {part.strip() for part in cell.split(separator)} - {""}
