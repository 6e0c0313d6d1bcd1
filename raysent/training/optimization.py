"""From gradients to weights: clipping, learning rate, and Adam, dense or row-exact, or plain gradient descent.

Word tables get sparse gradients of rows; `RowAdam` computes the trajectory of dense Adam at the cost of the rows in
use. All other parameters have torch's fused Adam, and word tables too where `row_exact_adam` is false, as a reference,
or where weights decay or words are predicted by their vectors, which changes every row at every step.

Source: Kingma and Ba, 2015 (Adam); Loshchilov and Hutter, 2019 (AdamW).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.adam import adam as torch_adam

from raysent.kernels.row_adam import RowAdam, gradient_values
from raysent.models import SentenceModel
from raysent.models.encoders import Tower
from raysent.training.run import TrainingConfig


class Optimizer:
    """Adam or gradient descent on all trained parameters of a model, with the clipping and the schedule of a run.

    Call order in a step: `catch_up` with the rows to be read, forward, backward, `step`. Call `flush` before reading
    all weights.

    Attributes:
        parameters: All trained parameters in a fixed order.
        tables: The word tables among them that are updated by rows.
        num_drops: Reports so far after which the learning rate has `drop_decay`; the training loop counts them.
    """

    def __init__(
        self,
        model: SentenceModel,
        config: TrainingConfig,
        *,
        num_steps: int,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Divide the parameters between dense and row-exact updates.

        Args:
            model: The model to train.
            config: Settings of the training.
            num_steps: Steps of the whole run.
            steps_per_epoch: Steps of an epoch; by default those of the whole run.
        """
        self._config = config
        self._num_steps = num_steps
        self._steps_per_epoch = steps_per_epoch or num_steps
        self.num_drops = 0
        objective = model.config.objective
        assert objective is not None  # a run's model has one
        changes_all = (
            config.optimizer == "sgd" or config.decay or config.ema or objective.scores_words
        )
        by_rows = config.row_exact_adam and not changes_all
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._clip_groups = (
            member_groups(model) if config.clip_per == "member" else [self.parameters]
        )
        self.tables = tables = [table.weight for table in model.tables] if by_rows else []
        model.use_sparse_gradients(by_rows)
        by_row = {id(weight) for weight in tables}
        self._row_adams = [RowAdam(weight, learning_rate=config.learning_rate) for weight in tables]
        factors = {
            id(tower.get_parameter(name)): factor
            for tower in model.modules()
            if isinstance(tower, Tower)
            for name, factor in tower.learning_rate_factors().items()
        }
        self._row_factors = [factors.get(id(weight), 1.0) for weight in tables]
        dense = [parameter for parameter in self.parameters if id(parameter) not in by_row]
        of_dense = [factors.get(id(parameter), 1.0) for parameter in dense]
        self._dense: DenseAdam | GradientDescent = (
            GradientDescent(dense, of_dense)
            if config.optimizer == "sgd"
            else DenseAdam(dense, of_dense, decay=config.decay)
        )

    def catch_up(self, words: Tensor) -> None:
        """Apply the outstanding updates to the rows of these words, int64 [words]."""
        for adam in self._row_adams:
            adam.catch_up(words)

    def flush(self) -> None:
        """Apply the outstanding updates to all rows."""
        for adam in self._row_adams:
            adam.flush()

    def zero_grad(self) -> None:
        """Remove the gradients of the previous step."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, step: int) -> None:
        """Clip the gradients and update the weights.

        Args:
            step: Number of this step, from 0.
        """
        if self._config.clip is not None:
            per: Literal["tensor", "global"] = (
                "tensor" if self._config.clip_per == "tensor" else "global"
            )
            for group in self._clip_groups:
                clip_gradients(group, limit=self._config.clip, per=per)
        rate = learning_rate(self._config, step, num_steps=self._num_steps)
        rate *= (
            self._config.epoch_decay ** (step // self._steps_per_epoch)
            * self._config.drop_decay**self.num_drops
        )
        for adam, factor in zip(self._row_adams, self._row_factors, strict=True):
            adam.learning_rate = rate * factor
            adam.step()
        self._dense.step(rate)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of all optimizers by name."""
        named: dict[str, Tensor] = {}
        for number, adam in enumerate(self._row_adams):
            for name, value in adam.state_dict().items():
                dtype = (
                    torch.int64 if isinstance(value, int) else torch.float64
                )  # without loss of precision
                named[f"row.{number}.{name}"] = (
                    value if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
                )
        named |= {f"dense.{name}": value for name, value in self._dense.tensors().items()}
        return named

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Set the state that `tensors` returned."""
        for number, adam in enumerate(self._row_adams):
            state = strip_prefix(named, f"row.{number}.")
            numbers = {name: state[name].item() for name in ("num_steps", "learning_rate")}
            adam.load_state_dict({**state, **numbers})
        self._dense.load_tensors(strip_prefix(named, "dense."))


class DenseAdam:
    """Torch's fused Adam on dense gradients, without `torch.optim.Adam`, which imports torch's compiler in 1 s."""

    def __init__(
        self, parameters: list[nn.Parameter], factors: list[float], *, decay: float = 0.0
    ) -> None:
        """Start with moments of zero.

        Args:
            parameters: The parameters.
            factors: Factors of the learning rate, one for each.
            decay: Part of the learning rate by which matrices and tables shrink at each step.
        """
        self._parameters = parameters
        self._kinds = [
            (factor, decay if one.ndim > 1 else 0.0)
            for one, factor in zip(parameters, factors, strict=True)
        ]
        self._means = [torch.zeros_like(parameter) for parameter in parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in parameters]
        self._steps = [torch.zeros((), device=parameter.device) for parameter in parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the weights that have a gradient.

        Args:
            rate: Learning rate of this step.
        """
        found = [
            (number, p, p.grad) for number, p in enumerate(self._parameters) if p.grad is not None
        ]
        for kind in dict.fromkeys(self._kinds[number] for number, _, _ in found):
            self._update(
                [one for one in found if self._kinds[one[0]] == kind], rate * kind[0], kind[1]
            )

    def _update(
        self, moved: list[tuple[int, nn.Parameter, Tensor]], rate: float, decay: float
    ) -> None:
        torch_adam(
            [parameter for _, parameter, _ in moved],
            [gradient for _, _, gradient in moved],
            [self._means[number] for number, _, _ in moved],
            [self._squares[number] for number, _, _ in moved],
            max_exp_avg_sqs=[],
            state_steps=[self._steps[number] for number, _, _ in moved],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=decay,
            decoupled_weight_decay=True,
            eps=1e-8,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return moments and numbers of steps by name."""
        columns = {"mean": self._means, "square": self._squares, "step": self._steps}
        return {
            f"{number}.{name}": value
            for name, column in columns.items()
            for number, value in enumerate(column)
        }

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Set the state that `tensors` returned."""
        for name, value in self.tensors().items():
            value.copy_(named[name])


class GradientDescent:
    """Plain gradient descent, which has no state."""

    def __init__(self, parameters: list[nn.Parameter], factors: list[float]) -> None:
        """Store the parameters, and factors of the learning rate, one for each."""
        self._parameters, self._factors = parameters, factors

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Subtract the gradients times the learning rate of this step."""
        for parameter, factor in zip(self._parameters, self._factors, strict=True):
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=rate * factor)

    def tensors(self) -> dict[str, Tensor]:
        """Return no state."""
        return {}

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Accept no state."""


def count_drops(values: list[float], *, mode: Literal["max", "min"]) -> int:
    """Return how many values of a metric are not better than all before them; NaN never is."""
    best, drops = None, 0
    for value in values:
        if best is None or (value > best if mode == "max" else value < best):
            best = value
        else:
            drops += 1
    return drops


def strip_prefix(named: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }


def learning_rate(config: TrainingConfig, step: int, *, num_steps: int) -> float:
    """Return the learning rate of a step, counted from 0."""
    rate = config.learning_rate
    if step < config.warmup_steps:
        return rate * (step + 1) / config.warmup_steps
    if config.schedule == "linear":
        falling = max(1, num_steps - config.warmup_steps)
        return rate * (num_steps - step) / falling
    return rate


def member_groups(model: SentenceModel) -> list[list[nn.Parameter]]:
    """Return the trained parameters of each member of a composition (encoder `concat`), of towers and objective.

    Members then have the steps that they would have if each were trained alone. Another model is a single group.
    """
    members = getattr(model.config.encoder, "members", None)
    groups: dict[str, list[nn.Parameter]] = {}
    # The number of each member's losses, to find the member of an objective.
    counts = [len(member.loss_dims) for member in members.values()] if members else []
    owners = [str(member) for member, count in enumerate(counts) for _ in range(count)]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part, *rest = name.split(".")
            member = ""
            if owners and rest[:1] == ["members"]:
                member = rest[1]
            elif part == "objectives" and len(owners) == len(model.objectives):
                member = owners[int(rest[0])]
            groups.setdefault(member, []).append(parameter)
    return list(groups.values())


def clip_gradients(
    parameters: list[nn.Parameter], *, limit: float, per: Literal["tensor", "global"]
) -> None:
    """Scale gradients in place so that their Euclidean norm is at most `limit`, per tensor or of all together.

    Source: Quick-Thoughts' released code clips per tensor.
    """
    gradients = [values for values in map(gradient_values, parameters) if values is not None]
    if not gradients:
        return
    norms = torch.stack(torch._foreach_norm(gradients))
    if per == "global":
        norms = torch.linalg.vector_norm(norms).expand_as(norms)
    # Without reading the norm's value, which would make a GPU wait. NaN stays NaN and ends the run.
    factors = (limit / norms).clamp(max=1.0)
    torch._foreach_mul_(gradients, list(factors.unbind()))


class MovingAverage:
    """The moving average of parameters, which is validated and saved in their place; `in_use` puts it there.

        a <- a + (1 - d) (w - a)  after each step t = 1, 2, …,   d = min(decay, (1 + t) / (10 + t))

    The first steps count less, so that a short run does not keep its start.

    Source: Tarvainen and Valpola, 2017 (mean teacher), section 2; the rising decay is TensorFlow's.
    """

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
