"""States that foretell words -> the loss of the words that came, and with it its gradient, a block of rows at a time.

    s    = V h + a
    loss = sum over rows of  log(sum over words of exp(s)) - s_word
    d s  = softmax(s), less 1 at the word;   d V = d s^T h,   d h = d s V,   d a = d s, summed over rows

As the gradient is found with the loss, the scores of one block are all that ever stands in memory, whatever the number
of rows: automatic differentiation keeps the scores of every row with every word of the vocabulary, several times over.
Under autocast the three products are in its type; softmax and sums are float32. What stands between the products is one
pass over each row, compiled where there is a compiler.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysent.kernels.compiled import try_load

# A block's scores take little memory, and its rows are many enough for the products to be fast.
BLOCK_BYTES = 2**25
# The rows of a block are a multiple of this: the matrix library compiles a kernel for each shape that it meets.
_ROWS = 16
# The kernel takes one thread and is several times as fast as torch's passes, which share the work out among all.
_FEW_THREADS = 4
_KERNEL_TYPES = (torch.float32, torch.bfloat16)


def vocabulary_cross_entropy(
    states: Tensor, *, weight: Tensor, bias: Tensor | None, targets: Tensor, is_compiled: bool = True
) -> Tensor:
    """Return the summed cross-entropy of words, in nats.

    Args:
        states: What the words are told from [rows, hidden].
        weight: V [words, hidden].
        bias: a [words]; None for none.
        targets: The word of each row, int64 [rows].
        is_compiled: Whether a compiled kernel may go through the scores on a CPU, where there is a compiler.

    Returns:
        A float32 scalar, once differentiable.
    """
    device = states.device
    low = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
    scored = _row_pass(device, low, is_compiled=is_compiled)
    with torch.autocast(device.type, enabled=False):
        if torch.is_grad_enabled():
            loss: Tensor = _WordLoss.apply(states, weight, bias, targets, scored)  # type: ignore[no-untyped-call]
            return loss
        return _Blocks(states, weight, targets, scored).loss(bias)


class _WordLoss(torch.autograd.Function):
    """The loss, which finds its gradient at once."""

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
    """What the blocks so far have given.

    Attributes:
        states: In the products' type, with the rows that fill up the last block [rows or more, hidden].
        weight: Summed, float32 [words, hidden].
        bias: Summed, float32 [words]; None where there is none.
    """

    states: Tensor
    weight: Tensor
    bias: Tensor | None


class _Blocks:
    """The rows of one loss, block by block; the last block is filled up with states of zero."""

    def __init__(self, states: Tensor, weight: Tensor, targets: Tensor, row_pass: _RowPass) -> None:
        """Lay out what the products read, in their type.

        Args:
            states: [rows, hidden].
            weight: [words, hidden].
            targets: int64 [rows].
            row_pass: What stands between the products.
        """
        self._targets, self._pass = targets.contiguous(), row_pass
        padded = max(_ROWS, _rounded(len(states)))
        fitting = BLOCK_BYTES // (len(weight) * row_pass.low.itemsize)
        self._block = min(padded, max(_ROWS, fitting // _ROWS * _ROWS))
        self._states = states.new_zeros(padded, states.shape[1], dtype=row_pass.low)
        self._states[: len(states)] = states
        # Laid out word after word, both products with it run some hundredths faster.
        self._weight = weight.to(row_pass.low).T.contiguous()
        self._scores = states.new_empty(self._block, len(weight), dtype=row_pass.low)

    def new_states(self) -> Tensor:
        """Return room for the gradient of the states."""
        return torch.empty_like(self._states)

    def loss(self, bias: Tensor | None, gradients: _Gradients | None = None) -> Tensor:
        """Return the loss [], and add to the gradients where they are wanted."""
        losses = [
            self._losses(slice(first, min(first + self._block, len(self._states))), bias, gradients)
            for first in range(0, len(self._states), self._block)
        ]
        return torch.cat(losses).sum()

    def _losses(self, rows: slice, bias: Tensor | None, gradients: _Gradients | None) -> Tensor:
        """Return the loss of each of these rows, and take its gradient to states, weight and bias."""
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
    """What stands between the products.

    Attributes:
        low: Type of the products.
    """

    def __init__(self, low: torch.dtype) -> None:
        self.low = low

    @abstractmethod
    def losses(self, scores: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
        """Return the loss of each row, float32 [block], from scores without bias [block, words], which may change."""

    @abstractmethod
    def gradient(self, scores: Tensor, targets: Tensor, bias: Tensor | None, d_bias: Tensor | None) -> Tensor:
        """Return the same; put the scores' gradient in their place, and add it to the bias'."""


class _TorchPass(_RowPass):
    """In torch's operations."""

    def losses(self, scores: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
        """Return the loss of each row."""
        return self._losses(scores, targets, bias)[0]

    def gradient(self, scores: Tensor, targets: Tensor, bias: Tensor | None, d_bias: Tensor | None) -> Tensor:
        """Return the loss of each row, with its gradient."""
        losses, shares = self._losses(scores, targets, bias)
        shares.scatter_add_(1, targets[:, None], shares.new_full((len(shares), 1), -1.0))
        if d_bias is not None:
            d_bias += shares.sum(dim=0)
        scores.copy_(shares)
        return losses

    def _losses(self, scores: Tensor, targets: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss of each row, and the words' probabilities [block, words]."""
        exact = scores.float()
        if bias is not None:
            exact += bias
        shares = torch.softmax(exact, dim=1)
        right = exact.gather(1, targets[:, None])[:, 0]
        # The likeliest word's probability is never near zero, as the right one's may be: its logarithm tells the sum's.
        return exact.amax(dim=1) - right - shares.amax(dim=1).log(), shares


class _CompiledPass(_RowPass):
    """In one pass of a compiled kernel over each row, on a CPU."""

    def __init__(self, low: torch.dtype, library: ctypes.CDLL) -> None:
        super().__init__(low)
        self._kernel = library[f"cross_entropy_{str(low).removeprefix('torch.')}"]

    def losses(self, scores: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
        """Return the loss of each row."""
        return self._run(scores, targets, bias, None, has_gradient=False)

    def gradient(self, scores: Tensor, targets: Tensor, bias: Tensor | None, d_bias: Tensor | None) -> Tensor:
        """Return the loss of each row, with its gradient."""
        if d_bias is None:
            return self._run(scores, targets, bias, None, has_gradient=True)
        of_block = torch.zeros_like(d_bias)
        losses = self._run(scores, targets, bias, of_block, has_gradient=True)
        d_bias += of_block  # a sum of sums keeps more digits than one over the rows of all blocks
        return losses

    def _run(
        self, scores: Tensor, targets: Tensor, bias: Tensor | None, d_bias: Tensor | None, *, has_gradient: bool
    ) -> Tensor:
        """Call the kernel."""
        rows, words = scores.shape
        if rows and not 0 <= int(targets.min()) <= int(targets.max()) < words:
            raise IndexError(f"targets must be words below {words}")
        row, losses = scores.new_empty(words, dtype=torch.float32), scores.new_empty(rows, dtype=torch.float32)
        pointers = map(_pointer, (scores, bias, targets, row, losses, d_bias))
        self._kernel(*pointers, *map(ctypes.c_int64, (rows, words, has_gradient)))
        return losses


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Return where values are that the kernel goes through one after another."""
    if tensor is not None and not tensor.is_contiguous():
        raise ValueError("what the kernel reads and writes must be contiguous")
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _row_pass(device: torch.device, low: torch.dtype, *, is_compiled: bool) -> _RowPass:
    """Return the fastest way between two products that is allowed and to be had."""
    can_compile = device.type == "cpu" and low in _KERNEL_TYPES and torch.get_num_threads() <= _FEW_THREADS
    if is_compiled and can_compile:
        library = try_load("cross_entropy")
        if library is not None:
            return _CompiledPass(low, library)
    return _TorchPass(low)


def _rounded(count: int) -> int:
    """Return the least multiple of `_ROWS` that is not below `count`."""
    return -(-count // _ROWS) * _ROWS
