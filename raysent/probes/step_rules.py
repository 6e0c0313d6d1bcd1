"""Adam and RMSprop as torch takes them, to the last bit, on one flat array and without temporaries.

In: the values of many small classifiers side by side, and their gradients. Out: the values after the step, in place.
A step of torch's own makes new arrays at each, which at these sizes takes as long as the arithmetic.

Source: Kingma and Ba, 2015, Adam, algorithm 1; Hinton, 2012, lecture 6e (RMSprop); constants are torch's defaults.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor


class StepRule(Protocol):
    """What remembers past gradients and takes steps."""

    def step(self, gradient: Tensor) -> None:
        """Change the values by one step against their gradient [values]."""

    def keep(self, values: Tensor, kept: Tensor) -> None:
        """Go on with other values, which are those at the places `kept`, int64, of the values so far."""


class Adam:
    """Adam with torch's defaults: learning rate 1e-3, betas 0.9 and 0.999, epsilon 1e-8."""

    def __init__(self, values: Tensor) -> None:
        """Begin with the values [values] to change."""
        self._values = values
        self._mean, self._square = torch.zeros_like(values), torch.zeros_like(values)
        self._scratch = torch.empty_like(values)
        self._num_steps = 0

    def step(self, gradient: Tensor) -> None:
        """Change the values by one step against their gradient [values]."""
        self._num_steps += 1
        self._mean.lerp_(gradient, 1 - 0.9)
        self._square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        root = torch.sqrt(self._square, out=self._scratch)
        root.div_(math.sqrt(1 - 0.999**self._num_steps)).add_(1e-8)
        self._values.addcdiv_(self._mean, root, value=-(1e-3 / (1 - 0.9**self._num_steps)))

    def keep(self, values: Tensor, kept: Tensor) -> None:
        """Go on with some of the values, copied to `values`."""
        self._values, self._scratch = values, torch.empty_like(values)
        self._mean, self._square = self._mean[kept], self._square[kept]


class RMSprop:
    """RMSprop with torch's defaults: learning rate 1e-2, decay 0.99, epsilon 1e-8."""

    def __init__(self, values: Tensor) -> None:
        """Begin with the values [values] to change."""
        self._values = values
        self._square, self._scratch = torch.zeros_like(values), torch.empty_like(values)

    def step(self, gradient: Tensor) -> None:
        """Change the values by one step against their gradient [values]."""
        self._square.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
        root = torch.sqrt(self._square, out=self._scratch).add_(1e-8)
        self._values.addcdiv_(gradient, root, value=-1e-2)

    def keep(self, values: Tensor, kept: Tensor) -> None:
        """Go on with some of the values, copied to `values`."""
        self._values, self._scratch = values, torch.empty_like(values)
        self._square = self._square[kept]
