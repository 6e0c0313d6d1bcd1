"""What a GRU computes between two products, for one time step of all rows: by Triton on a GPU, else by torch.

All tensors are views of buffers [directions, rows, size], whose last axis is contiguous. Each kernel is one launch of
Triton, or the plain formulas in torch's operations; both write the same memory. Triton comes with PyTorch's builds for
CUDA. It is imported where a GPU is used; without it, or where it cannot compile, the formulas run, which is said once.

With `TRITON_INTERPRET=1` Triton runs on a CPU, which the tests compare with the formulas.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from raysent.kernels.triton_cells import TritonCells
from raysent.kernels.triton_sources import usable


class CellKernels(Protocol):
    """The operations of one time step; see `gru_loop` for the formulas and names.

    `gates` holds the projected input before, the gates r, z, c after a forward, and the gradient of the projected input
    after a backward; `products` U h before and its gradient after a backward. `carry` is the gradient of the state
    after this time step before, that of the state before it, but for `carried`, after a backward; `carried` is the part
    of it that the last product computed.
    """

    def after_forward(
        self,
        gates: Tensor,
        products: Tensor,
        bias: Tensor,
        before: Tensor,
        after: Tensor,
        low_after: Tensor,
    ) -> None: ...

    def after_backward(
        self,
        gates: Tensor,
        products: Tensor,
        bias: Tensor,
        before: Tensor,
        d_states: Tensor,
        carried: Tensor,
        carry: Tensor,
    ) -> None: ...

    def gates_forward(
        self, gates: Tensor, products: Tensor, before: Tensor, reset_states: Tensor
    ) -> None: ...

    def state_forward(
        self,
        gates: Tensor,
        product: Tensor,
        bias: Tensor,
        before: Tensor,
        after: Tensor,
        low_after: Tensor,
    ) -> None: ...

    def state_backward(
        self, gates: Tensor, before: Tensor, d_states: Tensor, carried: Tensor, carry: Tensor
    ) -> None: ...

    def gates_backward(
        self, gates: Tensor, d_reset_states: Tensor, before: Tensor, carry: Tensor
    ) -> None: ...


class TorchCells:
    """The formulas in torch's operations."""

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
        hidden = before.shape[-1]
        x = gates.float()
        product = products.float()
        reset_and_update = torch.sigmoid(x[..., : 2 * hidden] + product[..., : 2 * hidden])
        reset, update = reset_and_update.chunk(2, dim=-1)
        candidate = torch.tanh(
            x[..., 2 * hidden :] + reset * (product[..., 2 * hidden :] + bias[:, None])
        )
        gates[..., : 2 * hidden].copy_(reset_and_update)
        _finish(gates, candidate, update, before, after, low_after)

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
        reset, update, candidate = gates.float().chunk(3, dim=-1)
        total = carry + carried.float() + d_states
        d_candidate = total * (1 - update) * (1 - candidate * candidate)
        d_update = total * (before - candidate) * update * (1 - update)
        hidden = before.shape[-1]
        recurrent = products[..., 2 * hidden :].float() + bias[:, None]
        d_reset = d_candidate * recurrent * reset * (1 - reset)
        d_inputs = torch.cat([d_reset, d_update, d_candidate], dim=-1)
        d_products = torch.cat([d_reset, d_update, d_candidate * reset], dim=-1)
        carry.copy_(total * update)
        gates.copy_(d_inputs)
        products.copy_(d_products)

    def gates_forward(
        self, gates: Tensor, products: Tensor, before: Tensor, reset_states: Tensor
    ) -> None:
        """Compute the gates r and z, and r * h."""
        size = products.shape[-1]
        outcome = torch.sigmoid(gates[..., :size].float() + products.float())
        reset_states.copy_(outcome[..., : size // 2] * before)
        gates[..., :size].copy_(outcome)

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
        hidden = before.shape[-1]
        candidate = torch.tanh(gates[..., 2 * hidden :].float() + product.float() + bias[:, None])
        update = gates[..., hidden : 2 * hidden].float()
        _finish(gates, candidate, update, before, after, low_after)

    def state_backward(
        self, gates: Tensor, before: Tensor, d_states: Tensor, carried: Tensor, carry: Tensor
    ) -> None:
        """Compute the gradients of the inputs of z and c."""
        hidden = before.shape[-1]
        _, update, candidate = gates.float().chunk(3, dim=-1)
        total = carry + carried.float() + d_states
        d_update = total * (before - candidate) * update * (1 - update)
        d_candidate = total * (1 - update) * (1 - candidate * candidate)
        carry.copy_(total * update)
        gates[..., hidden:].copy_(torch.cat([d_update, d_candidate], dim=-1))

    def gates_backward(
        self, gates: Tensor, d_reset_states: Tensor, before: Tensor, carry: Tensor
    ) -> None:
        """Compute the gradient of the input of r from that of r * h."""
        hidden = before.shape[-1]
        reset = gates[..., :hidden].float()
        d_product = d_reset_states.float()
        carry.add_(d_product * reset)
        gates[..., :hidden].copy_(d_product * before * reset * (1 - reset))


def _finish(
    gates: Tensor,
    candidate: Tensor,
    update: Tensor,
    before: Tensor,
    after: Tensor,
    low_after: Tensor,
) -> None:
    """Store the candidate and the next state, in float32 and in the type of the products."""
    gates[..., 2 * before.shape[-1] :].copy_(candidate)
    after.copy_(candidate + update * (before - candidate))
    if low_after.data_ptr() != after.data_ptr() or low_after.dtype != after.dtype:
        low_after.copy_(after)


@lru_cache
def cell_kernels(device: torch.device) -> CellKernels:
    """Return Triton's kernels for a GPU that has them, else the formulas."""
    kernels = TritonCells()
    if usable(device, "a GRU", lambda: kernels.check(device)):
        return kernels
    return TorchCells()
