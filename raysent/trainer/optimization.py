"""From gradients to weights: clip, learning rate, and Adam, dense or row-exact.

Word tables get their gradient as rows; `RowAdam` gives them dense Adam's trajectory at the price of the rows touched.
Everything else is torch's fused Adam. As an oracle the rows can be spread out and given to torch's Adam as well.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from raysent.row_adam import RowAdam
from raysent.run import TrainingConfig


class Optimizer:
    """Adam over all trained parameters of a model, with the clipping and the schedule of a run."""

    def __init__(self, model: nn.Module, config: TrainingConfig, *, num_steps: int) -> None:
        """Divide the parameters between dense and row-exact Adam; `num_steps` is the whole run's."""
        self._config = config
        self._num_steps = num_steps
        tables = table_names(model)
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._rows = {name: p for name, p in trained.items() if config.row_exact_adam and name in tables}
        self._dense = {name: p for name, p in trained.items() if name not in self._rows}
        self.parameters = list(trained.values())
        rate = config.learning_rate
        self._dense_adam = torch.optim.Adam(self._dense.values(), lr=rate, fused=True) if self._dense else None
        self._row_adam = RowAdam(list(self._rows.values()), lr=rate) if self._rows else None

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, step: int) -> None:
        """Clip the gradients and move the weights.

        Args:
            step: Number of this step, from 0.
        """
        if self._config.clip is not None:
            clip_gradients(self.parameters, limit=self._config.clip, per=self._config.clip_per)
        rate = learning_rate(self._config, step, num_steps=self._num_steps)
        for parameter in self._dense.values():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        for adam in (self._dense_adam, self._row_adam):
            if adam is not None:
                for group in adam.param_groups:
                    group["lr"] = rate
                adam.step()


def learning_rate(config: TrainingConfig, step: int, *, num_steps: int) -> float:
    """Return the learning rate of a step, counted from 0."""
    rate = config.learning_rate
    if step < config.warmup_steps:
        return rate * (step + 1) / config.warmup_steps
    if config.schedule == "linear":
        falling = max(1, num_steps - config.warmup_steps)
        return rate * (num_steps - step) / falling
    return rate


def clip_gradients(parameters: list[nn.Parameter], *, limit: float, per: Literal["tensor", "global"]) -> None:
    """Scale gradients in place so that their Euclidean norm stays within `limit`, tensor by tensor or all together.

    Source: Quick-Thoughts' released code clips every tensor by itself.
    """
    gradients = [_values(parameter) for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    norms = torch.stack(torch._foreach_norm(gradients))
    if per == "global":
        norms = torch.linalg.vector_norm(norms).expand_as(norms)
    # No test of the norm's value: that would make a GPU wait. A NaN stays one, and ends the run.
    factors = (limit / norms).clamp(max=1.0)
    torch._foreach_mul_(gradients, list(factors.unbind()))


def _values(parameter: nn.Parameter) -> Tensor:
    """Return a gradient's numbers; the rows of a sparse one are summed up first."""
    gradient = parameter.grad
    if gradient is None:
        raise ValueError("no gradient")
    if not gradient.is_sparse:
        return gradient
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()
