"""The recurrence of a GRU over packed sentences, forward and backward, at a fraction of the price of torch's.

In: the input projection of each distinct word. Out: each sentence's last state. The sums are those of torch's GRU in
another order:

- time t multiplies the rows of the sentences that reach it, and no padding;
- the input is projected once per distinct word, and its gradient added up per word before the products;
- the state before the first word is zero, so the first word needs no product;
- the gradient of the recurrent weight is one product over all tokens;
- row counts are rounded up, so that the matrix library meets few shapes (it compiles a kernel for each);
- workspaces are kept between steps.

Under autocast the products are in its type, everything else in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.packing import Packed

_ROWS = 16  # the rows of one product are a multiple of this
_TOKENS = 256  # the tokens that one weight gradient adds up, also
WORDS = 64  # the distinct words of one projection, also
_SPARE = 1.25  # a new workspace has room for longer batches to come


def packed_gru(projected: Tensor, weight: Tensor, bias: Tensor, packed: Packed, *, backwards: bool = False) -> Tensor:
    """Run one direction of one tower.

    Args:
        projected: W x + b_ih of each distinct word, with b_hh of the two gates; rows past the last word are ignored.
            Blocks r, z, c [distinct or more, 3 * hidden].
        weight: U, blocks r, z, c [3 * hidden, hidden].
        bias: b_hh of the candidate [hidden].
        packed: The sentences.
        backwards: Whether each sentence is read from its last token.

    Returns:
        Last states in the sorted order of `packed`, float32 [batch, hidden].
    """
    device = projected.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    with torch.autocast(device, enabled=False):
        if torch.is_grad_enabled():
            state: Tensor = _PackedGru.apply(projected, weight, bias, packed, backwards, low)  # type: ignore[no-untyped-call]
            return state
        room = _take(weight.shape[1], low, packed, weight.device)
        state = _forward(room, projected, weight.to(low), bias, packed, backwards)
        _give_back(room)
        return state


@dataclass
class _Workspace:
    """Buffers of one direction of one tower, from its forward to its backward; rows are tokens, time-major.

    Attributes:
        gates: r, z and c after their non-linearity, float32 [tokens, 3 * hidden].
        products: U_c h + b' of the candidate, float32 [tokens, hidden].
        states: State before each token, float32 [tokens, hidden].
        low_states: The same as the products read it; `states` itself in float32.
        d_inputs: Gradient of the projected input, float32 [tokens, 3 * hidden].
        d_products: Gradient of U h, in the products' type [tokens, 3 * hidden].
        step: One time's U h, in the products' type [batch, 3 * hidden].
        d_step: One time's gradient through U, in the products' type [batch, hidden].
        scratch: Room for three intermediate results, float32 [3, batch, hidden].
    """

    gates: Tensor
    products: Tensor
    states: Tensor
    low_states: Tensor
    d_inputs: Tensor
    d_products: Tensor
    step: Tensor
    d_step: Tensor
    scratch: Tensor

    def fits(self, packed: Packed) -> bool:
        """Return whether a batch has room here."""
        return len(self.gates) >= packed.num_tokens + _TOKENS and len(self.step) >= packed.batch + _ROWS


_Key = tuple[int, torch.dtype, torch.device]
_free: dict[_Key, list[_Workspace]] = {}


def _take(hidden: int, low: torch.dtype, packed: Packed, device: torch.device) -> _Workspace:
    """Return a workspace that nobody uses, a kept one if it fits."""
    kept = _free.setdefault((hidden, low, device), [])
    if kept:
        room = kept.pop()
        if room.fits(packed):
            return room
    tokens, batch = int(packed.num_tokens * _SPARE) + _TOKENS, packed.batch + _ROWS
    # Kept for later steps, which may want gradients where this one does not.
    with torch.inference_mode(False):

        def rows(count: int, size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(count, size, dtype=dtype, device=device)

        states = rows(tokens, hidden, torch.float32)
        return _Workspace(
            gates=rows(tokens, 3 * hidden, torch.float32),
            products=rows(tokens, hidden, torch.float32),
            states=states,
            low_states=states if low == torch.float32 else rows(tokens, hidden, low),
            d_inputs=rows(tokens, 3 * hidden, torch.float32),
            d_products=rows(tokens, 3 * hidden, low),
            step=rows(batch, 3 * hidden, low),
            d_step=rows(batch, hidden, low),
            scratch=torch.zeros(3, batch, hidden, device=device),
        )


def _give_back(room: _Workspace) -> None:
    """Keep a workspace for the next who needs one of its kind."""
    _free[room.states.shape[1], room.step.dtype, room.states.device].append(room)


def _rounded(count: int, multiple: int) -> int:
    """Return the least multiple that is not below `count`."""
    return -(-count // multiple) * multiple


class _PackedGru(torch.autograd.Function):
    """`_forward` and `_backward` as one differentiable function."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, bias: Tensor, packed: Packed, backwards: bool, low: torch.dtype
    ) -> Tensor:
        """Return the last states; the workspace is kept until the backward."""
        room = _take(weight.shape[1], low, packed, weight.device)
        low_weight = weight.to(low)
        state = _forward(room, projected, low_weight, bias, packed, backwards)
        ctx.save_for_backward(low_weight)
        ctx.room, ctx.packed, ctx.backwards, ctx.num_words = room, packed, backwards, len(projected)
        return state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `projected`, `weight` and `bias`."""
        if ctx.room is None:
            raise RuntimeError("the packed GRU keeps nothing after a backward; use implementation: torch to repeat one")
        room, ctx.room = ctx.room, None
        with torch.autocast(gradients[0].device.type, enabled=False):
            d_weight, d_bias = _backward(room, gradients[0], ctx.saved_tensors[0], ctx.packed)
            d_projected = _sum_by_word(room.d_inputs, ctx.packed, ctx.backwards, ctx.num_words)
        _give_back(room)
        return d_projected, d_weight, d_bias, None, None, None


def _forward(
    room: _Workspace, projected: Tensor, weight: Tensor, bias: Tensor, packed: Packed, backwards: bool
) -> Tensor:
    """Fill the workspace and return the last states [batch, hidden]."""
    hidden, num_tokens = weight.shape[1], packed.num_tokens
    tokens = packed.backward_tokens if backwards else packed.forward_tokens
    torch.index_select(projected.float(), 0, tokens, out=room.gates[:num_tokens])
    state = torch.zeros(packed.batch, hidden, device=weight.device)
    transposed = weight.T
    for first, batch in _times(packed):
        rows = slice(first, first + batch)
        reset_update, candidate = room.gates[rows, : 2 * hidden], room.gates[rows, 2 * hidden :]
        product, before = room.products[rows], state[:batch]
        room.states[rows] = before
        if first == 0:
            product.copy_(bias.expand_as(product))
        else:
            if room.low_states is not room.states:
                room.low_states[rows] = before
            padded = _rounded(batch, _ROWS)
            step = torch.mm(room.low_states[first : first + padded], transposed, out=room.step[:padded])[:batch]
            reset_update += step[:, : 2 * hidden]
            torch.add(step[:, 2 * hidden :], bias, out=product)
        reset_update.sigmoid_()
        candidate.addcmul_(reset_update[:, :hidden], product).tanh_()
        before.sub_(candidate).mul_(reset_update[:, hidden:]).add_(candidate)
    return state


def _backward(room: _Workspace, gradient: Tensor, weight: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
    """Fill `d_inputs` and return the gradients of the recurrent weight and of the candidate's bias."""
    hidden = weight.shape[1]
    d_state = gradient.float().clone(memory_format=torch.contiguous_format)
    for first, batch in reversed(_times(packed)):
        rows, d_after = slice(first, first + batch), d_state[:batch]
        _backward_pointwise(room, d_after, rows)
        if first:
            padded = _rounded(batch, _ROWS)
            torch.mm(room.d_products[first : first + padded], weight, out=room.d_step[:padded])
            d_after += room.d_step[:batch]
    # The first words' states are zero and add nothing; the rows past the last token fill up the rounded count.
    start, stop = packed.batch, packed.batch + _rounded(packed.num_tokens - packed.batch, _TOKENS)
    room.d_products[packed.num_tokens : stop].zero_()
    room.low_states[packed.num_tokens : stop].zero_()
    d_weight = torch.mm(room.d_products[start:stop].T, room.low_states[start:stop]).float()
    d_bias = room.d_products[: packed.num_tokens, 2 * hidden :].sum(dim=0, dtype=torch.float32)
    return d_weight, d_bias


def _backward_pointwise(room: _Workspace, d_state: Tensor, rows: slice) -> None:
    """Turn the gradient of the state after one time into those of its inputs; `d_state` becomes z * d_state."""
    batch, hidden = d_state.shape
    gates, d_inputs, d_products = room.gates[rows], room.d_inputs[rows], room.d_products[rows]
    reset, update, candidate = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
    d_candidate = d_inputs[:, 2 * hidden :]
    one, two, d_kept = (part[:batch] for part in room.scratch)
    torch.mul(d_state, update, out=d_kept)  # z d
    torch.sub(d_state, d_kept, out=one)  # (1 - z) d
    torch.mul(candidate, candidate, out=two)
    torch.addcmul(one, one, two, value=-1, out=d_candidate)  # (1 - z)(1 - c^2) d
    torch.sub(room.states[rows], candidate, out=one).mul_(d_kept)  # (h - c) z d
    torch.addcmul(one, one, update, value=-1, out=d_inputs[:, hidden : 2 * hidden])
    torch.mul(d_candidate, reset, out=one)  # r d_c, which also goes to U_c h
    d_products[:, 2 * hidden :] = one
    one.mul_(room.products[rows])
    torch.addcmul(one, one, reset, value=-1, out=d_inputs[:, :hidden])
    d_products[:, : 2 * hidden] = d_inputs[:, : 2 * hidden]
    d_state.copy_(d_kept)


def _sum_by_word(d_inputs: Tensor, packed: Packed, backwards: bool, num_words: int) -> Tensor:
    """Return the gradient of each projected word [num_words, 3 * hidden]; it is zero past the last word."""
    order, starts = packed.backward_groups if backwards else packed.forward_groups
    # Twice as fast as index_add_.
    sums = functional.embedding_bag(order, d_inputs, starts, mode="sum")
    return functional.pad(sums, (0, 0, 0, num_words - len(sums)))


def _times(packed: Packed) -> list[tuple[int, int]]:
    """Return each time's first row and number of rows."""
    return list(zip(accumulate(packed.batch_sizes, initial=0), packed.batch_sizes, strict=False))


def reset_before_gru(projected: Tensor, weight: Tensor, bias: Tensor, packed: Packed, *, backwards: bool) -> Tensor:
    """Run one direction of TensorFlow's cell, whose reset gate acts before the product; by autograd, without haste.

    Args:
        projected: W x + b of each distinct word, with all biases but the candidate's recurrent one, blocks r, z, c.
        weight: U, blocks r, z, c [3 * hidden, hidden].
        bias: b_hh of the candidate [hidden].
        packed: The sentences.
        backwards: Whether each sentence is read from its last token.

    Returns:
        Last states in the sorted order of `packed`, float32 [batch, hidden].
    """
    hidden = weight.shape[1]
    tokens = packed.backward_tokens if backwards else packed.forward_tokens
    state = projected.new_zeros(packed.batch, hidden, dtype=torch.float32)
    ended = []
    for inputs in torch.split(projected[tokens], list(packed.batch_sizes)):
        state, over = torch.split(state, [len(inputs), len(state) - len(inputs)])
        ended.append(over)
        gates = torch.sigmoid(inputs[:, : 2 * hidden] + functional.linear(state, weight[: 2 * hidden]))
        reset, update = gates.chunk(2, dim=1)
        product = functional.linear(reset * state, weight[2 * hidden :], bias)
        candidate = torch.tanh(inputs[:, 2 * hidden :] + product)
        state = (update * state + (1 - update) * candidate).float()
    # Shorter sentences stand further down.
    return torch.cat([state, *reversed(ended)])
