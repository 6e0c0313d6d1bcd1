"""Linear layers whose first values come from a generator of our own.

What parameters cost for being away from where they began, or from zero: 1/2 weight |P - P0|^2.

Source: Wieting et al., 2016, equation 2; Jiao, Wang and Feng, 2018, sections 3.2 and 4.3; their released code halves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn


def linear_layer(inputs: int, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """Return a layer with torch's own first values: uniform within 1 / sqrt(inputs)."""
    # Made without values: torch's own would be drawn from the global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    limit = 1 / math.sqrt(inputs)
    for parameter in layer.parameters():
        parameter.data.uniform_(-limit, limit, generator=generator)
    return layer


class Anchor(nn.Module):
    """The penalty of some parameters that belong to somebody else."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, weight: float, to: Literal["first", "zero"]) -> None:
        """Remember the parameters' values of now, where these are what they are drawn to."""
        super().__init__()
        self._parameters_of_others = tuple(one for one in parameters if one.requires_grad)
        self._weight = weight
        self._is_first = to == "first" and weight > 0
        for number, parameter in enumerate(self._parameters_of_others if self._is_first else ()):
            self.register_buffer(f"first_{number}", parameter.detach().clone(), persistent=False)

    def forward(self) -> Tensor:
        """Return the penalty, a scalar."""
        if not self._weight or not self._parameters_of_others:
            device = self._parameters_of_others[0].device if self._parameters_of_others else None
            return torch.zeros((), device=device)
        ways = [
            parameter - getattr(self, f"first_{number}") if self._is_first else parameter
            for number, parameter in enumerate(self._parameters_of_others)
        ]
        squares: Tensor = torch.stack([way.square().sum() for way in ways]).sum()
        return self._weight / 2 * squares
