"""Linear layers with initial values from a given generator, the spread of vectors, and a penalty on parameters.

The penalty is 1/2 weight |P - P0|^2.

Source: Wieting et al., 2016, equation 2; Jiao, Wang and Feng, 2018, sections 3.2 and 4.3; their released code halves.
With initial values as P0 it is L2-SP (Li, Grandvalet and Davoine, 2018, "Explicit inductive bias").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


def without_values(module: Callable[..., Module], *arguments: Any, **options: Any) -> Module:
    """Return a new module whose parameters have memory but no values: torch would draw them from its global generator.

    `torch.nn.utils.skip_init` does the same, but imports sympy, which takes a second of each process.
    """
    made = module(*arguments, **options, device="meta")
    for part in made.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")))
    return made


def linear_layer(inputs: int, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """Return a layer with torch's default initial values: uniform within 1 / sqrt(inputs)."""
    layer = without_values(nn.Linear, inputs, outputs)
    limit = 1 / math.sqrt(inputs)
    for parameter in layer.parameters():
        parameter.data.uniform_(-limit, limit, generator=generator)
    return layer


def spread(vectors: Tensor) -> Tensor:
    """Return the root of the mean over numbers of their variance over rows [rows, dim], a scalar above 0."""
    return vectors.var(dim=0, unbiased=False).mean().sqrt().clamp(min=1e-12)


class L2Penalty(nn.Module):
    """The penalty on parameters of other modules for their distance from zero, or from their initial values."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, weight: float, to: Literal["initial", "zero"]) -> None:
        """Store the parameters' current values where these are the initial ones.

        Args:
            parameters: The parameters; those without gradient are ignored.
            weight: Factor of the penalty; 0 for none.
            to: `initial` penalizes the distance from the current values (L2-SP), `zero` the size (L2).
        """
        super().__init__()
        # A tuple, because the parameters belong to other modules.
        self._penalized = tuple(parameter for parameter in parameters if parameter.requires_grad)
        self._weight = weight
        self._is_initial = to == "initial" and weight > 0
        for number, parameter in enumerate(self._penalized if self._is_initial else ()):
            self.register_buffer(f"initial_{number}", parameter.detach().clone(), persistent=False)

    def forward(self) -> Tensor:
        """Return the penalty, a scalar."""
        if not self._weight or not self._penalized:
            device = self._penalized[0].device if self._penalized else None
            return torch.zeros((), device=device)
        distances = [
            parameter - getattr(self, f"initial_{number}") if self._is_initial else parameter
            for number, parameter in enumerate(self._penalized)
        ]
        squares: Tensor = torch.stack([distance.square().sum() for distance in distances]).sum()
        return self._weight / 2 * squares
