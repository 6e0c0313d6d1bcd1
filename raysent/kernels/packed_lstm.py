"""LSTM over packed sentences, forward and backward, with all states, which poolings read.

What is between two products runs in one pass of a compiled kernel on a CPU, or by the plain formulas.

The kernel's sums are those of torch's LSTM in another order, as in `packed_gru`: no padding, the input projected once
per distinct word, no product for the first word, the gradient of the recurrent weight as one product over all tokens.
NaN and infinity spread as in `packed_gru`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.kernels.devices import product_dtype
from raysent.kernels.gru_cells import ROW_MULTIPLE, TOKEN_MULTIPLE, Shape, TimeStep, Workspaces
from raysent.kernels.native import Arguments, load
from raysent.kernels.packed_gru import order_of_words, rounded
from raysent.kernels.packing import Packed


def packed_lstm(
    projected: Tensor,
    weight: Tensor,
    packed: Packed,
    *,
    backwards: bool = False,
    workspaces: Workspaces | None = None,
) -> Tensor:
    """Return the states of one direction.

    Args:
        projected: W x + b of each distinct word, with all biases, blocks i, f, g, o [distinct, 4 * hidden].
        weight: U, blocks i, f, g, o [4 * hidden, hidden].
        packed: The sentences.
        backwards: Whether to read each sentence from its last token.
        workspaces: `lstm_workspaces`, for the compiled kernel; None computes in torch's operations.

    Returns:
        State after each token, time-major in reading direction, float32 [tokens, hidden]; after the compiled kernel,
        one backward can follow.

    Raises:
        CompilerError: If the compiled kernel is wanted and there is no compiler.
    """
    dtype = product_dtype(projected.device)
    with torch.autocast(projected.device.type, enabled=False):
        if workspaces is not None:
            direction = _CompiledDirection(packed, dtype, workspaces, backwards=backwards)
            if not torch.is_grad_enabled():
                return direction.forward(projected, weight, needs_backward=False)
            compiled: Tensor = _CompiledLstm.apply(projected, weight, direction)  # type: ignore[no-untyped-call]
            return compiled
        return _states_plainly(projected, weight, packed, dtype, backwards=backwards)


def _states_plainly(
    projected: Tensor, weight: Tensor, packed: Packed, dtype: torch.dtype, *, backwards: bool
) -> Tensor:
    tokens = packed.backward_tokens if backwards else packed.forward_tokens
    gates = projected.float().index_select(0, tokens)
    state = cell = gates.new_zeros(packed.batch, weight.shape[1])
    states = []
    for step in torch.split(gates, list(packed.batch_sizes)):
        # The weight is converted in each step, so that its gradients are added up in float32.
        recurrent = functional.linear(state[: len(step)].to(dtype), weight.to(dtype))
        i, f, g, o = (step + recurrent).chunk(4, dim=1)
        cell = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * cell[: len(step)]
        state = torch.sigmoid(o) * torch.tanh(cell)
        states.append(state)
    return torch.cat(states)


class _Workspace:
    """Buffers from a forward to its backward; rows are tokens, time-major.

    Attributes:
        shape: Size and type.
        gates: i, f, g and o after their activation functions, float32 [tokens, 4 * hidden].
        cells: Cell after each token, float32 [tokens, hidden].
        before: State before each token, in the type of the products [tokens, hidden].
        d_products: Gradient of U h, in the type of the products [tokens, 4 * hidden]; `gates` itself in float32.
        recurrent: U h of one time step, in the type of the products [batch, 4 * hidden].
        d_recurrent: Gradient through U of one time step, in the type of the products [batch, hidden].
        d_cells: Gradient of the cells from the next time step, float32 [batch, hidden].
    """

    def __init__(self, shape: Shape) -> None:
        """Allocate the buffers; the operating system provides memory only for pages that are written."""
        self.shape = shape
        hidden = shape.hidden
        dtype = shape.dtype
        # A later step may need gradients even if this one does not.
        with torch.inference_mode(False):
            self.gates = torch.zeros(shape.tokens, 4 * hidden)
            self.cells = torch.zeros(shape.tokens, hidden)
            self.before = torch.zeros(shape.tokens, hidden, dtype=dtype)
            is_low = dtype != torch.float32
            self.d_products = self.gates
            if is_low:
                self.d_products = torch.zeros(shape.tokens, 4 * hidden, dtype=dtype)
            self.recurrent = torch.zeros(shape.batch, 4 * hidden, dtype=dtype)
            self.d_recurrent = torch.zeros(shape.batch, hidden, dtype=dtype)
            self.d_cells = torch.zeros(shape.batch, hidden)


def lstm_workspaces() -> Workspaces:
    """Return the buffers of one encoder, kept between its steps."""
    return Workspaces(_Workspace)


class _Direction(Arguments):
    """The arguments shared by all time steps; `Direction` in compiled/lstm.cpp has the same fields in order."""

    _fields_ = (
        ("hidden", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("tokens", "projected", "recurrent", "gates", "cells", "states", "before"),
                *("d_states", "d_recurrent", "d_cells", "d_products", "d_projected"),
            )
        ),
    )


class _CompiledDirection:
    """One direction over one batch, by the compiled kernel; backwards from each last token."""

    def __init__(
        self, packed: Packed, dtype: torch.dtype, workspaces: Workspaces, *, backwards: bool
    ) -> None:
        order = order_of_words(packed, backwards=backwards)
        library = load("lstm")
        kind = str(dtype)[6:]
        self._forward = library[f"lstm_forward_{kind}"]
        self._backward = library[f"lstm_backward_{kind}"]
        self._tokens = order.tokens
        self._batch = order.batch
        self._steps = order.steps
        self._dtype = dtype
        self._workspaces = workspaces

    def forward(self, projected: Tensor, weight: Tensor, *, needs_backward: bool) -> Tensor:
        """Return the states [tokens, hidden], and keep the values that `backward` needs, if one follows."""
        hidden = weight.shape[1]
        num_tokens = len(self._tokens)
        shape = Shape(hidden, self._dtype, projected.device, num_tokens, self._batch)
        workspace: _Workspace = self._workspaces.acquire(shape)
        projected = projected.detach().float().contiguous()
        low_weight = weight.detach().to(self._dtype)
        states = projected.new_empty(num_tokens, hidden)
        self._arguments = _Direction(hidden=hidden)
        self._arguments.set(tokens=self._tokens, projected=projected, states=states)
        names = ("recurrent", "gates", "cells", "before", "d_recurrent", "d_cells", "d_products")
        self._arguments.set(**{name: getattr(workspace, name) for name in names})
        transposed = low_weight.T
        if self._dtype == torch.float32:
            transposed = transposed.contiguous()  # faster in float32, where rows are few
        for before, step in self._with_before(self._steps):
            if before >= 0:
                num_rows = rounded(step.batch, ROW_MULTIPLE)
                rows = workspace.before[step.first : step.first + num_rows]
                torch.mm(rows, transposed, out=workspace.recurrent[:num_rows])
            self._run(self._forward, before, step)
        if needs_backward:
            self._kept = workspace, low_weight, projected.shape
        else:
            self._workspaces.release(workspace)
        return states

    def backward(self, d_states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of `projected` and of the weight."""
        workspace, weight, size = self._kept
        d_states = d_states.float().contiguous()
        d_projected = d_states.new_zeros(size)
        self._arguments.set(d_states=d_states, d_projected=d_projected)
        for before, step in reversed(self._with_before(self._steps)):
            self._run(self._backward, before, step)
            if before >= 0:
                num_rows = rounded(step.batch, ROW_MULTIPLE)
                d_products = workspace.d_products[step.first : step.first + num_rows]
                torch.mm(d_products, weight, out=workspace.d_recurrent[:num_rows])
        d_weight = self._d_weight(workspace)
        self._workspaces.release(workspace)
        del self._kept
        return d_projected, d_weight

    def _d_weight(self, workspace: _Workspace) -> Tensor:
        """Return the gradient of the recurrent weight: one product over all tokens except the first ones."""
        first = self._batch
        num_tokens = len(self._tokens)
        stop = first + rounded(num_tokens - first, TOKEN_MULTIPLE)
        # The rows after the last token fill up the rounded count with zeros.
        workspace.d_products[num_tokens:stop].zero_()
        workspace.before[num_tokens:stop].zero_()
        return torch.mm(workspace.d_products[first:stop].T, workspace.before[first:stop]).float()

    @staticmethod
    def _with_before(steps: list[TimeStep]) -> list[tuple[int, TimeStep]]:
        """Return each step after the first token of the step before; -1 for the first step."""
        return list(zip([-1, *(step.first for step in steps)], steps, strict=False))

    def _run(self, kernel: Any, before: int, step: TimeStep) -> None:
        sizes = (before, step.first, step.batch, step.next_batch)
        kernel(ctypes.byref(self._arguments), *map(ctypes.c_int64, sizes))


class _CompiledLstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, direction: _CompiledDirection
    ) -> Tensor:
        ctx.direction = direction
        return direction.forward(projected, weight, needs_backward=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.direction is None:
            raise RuntimeError(
                "the LSTM keeps no values after a backward; use implementation: torch to repeat one"
            )
        direction = ctx.direction
        ctx.direction = None
        with torch.autocast(gradients[0].device.type, enabled=False):
            return *direction.backward(gradients[0]), None
