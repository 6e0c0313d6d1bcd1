"""Linear layers whose first values come from a generator of our own."""

from __future__ import annotations

import math

import torch
from torch import nn


def linear_layer(inputs: int, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """Return a layer with torch's own first values: uniform within 1 / sqrt(inputs)."""
    # Made without values: torch's own would be drawn from the global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    limit = 1 / math.sqrt(inputs)
    for parameter in layer.parameters():
        parameter.data.uniform_(-limit, limit, generator=generator)
    return layer
