"""A GRU over packed sentences, from the input projection of each distinct word to each sentence's last state."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysent.packed_gru.cells import Cell, TorchCell
from raysent.packed_gru.recurrence import Order, Run, copy_states, go_back_once, product_type
from raysent.packed_gru.workspace import Workspaces
from raysent.packing import Packed

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
    order, low = _order(packed, backwards=backwards), product_type(projected.device)
    run = _Run(order, cell, workspaces or Workspaces(), low)
    with torch.autocast(projected.device.type, enabled=False):
        if torch.is_grad_enabled():
            state: Tensor = _PackedGru.apply(projected, weight, bias, run)  # type: ignore[no-untyped-call]
            return state
        return run.last_states(projected, weight, bias)


@torch.no_grad()
def packed_gru_all(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor,
    packed: Packed,
    *,
    backwards: bool = False,
    cell: type[Cell] = TorchCell,
    workspaces: Workspaces | None = None,
) -> tuple[Tensor, Tensor]:
    """Run one direction of one tower, without a gradient; arguments as for `packed_gru`.

    Returns:
        States after each token, time-major from the end that is read first, float32 [tokens, hidden]; and last states
        in the sorted order of `packed`, float32 [batch, hidden].
    """
    order, low = _order(packed, backwards=backwards), product_type(projected.device)
    with torch.autocast(projected.device.type, enabled=False):
        return _Run(order, cell, workspaces or Workspaces(), low).all_states(projected, weight, bias)


def _order(packed: Packed, *, backwards: bool) -> Order:
    """Return the tokens of packed sentences in one direction."""
    if backwards:
        return Order(packed.backward_tokens, packed.batch_sizes, lambda: packed.backward_groups)
    return Order(packed.forward_tokens, packed.batch_sizes, lambda: packed.forward_groups)


class _Run(Run):
    """From inputs to last states."""

    def last_states(self, projected: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the last states [batch, hidden], keeping nothing."""
        room, cell = self._begin(projected, bias, hidden=weight.shape[1], is_kept=False)
        deque(self._go(room, cell, weight.to(self._low), is_kept=False), maxlen=0)
        last = cell.last.clone()
        self._workspaces.give_back(room)
        return last

    def all_states(self, projected: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return all states [tokens, hidden] and the last ones [batch, hidden], keeping nothing."""
        room, cell = self._begin(projected, bias, hidden=weight.shape[1], is_kept=False)
        states = projected.new_empty(len(self._order.tokens), weight.shape[1], dtype=torch.float32)
        for time in self._go(room, cell, weight.to(self._low), is_kept=False):
            copy_states(room, cell, time, states[time.first : time.first + time.batch], is_kept=False)
        last = cell.last.clone()
        self._workspaces.give_back(room)
        return states, last

    def forward(self, projected: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the last states [batch, hidden], keeping what `backward` needs."""
        self._room, self._cell = self._begin(projected, bias, hidden=weight.shape[1], is_kept=True)
        self._weight = weight.to(self._low)
        deque(self._go(self._room, self._cell, self._weight, is_kept=True), maxlen=0)
        last = self._cell.last
        del self._cell.last  # autograd keeps this run with its result: it must not hold it in turn
        return last

    def backward(self, d_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of `projected`, of the weight and of the bias."""
        room, cell, weight = self._room, self._cell, self._weight
        cell.begin_backward(d_last.float().clone(memory_format=torch.contiguous_format))
        deque(self._go_back(room, cell, weight), maxlen=0)
        d_projected, d_bias = cell.gradients()
        d_weight = self._d_weight(room)
        self._workspaces.give_back(room)
        del self._room, self._cell, self._weight
        return d_projected, d_weight, d_bias


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
        return *go_back_once(ctx, gradients[0]), None
