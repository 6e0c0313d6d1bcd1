"""The kernels of `cell_kernels` in Triton: one launch each, a block of one row's columns a program.

Triton is imported at the first use, not with this module.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from raysent.errors import ConfigError
from raysent.kernels.triton_sources import load_source

_BLOCK = 256


class TritonCells:
    """The kernels, compiled at their first use for each type."""

    @cached_property
    def _kernels(self) -> Any:
        return load_source("cells")

    def check(self, device: torch.device) -> None:
        """Compile and run each kernel once on a small time step.

        Raises:
            ConfigError: If a kernel computes something else than the formulas.
            Exception: What Triton raises where it cannot compile.
        """
        hidden = 4
        wide, narrow = (torch.full((1, 1, size), 0.5, device=device) for size in (12, hidden))
        bias = torch.zeros(1, hidden, device=device)
        after = torch.empty_like(narrow)
        self.after_forward(wide, wide.clone(), bias, narrow, after, after)
        gate = 0.7310586
        candidate = 0.6992737
        expected = candidate + gate * (0.5 - candidate)
        if not torch.allclose(after.cpu(), torch.full((1, 1, hidden), expected), atol=1e-4):
            raise ConfigError("a state that is not that of the formula")
        self.after_backward(wide, wide.clone(), bias, narrow, narrow, narrow.clone(), after)
        self.gates_forward(wide, torch.zeros(1, 1, 8, device=device), narrow, after)
        self.state_forward(wide, narrow, bias, narrow, after, after)
        self.state_backward(wide, narrow, narrow, narrow.clone(), after)
        self.gates_backward(wide, narrow, narrow, after)

    def after_forward(
        self,
        gates: Tensor,
        products: Tensor,
        bias: Tensor,
        before: Tensor,
        after: Tensor,
        low_after: Tensor,
    ) -> None:
        """Compute gates and the next state, with the reset gate after the product."""
        self._launch("after_forward", [gates, products, before, after, low_after], bias)

    def after_backward(
        self,
        gates: Tensor,
        products: Tensor,
        bias: Tensor,
        before: Tensor,
        d_states: Tensor,
        carried: Tensor,
        carry: Tensor,
    ) -> None:
        """Compute the gradients of input and product, with the reset gate after the product."""
        tensors = [gates, products, before, d_states, carried, carry]
        self._launch("after_backward", tensors, bias)

    def gates_forward(
        self, gates: Tensor, products: Tensor, before: Tensor, reset_states: Tensor
    ) -> None:
        """Compute the gates r and z, and r * h."""
        self._launch("gates_forward", [gates, products, before, reset_states])

    def state_forward(
        self,
        gates: Tensor,
        product: Tensor,
        bias: Tensor,
        before: Tensor,
        after: Tensor,
        low_after: Tensor,
    ) -> None:
        """Compute the candidate and the next state, with the reset gate before the product."""
        self._launch("state_forward", [gates, product, before, after, low_after], bias)

    def state_backward(
        self, gates: Tensor, before: Tensor, d_states: Tensor, carried: Tensor, carry: Tensor
    ) -> None:
        """Compute the gradients of the inputs of z and c."""
        self._launch("state_backward", [gates, before, d_states, carried, carry])

    def gates_backward(
        self, gates: Tensor, d_reset_states: Tensor, before: Tensor, carry: Tensor
    ) -> None:
        """Compute the gradient of the input of r from that of r * h."""
        self._launch("gates_backward", [gates, d_reset_states, before, carry])

    def _launch(self, name: str, tensors: list[Tensor], bias: Tensor | None = None) -> None:
        """Run a kernel over all rows; each tensor is followed by its strides of direction and row."""
        directions = tensors[0].shape[0]
        rows = tensors[0].shape[1]
        hidden = tensors[0].shape[2] // 3
        arguments: list[Any] = []
        for tensor in tensors:
            arguments += [tensor, tensor.stride(0), tensor.stride(1)]
        if bias is not None:
            arguments += [bias, bias.stride(0)]
        grid = (directions * rows, -(-hidden // _BLOCK))
        getattr(self._kernels, name)[grid](*arguments, rows, hidden, BLOCK=_BLOCK)
