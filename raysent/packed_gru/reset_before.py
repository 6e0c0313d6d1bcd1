"""TensorFlow's cell, whose reset gate acts before the product."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from raysent.packing import Packed


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
