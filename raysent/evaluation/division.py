"""Which rows of a task train and which test: one division, made of the rows' content alone.

A task without given splits is divided once: a fifth of the rows test, a third where there are fewer than 500. They are
drawn class by class, whole groups at a time; texts that are copies or nearly copies of each other are a group too.
Whatever ranks, stops, chooses or fits reads the other rows, and cross-validates among them; the test rows are scored.

Rows are drawn in the order of a hash of their text. So every command, process and machine finds the same test rows, in
whatever order a file has them; a table with other rows is divided again.

A sweep writes the rows that rank its trials into a file of their own, so that its search never opens a table with test
rows: the division and the last evaluation do.

Source: Broder, 1997 (min-wise hashing, by which near-copies are found).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raysent.errors import ArtifactError, DataError
from raysent.evaluation.task import NO_ROWS, Task, TaskData
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import DIVISIONS_FOLDER

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
_ROWS, _TUPLES = ("labels", "train", "validation", "test", "folds"), ("label_names", "sentences", "scale")


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
        raise DataError(f"{data.task}: its rows must be divisible into train and test; name train and test rows")
    train = np.setdiff1d(np.arange(len(data)), test)
    folds = NO_ROWS
    if groups is not None:
        folds = np.zeros(len(data), dtype=np.int64)
        folds[train] = np.unique(groups[train], return_inverse=True)[1]
    return replace(data, split="train-test", train=train, test=test, folds=folds)


def test_share(num_rows: int) -> float:
    """Return the part of the rows of a task without given splits that tests."""
    return TEST_SHARE if num_rows >= FEW_ROWS else TEST_SHARE_OF_FEW


def draw_rows(
    texts: Sequence[Sequence[str]], strata: Int64, groups: Int64 | None = None, *, share: float, seed: int = 0
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
        gain = sum(abs(wanted[one] - taken[one]) - abs(wanted[one] - taken[one] - num) for one, num in here.items())
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
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


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

    edges = sparse.coo_array((np.ones(len(one), dtype=np.int8), (one, other)), shape=(num_nodes, num_nodes))
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
        {text[place : place + _SHINGLE] for place in range(max(1, len(text) - _SHINGLE + 1))} for text in (one, other)
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
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
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


def save_divisions(folder: Path, tasks: Sequence[TaskData], *, ranking: Collection[str]) -> None:
    """Write the test rows of divided tasks into ``divisions/<task>.json`` of a run's folder.

    Args:
        folder: The run's folder.
        tasks: Tasks, as `divided` returned them.
        ranking: The names of those that trials are ranked by.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    for data in tasks:
        values = {"row_hash": data.row_hash, "num_rows": len(data), "ranks": data.task in ranking}
        write_json(folder / DIVISIONS_FOLDER / f"{data.task}.json", {**values, "test": data.test.tolist()})


def save_search_rows(path: Path, tasks: Sequence[TaskData]) -> None:
    """Write the rows that a search may read; none of them tests.

    Raises:
        ArtifactError: If the file cannot be written.
    """
    rows = [{one.name: getattr(data, one.name) for one in fields(data)} for data in tasks]
    plain = [{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()} for row in rows]
    write_json(path, plain)


def read_search_rows(path: Path) -> list[TaskData]:
    """Read what `save_search_rows` wrote; the tasks have the same `row_hash`.

    Raises:
        ArtifactError: If it is damaged.
    """
    found = list[TaskData]()
    try:
        for row in read_json(path):
            values: dict[str, Any] = dict(row)
            values |= {name: tuple(row[name]) for name in _TUPLES if row[name] is not None}
            values |= {name: np.array(row[name], dtype=np.int64) for name in _ROWS}
            found.append(TaskData(**{**values, "scores": np.array(row["scores"], dtype=np.float64)}))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ArtifactError(f"{address_of(path)}: not the rows of a search; begin another run") from None
    return found


def check_divisions(folder: Path, tasks: Sequence[TaskData]) -> None:
    """Check that tasks have the rows that a run divided; tasks that it did not divide pass.

    Raises:
        DataError: If a task's rows are others.
    """
    for data in tasks:
        saved = _saved_division(folder, data.task)
        if saved is not None and saved["row_hash"] != data.row_hash:
            raise DataError(
                f"{data.task}: must have the {saved['num_rows']} rows that {address_of(folder)} divided into train and "
                f"test; given {len(data)} rows, some of them others; restore them, or begin another run"
            )


def is_ranked_by_other_rows(folder: Path, task: Task, load: Callable[[Task], Any]) -> bool:
    """Return whether a run ranked trials by a task of this name whose train and test rows were others.

    Args:
        folder: The run's folder.
        task: The task.
        load: Returns its rows; called only where the run ranked by one of the name.
    """
    saved = _saved_division(folder, task.name)
    return saved is not None and bool(saved.get("ranks")) and saved["row_hash"] != load(task).row_hash


def _saved_division(folder: Path, task: str) -> dict[str, Any] | None:
    path = folder / DIVISIONS_FOLDER / f"{task}.json"
    if not path.is_file():
        return None
    values = read_json(path)
    if not isinstance(values, dict) or not {"row_hash", "num_rows"} <= values.keys():
        raise ArtifactError(f"{address_of(path)}: not a division of a task's rows; restore it, or begin another run")
    return values
