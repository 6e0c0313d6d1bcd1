"""States that foretell words -> the loss of the words that came, and with it its gradient, a block of rows at a time.

    s    = V h + a
    loss = sum over rows of  log(sum over words of exp(s)) - s_word
    d s  = softmax(s), less 1 at the word;   d V = d s^T h,   d h = d s V,   d a = d s, summed over rows

As the gradient is found with the loss, the scores of one block are all that ever stands in memory, whatever the number
of rows: automatic differentiation keeps the scores of every row with every word of the vocabulary, several times over.
Under autocast the three products are in its type; scores, softmax and sums are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# A block's scores are few enough for the cache and its rows many enough for the products to be fast.
_BLOCK_SCORES = 2**23
# The rows of a block are a multiple of this: the matrix library compiles a kernel for each shape that it meets.
_ROWS = 16


def word_loss(states: Tensor, *, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return the summed cross-entropy of words, in nats.

    Args:
        states: What the words are told from [rows, hidden].
        weight: V [words, hidden].
        bias: a [words]; None for none.
        targets: The word of each row, int64 [rows].

    Returns:
        A float32 scalar, once differentiable.
    """
    device = states.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    with torch.autocast(device, enabled=False):
        if torch.is_grad_enabled():
            loss: Tensor = _WordLoss.apply(states, weight, bias, targets, low)  # type: ignore[no-untyped-call]
            return loss
        return _Blocks(states, weight, targets, low=low).loss(bias)


class _WordLoss(torch.autograd.Function):
    """The loss, which finds its gradient at once."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, low: torch.dtype
    ) -> Tensor:
        """Return the loss []."""
        gradients = _Gradients(torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias))
        blocks = _Blocks(states, weight, targets, low=low)
        loss = blocks.loss(bias, gradients)
        ctx.save_for_backward(blocks.d_states(states), gradients.weight, gradients.bias)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of states, weight and bias."""
        scaled = [None if found is None else found * gradients[0] for found in ctx.saved_tensors]
        return *scaled, None, None


@dataclass(frozen=True)
class _Gradients:
    """Sums over the blocks so far.

    Attributes:
        weight: float32 [words, hidden].
        bias: float32 [words]; None where there is none.
    """

    weight: Tensor
    bias: Tensor | None


class _Blocks:
    """The rows of one loss, block by block; the last block is filled up with states of zero."""

    def __init__(self, states: Tensor, weight: Tensor, targets: Tensor, *, low: torch.dtype) -> None:
        """Lay out what the products read, in their type.

        Args:
            states: [rows, hidden].
            weight: [words, hidden].
            targets: int64 [rows].
            low: Type of the products.
        """
        self._count, num_words = len(states), len(weight)
        padded = max(_ROWS, _rounded(self._count))
        self._block = min(padded, max(_ROWS, _BLOCK_SCORES // num_words // _ROWS * _ROWS))
        self._states = states.new_zeros(padded, states.shape[1], dtype=low)
        self._states[: self._count] = states
        self._targets = torch.nn.functional.pad(targets, (0, padded - self._count))
        # Laid out word after word, both products with it run some hundredths faster.
        self._weight = weight.T.to(low, copy=True, memory_format=torch.contiguous_format)
        self._scores = states.new_empty(self._block, num_words, dtype=torch.float32)
        self._shares = torch.empty_like(self._scores)
        self._low = self._scores if low == torch.float32 else self._scores.to(low)
        self._d_states = torch.empty_like(self._states)

    def loss(self, bias: Tensor | None, gradients: _Gradients | None = None) -> Tensor:
        """Return the loss [], and add to the gradients where they are wanted."""
        losses = []
        for first in range(0, len(self._states), self._block):
            rows = slice(first, min(first + self._block, len(self._states)))
            losses.append(self._losses(rows, bias))
            if gradients is not None:
                self._add_gradients(rows, gradients)
        return torch.cat(losses)[: self._count].sum()

    def d_states(self, states: Tensor) -> Tensor:
        """Return the gradient of the states, in their type."""
        return self._d_states[: self._count].to(states.dtype)

    def _losses(self, rows: slice, bias: Tensor | None) -> Tensor:
        """Return each row's loss [block] and leave the words' probabilities in `shares`."""
        count = rows.stop - rows.start
        scores, shares, low = (buffer[:count] for buffer in (self._scores, self._shares, self._low))
        torch.mm(self._states[rows], self._weight, out=low)
        if low.dtype != torch.float32:
            scores.copy_(low)
        if bias is not None:
            scores += bias
        right = scores.gather(1, self._targets[rows, None])[:, 0]
        torch.softmax(scores, dim=1, out=shares)
        # The likeliest word's probability is never near zero, as the right one's may be: its logarithm tells the sum's.
        return scores.amax(dim=1) - right - shares.amax(dim=1).log()

    def _add_gradients(self, rows: slice, gradients: _Gradients) -> None:
        """Make the scores' gradient of the probabilities, and take it to states, weight and bias."""
        count = rows.stop - rows.start
        states, d_scores = self._states[rows], self._shares[:count]
        d_scores.scatter_add_(1, self._targets[rows, None], d_scores.new_full((count, 1), -1.0))
        d_scores[max(0, self._count - rows.start) :].zero_()
        if gradients.bias is not None:
            gradients.bias.add_(d_scores.sum(dim=0))
        low = d_scores if self._low is self._scores else self._low[:count].copy_(d_scores)
        torch.mm(low, self._weight.T, out=self._d_states[rows])
        if low is d_scores:
            gradients.weight.addmm_(low.T, states)
        else:
            gradients.weight.add_(torch.mm(low.T, states))


def _rounded(count: int) -> int:
    """Return the least multiple of `_ROWS` that is not below `count`."""
    return -(-count // _ROWS) * _ROWS
