"""Fused linear layer, softmax and cross-entropy over a vocabulary: loss and gradient, a block of rows at a time.

    s    = V h + a
    loss = sum over rows of  log(sum over words of exp(s)) - s_target
    d s  = softmax(s), minus 1 at the target;   d V = d s^T h,   d h = d s V,   d a = d s, summed over rows

The gradient is computed with the loss, so memory holds the scores of one block only; automatic differentiation would
keep several copies of the scores of all rows with all words. Under autocast the three products use its type; softmax
and sums are float32. All operations between the products are one pass over each row, compiled if there is a compiler.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysent.kernels.compiled import address, try_load

# Size of a block's scores: small in memory, with enough rows for fast products.
BLOCK_BYTES = 2**25
# The number of rows of a block is a multiple of this: the matrix library compiles a kernel for each shape.
_ROW_MULTIPLE = 16
# The kernel uses one thread and is several times as fast as torch's operations, which use all threads.
_MAX_THREADS = 4
_KERNEL_TYPES = (torch.float32, torch.bfloat16)


def vocabulary_cross_entropy(
    states: Tensor, *, weight: Tensor, bias: Tensor | None, targets: Tensor, is_compiled: bool = True
) -> Tensor:
    """Return the cross-entropy of target words, summed over rows, in nats.

    Args:
        states: h, from which each row's word is predicted [rows, hidden].
        weight: V [words, hidden].
        bias: a [words], or None.
        targets: The target word of each row, int64 [rows].
        is_compiled: Whether to use the compiled kernel, on a CPU with a compiler and few threads.

    Returns:
        A float32 scalar, once differentiable.
    """
    device = states.device
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
    row_pass = _choose_row_pass(device, dtype, is_compiled=is_compiled)
    with torch.autocast(device.type, enabled=False):
        if torch.is_grad_enabled():
            loss: Tensor = _CrossEntropy.apply(states, weight, bias, targets, row_pass)  # type: ignore[no-untyped-call]
            return loss
        return _Blocks(states, weight, targets, row_pass).loss(bias)


class _CrossEntropy(torch.autograd.Function):
    """The loss, whose forward computes the gradient as well."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, row_pass: _RowPass
    ) -> Tensor:
        """Return the loss []."""
        blocks = _Blocks(states, weight, targets, row_pass)
        d_weight, d_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        gradients = _Gradients(blocks.new_states(), d_weight, d_bias)
        loss = blocks.loss(bias, gradients)
        ctx.save_for_backward(gradients.states[: len(states)].to(states.dtype), d_weight, d_bias)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of states, weight and bias."""
        scaled = [None if found is None else found * gradients[0] for found in ctx.saved_tensors]
        return *scaled, None, None


@dataclass(frozen=True)
class _Gradients:
    """The gradients of the blocks so far.

    Attributes:
        states: In the type of the products, with the padding rows of the last block [rows or more, hidden].
        weight: Sum over blocks, float32 [words, hidden].
        bias: Sum over blocks, float32 [words], or None.
    """

    states: Tensor
    weight: Tensor
    bias: Tensor | None


class _Blocks:
    """The rows of one loss, block by block; the last block is padded with states of zero."""

    def __init__(self, states: Tensor, weight: Tensor, targets: Tensor, row_pass: _RowPass) -> None:
        """Convert the operands to the type of the products.

        Args:
            states: [rows, hidden].
            weight: [words, hidden].
            targets: int64 [rows].
            row_pass: The operations between the products.
        """
        self._targets, self._pass = targets.contiguous(), row_pass
        padded = max(_ROW_MULTIPLE, _rounded(len(states)))
        fitting = BLOCK_BYTES // (len(weight) * row_pass.dtype.itemsize)
        self._block = min(padded, max(_ROW_MULTIPLE, fitting // _ROW_MULTIPLE * _ROW_MULTIPLE))
        self._states = states.new_zeros(padded, states.shape[1], dtype=row_pass.dtype)
        self._states[: len(states)] = states
        # Both products are a few percent faster with this layout.
        self._weight = weight.to(row_pass.dtype).T.contiguous()
        self._scores = states.new_empty(self._block, len(weight), dtype=row_pass.dtype)

    def new_states(self) -> Tensor:
        """Return an uninitialized tensor for the gradient of the states."""
        return torch.empty_like(self._states)

    def loss(self, bias: Tensor | None, gradients: _Gradients | None = None) -> Tensor:
        """Return the loss [], and add to `gradients` if given."""
        losses = [
            self._losses(slice(first, min(first + self._block, len(self._states))), bias, gradients)
            for first in range(0, len(self._states), self._block)
        ]
        return torch.cat(losses).sum()

    def _losses(self, rows: slice, bias: Tensor | None, gradients: _Gradients | None) -> Tensor:
        """Return the loss of each of these rows, and add its gradient to `gradients` if given."""
        states, targets = self._states[rows], self._targets[rows]
        scores = torch.mm(states, self._weight, out=self._scores[: len(states)])
        real = scores[: len(targets)]
        if gradients is None:
            return self._pass.losses(real, targets, bias)
        losses = self._pass.gradient(real, targets, bias, gradients.bias)
        scores[len(targets) :].zero_()
        torch.mm(scores, self._weight.T, out=gradients.states[rows])
        if scores.dtype == torch.float32:
            gradients.weight.addmm_(scores.T, states)
        else:
            gradients.weight.add_(torch.mm(scores.T, states))
        return losses


class _RowPass(ABC):
    """The operations between the products.

    Attributes:
        dtype: Type of the products.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    @abstractmethod
    def losses(self, scores: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
        """Return the loss of each row, float32 [block], of scores without bias [block, words]; scores may change."""

    @abstractmethod
    def gradient(self, scores: Tensor, targets: Tensor, bias: Tensor | None, d_bias: Tensor | None) -> Tensor:
        """Return the loss of each row; overwrite the scores with their gradient, and add it to `d_bias` if given."""


class _TorchPass(_RowPass):
    """In torch's operations."""

    def losses(self, scores: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
        """Return the loss of each row."""
        return self._losses(scores, targets, bias)[0]

    def gradient(self, scores: Tensor, targets: Tensor, bias: Tensor | None, d_bias: Tensor | None) -> Tensor:
        """Return the loss of each row, with its gradient."""
        losses, d_scores = self._losses(scores, targets, bias)
        d_scores.scatter_add_(1, targets[:, None], d_scores.new_full((len(d_scores), 1), -1.0))
        if d_bias is not None:
            d_bias += d_scores.sum(dim=0)
        scores.copy_(d_scores)
        return losses

    def _losses(self, scores: Tensor, targets: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss of each row, and the words' probabilities [block, words]."""
        exact = scores.float()
        if bias is not None:
            exact += bias
        probabilities = torch.softmax(exact, dim=1)
        target_scores = exact.gather(1, targets[:, None])[:, 0]
        # The highest probability is never near zero, unlike the target's: log(sum) = highest score - its logarithm.
        return exact.amax(dim=1) - target_scores - probabilities.amax(dim=1).log(), probabilities


class _CompiledPass(_RowPass):
    """One pass of a compiled kernel over each row, on a CPU."""

    def __init__(self, dtype: torch.dtype, library: ctypes.CDLL) -> None:
        super().__init__(dtype)
        self._kernel = library[f"cross_entropy_{str(dtype).removeprefix('torch.')}"]

    def losses(self, scores: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
        """Return the loss of each row."""
        return self._run(scores, targets, bias, None, has_gradient=False)

    def gradient(self, scores: Tensor, targets: Tensor, bias: Tensor | None, d_bias: Tensor | None) -> Tensor:
        """Return the loss of each row; overwrite the scores with their gradient."""
        if d_bias is None:
            return self._run(scores, targets, bias, None, has_gradient=True)
        d_block = torch.zeros_like(d_bias)
        losses = self._run(scores, targets, bias, d_block, has_gradient=True)
        d_bias += d_block  # a sum per block is more accurate than one sum over all rows
        return losses

    def _run(
        self, scores: Tensor, targets: Tensor, bias: Tensor | None, d_bias: Tensor | None, *, has_gradient: bool
    ) -> Tensor:
        rows, words = scores.shape
        if rows and not 0 <= int(targets.min()) <= int(targets.max()) < words:
            raise IndexError(f"targets must be words below {words}")
        row, losses = scores.new_empty(words, dtype=torch.float32), scores.new_empty(rows, dtype=torch.float32)
        pointers = map(address, (scores, bias, targets, row, losses, d_bias))
        self._kernel(*pointers, *map(ctypes.c_int64, (rows, words, has_gradient)))
        return losses


def _choose_row_pass(device: torch.device, dtype: torch.dtype, *, is_compiled: bool) -> _RowPass:
    can_compile = device.type == "cpu" and dtype in _KERNEL_TYPES and torch.get_num_threads() <= _MAX_THREADS
    if is_compiled and can_compile:
        library = try_load("cross_entropy")
        if library is not None:
            return _CompiledPass(dtype, library)
    return _TorchPass(dtype)


def _rounded(count: int) -> int:
    """Return the smallest multiple of `_ROW_MULTIPLE` that is at least `count`."""
    return -(-count // _ROW_MULTIPLE) * _ROW_MULTIPLE
