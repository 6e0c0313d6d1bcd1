"""The products of a GRU over packed sentences, in their order, as one differentiable function."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysent.packed_gru.cells import Cell, Inputs, Time, TorchCell
from raysent.packed_gru.workspace import ROWS, TOKENS, Shape, Workspace, Workspaces
from raysent.packing import Packed

_WIDE = 1024
WORDS = 64  # the distinct words of one projection are best a multiple of this


def packed_gru(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor,
    packed: Packed,
    *,
    backwards: bool = False,
    cell: type[Cell] = TorchCell,
    workspaces: Workspaces | None = None,
) -> Tensor:
    """Run one direction of one tower.

    Args:
        projected: W x + b_ih of each distinct word, with b_hh of the two gates; rows past the last word are ignored.
            Blocks r, z, c [distinct or more, 3 * hidden].
        weight: U, blocks r, z, c [3 * hidden, hidden].
        bias: b_hh of the candidate [hidden].
        packed: The sentences.
        backwards: Whether each sentence is read from its last token.
        cell: What computes between two products.
        workspaces: Buffers kept from other steps; None makes new ones.

    Returns:
        Last states in the sorted order of `packed`, float32 [batch, hidden].

    Raises:
        CompilerError: If the cell must be compiled and there is no compiler.
    """
    device = projected.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    run = _Run(packed, backwards, cell, workspaces or Workspaces(), low)
    with torch.autocast(device, enabled=False):
        if torch.is_grad_enabled():
            state: Tensor = _PackedGru.apply(projected, weight, bias, run)  # type: ignore[no-untyped-call]
            return state
        return run.last_states(projected, weight, bias)


class _Run:
    """One direction over one batch."""

    def __init__(
        self, packed: Packed, backwards: bool, cell: type[Cell], workspaces: Workspaces, low: torch.dtype
    ) -> None:
        self._packed, self._backwards, self._low = packed, backwards, low
        self._cell_type, self._workspaces = cell, workspaces
        sizes = packed.batch_sizes
        firsts = accumulate(sizes, initial=0)
        self._times = [Time(*time) for time in zip(firsts, sizes, (*sizes[1:], 0), strict=False)]

    def last_states(self, projected: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the last states [batch, hidden], keeping nothing."""
        room, cell = self._begin(projected, bias, hidden=weight.shape[1], is_kept=False)
        self._forward(room, cell, weight.to(self._low), is_kept=False)
        last = cell.last.clone()
        self._workspaces.give_back(room)
        return last

    def forward(self, projected: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the last states [batch, hidden], keeping what `backward` needs."""
        self._room, self._cell = self._begin(projected, bias, hidden=weight.shape[1], is_kept=True)
        self._weight = weight.to(self._low)
        self._forward(self._room, self._cell, self._weight, is_kept=True)
        last = self._cell.last
        del self._cell.last  # autograd keeps this run with its result: it must not hold it in turn
        return last

    def _begin(self, projected: Tensor, bias: Tensor, *, hidden: int, is_kept: bool) -> tuple[Workspace, Cell]:
        """Return room for the batch, and the cell at its beginning."""
        packed = self._packed
        tokens = packed.num_tokens if is_kept else packed.batch
        room = self._workspaces.take(Shape(hidden, self._low, projected.device, tokens, packed.batch))
        inputs = Inputs(
            projected=projected.detach().float().contiguous(),
            bias=bias.detach().float().contiguous(),
            packed=packed,
            backwards=self._backwards,
            is_kept=is_kept,
        )
        return room, self._cell_type(room, inputs)

    def _forward(self, room: Workspace, cell: Cell, weight: Tensor, *, is_kept: bool) -> None:
        """Go from the first time to the last."""
        # The float32 products of few rows are a third faster with rows that follow each other.
        transposed = weight.T if weight.dtype != torch.float32 else weight.T.contiguous()
        for time in self._times:
            if time.first:
                first, padded = time.first if is_kept else 0, _rounded(time.batch, ROWS)
                torch.mm(room.low_states[first : first + padded], transposed, out=room.step[:padded])
            cell.forward(time)

    def backward(self, d_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of `projected`, of the weight and of the bias."""
        room, cell, weight = self._room, self._cell, self._weight
        cell.begin_backward(d_last.float().clone(memory_format=torch.contiguous_format))
        for time in reversed(self._times):
            cell.backward(time)
            if time.first:
                rows, padded = slice(time.first, time.first + _rounded(time.batch, ROWS)), _rounded(time.batch, ROWS)
                torch.mm(room.d_products[rows], weight, out=room.d_step[:padded])
        d_projected, d_bias = cell.gradients()
        d_weight = self._d_weight(room)
        self._workspaces.give_back(room)
        del self._room, self._cell, self._weight
        return d_projected, d_weight, d_bias

    def _d_weight(self, room: Workspace) -> Tensor:
        """Return the gradient of the recurrent weight: one product over all tokens."""
        # The first words' states are zero and add nothing; the rows past the last token fill up the rounded count.
        batch, tokens = self._packed.batch, self._packed.num_tokens
        stop = batch + _rounded(tokens - batch, TOKENS)
        room.d_products[tokens:stop].zero_()
        room.low_states[tokens:stop].zero_()
        d_products, states = room.d_products[batch:stop], room.low_states[batch:stop]
        if states.shape[1] < _WIDE:
            return torch.mm(d_products.T, states).float()
        # Of two wide operands the library reads the transposed one slowly: the narrower one is laid out anew.
        return torch.mm(states.T.contiguous(), d_products).T.float().contiguous()


class _PackedGru(torch.autograd.Function):
    """A run's `forward` and `backward` as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, bias: Tensor, run: _Run) -> Tensor:
        """Return the last states."""
        ctx.run = run
        return run.forward(projected, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `projected`, `weight` and `bias`."""
        if ctx.run is None:
            raise RuntimeError("the packed GRU keeps nothing after a backward; use implementation: torch to repeat one")
        run, ctx.run = ctx.run, None
        with torch.autocast(gradients[0].device.type, enabled=False):
            return *run.backward(gradients[0]), None


def _rounded(count: int, multiple: int) -> int:
    """Return the least multiple that is not below `count`."""
    return -(-count // multiple) * multiple
