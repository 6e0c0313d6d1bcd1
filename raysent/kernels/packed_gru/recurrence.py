"""The products of a GRU over packed sentences and the order of all operations; and TensorFlow's cell, by autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.kernels.packed_gru.cells import (
    ROW_MULTIPLE,
    TOKEN_MULTIPLE,
    Cell,
    Inputs,
    Shape,
    TimeStep,
    TorchCell,
    Workspace,
    Workspaces,
)
from raysent.kernels.packing import Packed

WORD_MULTIPLE = 64  # the number of distinct words of a projection should be a multiple of this
_WIDE = 1024


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
    """Return the last states of one direction.

    Args:
        projected: W x + b_ih of each distinct word, with b_hh of the two gates; rows after the last word are ignored.
            Blocks r, z, c [distinct or more, 3 * hidden].
        weight: U, blocks r, z, c [3 * hidden, hidden].
        bias: b_hh of the candidate [hidden].
        packed: The sentences.
        backwards: Whether to read each sentence from its last token.
        cell: The operations between two products.
        workspaces: Buffers kept from other steps; None allocates new ones.

    Returns:
        Last states in the sorted order of `packed`, float32 [batch, hidden]; one backward can follow.

    Raises:
        CompilerError: If the cell is the compiled one and there is no compiler.
    """
    order, dtype = order_of_words(packed, backwards=backwards), product_dtype(projected.device)
    recurrence = _LastStates(order, cell, workspaces or Workspaces(), dtype)
    with torch.autocast(projected.device.type, enabled=False):
        if torch.is_grad_enabled():
            states: Tensor = _LastStatesFunction.apply(projected, weight, bias, recurrence)  # type: ignore[no-untyped-call]
            return states
        return recurrence.last_states(projected, weight, bias)


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
    """Return all states of one direction, without gradients; the arguments are those of `packed_gru`.

    Returns:
        State after each token, time-major in reading direction, float32 [tokens, hidden]; and last states in the sorted
        order of `packed`, float32 [batch, hidden].
    """
    order, dtype = order_of_words(packed, backwards=backwards), product_dtype(projected.device)
    with torch.autocast(projected.device.type, enabled=False):
        return _LastStates(order, cell, workspaces or Workspaces(), dtype).all_states(projected, weight, bias)


def packed_gru_over_inputs(
    inputs: Tensor,
    weight: Tensor,
    batch_sizes: Sequence[int],
    *,
    initial: Tensor | None = None,
    cell: type[Cell] = TorchCell,
    workspaces: Workspaces | None = None,
) -> Tensor:
    """Return all states of a GRU with one input per token, whose candidate has no recurrent bias.

    Args:
        inputs: W x + b of each token, time-major, the longest sentence first; blocks r, z, c [tokens, 3 * hidden].
        weight: U, blocks r, z, c [3 * hidden, hidden].
        batch_sizes: Number of sentences that reach time step t, decreasing [time].
        initial: State of each sentence before its first token [batch, hidden]; None is zero.
        cell: The operations between two products.
        workspaces: Buffers kept from other steps; None allocates new ones.

    Returns:
        State after each token, float32 [tokens, hidden]; one backward can follow.

    Raises:
        CompilerError: If the cell is the compiled one and there is no compiler.
    """
    order = _order_of_tokens(inputs, batch_sizes, has_initial=initial is not None)
    recurrence = _AllStates(order, cell, workspaces or Workspaces(), product_dtype(inputs.device))
    with torch.autocast(inputs.device.type, enabled=False):
        if torch.is_grad_enabled():
            states: Tensor = _AllStatesFunction.apply(inputs, weight, initial, recurrence)  # type: ignore[no-untyped-call]
            return states
        return recurrence.forward(inputs, weight, initial, needs_backward=False)


def reset_before_gru(projected: Tensor, weight: Tensor, bias: Tensor, packed: Packed, *, backwards: bool) -> Tensor:
    """Return the last states of TensorFlow's cell, whose reset gate acts before the product; by autograd.

    Args:
        projected: W x + b of each distinct word, with all biases but the candidate's recurrent one, blocks r, z, c.
        weight: U, blocks r, z, c [3 * hidden, hidden].
        bias: b_hh of the candidate [hidden].
        packed: The sentences.
        backwards: Whether to read each sentence from its last token.

    Returns:
        Last states in the sorted order of `packed`, float32 [batch, hidden].
    """
    hidden = weight.shape[1]
    tokens = packed.backward_tokens if backwards else packed.forward_tokens
    state = projected.new_zeros(packed.batch, hidden, dtype=torch.float32)
    ended = []
    for inputs in torch.split(projected.index_select(0, tokens), list(packed.batch_sizes)):
        state, last = torch.split(state, [len(inputs), len(state) - len(inputs)])
        ended.append(last)
        gates = torch.sigmoid(inputs[:, : 2 * hidden] + functional.linear(state, weight[: 2 * hidden]))
        reset, update = gates.chunk(2, dim=1)
        product = functional.linear(reset * state, weight[2 * hidden :], bias)
        candidate = torch.tanh(inputs[:, 2 * hidden :] + product)
        state = (update * state + (1 - update) * candidate).float()
    # The sentences that end first are the last rows.
    return torch.cat([state, *reversed(ended)])


@dataclass(frozen=True)
class _Order:
    """The tokens of one direction, time-major.

    Attributes:
        tokens: Word of each token [tokens].
        batch_sizes: Number of sentences that reach time step t, decreasing [time].
        groups: See `Inputs`.
        has_initial: Whether initial states are given. If so, `batch` tokens that are never read precede those of the
            first time step, in the rows of the initial states.
    """

    tokens: Tensor
    batch_sizes: Sequence[int]
    groups: Callable[[], tuple[Tensor, Tensor]] | None
    has_initial: bool = False

    @property
    def batch(self) -> int:
        """Number of sentences."""
        return self.batch_sizes[0]

    @property
    def num_before(self) -> int:
        """Number of rows before those of the first time step."""
        return self.batch if self.has_initial else 0

    @property
    def steps(self) -> list[TimeStep]:
        """The time steps of the batch."""
        sizes = self.batch_sizes
        firsts = accumulate(sizes, initial=self.num_before)
        return [TimeStep(*step) for step in zip(firsts, sizes, (*sizes[1:], 0), strict=False)]


def order_of_words(packed: Packed, *, backwards: bool) -> _Order:
    """Return the tokens of packed sentences in one direction."""
    if backwards:
        return _Order(packed.backward_tokens, packed.batch_sizes, lambda: packed.backward_groups)
    return _Order(packed.forward_tokens, packed.batch_sizes, lambda: packed.forward_groups)


def _order_of_tokens(inputs: Tensor, batch_sizes: Sequence[int], *, has_initial: bool) -> _Order:
    num_before = batch_sizes[0] if has_initial else 0
    tokens = torch.arange(-num_before, len(inputs), device=inputs.device)
    return _Order(tokens, batch_sizes, groups=None, has_initial=has_initial)


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the type of the products: autocast's, or float32."""
    is_enabled = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_enabled else torch.float32


def rounded(count: int, multiple: int) -> int:
    """Return the smallest multiple that is at least `count`."""
    return -(-count // multiple) * multiple


class _Recurrence:
    """The products of one direction over one batch.

    Args:
        order: The tokens.
        cell: The operations between two products.
        workspaces: Source of the buffers.
        dtype: Type of the products.
    """

    def __init__(self, order: _Order, cell: type[Cell], workspaces: Workspaces, dtype: torch.dtype) -> None:
        self._order, self._dtype = order, dtype
        self._cell_type, self._workspaces = cell, workspaces
        self._steps = order.steps

    def _prepare(self, projected: Tensor, bias: Tensor, *, hidden: int, needs_backward: bool) -> tuple[Workspace, Cell]:
        """Return a workspace for the batch, and the cell before its first time step."""
        order = self._order
        tokens = len(order.tokens) if needs_backward else order.batch
        workspace = self._workspaces.acquire(Shape(hidden, self._dtype, projected.device, tokens, order.batch))
        inputs = Inputs(
            projected=projected.detach().float().contiguous(),
            bias=bias.detach().float().contiguous(),
            tokens=order.tokens,
            batch=order.batch,
            needs_backward=needs_backward,
            groups=order.groups,
        )
        return workspace, self._cell_type(workspace, inputs)

    def _forward_steps(
        self, workspace: Workspace, cell: Cell, weight: Tensor, *, needs_backward: bool
    ) -> Iterator[TimeStep]:
        """Compute the time steps in order; yield each one after its computation."""
        # float32 products of few rows are a third faster with a contiguous operand.
        transposed = weight.T if weight.dtype != torch.float32 else weight.T.contiguous()
        for step in self._steps:
            if step.first:
                first, num_rows = step.first if needs_backward else 0, rounded(step.batch, ROW_MULTIPLE)
                states = workspace.low_states[first : first + num_rows]
                torch.mm(states, transposed, out=workspace.recurrent[:num_rows])
            cell.forward(step)
            yield step

    def _backward_steps(self, workspace: Workspace, cell: Cell, weight: Tensor) -> Iterator[TimeStep]:
        """Compute the gradients of the time steps in reverse; yield each one before its computation."""
        for step in reversed(self._steps):
            yield step
            cell.backward(step)
            if step.first:
                num_rows = rounded(step.batch, ROW_MULTIPLE)
                d_products = workspace.d_products[step.first : step.first + num_rows]
                torch.mm(d_products, weight, out=workspace.d_recurrent[:num_rows])

    def _d_weight(self, workspace: Workspace) -> Tensor:
        """Return the gradient of the recurrent weight, as one product over all tokens."""
        # The first `batch` rows are left out: without initial states their states are zero, with them they are no
        # tokens. The rows after the last token fill up the rounded count with zeros.
        batch, tokens = self._order.batch, len(self._order.tokens)
        stop = batch + rounded(tokens - batch, TOKEN_MULTIPLE)
        workspace.d_products[tokens:stop].zero_()
        workspace.low_states[tokens:stop].zero_()
        d_products, states = workspace.d_products[batch:stop], workspace.low_states[batch:stop]
        if states.shape[1] < _WIDE:
            return torch.mm(d_products.T, states).float()
        # The library reads the transposed one of two wide operands slowly: copy the narrower one.
        return torch.mm(states.T.contiguous(), d_products).T.float().contiguous()

    def _copy_states(
        self, workspace: Workspace, cell: Cell, step: TimeStep, states: Tensor, *, needs_backward: bool
    ) -> None:
        """Copy the states after a time step, of sentences that continue and of those that end, to `states`."""
        start = step.first + step.batch if needs_backward else 0
        states[: step.next_batch] = workspace.states[start : start + step.next_batch]
        states[step.next_batch :] = cell.last[step.next_batch : step.batch]


class _LastStates(_Recurrence):
    """From the projections of words to last states."""

    def last_states(self, projected: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the last states [batch, hidden]; no backward can follow."""
        workspace, cell = self._prepare(projected, bias, hidden=weight.shape[1], needs_backward=False)
        for _ in self._forward_steps(workspace, cell, weight.to(self._dtype), needs_backward=False):
            pass
        last = cell.last.clone()
        self._workspaces.release(workspace)
        return last

    def all_states(self, projected: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return all states [tokens, hidden] and the last ones [batch, hidden]; no backward can follow."""
        workspace, cell = self._prepare(projected, bias, hidden=weight.shape[1], needs_backward=False)
        states = projected.new_empty(len(self._order.tokens), weight.shape[1], dtype=torch.float32)
        for step in self._forward_steps(workspace, cell, weight.to(self._dtype), needs_backward=False):
            rows = states[step.first : step.first + step.batch]
            self._copy_states(workspace, cell, step, rows, needs_backward=False)
        last = cell.last.clone()
        self._workspaces.release(workspace)
        return states, last

    def forward(self, projected: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the last states [batch, hidden], and keep the values that `backward` needs."""
        workspace, cell = self._prepare(projected, bias, hidden=weight.shape[1], needs_backward=True)
        low_weight = weight.to(self._dtype)
        for _ in self._forward_steps(workspace, cell, low_weight, needs_backward=True):
            pass
        last = cell.last
        del cell.last  # autograd keeps this object with its result: a reference back would be a cycle
        self._kept = workspace, cell, low_weight
        return last

    def backward(self, d_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of `projected`, of the weight and of the bias."""
        workspace, cell, weight = self._kept
        cell.start_backward(d_last.float().clone(memory_format=torch.contiguous_format))
        for _ in self._backward_steps(workspace, cell, weight):
            pass
        d_projected, d_bias = cell.gradients()
        d_weight = self._d_weight(workspace)
        self._workspaces.release(workspace)
        del self._kept
        return d_projected, d_weight, d_bias


class _AllStates(_Recurrence):
    """From the inputs of tokens to all states."""

    def forward(self, inputs: Tensor, weight: Tensor, initial: Tensor | None, *, needs_backward: bool) -> Tensor:
        """Return the states [tokens, hidden], and keep the values that `backward` needs, if one follows."""
        hidden, low_weight = weight.shape[1], weight.to(self._dtype)
        bias = inputs.new_zeros(hidden)
        workspace, cell = self._prepare(inputs, bias, hidden=hidden, needs_backward=needs_backward)
        if initial is not None:
            start = self._order.batch if needs_backward else 0
            for states in (workspace.states, workspace.low_states):
                states[start : start + len(initial)] = initial
        states = inputs.new_empty(len(inputs), hidden, dtype=torch.float32)
        for step in self._forward_steps(workspace, cell, low_weight, needs_backward=needs_backward):
            self._copy_states(workspace, cell, step, states[self._rows(step)], needs_backward=needs_backward)
        if needs_backward:
            del cell.last
            self._kept = workspace, cell, low_weight
        else:
            self._workspaces.release(workspace)
        return states

    def _rows(self, step: TimeStep) -> slice:
        start = step.first - self._order.num_before
        return slice(start, start + step.batch)

    def backward(self, d_states: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of the inputs, of the weight and of the initial states."""
        workspace, cell, weight = self._kept
        d_state = d_states.new_zeros(self._order.batch, weight.shape[1])
        cell.start_backward(d_state)
        for step in self._backward_steps(workspace, cell, weight):
            d_state[: step.batch] += d_states[self._rows(step)]
        d_inputs, _ = cell.gradients()
        d_weight = self._d_weight(workspace)
        d_initial = d_state + workspace.d_recurrent[: len(d_state)] if self._order.has_initial else None
        self._workspaces.release(workspace)
        del self._kept
        return d_inputs, d_weight, d_initial


class _LastStatesFunction(torch.autograd.Function):
    """`_LastStates` as a differentiable function."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, bias: Tensor, recurrence: _LastStates) -> Tensor:
        """Return the last states."""
        ctx.recurrence = recurrence
        return recurrence.forward(projected, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `projected`, `weight` and `bias`."""
        return *_backward_once(ctx, gradients[0]), None


class _AllStatesFunction(torch.autograd.Function):
    """`_AllStates` as a differentiable function."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, initial: Tensor | None, recurrence: _AllStates) -> Tensor:
        """Return the states."""
        ctx.recurrence = recurrence
        return recurrence.forward(inputs, weight, initial, needs_backward=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of inputs, weight and initial states."""
        return *_backward_once(ctx, gradients[0]), None


def _backward_once(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the recurrence that `ctx` holds, and free it."""
    if ctx.recurrence is None:
        raise RuntimeError("the packed GRU keeps no values after a backward; use implementation: torch to repeat one")
    recurrence, ctx.recurrence = ctx.recurrence, None
    with torch.autocast(gradient.device.type, enabled=False):
        gradients: tuple[Tensor | None, ...] = recurrence.backward(gradient)
        return gradients
