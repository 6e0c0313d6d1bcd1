"""Buffers of one direction of one tower, kept from step to step: new pages would cost as much as the work on them.

The products of a GRU over packed sentences, in their order.

TensorFlow's cell, whose reset gate acts before the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from raysent.kernels.packed_gru.cells import Cell, Inputs, Time
from raysent.kernels.packed_gru.workspace import ROWS, TOKENS, Shape, Workspace, Workspaces
from raysent.kernels.packing import Packed

_WIDE = 1024


@dataclass(frozen=True)
class Order:
    """The tokens of one direction, time-major.

    Attributes:
        tokens: Word of each token [tokens].
        batch_sizes: Sentences that reach time t, falling [time].
        groups: See `Inputs`.
        has_first: Whether first states are given. Then as many tokens, never read, stand ahead of the first time's: in
            the place from which first states would come.
    """

    tokens: Tensor
    batch_sizes: Sequence[int]
    groups: Callable[[], tuple[Tensor, Tensor]] | None
    has_first: bool = False

    @property
    def batch(self) -> int:
        """Number of sentences."""
        return self.batch_sizes[0]

    @property
    def times(self) -> list[Time]:
        """The times of the batch."""
        sizes = self.batch_sizes
        firsts = accumulate(sizes, initial=self.batch if self.has_first else 0)
        return [Time(*time) for time in zip(firsts, sizes, (*sizes[1:], 0), strict=False)]


class Run:
    """One direction over one batch: its products, in their order."""

    def __init__(self, order: Order, cell: type[Cell], workspaces: Workspaces, low: torch.dtype) -> None:
        """Divide the tokens into times.

        Args:
            order: The tokens.
            cell: What computes between two products.
            workspaces: Where buffers come from.
            low: Type of the products.
        """
        self._order, self._low = order, low
        self._cell_type, self._workspaces = cell, workspaces
        self._times = order.times

    def _begin(self, projected: Tensor, bias: Tensor, *, hidden: int, is_kept: bool) -> tuple[Workspace, Cell]:
        """Return room for the batch, and the cell at its beginning."""
        order = self._order
        tokens = len(order.tokens) if is_kept else order.batch
        room = self._workspaces.take(Shape(hidden, self._low, projected.device, tokens, order.batch))
        inputs = Inputs(
            projected=projected.detach().float().contiguous(),
            bias=bias.detach().float().contiguous(),
            tokens=order.tokens,
            batch=order.batch,
            is_kept=is_kept,
            groups=order.groups,
        )
        return room, self._cell_type(room, inputs)

    def _go(self, room: Workspace, cell: Cell, weight: Tensor, *, is_kept: bool) -> Iterator[Time]:
        """Go from the first time to the last; yields each when it is done."""
        # The float32 products of few rows are a third faster with rows that follow each other.
        transposed = weight.T if weight.dtype != torch.float32 else weight.T.contiguous()
        for time in self._times:
            if time.first:
                first, padded = time.first if is_kept else 0, _rounded(time.batch, ROWS)
                torch.mm(room.low_states[first : first + padded], transposed, out=room.step[:padded])
            cell.forward(time)
            yield time

    def _go_back(self, room: Workspace, cell: Cell, weight: Tensor) -> Iterator[Time]:
        """Go from the last time to the first; yields each before it is done."""
        for time in reversed(self._times):
            yield time
            cell.backward(time)
            if time.first:
                rows, padded = slice(time.first, time.first + _rounded(time.batch, ROWS)), _rounded(time.batch, ROWS)
                torch.mm(room.d_products[rows], weight, out=room.d_step[:padded])

    def _d_weight(self, room: Workspace) -> Tensor:
        """Return the gradient of the recurrent weight: one product over all tokens."""
        # States before the first time's are zero and add nothing, or none are read there; the rows past the last token
        # fill up the rounded count.
        batch, tokens = self._order.batch, len(self._order.tokens)
        stop = batch + _rounded(tokens - batch, TOKENS)
        room.d_products[tokens:stop].zero_()
        room.low_states[tokens:stop].zero_()
        d_products, states = room.d_products[batch:stop], room.low_states[batch:stop]
        if states.shape[1] < _WIDE:
            return torch.mm(d_products.T, states).float()
        # Of two wide operands the library reads the transposed one slowly: the narrower one is laid out anew.
        return torch.mm(states.T.contiguous(), d_products).T.float().contiguous()


def go_back_once(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the run that a differentiable function holds; it holds none afterwards."""
    if ctx.run is None:
        raise RuntimeError("the packed GRU keeps nothing after a backward; use implementation: torch to repeat one")
    run, ctx.run = ctx.run, None
    with torch.autocast(gradient.device.type, enabled=False):
        gradients: tuple[Tensor | None, ...] = run.backward(gradient)
        return gradients


def copy_states(room: Workspace, cell: Cell, time: Time, states: Tensor, *, is_kept: bool) -> None:
    """Take the states after a time from where the cell has left them: of sentences that go on, and that end."""
    start = time.first + time.batch if is_kept else 0
    states[: time.following] = room.states[start : start + time.following]
    states[time.following :] = cell.last[time.following : time.batch]


def product_type(device: torch.device) -> torch.dtype:
    """Return the type of products: autocast's, or float32."""
    is_low = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_low else torch.float32


def _rounded(count: int, multiple: int) -> int:
    """Return the least multiple that is not below `count`."""
    return -(-count // multiple) * multiple


def reset_before_gru(projected: Tensor, weight: Tensor, bias: Tensor, packed: Packed, *, backwards: bool) -> Tensor:
    """Run one direction of TensorFlow's cell, whose reset gate acts before the product; by autograd, without haste.

    Args:
        projected: W x + b of each distinct word, with all biases but the candidate's recurrent one, blocks r, z, c.
        weight: U, blocks r, z, c [3 * hidden, hidden].
        bias: b_hh of the candidate [hidden].
        packed: The sentences.
        backwards: Whether each sentence is read from its last token.

    Returns:
        Last states in the sorted order of `packed`, float32 [batch, hidden].
    """
    hidden = weight.shape[1]
    tokens = packed.backward_tokens if backwards else packed.forward_tokens
    state = projected.new_zeros(packed.batch, hidden, dtype=torch.float32)
    ended = []
    for inputs in torch.split(projected[tokens], list(packed.batch_sizes)):
        state, over = torch.split(state, [len(inputs), len(state) - len(inputs)])
        ended.append(over)
        gates = torch.sigmoid(inputs[:, : 2 * hidden] + functional.linear(state, weight[: 2 * hidden]))
        reset, update = gates.chunk(2, dim=1)
        product = functional.linear(reset * state, weight[2 * hidden :], bias)
        candidate = torch.tanh(inputs[:, 2 * hidden :] + product)
        state = (update * state + (1 - update) * candidate).float()
    # Shorter sentences stand further down.
    return torch.cat([state, *reversed(ended)])
