"""The recurrence of an LSTM over packed sentences, forward and backward; all states, as poolings read them.

The sums are those of torch's LSTM in another order, as `packed_gru` has them: no padding, the input projected once per
distinct word, no product for the first word, the gradient of the recurrent weight as one product over all tokens.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.kernels.packing import Packed


def packed_lstm(projected: Tensor, weight: Tensor, packed: Packed, *, backwards: bool = False) -> Tensor:
    """Run one direction.

    Args:
        projected: W x + b of each distinct word, with all biases, blocks i, f, g, o [distinct, 4 * hidden].
        weight: U, blocks i, f, g, o [4 * hidden, hidden].
        packed: The sentences.
        backwards: Whether each is read from its last token.

    Returns:
        The state after each token, time-major in the direction's own time, float32 [tokens, hidden].
    """
    device = projected.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    with torch.autocast(device, enabled=False):
        states: Tensor = _PackedLstm.apply(projected, weight, packed, backwards, low)  # type: ignore[no-untyped-call]
        return states


def last_rows(packed: Packed) -> Tensor:
    """Return the row of each sentence's last state, in the sorted order of `packed` [batch]."""
    firsts = list(accumulate(packed.batch_sizes, initial=0))
    ends = [
        torch.arange(first + following, first + batch)
        for first, batch, following in zip(firsts, packed.batch_sizes, (*packed.batch_sizes[1:], 0), strict=False)
    ]
    # Shorter sentences stand further down.
    return torch.cat(ends[::-1]).to(packed.order.device)


class _PackedLstm(torch.autograd.Function):
    """All times of one direction as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, packed: Packed, backwards: bool, low: torch.dtype
    ) -> Tensor:
        """Return the states; gates and cells are kept for the backward."""
        hidden, low_weight = weight.shape[1], weight.to(low)
        gates = projected.float()[packed.backward_tokens if backwards else packed.forward_tokens]
        cells = gates.new_empty(len(gates), hidden)
        squashed, states = torch.empty_like(cells), torch.empty_like(cells)
        for before, rows in _times(packed):
            if before is not None:
                gates[rows] += torch.mm(states[before].to(low), low_weight.T)
            gates[rows, : 2 * hidden].sigmoid_()
            gates[rows, 2 * hidden : 3 * hidden].tanh_()
            gates[rows, 3 * hidden :].sigmoid_()
            enter, stay, new, out = gates[rows].chunk(4, dim=1)
            torch.mul(enter, new, out=cells[rows])
            if before is not None:
                cells[rows].addcmul_(stay, cells[before])
            torch.tanh(cells[rows], out=squashed[rows])
            torch.mul(out, squashed[rows], out=states[rows])
        ctx.save_for_backward(gates, cells, squashed, states, low_weight)
        ctx.packed, ctx.backwards, ctx.num_words = packed, backwards, len(projected)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `projected` and `weight`."""
        gates, cells, squashed, states, weight = ctx.saved_tensors
        packed, hidden = ctx.packed, cells.shape[1]
        d_gates, d_states = torch.empty_like(gates), gradients[0].float()
        d_cell, d_step = cells.new_zeros(packed.batch, hidden), cells.new_zeros(packed.batch, hidden)
        for before, rows in reversed(_times(packed)):
            enter, stay, new, out = gates[rows].chunk(4, dim=1)
            d_enter, d_stay, d_new, d_out = d_gates[rows].chunk(4, dim=1)
            batch = len(enter)
            # Of sentences that end here nothing has come from later times: their rows are still zero.
            d_state = d_states[rows] + d_step[:batch]
            d_now = d_cell[:batch]
            d_now += d_state * out * (1 - squashed[rows] ** 2)
            torch.mul(d_now * new, enter * (1 - enter), out=d_enter)
            torch.mul(d_now * enter, 1 - new**2, out=d_new)
            torch.mul(d_state * squashed[rows], out * (1 - out), out=d_out)
            if before is None:
                d_stay.zero_()
                continue
            torch.mul(d_now * cells[before], stay * (1 - stay), out=d_stay)
            d_now *= stay
            d_step[:batch] = torch.mm(d_gates[rows].to(weight.dtype), weight)
        return _sum_by_word(ctx, d_gates), _d_weight(packed, d_gates, states, weight.dtype), None, None, None


def _times(packed: Packed) -> list[tuple[slice | None, slice]]:
    """Return each time's rows, after those of the time before that hold the same sentences."""
    firsts = list(accumulate(packed.batch_sizes, initial=0))
    rows = [slice(first, end) for first, end in pairwise(firsts)]
    before = [slice(first, first + batch) for first, batch in zip(firsts, packed.batch_sizes[1:], strict=False)]
    return list(zip([None, *before], rows, strict=True))


def _sum_by_word(ctx: Any, d_gates: Tensor) -> Tensor:
    """Return the gradient of each projected word [distinct, 4 * hidden]."""
    order, starts = ctx.packed.backward_groups if ctx.backwards else ctx.packed.forward_groups
    sums = functional.embedding_bag(order, d_gates, starts, mode="sum")
    return functional.pad(sums, (0, 0, 0, ctx.num_words - len(sums)))


def _d_weight(packed: Packed, d_gates: Tensor, states: Tensor, low: torch.dtype) -> Tensor:
    """Return the gradient of the recurrent weight: one product over all tokens but the first ones."""
    before = [states[rows] for rows, _ in _times(packed) if rows is not None]
    if not before:
        return d_gates.new_zeros(d_gates.shape[1], states.shape[1])
    return torch.mm(d_gates[packed.batch :].to(low).T, torch.cat(before).to(low)).float()
