"""From gradients to weights: clipping, learning rate, and Adam, dense or row-exact, or plain gradient descent.

Word tables get sparse gradients of rows; `RowAdam` computes the trajectory of dense Adam at the cost of the rows in
use. All other parameters have torch's fused Adam, and word tables too where `row_exact_adam` is false, as a reference,
or where weights decay or words are predicted by their vectors, which changes every row at every step.

Source: Kingma and Ba, 2015 (Adam); Loshchilov and Hutter, 2019 (AdamW).
"""

from __future__ import annotations

import operator
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
        self._clip_groups = [self.parameters]
        if config.clip_per == "member":
            self._clip_groups = member_groups(model)
        self.tables: list[nn.Parameter] = []
        if by_rows:
            self.tables = [table.weight for table in model.tables]
        model.use_sparse_gradients(by_rows)
        self._row_adams = [
            RowAdam(weight, learning_rate=config.learning_rate) for weight in self.tables
        ]
        factors = _rate_factors(model)
        self._row_factors = [factors.get(id(weight), 1.0) for weight in self.tables]
        table_ids = {id(weight) for weight in self.tables}
        dense = [parameter for parameter in self.parameters if id(parameter) not in table_ids]
        dense_factors = [factors.get(id(parameter), 1.0) for parameter in dense]
        self._dense: DenseAdam | GradientDescent
        if config.optimizer == "sgd":
            self._dense = GradientDescent(dense, dense_factors)
        else:
            self._dense = DenseAdam(dense, dense_factors, decay=config.decay)

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
            per: Literal["tensor", "global"] = "global"
            if self._config.clip_per == "tensor":
                per = "tensor"
            for group in self._clip_groups:
                clip_gradients(group, limit=self._config.clip, per=per)
        rate = learning_rate(self._config, step, num_steps=self._num_steps)
        epoch = step // self._steps_per_epoch
        rate *= self._config.epoch_decay**epoch * self._config.drop_decay**self.num_drops
        for adam, factor in zip(self._row_adams, self._row_factors, strict=True):
            adam.learning_rate = rate * factor
            adam.step()
        self._dense.step(rate)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of all optimizers by name."""
        by_name: dict[str, Tensor] = {}
        for number, adam in enumerate(self._row_adams):
            for name, state in adam.state_dict().items():
                by_name[f"row.{number}.{name}"] = _as_tensor(state)
        for name, tensor in self._dense.tensors().items():
            by_name[f"dense.{name}"] = tensor
        return by_name

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Set the state that `tensors` returned."""
        for number, adam in enumerate(self._row_adams):
            state = strip_prefix(named, f"row.{number}.")
            numbers = {name: state[name].item() for name in ("num_steps", "learning_rate")}
            adam.load_state_dict({**state, **numbers})
        self._dense.load_tensors(strip_prefix(named, "dense."))


def _rate_factors(model: SentenceModel) -> dict[int, float]:
    """Return the factors of the learning rate that towers give their parameters, by the parameter's id."""
    factors = {}
    for module in model.modules():
        if isinstance(module, Tower):
            for name, factor in module.learning_rate_factors().items():
                factors[id(module.get_parameter(name))] = factor
    return factors


def _as_tensor(state: Tensor | float) -> Tensor:
    """Return a number of an optimizer's state as a tensor, without loss of precision."""
    if isinstance(state, Tensor):
        return state
    if isinstance(state, int):
        return torch.tensor(state, dtype=torch.int64)
    return torch.tensor(state, dtype=torch.float64)


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
        # Parameters of the same factor and decay are updated by one call.
        self._kinds: list[tuple[float, float]] = []
        for parameter, factor in zip(parameters, factors, strict=True):
            parameter_decay = decay if parameter.ndim > 1 else 0.0
            self._kinds.append((factor, parameter_decay))
        self._means = [torch.zeros_like(parameter) for parameter in parameters]
        self._squares = [torch.zeros_like(parameter) for parameter in parameters]
        self._steps = [torch.zeros((), device=parameter.device) for parameter in parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the weights that have a gradient.

        Args:
            rate: Learning rate of this step.
        """
        numbers_by_kind: dict[tuple[float, float], list[int]] = {}
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                numbers_by_kind.setdefault(self._kinds[number], []).append(number)
        for (factor, decay), numbers in numbers_by_kind.items():
            self._update(numbers, rate * factor, decay)

    def _update(self, numbers: list[int], rate: float, decay: float) -> None:
        """Update the parameters of these numbers, each of which has a gradient."""
        moved: list[Tensor] = [self._parameters[number] for number in numbers]
        gradients = [parameter.grad for parameter in moved if parameter.grad is not None]
        torch_adam(
            moved,
            gradients,
            [self._means[number] for number in numbers],
            [self._squares[number] for number in numbers],
            max_exp_avg_sqs=[],
            state_steps=[self._steps[number] for number in numbers],
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
        by_name: dict[str, Tensor] = {}
        for number, mean in enumerate(self._means):
            by_name[f"{number}.mean"] = mean
        for number, square in enumerate(self._squares):
            by_name[f"{number}.square"] = square
        for number, num_steps in enumerate(self._steps):
            by_name[f"{number}.step"] = num_steps
        return by_name

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Set the state that `tensors` returned."""
        for name, tensor in self.tensors().items():
            tensor.copy_(named[name])


class GradientDescent:
    """Plain gradient descent, which has no state."""

    def __init__(self, parameters: list[nn.Parameter], factors: list[float]) -> None:
        """Store the parameters, and factors of the learning rate, one for each."""
        self._parameters = parameters
        self._factors = factors

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
    is_better = operator.gt if mode == "max" else operator.lt
    best = None
    num_drops = 0
    for score in values:
        if best is None or is_better(score, best):
            best = score
        else:
            num_drops += 1
    return num_drops


def strip_prefix(named: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, by the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in named.items()
        if name.startswith(prefix)
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
    members = getattr(model.config.encoder, "members", None) or {}
    # The number of the member that each objective belongs to, as a name of a parameter has it.
    owners: list[str] = []
    for number, member in enumerate(members.values()):
        owners += [str(number)] * len(member.loss_dims)
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        # `f.members.1.…` or `objectives.1.…`
        names = name.split(".")
        owner = ""
        if owners and names[1:2] == ["members"]:
            owner = names[2]
        elif names[0] == "objectives" and len(owners) == len(model.objectives):
            owner = owners[int(names[1])]
        groups.setdefault(owner, []).append(parameter)
    return list(groups.values())


def clip_gradients(
    parameters: list[nn.Parameter], *, limit: float, per: Literal["tensor", "global"]
) -> None:
    """Scale gradients in place so that their Euclidean norm is at most `limit`, per tensor or of all together.

    Source: Quick-Thoughts' released code clips per tensor.
    """
    gradients = []
    for parameter in parameters:
        gradient = gradient_values(parameter)
        if gradient is not None:
            gradients.append(gradient)
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
        self._parameters = list(parameters)
        self._decay = decay
        self._values = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the parameters' values after step `step`, from 1."""
        decay = min(self._decay, (1 + step) / (10 + step))
        parameters = [parameter.detach() for parameter in self._parameters]
        torch._foreach_lerp_(self._values, parameters, 1 - decay)

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
        for parameter, average in zip(self._parameters, self._values, strict=True):
            trained = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(trained)

    def tensors(self) -> dict[str, Tensor]:
        """Return the values by name."""
        return {str(number): average for number, average in enumerate(self._values)}

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Set what `tensors` returned."""
        for name, average in self.tensors().items():
            average.copy_(named[name])
