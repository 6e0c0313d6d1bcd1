"""GRU over packed sentences, forward and backward, at a fraction of the cost of torch's.

`packed_gru` reads the input projection of each distinct word and returns last states; `packed_gru_over_inputs` reads
one input per token and returns all states, as a decoder needs. The sums are those of torch's GRU in another order:

- time step t multiplies the rows of the sentences that reach it, without padding;
- the input is projected once per distinct word, and its gradient is summed per word before the products;
- the state before the first word is zero, so the first word needs no product;
- the gradient of the recurrent weight is one product over all tokens;
- row counts are rounded up, so that the matrix library sees few shapes (it compiles a kernel for each);
- buffers are kept between training steps;
- all operations between two products are one pass of a compiled kernel.

Under autocast the products use its type, and the compiled kernel keeps what its backward reads in 16 bits; everything
else is float32.

NaN and infinity: in float32 they stay in their own sentence. In bfloat16 on a CPU with AMX they can reach other
sentences of the batch unless the inner sizes of the products (word dimension, `hidden`, ``3 * hidden``) are multiples
of 32: oneDNN (3.12, in torch 2.13) reads the end of a row together with the start of the next row, and multiplies the
latter by zero. Finite values are not affected.

Here are the products and the order of all operations; `gru_cells` has the operations between two products. Without
buffers for them, as on a GPU or without a compiler, states are computed by the plain formulas and autograd. So is
TensorFlow's cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.kernels.devices import product_dtype, to_device
from raysent.kernels.gru_cells import (
    ROW_MULTIPLE,
    TOKEN_MULTIPLE,
    Cell,
    Order,
    Shape,
    TimeStep,
    Workspace,
    Workspaces,
)
from raysent.kernels.packing import Packed

WORD_MULTIPLE = 64  # the number of distinct words of a projection should be a multiple of this
_WIDE = 1024  # columns or rows of an operand that is worth a copy in another layout


def packed_gru(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor,
    packed: Packed,
    *,
    backwards: bool = False,
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
        workspaces: Buffers of the compiled kernel, kept from other steps; None computes by the plain formulas.

    Returns:
        Last states in the sorted order of `packed`, float32 [batch, hidden]; after the kernel, one backward can follow.

    Raises:
        CompilerError: If the kernel is wanted and there is no compiler.
    """
    order = order_of_words(packed, backwards=backwards)
    dtype = product_dtype(projected.device)
    if workspaces is None:
        states = _states_plainly(
            projected.index_select(0, order.tokens), weight, bias, packed.batch_sizes
        )
        return states.index_select(0, last_rows(packed))
    recurrence = _Recurrence(order, workspaces, dtype, has_states=False)
    return _run(recurrence, projected, weight, bias)


@torch.no_grad()
def packed_gru_all_states(
    projected: Tensor,
    weight: Tensor,
    bias: Tensor,
    packed: Packed,
    *,
    backwards: bool = False,
    workspaces: Workspaces | None = None,
) -> tuple[Tensor, Tensor]:
    """Return all states of one direction, without gradients; the arguments are those of `packed_gru`.

    Returns:
        State after each token, time-major in reading direction, float32 [tokens, hidden]; and last states in the sorted
        order of `packed`, float32 [batch, hidden].
    """
    order = order_of_words(packed, backwards=backwards)
    dtype = product_dtype(projected.device)
    if workspaces is None:
        states = _states_plainly(
            projected.index_select(0, order.tokens), weight, bias, packed.batch_sizes
        )
        return states, states.index_select(0, last_rows(packed))
    with torch.autocast(projected.device.type, enabled=False):
        recurrence = _Recurrence(order, workspaces, dtype, has_states=True)
        return recurrence.forward(projected, weight, bias, needs_backward=False)


def packed_gru_over_inputs(
    inputs: Tensor,
    weight: Tensor,
    batch_sizes: Sequence[int],
    *,
    initial: Tensor | None = None,
    workspaces: Workspaces | None = None,
) -> Tensor:
    """Return all states of a GRU with one input per token, whose candidate has no recurrent bias.

    Args:
        inputs: W x + b of each token, time-major, the longest sentence first; blocks r, z, c [tokens, 3 * hidden].
        weight: U, blocks r, z, c [3 * hidden, hidden].
        batch_sizes: Number of sentences that reach time step t, decreasing [time].
        initial: State of each sentence before its first token [batch, hidden]; None is zero.
        workspaces: Buffers of the compiled kernel, kept from other steps; None computes by the plain formulas.

    Returns:
        State after each token, float32 [tokens, hidden]; after the kernel, one backward can follow.

    Raises:
        CompilerError: If the kernel is wanted and there is no compiler.
    """
    bias = inputs.new_zeros(weight.shape[1])
    if workspaces is None:
        return _states_plainly(inputs, weight, bias, batch_sizes, initial=initial)
    first = 0 if initial is None else -batch_sizes[0]
    tokens = torch.arange(first, len(inputs), device=inputs.device)
    order = Order(tokens, batch_sizes, has_initial=initial is not None)
    recurrence = _Recurrence(order, workspaces, product_dtype(inputs.device), has_states=True)
    return _run(recurrence, inputs, weight, bias, initial)


def _run(
    recurrence: _Recurrence,
    projected: Tensor,
    weight: Tensor,
    bias: Tensor,
    initial: Tensor | None = None,
) -> Tensor:
    with torch.autocast(projected.device.type, enabled=False):
        if torch.is_grad_enabled():
            outcome: Tensor = _Function.apply(projected, weight, bias, initial, recurrence)  # type: ignore[no-untyped-call]
            return outcome
        states, last = recurrence.forward(projected, weight, bias, initial, needs_backward=False)
        return states if recurrence.has_states else last


def _states_plainly(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    batch_sizes: Sequence[int],
    *,
    initial: Tensor | None = None,
) -> Tensor:
    """Return all states [tokens, hidden] by the plain formulas and autograd; the products in autocast's type."""
    hidden = weight.shape[1]
    dtype = product_dtype(inputs.device)
    with torch.autocast(inputs.device.type, enabled=False):
        inputs = inputs.float()
        bias = bias.float()
        if initial is None:
            state = inputs.new_zeros(batch_sizes[0], hidden)
        else:
            state = initial.float()
        states = []
        for step in torch.split(inputs, list(batch_sizes)):
            state = state[: len(step)]
            # The weight is converted in each step, so that its gradients are added up in float32.
            recurrent = functional.linear(state.to(dtype), weight.to(dtype)).float()
            gates = torch.sigmoid(step[:, : 2 * hidden] + recurrent[:, : 2 * hidden])
            candidate = torch.tanh(
                step[:, 2 * hidden :] + gates[:, :hidden] * (recurrent[:, 2 * hidden :] + bias)
            )
            state = candidate + gates[:, hidden:] * (state - candidate)
            states.append(state)
        return torch.cat(states)


def last_rows(packed: Packed) -> Tensor:
    """Return the row of each sentence's last state, in the sorted order of `packed` [batch]."""
    firsts = list(accumulate(packed.batch_sizes, initial=0))
    ends = [
        torch.arange(first + next_batch, first + batch)
        for first, batch, next_batch in zip(
            firsts, packed.batch_sizes, (*packed.batch_sizes[1:], 0), strict=False
        )
    ]
    # The sentences that end first are the last rows.
    return to_device(torch.cat(ends[::-1]), packed.order.device)


def reset_before_gru(
    projected: Tensor, weight: Tensor, bias: Tensor, packed: Packed, *, backwards: bool
) -> Tensor:
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
        gates = torch.sigmoid(
            inputs[:, : 2 * hidden] + functional.linear(state, weight[: 2 * hidden])
        )
        reset, update = gates.chunk(2, dim=1)
        product = functional.linear(reset * state, weight[2 * hidden :], bias)
        candidate = torch.tanh(inputs[:, 2 * hidden :] + product)
        state = (update * state + (1 - update) * candidate).float()
    # The sentences that end first are the last rows.
    return torch.cat([state, *reversed(ended)])


def order_of_words(packed: Packed, *, backwards: bool) -> Order:
    """Return the tokens of packed sentences in one direction."""
    tokens = packed.backward_tokens if backwards else packed.forward_tokens
    return Order(tokens, packed.batch_sizes)


def rounded(count: int, multiple: int) -> int:
    """Return the smallest multiple that is at least `count`."""
    return -(-count // multiple) * multiple


class _Recurrence:
    """The products of one direction over one batch; of all states, or the last ones."""

    def __init__(
        self, order: Order, workspaces: Workspaces, dtype: torch.dtype, *, has_states: bool
    ) -> None:
        self._order = order
        self._dtype = dtype
        self.has_states = has_states
        self._workspaces = workspaces
        self._steps = order.steps

    def forward(
        self,
        projected: Tensor,
        weight: Tensor,
        bias: Tensor,
        initial: Tensor | None = None,
        *,
        needs_backward: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return all states, empty unless they are wanted, and the last ones; keep what `backward` needs."""
        order = self._order
        hidden = weight.shape[1]
        low_weight = weight.to(self._dtype)
        workspace, cell = self._prepare(
            projected, bias, hidden=hidden, needs_backward=needs_backward
        )
        if initial is not None:
            start = order.batch if needs_backward else 0
            workspace.states[start : start + len(initial)] = initial
            cell.last[: len(initial)] = initial
        num_tokens = 0
        if self.has_states:
            num_tokens = len(order.tokens) - order.num_before
        states = projected.new_empty(num_tokens, hidden, dtype=torch.float32)
        for step in self._forward_steps(workspace, cell, low_weight, needs_backward=needs_backward):
            if self.has_states:
                self._copy_states(
                    workspace, cell, step, states[self._rows(step)], needs_backward=needs_backward
                )
        last = cell.last
        if needs_backward:
            # Autograd keeps this object with its result: a reference back would be a cycle.
            del cell.last
            self._kept = workspace, cell, low_weight
        else:
            if self._dtype == torch.float32:
                last = last.clone()  # it is the workspace's own memory
            self._workspaces.release(workspace)
        return states, last

    def backward(self, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `projected`, weight, bias and initial states for that of all or of the last ones."""
        workspace, cell, weight = self._kept
        if self.has_states:
            d_state = gradient.new_zeros(self._order.batch, weight.shape[1])
        else:
            d_state = gradient.float().clone(memory_format=torch.contiguous_format)
        cell.start_backward(d_state)
        for step in self._backward_steps(workspace, cell, weight):
            if self.has_states:
                d_state[: step.batch] += gradient[self._rows(step)]
        d_projected, d_bias = cell.gradients()
        d_weight = self._d_weight(workspace)
        d_initial = None
        if self._order.has_initial:
            d_initial = d_state + workspace.d_recurrent[: len(d_state)]
        self._workspaces.release(workspace)
        del self._kept
        return d_projected, d_weight, d_bias, d_initial

    def _rows(self, step: TimeStep) -> slice:
        start = step.first - self._order.num_before
        return slice(start, start + step.batch)

    def _prepare(
        self, projected: Tensor, bias: Tensor, *, hidden: int, needs_backward: bool
    ) -> tuple[Workspace, Cell]:
        order = self._order
        if needs_backward:
            tokens = len(order.tokens)
        else:
            tokens = order.batch
        workspace = self._workspaces.acquire(
            Shape(hidden, self._dtype, projected.device, tokens, order.batch)
        )
        if projected.dtype != self._dtype:
            projected = projected.float()
        projected = projected.detach().contiguous()
        bias = bias.detach().float().contiguous()
        return workspace, Cell(workspace, order, projected, bias, needs_backward=needs_backward)

    def _forward_steps(
        self, workspace: Workspace, cell: Cell, weight: Tensor, *, needs_backward: bool
    ) -> Iterator[TimeStep]:
        """Compute the time steps in order; yield each one after its computation."""
        # Products are faster with a contiguous operand, in bfloat16 only those of many rows. In float32 a sentence must
        # have the same bits in any company.
        is_copied = weight.dtype == torch.float32 or len(self._order.tokens) >= _WIDE
        if is_copied:
            columns = weight.T.contiguous()
        else:
            columns = weight.T
        for step in self._steps:
            if step.first:
                first = step.first if needs_backward else 0
                num_rows = rounded(step.batch, ROW_MULTIPLE)
                states = workspace.states[first : first + num_rows]
                torch.mm(states, columns, out=workspace.recurrent[:num_rows])
            cell.forward(step)
            yield step

    def _backward_steps(
        self, workspace: Workspace, cell: Cell, weight: Tensor
    ) -> Iterator[TimeStep]:
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
        batch = self._order.batch
        tokens = len(self._order.tokens)
        stop = batch + rounded(tokens - batch, TOKEN_MULTIPLE)
        workspace.d_products[tokens:stop].zero_()
        workspace.states[tokens:stop].zero_()
        d_products = workspace.d_products[batch:stop]
        states = workspace.states[batch:stop]
        if states.shape[1] < _WIDE and states.dtype == torch.float32:
            return torch.mm(d_products.T, states)
        # The library reads the transposed operand slowly if it is wide or in bfloat16: copy the narrower one.
        return torch.mm(states.T.contiguous(), d_products).T.contiguous().float()

    def _copy_states(
        self,
        workspace: Workspace,
        cell: Cell,
        step: TimeStep,
        states: Tensor,
        *,
        needs_backward: bool,
    ) -> None:
        """Copy the states after a time step, of sentences that continue and of those that end, to `states`."""
        if not needs_backward or self._dtype != torch.float32:
            states.copy_(cell.last[: step.batch])
            return
        # The state of a sentence that goes on is kept once: as that before its next token.
        start = step.first + step.batch
        states[: step.next_batch] = workspace.states[start : start + step.next_batch]
        states[step.next_batch :] = cell.last[step.next_batch : step.batch]


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        weight: Tensor,
        bias: Tensor,
        initial: Tensor | None,
        recurrence: _Recurrence,
    ) -> Tensor:
        ctx.recurrence = recurrence
        states, last = recurrence.forward(projected, weight, bias, initial, needs_backward=True)
        return states if recurrence.has_states else last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.recurrence is None:
            raise RuntimeError(
                "the packed GRU keeps no values after a backward; use implementation: torch to repeat one"
            )
        recurrence = ctx.recurrence
        ctx.recurrence = None
        with torch.autocast(gradients[0].device.type, enabled=False):
            return *recurrence.backward(gradients[0]), None
