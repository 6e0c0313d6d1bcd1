"""Which rows of a task train and which test: one division, made of the rows' content alone.

A task without given splits is divided once: a fifth of the rows test, a third where there are fewer than 500. They are
drawn class by class, whole units at a time: groups, and texts that are copies or nearly copies of each other (`units`).
Whatever ranks, stops, chooses or fits reads the other rows, and cross-validates among them; the test rows are scored.

Rows are drawn in the order of a hash of their text. So every command, process and machine finds the same test rows, in
whatever order a file has them; a table with other rows is divided again.

A run writes the rows that train and those that test into files of their own, see `divided`.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raysent.data.unicode_form import OF_NEW, in_form
from raysent.errors import DataError
from raysent.evaluation.task import NO_ROWS, TaskData
from raysent.evaluation.units import Int64, units_of, unless_each_row

_TEST_SHARE = 0.2
# Below this number of rows, a fifth of them would leave intervals too wide to say anything.
_FEW_ROWS = 500
_TEST_SHARE_OF_FEW = 1 / 3
# Changes whenever other rows may be drawn.
VERSION = 1


def divided(data: TaskData) -> TaskData:
    """Return a task without given splits with its train and test rows; any other task as it is.

    Raises:
        DataError: If its folds leave no row to test on.
    """
    if data.split != "nested":
        return data
    groups = None
    if len(data.folds):
        groups = data.folds
    units = units_of(data.sentences, groups, is_ordered=data.kind not in ("pair", "likeness"))
    test = draw_rows(data.sentences, data.labels, units, share=test_share(len(data)))
    if not len(test):
        raise DataError(
            f"{data.task}: its rows must be divisible into train and test; name train and test rows"
        )
    train = np.setdiff1d(np.arange(len(data)), test)
    folds = NO_ROWS
    if groups is not None:
        folds = np.zeros(len(data), dtype=np.int64)
        folds[train] = np.unique(groups[train], return_inverse=True)[1]
    return replace(
        data,
        split="train-test",
        train=train,
        test=test,
        folds=folds,
        units=unless_each_row(units),
        is_drawn=True,
    )


def test_share(num_rows: int) -> float:
    """Return the part of the rows of a task without given splits that tests."""
    if num_rows >= _FEW_ROWS:
        return _TEST_SHARE
    return _TEST_SHARE_OF_FEW


def draw_rows(
    texts: Sequence[Sequence[str]],
    strata: Int64,
    units: Int64,
    *,
    share: float,
    seed: int = 0,
) -> Int64:
    """Draw whole units of rows, whose text alone decides the order.

    Every stratum gives its part, as nearly as units allow, and keeps a row that is not drawn.

    Args:
        texts: One list of texts [rows] per column.
        strata: The stratum of each row, such as its class, int64 [rows].
        units: The unit of each row, int64 [rows]; see `units.units_of`.
        share: The part of the rows to draw.
        seed: Of the order.

    Returns:
        The rows, int64, in order; none if every unit holds all the rows of a stratum.
    """
    keys = [_row_key(seed, row) for row in zip(*texts, strict=True)]
    # Of each unit: the lowest key of its rows, which orders it, and its rows by stratum.
    lowest_keys: dict[int, int] = {}
    rows_of: dict[int, Counter[int]] = defaultdict(Counter)
    for unit, stratum, key in zip(units.tolist(), strata.tolist(), keys, strict=True):
        rows_of[unit][stratum] += 1
        lowest_keys[unit] = min(key, lowest_keys.get(unit, key))
    counts = Counter(strata.tolist())
    wanted = {stratum: share * count for stratum, count in counts.items()}
    drawn_units = set[int]()
    drawn_rows = Counter[int]()
    order = sorted(lowest_keys, key=lambda unit: lowest_keys[unit])
    for unit in order:
        # A unit is drawn if that brings its strata nearer to what is wanted, all together.
        gain = 0.0
        for stratum, num_rows in rows_of[unit].items():
            lacking = wanted[stratum] - drawn_rows[stratum]
            gain += abs(lacking) - abs(lacking - num_rows)
        if gain > 0 and _leaves_rows(rows_of[unit], drawn_rows, counts):
            drawn_units.add(unit)
            drawn_rows.update(rows_of[unit])
    if not drawn_units:
        # Every unit is far larger than what is wanted: the smallest one is drawn.
        usable = [unit for unit in order if _leaves_rows(rows_of[unit], drawn_rows, counts)]
        drawn_units.update(sorted(usable, key=lambda unit: rows_of[unit].total())[:1])
    if not drawn_units:
        return NO_ROWS
    return np.flatnonzero(np.isin(units, list(drawn_units)))


def _leaves_rows(of_unit: Counter[int], drawn: Counter[int], counts: Counter[int]) -> bool:
    """Return whether every stratum of a unit keeps a row that is not drawn, if the unit is drawn."""
    return all(drawn[stratum] + num_rows < counts[stratum] for stratum, num_rows in of_unit.items())


def _row_key(seed: int, texts: tuple[str, ...]) -> int:
    # Composed, so that a table has the same test rows in either form of Unicode.
    composed = (in_form(text, OF_NEW) for text in texts)
    content = "\x1f".join((f"{VERSION}:{seed}", *composed)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
