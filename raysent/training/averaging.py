"""The moving average of a run's weights, which is validated and saved in their place.

    a <- a + (1 - d) (w - a)  after each step t = 1, 2, …,   d = min(decay, (1 + t) / (10 + t))

The first steps count less, so that a short run does not keep its start.

Source: Tarvainen and Valpola, 2017 (mean teacher), section 2; the rising decay is TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """The average of some parameters; `in_use` puts it in their place."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, decay: float) -> None:
        """Start with the parameters' values."""
        self._parameters, self._decay = list(parameters), decay
        self._values = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the parameters' values after step `step`, from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._values, [one.detach() for one in self._parameters], 1 - decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the parameters the average's values inside the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, value in zip(self._parameters, self._values, strict=True):
            own = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(own)

    def tensors(self) -> dict[str, Tensor]:
        """Return the values by name."""
        return {str(number): value for number, value in enumerate(self._values)}

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Set what `tensors` returned."""
        for name, value in self.tensors().items():
            value.copy_(named[name])
