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
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysent.kernels.native import address, try_load

# Size of a block's scores: small in memory, with enough rows for fast products.
BLOCK_BYTES = 2**25
# The number of rows of a block is a multiple of this: the matrix library compiles a kernel for each shape.
_ROW_MULTIPLE = 16
# The kernel uses one thread and is several times as fast as torch's operations, which use all threads.
_MAX_THREADS = 4
_KERNEL_TYPES = (torch.float32, torch.bfloat16)


def vocabulary_cross_entropy(
    states: Tensor,
    *,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    is_compiled: bool = True,
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
    dtype = torch.float32
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    row_pass = _choose_row_pass(device, dtype, is_compiled=is_compiled)
    with torch.autocast(device.type, enabled=False):
        if torch.is_grad_enabled():
            loss: Tensor = _CrossEntropy.apply(states, weight, bias, targets, row_pass, dtype)  # type: ignore[no-untyped-call]
            return loss
        return _compute(states, weight, bias, targets, row_pass, dtype, has_gradient=False)[0]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        row_pass: _RowPass,
        dtype: torch.dtype,
    ) -> Tensor:
        loss, gradients = _compute(
            states, weight, bias, targets, row_pass, dtype, has_gradient=True
        )
        assert gradients is not None
        d_states = gradients.states[: len(states)].to(states.dtype)
        ctx.save_for_backward(d_states, gradients.weight, gradients.bias)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if gradient is None else gradient * gradients[0] for gradient in ctx.saved_tensors
        ]
        return *scaled, None, None, None


class _Gradients(NamedTuple):
    """The gradients of the blocks so far.

    Attributes:
        states: In the type of the products, with the padding rows of the last block [rows or more, hidden].
        weight: Sum over blocks, float32 [words, hidden].
        bias: Sum over blocks, float32 [words], or None.
    """

    states: Tensor
    weight: Tensor
    bias: Tensor | None


_RowPass = Callable[[Tensor, Tensor, Tensor | None, _Gradients | None], Tensor]
"""The operations between the products: scores without bias [block, words], targets [block] and bias -> the loss of each
row, float32 [block]. Scores may change; with gradients they become theirs, and that of the bias is added to its own."""


def _compute(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    row_pass: _RowPass,
    dtype: torch.dtype,
    *,
    has_gradient: bool,
) -> tuple[Tensor, _Gradients | None]:
    """Return the loss [] and its gradients, block by block; the last block is padded with states of zero."""
    num_rows = max(_ROW_MULTIPLE, -(-len(states) // _ROW_MULTIPLE) * _ROW_MULTIPLE)
    fitting = BLOCK_BYTES // (len(weight) * dtype.itemsize)
    block = min(num_rows, max(_ROW_MULTIPLE, fitting // _ROW_MULTIPLE * _ROW_MULTIPLE))
    padded = states.new_zeros(num_rows, states.shape[1], dtype=dtype)
    padded[: len(states)] = states
    # Both products are faster with this layout.
    low_weight = weight.to(dtype).T.contiguous()
    targets = targets.contiguous()
    buffer = states.new_empty(block, len(weight), dtype=dtype)
    gradients: _Gradients | None = None
    losses = []
    if has_gradient:
        d_bias = None
        if bias is not None:
            d_bias = torch.zeros_like(bias)
        gradients = _Gradients(torch.empty_like(padded), torch.zeros_like(weight), d_bias)
    for first in range(0, num_rows, block):
        block_states = padded[first : first + block]
        block_targets = targets[first : first + block]
        scores = torch.mm(block_states, low_weight, out=buffer[: len(block_states)])
        losses.append(row_pass(scores[: len(block_targets)], block_targets, bias, gradients))
        if gradients is None:
            continue
        scores[len(block_targets) :].zero_()
        torch.mm(scores, low_weight.T, out=gradients.states[first : first + block])
        if dtype == torch.float32:
            gradients.weight.addmm_(scores.T, block_states)
        else:
            gradients.weight.add_(torch.mm(scores.T, block_states))
    return torch.cat(losses).sum(), gradients


def _torch_pass(
    scores: Tensor, targets: Tensor, bias: Tensor | None, gradients: _Gradients | None
) -> Tensor:
    exact = scores.float()
    if bias is not None:
        exact += bias
    probabilities = torch.softmax(exact, dim=1)
    target_scores = exact.gather(1, targets[:, None])[:, 0]
    # The highest probability is never near zero, unlike the target's: log(sum) = highest score - its logarithm.
    losses = exact.amax(dim=1) - target_scores - probabilities.amax(dim=1).log()
    if gradients is not None:
        d_scores = probabilities.scatter_add_(
            1, targets[:, None], probabilities.new_full((len(targets), 1), -1.0)
        )
        if gradients.bias is not None:
            gradients.bias.add_(d_scores.sum(dim=0))
        scores.copy_(d_scores)
    return losses


def _compiled_pass(
    kernel: Any, scores: Tensor, targets: Tensor, bias: Tensor | None, gradients: _Gradients | None
) -> Tensor:
    rows, words = scores.shape
    if rows and not 0 <= int(targets.min()) <= int(targets.max()) < words:
        raise IndexError(f"targets must be words below {words}")
    row = scores.new_empty(words, dtype=torch.float32)
    losses = scores.new_empty(rows, dtype=torch.float32)
    d_bias = None
    if gradients is not None and gradients.bias is not None:
        d_bias = torch.zeros_like(gradients.bias)
    pointers = map(address, (scores, bias, targets, row, losses, d_bias))
    kernel(*pointers, *map(ctypes.c_int64, (rows, words, gradients is not None)))
    if gradients is not None and gradients.bias is not None and d_bias is not None:
        gradients.bias.add_(d_bias)  # a sum per block is more accurate than one sum over all rows
    return losses


def _choose_row_pass(device: torch.device, dtype: torch.dtype, *, is_compiled: bool) -> _RowPass:
    can_compile = (
        device.type == "cpu" and dtype in _KERNEL_TYPES and torch.get_num_threads() <= _MAX_THREADS
    )
    library = None
    if is_compiled and can_compile:
        library = try_load("cross_entropy")
    if library is None:
        return _torch_pass
    return partial(_compiled_pass, library[f"cross_entropy_{str(dtype).removeprefix('torch.')}"])
