"""Which rows of a task train and which test: one division, made of the rows' content alone.

A task without given splits is divided once: a fifth of the rows test, a third where there are fewer than 500. They are
drawn class by class, whole groups at a time; texts that are copies or nearly copies of each other are a group too.
Whatever ranks, stops, chooses or fits reads the other rows, and cross-validates among them; the test rows are scored.

Rows are drawn in the order of a hash of their text. So every command, process and machine finds the same test rows, in
whatever order a file has them; a table with other rows is divided again.

A run writes the rows that train and those that test into files of their own, see `divided`.

Source: Broder, 1997 (min-wise hashing, by which near-copies are found).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raysent.errors import DataError
from raysent.evaluation.task import NO_ROWS, TaskData

TEST_SHARE = 0.2
# Below this number of rows, a fifth of them would leave intervals too wide to say anything.
FEW_ROWS = 500
TEST_SHARE_OF_FEW = 1 / 3
# Changes whenever other rows may be drawn.
VERSION = 1

# Two texts are near-copies if they share this part of their sequences of four characters, case and punctuation aside.
NEAR_COPY = 0.85
_SHINGLE = 4
_NUM_BANDS, _BAND = 8, 6
_CHUNK = 2**21
_PRIME = np.uint64(0x9E3779B97F4A7C15)

Int64 = npt.NDArray[np.int64]


def divided(data: TaskData) -> TaskData:
    """Return a task without given splits with its train and test rows; any other task as it is.

    Raises:
        DataError: If its folds leave no row to test on.
    """
    if data.split != "nested":
        return data
    groups = data.folds if len(data.folds) else None
    test = draw_rows(data.sentences, data.labels, groups, share=test_share(len(data)))
    if not len(test):
        raise DataError(
            f"{data.task}: its rows must be divisible into train and test; name train and test rows"
        )
    train = np.setdiff1d(np.arange(len(data)), test)
    folds = NO_ROWS
    if groups is not None:
        folds = np.zeros(len(data), dtype=np.int64)
        folds[train] = np.unique(groups[train], return_inverse=True)[1]
    return replace(data, split="train-test", train=train, test=test, folds=folds, is_drawn=True)


def test_share(num_rows: int) -> float:
    """Return the part of the rows of a task without given splits that tests."""
    return TEST_SHARE if num_rows >= FEW_ROWS else TEST_SHARE_OF_FEW


def draw_rows(
    texts: Sequence[Sequence[str]],
    strata: Int64,
    groups: Int64 | None = None,
    *,
    share: float,
    seed: int = 0,
) -> Int64:
    """Draw rows whose text alone decides the order; whole groups, and near-copies together.

    Every stratum gives its part, as nearly as groups allow, and keeps a row that is not drawn.

    Args:
        texts: One list of texts [rows] per column.
        strata: The stratum of each row, such as its class, int64 [rows].
        groups: The group of each row, int64 [rows]; None where every row is its own.
        share: The part of the rows to draw.
        seed: Of the order.

    Returns:
        The rows, int64, in order; none if every group holds all the rows of a stratum.
    """
    units = _units(texts, groups)
    keys = [_row_key(seed, row) for row in zip(*texts, strict=True)]
    first: dict[int, int] = {}
    inside: dict[int, Counter[int]] = defaultdict(Counter)
    for unit, stratum, key in zip(units.tolist(), strata.tolist(), keys, strict=True):
        inside[unit][stratum] += 1
        first[unit] = min(key, first.get(unit, key))
    counts = Counter(strata.tolist())
    wanted = {stratum: share * count for stratum, count in counts.items()}
    drawn, taken = set[int](), Counter[int]()
    order = sorted(first, key=lambda unit: first[unit])
    for unit in order:
        here = inside[unit]
        gain = sum(
            abs(wanted[one] - taken[one]) - abs(wanted[one] - taken[one] - num)
            for one, num in here.items()
        )
        if gain > 0 and _leaves(here, taken, counts):
            drawn.add(unit)
            taken.update(here)
    if not drawn:
        usable = [unit for unit in order if _leaves(inside[unit], taken, counts)]
        drawn.update(sorted(usable, key=lambda unit: inside[unit].total())[:1])
    return np.flatnonzero(np.isin(units, list(drawn))) if drawn else NO_ROWS


def _leaves(here: Counter[int], taken: Counter[int], counts: Counter[int]) -> bool:
    return all(taken[one] + num < counts[one] for one, num in here.items())


def _row_key(seed: int, texts: tuple[str, ...]) -> int:
    text = "\x1f".join((f"{VERSION}:{seed}", *texts))
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )


def _units(texts: Sequence[Sequence[str]], groups: Int64 | None) -> Int64:
    """Return the number of what each row is drawn with, int64 [rows]."""
    copies = near_copies(["\x1f".join(row) for row in zip(*texts, strict=True)])
    if groups is None:
        return copies
    names = np.unique(groups, return_inverse=True)[1]
    first = int(names.max()) + 1
    return _components(names, first + copies, first + int(copies.max()) + 1)[names]


def _components(one: Int64, other: Int64, num_nodes: int) -> Int64:
    """Return the number of each node's component, of a graph given by its edges, int64 [nodes]."""
    from scipy import sparse  # noqa: PLC0415 - it takes a while to import, and most commands divide nothing
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - as above

    edges = sparse.coo_array(
        (np.ones(len(one), dtype=np.int8), (one, other)), shape=(num_nodes, num_nodes)
    )
    found: Int64 = connected_components(edges, directed=False)[1].astype(np.int64)
    return found


def near_copies(texts: Sequence[str]) -> Int64:
    """Return the number of each text's set of near-copies, int64 [texts].

    Case, punctuation and spaces do not count. Each text is compared with the first of those that share a band of
    min-wise hashes with it.
    """
    plain = [" ".join(re.findall(r"\w+", text.casefold())) or text for text in texts]
    distinct = {text: number for number, text in enumerate(dict.fromkeys(plain))}
    known = [text or " " for text in distinct]
    hashes, pairs = _signatures(known), set[tuple[int, int]]()
    for band in range(_NUM_BANDS):
        part = np.ascontiguousarray(hashes[:, band * _BAND : (band + 1) * _BAND])
        keys = part.view(np.dtype((np.void, part.itemsize * _BAND))).ravel()
        _, first, bucket = np.unique(keys, return_index=True, return_inverse=True)
        like = first[bucket.ravel()]
        others = np.flatnonzero(like != np.arange(len(like)))
        pairs.update(zip(others.tolist(), like[others].tolist(), strict=True))
    near = [pair for pair in pairs if _similarity(known[pair[0]], known[pair[1]]) >= NEAR_COPY]
    one, other = np.array(near, dtype=np.int64).reshape(-1, 2).T
    return _components(one, other, len(distinct))[[distinct[text] for text in plain]]


def _similarity(one: str, other: str) -> float:
    """Return the part that two texts share of the sequences of four characters of either."""
    first, second = (
        {text[place : place + _SHINGLE] for place in range(max(1, len(text) - _SHINGLE + 1))}
        for text in (one, other)
    )
    return len(first & second) / len(first | second)


def _signatures(texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the min-wise hashes of the sequences of four characters of each text, uint64 [texts, hashes]."""
    odd = 2 * np.random.default_rng(0).integers(2**62, size=_NUM_BANDS * _BAND) + 1
    factors = odd.astype(np.uint64)
    found = np.empty((len(texts), len(factors)), dtype=np.uint64)
    pad = "\0" * (_SHINGLE - 1)
    lengths = np.array([len(text) + len(pad) for text in texts])
    chunk = np.cumsum(lengths) // _CHUNK
    for number in np.unique(chunk):
        rows = np.flatnonzero(chunk == number)
        joined = "".join(texts[row] + pad for row in rows.tolist())
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(
            np.uint64
        )
        windows = np.zeros(len(codes) - len(pad), dtype=np.uint64)
        for place in range(_SHINGLE):
            windows = windows * _PRIME + codes[place : place + len(windows)]
        windows ^= windows >> np.uint64(31)
        starts = np.concatenate([[0], np.cumsum(lengths[rows])[:-1]])
        is_cut = codes[len(pad) :] == 0
        is_cut[starts] = False  # of a text of fewer characters
        for column, factor in enumerate(factors):
            mixed = windows * factor
            mixed[is_cut] = np.iinfo(np.uint64).max
            found[rows, column] = np.minimum.reduceat(mixed, starts)
    return found
