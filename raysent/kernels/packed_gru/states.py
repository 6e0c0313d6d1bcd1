"""A GRU over packed sentences, from the input projection of each distinct word to each sentence's last state.

A GRU over packed sentences, from an input of each token to the state after it; first states are given, or zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysent.kernels.packed_gru.cells import Cell, Time, TorchCell
from raysent.kernels.packed_gru.recurrence import Order, Run, copy_states, go_back_once, product_type
from raysent.kernels.packed_gru.workspace import Workspaces
from raysent.kernels.packing import Packed

WORD_MULTIPLE = 64  # the distinct words of one projection are best a multiple of this


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
    run = _LastStateRun(order, cell, workspaces or Workspaces(), low)
    with torch.autocast(projected.device.type, enabled=False):
        if torch.is_grad_enabled():
            state: Tensor = _PackedGru.apply(projected, weight, bias, run)  # type: ignore[no-untyped-call]
            return state
        return run.last_states(projected, weight, bias)


@torch.no_grad()
def packed_gru_all_states(
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
        return _LastStateRun(order, cell, workspaces or Workspaces(), low).all_states(projected, weight, bias)


def _order(packed: Packed, *, backwards: bool) -> Order:
    """Return the tokens of packed sentences in one direction."""
    if backwards:
        return Order(packed.backward_tokens, packed.batch_sizes, lambda: packed.backward_groups)
    return Order(packed.forward_tokens, packed.batch_sizes, lambda: packed.forward_groups)


class _LastStateRun(Run):
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
    def forward(ctx: Any, projected: Tensor, weight: Tensor, bias: Tensor, run: _LastStateRun) -> Tensor:
        """Return the last states."""
        ctx.run = run
        return run.forward(projected, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `projected`, `weight` and `bias`."""
        return *go_back_once(ctx, gradients[0]), None


def packed_gru_over_inputs(
    inputs: Tensor,
    weight: Tensor,
    batch_sizes: Sequence[int],
    *,
    first: Tensor | None = None,
    cell: type[Cell] = TorchCell,
    workspaces: Workspaces | None = None,
) -> Tensor:
    """Return the states of a GRU whose candidate has no bias at the product.

    Args:
        inputs: What each token adds to the products, time-major, the longest sentence first; blocks r, z, c
            [tokens, 3 * hidden].
        weight: U, blocks r, z, c [3 * hidden, hidden].
        batch_sizes: Sentences that reach time t, falling [time].
        first: State of each sentence before its first token [batch, hidden]; None is zero.
        cell: What computes between two products.
        workspaces: Buffers kept from other steps; None makes new ones.

    Returns:
        State after each token, float32 [tokens, hidden]; one backward can follow.

    Raises:
        CompilerError: If the cell must be compiled and there is no compiler.
    """
    run = _AllStatesRun(
        _order_of_steps(inputs, batch_sizes, has_first=first is not None), cell, workspaces or Workspaces(), inputs
    )
    with torch.autocast(inputs.device.type, enabled=False):
        if torch.is_grad_enabled():
            states: Tensor = _States.apply(inputs, weight, first, run)  # type: ignore[no-untyped-call]
            return states
        return run.forward(inputs, weight, first, is_kept=False)


def _order_of_steps(inputs: Tensor, batch_sizes: Sequence[int], *, has_first: bool) -> Order:
    """Return the order of tokens that each have an input of their own."""
    num_ahead = batch_sizes[0] if has_first else 0
    tokens = torch.arange(-num_ahead, len(inputs), device=inputs.device)
    return Order(tokens, batch_sizes, groups=None, has_first=has_first)


class _AllStatesRun(Run):
    """From inputs to all states."""

    def __init__(self, order: Order, cell: type[Cell], workspaces: Workspaces, inputs: Tensor) -> None:
        super().__init__(order, cell, workspaces, product_type(inputs.device))

    def forward(self, inputs: Tensor, weight: Tensor, first: Tensor | None, *, is_kept: bool) -> Tensor:
        """Return the states [tokens, hidden], and keep what `backward` needs, if any follows."""
        hidden, low_weight = weight.shape[1], weight.to(self._low)
        room, cell = self._begin(inputs, inputs.new_zeros(hidden), hidden=hidden, is_kept=is_kept)
        if first is not None:
            start = self._order.batch if is_kept else 0
            for states in (room.states, room.low_states):
                states[start : start + len(first)] = first
        states = inputs.new_empty(len(inputs), hidden, dtype=torch.float32)
        for time in self._go(room, cell, low_weight, is_kept=is_kept):
            copy_states(room, cell, time, states[self._rows(time)], is_kept=is_kept)
        if is_kept:
            del cell.last
            self._kept = room, cell, low_weight
        else:
            self._workspaces.give_back(room)
        return states

    def _rows(self, time: Time) -> slice:
        """Return a time's rows among the tokens that are read."""
        start = time.first - (self._order.batch if self._order.has_first else 0)
        return slice(start, start + time.batch)

    def backward(self, d_states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of the inputs, of the weight and of the first states."""
        room, cell, weight = self._kept
        d_state = d_states.new_zeros(self._order.batch, weight.shape[1])
        cell.begin_backward(d_state)
        for time in self._go_back(room, cell, weight):
            d_state[: time.batch] += d_states[self._rows(time)]
        d_inputs, _ = cell.gradients()
        d_weight = self._d_weight(room)
        d_first = d_state + room.d_step[: len(d_state)] if self._order.has_first else None
        self._workspaces.give_back(room)
        del self._kept
        return d_inputs, d_weight, d_first


class _States(torch.autograd.Function):
    """A run's `forward` and `backward` as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, first: Tensor | None, run: _AllStatesRun) -> Tensor:
        """Return the states."""
        ctx.run = run
        return run.forward(inputs, weight, first, is_kept=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of inputs, weight and first states."""
        return *go_back_once(ctx, gradients[0]), None
