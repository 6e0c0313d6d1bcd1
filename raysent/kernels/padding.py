"""Padded groups of sentences of similar length: the layout in which a GPU runs a recurrence or a transformer.

On a GPU a launch costs as much as the products of hundreds of words, so that a few groups with some padding are faster
than sentences without padding. Sentences are sorted by length, cut into groups, and each group is padded to its longest
sentence. A group is time-major; a sentence that is read backwards is reversed in its place, so that its padding comes
last in both directions and a recurrence reads it after all words.

All places of a batch are numbered: the groups one after another, in each the directions, in each [time, row].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from raysent.kernels.devices import to_device_together

# Rows that a partial sum of a gradient adds up: a frequent word has many, which a GPU would add one after another.
_ROWS_AT_ONCE = 32
# A batch whose groups keep few sizes is cut at these parts of its rows, so that there are at most four groups.
NUM_CUTS = 4
# The lengths of such groups are rounded up to one of these, and longer ones to a multiple of the last.
_LENGTHS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100)

Integers = npt.NDArray[np.int64]


def similar_lengths(
    lengths: Integers, *, group_cost: float, step_cost: float = 0.0, ends: Integers | None = None
) -> list[tuple[int, int]]:
    """Return first and end of groups of decreasing lengths [batch] with the least cost.

    A group costs its places, rows times its longest length, and `group_cost`; each time step costs `step_cost` places
    more. The result is exact, by dynamic programming over the ends that a group may have.

    Args:
        lengths: Lengths, longest first.
        group_cost: Places that a group costs whatever its size.
        step_cost: Places that a time step of a group costs whatever its rows.
        ends: Rows at which a group may end, ascending, the last being the batch; by default those before which the
            length changes: no other end can be better.
    """
    if ends is None:
        ends = np.append(np.flatnonzero(np.diff(lengths)) + 1, len(lengths))
    # The least cost of the sentences before each possible first row, and the groups that have it.
    least = np.zeros(1)
    groups = [list[tuple[int, int]]()]
    for number, end in enumerate(ends, start=1):
        firsts = np.append(0, ends)[:number]
        totals = least + lengths[firsts] * (end - firsts + step_cost) + group_cost
        best = int(totals.argmin())
        groups.append([*groups[best], (int(firsts[best]), int(end))])
        least = np.append(least, totals[best])
    return groups[-1]


@dataclass(frozen=True)
class TokenOrder:
    """Where each word of a batch stands in a list of tokens: at ``of_sentence[s] + of_time[t]``.

    Attributes:
        lengths: Number of words of each sentence [batch].
        of_sentence: Part of a token's number that depends on the sentence [batch].
        of_time: Part that depends on the word's place in the sentence [longest].
        rows: The row of values that each token reads [tokens]; None where each token has a row of its own.
        num_rows: Rows of values.
    """

    lengths: Integers
    of_sentence: Integers
    of_time: Integers
    rows: Integers | None
    num_rows: int

    @property
    def num_tokens(self) -> int:
        """Number of words of all sentences."""
        return int(self.lengths.sum())


@dataclass(frozen=True)
class Cut:
    """How a batch is cut into groups, and what a layout holds.

    Attributes:
        directions: 1, or 2 where sentences are read backwards too.
        rows_per_word: 2 where values have a row for each direction of a word, else 1.
        step_cost: See `similar_lengths`.
        is_coarse: Whether groups have few sizes, so that what was recorded for one batch serves others.
        has_states: Whether the states of all words are read, not only the last ones.
        has_gradient: Whether a backward follows.
    """

    directions: int = 1
    rows_per_word: int = 1
    step_cost: float = 0.0
    is_coarse: bool = False
    has_states: bool = False
    has_gradient: bool = False


@dataclass(frozen=True)
class Group:
    """One padded group.

    Attributes:
        first: Its first sentence in the order of decreasing lengths.
        end: The sentence after its last one.
        length: Its time steps.
        rows: Its rows; rows after those of its sentences are padding.
    """

    first: int
    end: int
    length: int
    rows: int

    @property
    def num_places(self) -> int:
        """Number of places in one direction."""
        return self.length * self.rows


@dataclass(frozen=True)
class SumByRow:
    """How places are added up by the row of values that they read, in the same order at every call.

    Attributes:
        places: Places, ordered by row; padding is left out [tokens * directions].
        part_starts: First of `places` of each partial sum [parts].
        parts: All partial sums [parts].
        row_starts: First partial sum of each row [rows].
    """

    places: Tensor
    part_starts: Tensor
    parts: Tensor
    row_starts: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        """Return the sums [rows, dim] of values [places, dim]."""
        partial = functional.embedding_bag(self.places, values, self.part_starts, mode="sum")
        return functional.embedding_bag(self.parts, partial, self.row_starts, mode="sum")


@dataclass(frozen=True)
class PaddedBatch:
    """One batch in padded groups; index tensors are on the device of the model.

    Attributes:
        cut: What it was laid out for.
        groups: The groups, longest first.
        rows: Row of values that each place reads; that of some word for padding [places].
        ends: Place of each sentence's last state, in the given order, the directions one after another
            [batch * directions].
        ending: For each place the number in `ends` that it has, and ``batch * directions`` without one [places].
        tokens: Place of each token's state, the directions one after another [tokens * directions]; None without
            `has_states`.
        token_of: For each place the number in `tokens` that it has, and ``tokens * directions`` for padding [places].
        by_row: Sums by the row of values; None without `has_gradient`.
        sentences: Sentence at each sorted position [batch].
    """

    cut: Cut
    groups: tuple[Group, ...]
    rows: Tensor
    ends: Tensor
    ending: Tensor
    tokens: Tensor | None
    token_of: Tensor | None
    by_row: SumByRow | None
    sentences: Tensor

    @property
    def sizes(self) -> list[int]:
        """Number of places of each group, in all directions."""
        return [self.cut.directions * group.num_places for group in self.groups]


def lay_out_padded(order: TokenOrder, cut: Cut, device: torch.device | None) -> PaddedBatch:
    """Lay out a batch in padded groups on a device, with one copy."""
    sentences = np.argsort(-order.lengths, kind="stable")
    groups = _groups(order.lengths[sentences], cut)
    token, ends = _numbered(order, groups, sentences, cut.directions)
    direction = np.concatenate(
        [np.repeat(np.arange(cut.directions), group.num_places) for group in groups]
    )
    is_token = token >= 0
    rows = np.maximum(token, 0)
    if order.rows is not None:
        rows = order.rows[rows]
    if cut.rows_per_word > 1:
        # A word has a row for each direction, one after another: a place reads that of its own direction.
        rows = rows * cut.rows_per_word + direction
    arrays = {
        "rows": rows,
        "ends": ends,
        "ending": _inverse(ends, len(token)),
        "sentences": sentences,
    }
    if cut.has_states:
        tokens = np.empty((order.num_tokens, cut.directions), dtype=np.int64)
        tokens[token[is_token], direction[is_token]] = np.flatnonzero(is_token)
        arrays["tokens"] = tokens.reshape(-1)
        arrays["token_of"] = _inverse(arrays["tokens"], len(token))
    sums: dict[str, Integers] = {}
    if cut.has_gradient:
        sums = _sums(rows, is_token, order.num_rows * cut.rows_per_word)
    tensors = to_device_together({**arrays, **sums}, device)
    by_row = None
    if sums:
        by_row = SumByRow(**{name: tensors[name] for name in sums})
    return PaddedBatch(
        cut=cut,
        groups=groups,
        rows=tensors["rows"],
        ends=tensors["ends"],
        ending=tensors["ending"],
        tokens=tensors.get("tokens"),
        token_of=tensors.get("token_of"),
        by_row=by_row,
        sentences=tensors["sentences"],
    )


def _groups(lengths: Integers, cut: Cut) -> tuple[Group, ...]:
    """Return the groups of decreasing lengths."""
    batch = len(lengths)
    quarter = -(-batch // NUM_CUTS)
    ends = np.unique(np.minimum(quarter * np.arange(1, NUM_CUTS + 1), batch))
    rounded = lengths
    if cut.is_coarse:
        rounded = np.array([_rounded_length(int(length)) for length in lengths])
    groups = []
    for first, end in similar_lengths(rounded, group_cost=0, step_cost=cut.step_cost, ends=ends):
        rows = end - first
        if cut.is_coarse:
            rows = -(-rows // quarter) * quarter
        groups.append(Group(first, end, int(rounded[first]), rows))
    return tuple(groups)


def _rounded_length(length: int) -> int:
    """Return the least of a few lengths that is at least `length`."""
    most = _LENGTHS[-1]
    return next((few for few in _LENGTHS if few >= length), -(-length // most) * most)


def _numbered(
    order: TokenOrder, groups: Sequence[Group], sentences: Integers, directions: int
) -> tuple[Integers, Integers]:
    """Return the token of each place, -1 for padding, and the place of each sentence's last state."""
    num_places = directions * sum(group.num_places for group in groups)
    token = np.full(num_places, -1, dtype=np.int64)
    ends = np.empty((len(sentences), directions), dtype=np.int64)
    start = 0
    for group in groups:
        members = sentences[group.first : group.end]
        lengths = order.lengths[members]
        columns = np.arange(len(members))
        time = np.arange(group.length)[:, None]
        is_inside = time < lengths
        for direction in range(directions):
            # The second direction reads a sentence from its last word; its padding too comes at the end.
            read_time = lengths - 1 - time if direction else time
            read_time = np.where(is_inside, read_time, 0)
            tokens = order.of_sentence[members] + order.of_time[read_time]
            token[(start + time * group.rows + columns)[is_inside]] = tokens[is_inside]
            ends[members, direction] = start + (lengths - 1) * group.rows + columns
            start += group.num_places
    return token, ends.reshape(-1)


def _inverse(places: Integers, num_places: int) -> Integers:
    """Return for each place its number in a list of distinct places, and the length of the list without one."""
    numbers = np.full(num_places, len(places), dtype=np.int64)
    numbers[places] = np.arange(len(places))
    return numbers


def _sums(rows: Integers, is_token: npt.NDArray[np.bool_], num_rows: int) -> dict[str, Integers]:
    """Return the arrays of `SumByRow`."""
    places = np.flatnonzero(is_token)
    rows = rows[places]
    counts = np.bincount(rows, minlength=num_rows)
    # A row is added up in parts of a few places each, and then the parts: both in an order that never changes.
    num_parts = -(-counts // _ROWS_AT_ONCE)
    row_starts = np.cumsum(num_parts) - num_parts
    part_row = np.repeat(np.arange(num_rows), num_parts)
    part_in_row = np.arange(int(num_parts.sum())) - row_starts[part_row]
    first_of_row = np.cumsum(counts) - counts
    return {
        "places": places[np.argsort(rows, kind="stable")],
        "part_starts": first_of_row[part_row] + _ROWS_AT_ONCE * part_in_row,
        "parts": np.arange(len(part_row)),
        "row_starts": row_starts,
    }
