"""Which rows belong together: the one owner of this decision, which every division of rows asks.

Rows of one group are a unit, and so are rows whose texts are copies or nearly copies of each other: what is learned of
one of them is known of the others. No division parts a unit: neither test from train, nor the folds that choose C,
weights and thresholds, nor those that find suspected labels. What is the same text is decided by `data.same_text`.

A task says so in `TaskData.units`; SentEval's own protocols divide row by row, as they are published.

Source: Broder, 1997 (min-wise hashing, by which near-copies are found).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raysent.data.same_text import words_of

# Two texts are near-copies if they share this part of their sequences of four characters, of their words alone.
NEAR_COPY = 0.85
_SHINGLE = 4
_NUM_BANDS, _BAND = 8, 6
_CHUNK = 2**21
_PRIME = np.uint64(0x9E3779B97F4A7C15)

Int64 = npt.NDArray[np.int64]

EACH_ROW = np.empty(0, dtype=np.int64)
"""The units of rows each of which is one of its own."""


def units_of(
    texts: Sequence[Sequence[str]],
    groups: Int64 | None = None,
    *,
    finds_near_copies: bool = True,
    is_ordered: bool = True,
) -> Int64:
    """Return the number of each row's unit, int64 [rows], in the order of their first rows.

    Args:
        texts: One list of texts [rows] per column.
        groups: The group of each row, int64 [rows]; None where every row is its own.
        finds_near_copies: Whether texts that are nearly the same belong together; otherwise only those that are the
            same.
        is_ordered: Whether a pair in the other order is another pair.
    """
    plain = [_plain_row(row, is_ordered=is_ordered) for row in zip(*texts, strict=True)]
    units = _near_copies(plain) if finds_near_copies else _numbered(plain)
    if groups is not None:
        names = np.unique(groups, return_inverse=True)[1].astype(np.int64)
        first = int(names.max(initial=-1)) + 1
        num_nodes = first + int(units.max(initial=-1)) + 1
        units = _components(names, first + units, num_nodes)[names]
    return by_first_row(units)


def near_copies(texts: Sequence[str]) -> Int64:
    """Return the number of each text's set of near-copies, int64 [texts].

    Case, punctuation, spaces, mark-up and forms of Unicode do not count. Each text is compared with the first of those
    that share a band of min-wise hashes with it.
    """
    return _near_copies([words_of(text) for text in texts])


def by_first_row(units: Int64) -> Int64:
    """Return units numbered in the order of their first rows, int64 [rows]."""
    _, firsts, places = np.unique(units, return_index=True, return_inverse=True)
    ranks = np.empty(len(firsts), dtype=np.int64)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    return ranks[places.reshape(-1)]


def unless_each_row(units: Int64) -> Int64:
    """Return units as a task keeps them: `EACH_ROW` where each row is one of its own."""
    return EACH_ROW if len(np.unique(units)) == len(units) else units


def num_units(units: Int64, rows: Int64) -> int:
    """Return the number of different units of rows, int64 [any]."""
    return len(rows) if not len(units) else len(np.unique(units[rows]))


def folds_of_units(
    labels: np.ndarray, num_folds: int, *, seed: int, units: Int64 = EACH_ROW
) -> Int64:
    """Return the fold of each row, int64 [rows]: whole units, every class spread evenly, in an order of the seed.

    A unit counts for its most frequent class. Units of several rows come first, so that those of one fill the gaps;
    each goes where its class has the fewest rows. There are as many folds as units where these are fewer.

    Args:
        labels: The rows' classes, [rows].
        num_folds: The most folds.
        seed: Of the order.
        units: The unit of each row, int64 [rows].
    """
    generator = np.random.default_rng(seed)
    if not len(units):
        return _folds_of_rows(labels, min(num_folds, max(1, len(labels))), generator)
    rows_of = _rows_of_units(units)
    classes = np.array([_most_frequent(labels[rows]) for rows in rows_of], dtype=np.int64)
    num_folds = min(num_folds, max(1, len(rows_of)))
    folds = np.empty(len(labels), dtype=np.int64)
    num_rows = [0] * num_folds
    num_assigned = 0
    for label in np.unique(classes):
        order = generator.permutation(np.flatnonzero(classes == label)).tolist()
        order.sort(key=lambda unit: -len(rows_of[unit]))
        num_of_class = [0] * num_folds
        for unit in order:
            # The next unit continues where this one ends, as single rows do.
            fold = min(
                range(num_folds),
                key=lambda one: (
                    num_of_class[one],
                    num_rows[one],
                    (one - num_assigned) % num_folds,
                ),
            )
            folds[rows_of[unit]] = fold
            num_of_class[fold] += len(rows_of[unit])
            num_rows[fold] += len(rows_of[unit])
            num_assigned += 1
    return folds


def _folds_of_rows(labels: np.ndarray, num_folds: int, generator: np.random.Generator) -> Int64:
    folds = np.empty(len(labels), dtype=np.int64)
    num_assigned = 0
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        folds[rows] = (np.arange(len(rows)) + num_assigned) % num_folds
        # The next class continues where this one ends, so that the sizes of folds differ by at most one.
        num_assigned += len(rows)
    return folds


def _rows_of_units(units: Int64) -> list[Int64]:
    """Return the rows of each unit, by number."""
    order = np.argsort(units, kind="stable")
    _, firsts = np.unique(units[order], return_index=True)
    return np.split(order, firsts[1:])


def _most_frequent(labels: np.ndarray) -> int:
    return int(np.bincount(labels).argmax())


def _plain_row(row: tuple[str, ...], *, is_ordered: bool) -> str:
    words = [words_of(text) for text in row]
    return " ".join(words if is_ordered else sorted(words))


def _numbered(plain: Sequence[str]) -> Int64:
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(text, len(numbers)) for text in plain]
    return np.array(found, dtype=np.int64)


def _components(one: Int64, other: Int64, num_nodes: int) -> Int64:
    """Return the number of each node's component, of a graph given by its edges, int64 [nodes]."""
    from scipy import sparse  # noqa: PLC0415 - it takes a while to import, and most commands divide nothing
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - as above

    edges = sparse.coo_array(
        (np.ones(len(one), dtype=np.int8), (one, other)), shape=(num_nodes, num_nodes)
    )
    found: Int64 = connected_components(edges, directed=False)[1].astype(np.int64)
    return found


def _near_copies(plain: Sequence[str]) -> Int64:
    """Return the number of each text's set of near-copies, int64 [texts], of texts as `words_of` returns them."""
    distinct = {text: number for number, text in enumerate(dict.fromkeys(plain))}
    known = [text or " " for text in distinct]
    hashes = _signatures(known)
    pairs = set[tuple[int, int]]()
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
