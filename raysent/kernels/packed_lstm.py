"""LSTM over packed sentences, forward and backward, with all states, which poolings read.

The sums are those of torch's LSTM in another order, as in `packed_gru`: no padding, the input projected once per
distinct word, no product for the first word, the gradient of the recurrent weight as one product over all tokens. NaN
and infinity spread as in `packed_gru`.
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
    """Return the states of one direction.

    Args:
        projected: W x + b of each distinct word, with all biases, blocks i, f, g, o [distinct, 4 * hidden].
        weight: U, blocks i, f, g, o [4 * hidden, hidden].
        packed: The sentences.
        backwards: Whether to read each sentence from its last token.

    Returns:
        State after each token, time-major in reading direction, float32 [tokens, hidden].
    """
    device = projected.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    with torch.autocast(device, enabled=False):
        states: Tensor = _PackedLstm.apply(projected, weight, packed, backwards, dtype)  # type: ignore[no-untyped-call]
        return states


def last_rows(packed: Packed) -> Tensor:
    """Return the row of each sentence's last state, in the sorted order of `packed` [batch]."""
    firsts = list(accumulate(packed.batch_sizes, initial=0))
    ends = [
        torch.arange(first + next_batch, first + batch)
        for first, batch, next_batch in zip(firsts, packed.batch_sizes, (*packed.batch_sizes[1:], 0), strict=False)
    ]
    # The sentences that end first are the last rows.
    return torch.cat(ends[::-1]).to(packed.order.device)


class _PackedLstm(torch.autograd.Function):
    """All time steps of one direction as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, packed: Packed, backwards: bool, dtype: torch.dtype
    ) -> Tensor:
        """Return the states; gates and cells are kept for the backward."""
        hidden, low_weight = weight.shape[1], weight.to(dtype)
        gates = projected.float()[packed.backward_tokens if backwards else packed.forward_tokens]
        cells = gates.new_empty(len(gates), hidden)
        tanh_cells, states = torch.empty_like(cells), torch.empty_like(cells)
        for before, rows in _step_rows(packed):
            if before is not None:
                gates[rows] += torch.mm(states[before].to(dtype), low_weight.T)
            gates[rows, : 2 * hidden].sigmoid_()
            gates[rows, 2 * hidden : 3 * hidden].tanh_()
            gates[rows, 3 * hidden :].sigmoid_()
            i, f, g, o = gates[rows].chunk(4, dim=1)
            torch.mul(i, g, out=cells[rows])
            if before is not None:
                cells[rows].addcmul_(f, cells[before])
            torch.tanh(cells[rows], out=tanh_cells[rows])
            torch.mul(o, tanh_cells[rows], out=states[rows])
        ctx.save_for_backward(gates, cells, tanh_cells, states, low_weight)
        ctx.packed, ctx.backwards, ctx.num_words = packed, backwards, len(projected)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `projected` and `weight`."""
        gates, cells, tanh_cells, states, weight = ctx.saved_tensors
        packed, hidden = ctx.packed, cells.shape[1]
        d_gates, d_states = torch.empty_like(gates), gradients[0].float()
        d_cells, d_recurrent = cells.new_zeros(packed.batch, hidden), cells.new_zeros(packed.batch, hidden)
        for before, rows in reversed(_step_rows(packed)):
            i, f, g, o = gates[rows].chunk(4, dim=1)
            d_i, d_f, d_g, d_o = d_gates[rows].chunk(4, dim=1)
            batch = len(i)
            # Sentences that end at this step have no gradient from later steps: their rows are still zero.
            d_state = d_states[rows] + d_recurrent[:batch]
            d_cell = d_cells[:batch]
            d_cell += d_state * o * (1 - tanh_cells[rows] ** 2)
            torch.mul(d_cell * g, i * (1 - i), out=d_i)
            torch.mul(d_cell * i, 1 - g**2, out=d_g)
            torch.mul(d_state * tanh_cells[rows], o * (1 - o), out=d_o)
            if before is None:
                d_f.zero_()
                continue
            torch.mul(d_cell * cells[before], f * (1 - f), out=d_f)
            d_cell *= f
            d_recurrent[:batch] = torch.mm(d_gates[rows].to(weight.dtype), weight)
        return _sum_by_word(ctx, d_gates), _d_weight(packed, d_gates, states, weight.dtype), None, None, None


def _step_rows(packed: Packed) -> list[tuple[slice | None, slice]]:
    """Return for each time step the rows of the same sentences at the step before, or None, and its own rows."""
    firsts = list(accumulate(packed.batch_sizes, initial=0))
    rows = [slice(first, end) for first, end in pairwise(firsts)]
    before = [slice(first, first + batch) for first, batch in zip(firsts, packed.batch_sizes[1:], strict=False)]
    return list(zip([None, *before], rows, strict=True))


def _sum_by_word(ctx: Any, d_gates: Tensor) -> Tensor:
    """Return the gradient of each projected word [distinct, 4 * hidden]."""
    order, starts = ctx.packed.backward_groups if ctx.backwards else ctx.packed.forward_groups
    sums = functional.embedding_bag(order, d_gates, starts, mode="sum")
    return functional.pad(sums, (0, 0, 0, ctx.num_words - len(sums)))


def _d_weight(packed: Packed, d_gates: Tensor, states: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient of the recurrent weight: one product over all tokens except the first ones."""
    before = [states[rows] for rows, _ in _step_rows(packed) if rows is not None]
    if not before:
        return d_gates.new_zeros(d_gates.shape[1], states.shape[1])
    return torch.mm(d_gates[packed.batch :].to(dtype).T, torch.cat(before).to(dtype)).float()
