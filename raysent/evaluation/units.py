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
_NEAR_COPY = 0.85
# Characters of a sequence.
_SHINGLE = 4
# Texts are compared where all hashes of a band agree. Of those that share just this part, 2 in 100 miss each other.
_NUM_BANDS = 8
_HASHES_PER_BAND = 6
# Characters that are hashed at once, which bounds the memory.
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
    plain_rows = [_plain_row(row, is_ordered=is_ordered) for row in zip(*texts, strict=True)]
    if finds_near_copies:
        units = _near_copies(plain_rows)
    else:
        units = _numbered(plain_rows)
    if groups is not None:
        # A graph whose nodes are the groups, then the sets of copies; each row is an edge from its group to its set.
        group_nodes = np.unique(groups, return_inverse=True)[1].astype(np.int64)
        num_groups = int(group_nodes.max(initial=-1)) + 1
        num_nodes = num_groups + int(units.max(initial=-1)) + 1
        units = _components(group_nodes, num_groups + units, num_nodes)[group_nodes]
    return by_first_row(units)


def near_copies(texts: Sequence[str]) -> Int64:
    """Return the number of each text's set of near-copies, int64 [texts].

    Case, punctuation, spaces, mark-up and forms of Unicode do not count. Each text is compared with the first of those
    that share a band of min-wise hashes with it.
    """
    return _near_copies([words_of(text) for text in texts])


def by_first_row(units: Int64) -> Int64:
    """Return units numbered in the order of their first rows, int64 [rows]."""
    _, first_rows, unit_numbers = np.unique(units, return_index=True, return_inverse=True)
    ranks = np.empty(len(first_rows), dtype=np.int64)
    ranks[np.argsort(first_rows)] = np.arange(len(first_rows))
    return ranks[unit_numbers.reshape(-1)]


def unless_each_row(units: Int64) -> Int64:
    """Return units as a task keeps them: `EACH_ROW` where each row is one of its own."""
    if len(np.unique(units)) == len(units):
        return EACH_ROW
    return units


def num_units(units: Int64, rows: Int64) -> int:
    """Return the number of different units of rows, int64 [any]."""
    if not len(units):
        return len(rows)
    return len(np.unique(units[rows]))


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
            fold = _emptiest(num_of_class, num_rows, num_assigned)
            folds[rows_of[unit]] = fold
            num_of_class[fold] += len(rows_of[unit])
            num_rows[fold] += len(rows_of[unit])
            num_assigned += 1
    return folds


def _emptiest(num_of_class: list[int], num_rows: list[int], num_assigned: int) -> int:
    """Return the fold with the fewest rows of a class; of equal ones that with the fewest rows of all."""
    num_folds = len(num_rows)
    # Of folds that are still equal, the next unit goes to the one after the last unit's, as single rows do.
    fullness = [
        (num_of_class[fold], num_rows[fold], (fold - num_assigned) % num_folds)
        for fold in range(num_folds)
    ]
    return fullness.index(min(fullness))


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
    if not is_ordered:
        words.sort()
    return " ".join(words)


def _numbered(plain_rows: Sequence[str]) -> Int64:
    """Return the number of each row's text, int64 [rows]; rows of the same text have the same number."""
    numbers: dict[str, int] = {}
    row_numbers = [numbers.setdefault(text, len(numbers)) for text in plain_rows]
    return np.array(row_numbers, dtype=np.int64)


def _components(starts: Int64, ends: Int64, num_nodes: int) -> Int64:
    """Return the number of each node's component, int64 [nodes], of a graph whose edges lead from starts to ends."""
    from scipy import sparse  # noqa: PLC0415 - it takes a while to import, and most commands divide nothing
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - as above

    weights = np.ones(len(starts), dtype=np.int8)
    edges = sparse.coo_array((weights, (starts, ends)), shape=(num_nodes, num_nodes))
    components: Int64 = connected_components(edges, directed=False)[1].astype(np.int64)
    return components


def _near_copies(plain: Sequence[str]) -> Int64:
    """Return the number of each text's set of near-copies, int64 [texts], of texts as `words_of` returns them."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(plain))}
    # A text without words has no sequence of characters to hash, so a blank stands for it.
    distinct_texts = [text or " " for text in numbers]
    hashes = _signatures(distinct_texts)
    candidates = set[tuple[int, int]]()
    for band in range(_NUM_BANDS):
        columns = slice(band * _HASHES_PER_BAND, (band + 1) * _HASHES_PER_BAND)
        band_hashes = np.ascontiguousarray(hashes[:, columns])
        # One opaque key a text, of all bytes of its band, which `np.unique` compares as a whole.
        key_type = np.dtype((np.void, band_hashes.itemsize * _HASHES_PER_BAND))
        keys = band_hashes.view(key_type).ravel()
        _, first_of_key, key_numbers = np.unique(keys, return_index=True, return_inverse=True)
        first_texts = first_of_key[key_numbers.ravel()]
        later_texts = np.flatnonzero(first_texts != np.arange(len(first_texts)))
        candidates.update(zip(later_texts.tolist(), first_texts[later_texts].tolist(), strict=True))
    near_pairs = [
        (later, first)
        for later, first in candidates
        if _similarity(distinct_texts[later], distinct_texts[first]) >= _NEAR_COPY
    ]
    later_of_pairs, first_of_pairs = np.array(near_pairs, dtype=np.int64).reshape(-1, 2).T
    sets = _components(later_of_pairs, first_of_pairs, len(numbers))
    return sets[[numbers[text] for text in plain]]


def _similarity(first_text: str, second_text: str) -> float:
    """Return the part that two texts share of the sequences of four characters of either."""
    first = _shingles(first_text)
    second = _shingles(second_text)
    return len(first & second) / len(first | second)


def _shingles(text: str) -> set[str]:
    """Return the sequences of four characters of a text; of a shorter one the text itself."""
    num_shingles = max(1, len(text) - _SHINGLE + 1)
    return {text[start : start + _SHINGLE] for start in range(num_shingles)}


def _signatures(texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the min-wise hashes of the sequences of four characters of each text, uint64 [texts, hashes]."""
    # A product with an odd number permutes the 64-bit integers, so each factor is another hash function.
    odd = 2 * np.random.default_rng(0).integers(2**62, size=_NUM_BANDS * _HASHES_PER_BAND) + 1
    factors = odd.astype(np.uint64)
    signatures = np.empty((len(texts), len(factors)), dtype=np.uint64)
    pad = "\0" * (_SHINGLE - 1)
    lengths = np.array([len(text) + len(pad) for text in texts])
    chunk_numbers = np.cumsum(lengths) // _CHUNK
    for chunk_number in np.unique(chunk_numbers):
        rows = np.flatnonzero(chunk_numbers == chunk_number)
        joined = "".join(texts[row] + pad for row in rows.tolist())
        code_points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        codes = code_points.astype(np.uint64)
        windows = np.zeros(len(codes) - len(pad), dtype=np.uint64)
        for offset in range(_SHINGLE):
            windows = windows * _PRIME + codes[offset : offset + len(windows)]
        # The low bits of a product depend on the low bits of its factors alone; the high ones are mixed in.
        windows ^= windows >> np.uint64(31)
        starts = np.concatenate([[0], np.cumsum(lengths[rows])[:-1]])
        # A window that ends in the pad reaches into the next text. The first one of a text counts all the same, as a
        # text of fewer characters has no other.
        is_cut = codes[len(pad) :] == 0
        is_cut[starts] = False
        for column, factor in enumerate(factors):
            mixed = windows * factor
            mixed[is_cut] = np.iinfo(np.uint64).max
            signatures[rows, column] = np.minimum.reduceat(mixed, starts)
    return signatures
