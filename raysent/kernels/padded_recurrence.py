"""Recurrences over padded groups of sentences, forward and backward, as a GPU runs them fast.

`padded_states` gathers the values of a batch into the buffers of a few groups, runs each group, and returns last states
and the states of words. What runs a group is a `GroupRun`:

- `LibraryRun`: `torch.nn.GRU` or `LSTM`, which is cuDNN's recurrence on a GPU, over word vectors. cuDNN is 5 to 100
  times as slow on packed input, which is why groups are padded, and a direction is a call of its own on sentences that
  are reversed in place
- `gru_loop.LoopRun`: raysent's loop over time steps, over input projections, for the cell that cuDNN does not have

Padding reads the values of some word. No state of it is returned, so its gradient is zero. The gradient of each row of
values is summed in one order, so that it has the same bits in every run.

Products are in autocast's type; what is returned is float32. A group's launches are recorded where a backward follows,
see `recordings`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.kernels.devices import product_dtype
from raysent.kernels.padding import PaddedBatch
from raysent.kernels.recordings import Kept, Recording, memory_pool

# PyTorch lays weights of 16 bits out for cuDNN at each call, which takes less time than a launch, and says so once.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")


@dataclass(frozen=True)
class RunShape:
    """Sizes and types of the buffers of a group.

    Attributes:
        directions: 1 or 2.
        length: Time steps.
        rows: Rows.
        inputs: Numbers of a word that are read at each time step.
        hidden: Size of a state of one direction.
        dtype: Type of the products.
        device: Where they are computed.
        has_initial: Whether states before the first word are given.
        has_gradient: Whether a backward follows.
    """

    directions: int
    length: int
    rows: int
    inputs: int
    hidden: int
    dtype: torch.dtype
    device: torch.device
    has_initial: bool
    has_gradient: bool

    def buffer(self, size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return memory without values, [directions, time, rows, size]."""
        shape = (self.directions, self.length, self.rows, size)
        # A later step may need gradients even if this one does not.
        with torch.inference_mode(False):
            return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)


class GroupRun(ABC):
    """The recurrence of one group, on fixed buffers: `forward`, then `backward`.

    Attributes:
        inputs: What is read, to be filled before `forward` [directions, time, rows, inputs].
        initial: States before the first word, to be filled too [directions, rows, hidden]; None where they are zero.
        d_states: Gradient of `states`, to be filled before `backward`.
    """

    def __init__(self, shape: RunShape, weights: Sequence[Tensor]) -> None:
        """Allocate what all kinds have, and prepare the recordings.

        Args:
            shape: Sizes and types.
            weights: Parameters of the same shapes as those that `set_weights` is given.
        """
        self.key: Hashable = _run_key(shape, weights)
        self.shape = shape
        self.is_trained = [weight.requires_grad for weight in weights]
        self.inputs = shape.buffer(shape.inputs)
        self.initial = None
        if shape.has_initial:
            size = (shape.directions, shape.rows, shape.hidden)
            with torch.inference_mode(False):
                self.initial = torch.empty(size, device=shape.device)
        self.d_states = shape.buffer(shape.hidden if shape.has_gradient else 0, self.state_dtype)
        pool = None
        if shape.has_gradient:
            pool = memory_pool(shape.device)
        self._forward = Recording(self._compute_forward, shape.device, pool=pool)
        self._backward = Recording(self._compute_backward, shape.device, pool=pool)

    @property
    @abstractmethod
    def state_dtype(self) -> torch.dtype:
        """Type of `states` and `d_states`."""

    @property
    @abstractmethod
    def states(self) -> Sequence[Tensor]:
        """State after each word, in one part or one for each direction [..., time, rows, hidden]."""

    @property
    @abstractmethod
    def d_inputs(self) -> Sequence[Tensor]:
        """Gradient of `inputs`, in such parts."""

    @property
    @abstractmethod
    def d_weights(self) -> Sequence[Tensor | None]:
        """Gradient of each weight; None of one that is not trained."""

    @property
    @abstractmethod
    def d_initial(self) -> Tensor | None:
        """Gradient of `initial` [directions, rows, hidden]."""

    @abstractmethod
    def set_weights(self, weights: Sequence[Tensor]) -> None:
        """Copy the parameters to the run's own memory, before each forward."""

    @abstractmethod
    def _compute_forward(self) -> None: ...

    @abstractmethod
    def _compute_backward(self) -> None: ...

    def forward(self) -> None:
        """Compute `states` of `inputs`."""
        if self.shape.has_gradient:
            self._forward()
        else:
            self._compute_forward()

    def backward(self) -> None:
        """Compute the gradients for `d_states`."""
        self._backward()


def _run_key(shape: RunShape, weights: Sequence[Tensor]) -> Hashable:
    """Return what is equal for runs that can take each other's place: their shape, and which weights are trained."""
    return shape, tuple(weight.requires_grad for weight in weights)


@dataclass(frozen=True)
class Recurrence:
    """A recurrence of one encoder or decoder.

    Attributes:
        make: Returns a new run for a shape and weights.
        kept: The runs of earlier steps.
        hidden: Size of a state of one direction.
    """

    make: Any
    kept: Kept[GroupRun]
    hidden: int

    def acquire(self, shape: RunShape, weights: Sequence[Tensor]) -> GroupRun:
        """Return a run that no other caller uses; one without a backward is not kept."""
        if not shape.has_gradient:
            return self.make(shape, weights)  # type: ignore[no-any-return]
        return self.kept.acquire(_run_key(shape, weights), lambda: self.make(shape, weights))

    def release(self, run: GroupRun) -> None:
        """Keep a run for a later step."""
        if run.shape.has_gradient:
            self.kept.release(run)


def padded_states(
    recurrence: Recurrence,
    values: Tensor,
    layout: PaddedBatch,
    weights: Sequence[Tensor],
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return states of a batch.

    Args:
        recurrence: What computes them.
        values: What words are read as, [rows, inputs] by `PaddedBatch.rows`.
        layout: The batch, laid out with `has_gradient` where a backward follows.
        weights: The recurrence's parameters, of each direction one after another.
        initial: State of each sentence before its first word [batch, hidden]; None is zero.

    Returns:
        Last state of each sentence, its directions concatenated, float32 [batch, directions * hidden]; and the state of
        each token in the order of `TokenOrder`, float32 [tokens, directions * hidden], empty without `has_states`.
    """
    dtype = product_dtype(values.device)
    with torch.autocast(values.device.type, enabled=False):
        call = _Call(recurrence, layout, dtype, has_gradient=torch.is_grad_enabled())
        if call.has_gradient:
            states: tuple[Tensor, Tensor] = _PaddedStates.apply(call, values, initial, *weights)  # type: ignore[no-untyped-call]
            return states
        return call.forward(values, initial, weights)


class _Call:
    """One batch through a recurrence."""

    def __init__(
        self, recurrence: Recurrence, layout: PaddedBatch, dtype: torch.dtype, *, has_gradient: bool
    ) -> None:
        self.has_gradient = has_gradient
        self._recurrence = recurrence
        self._layout = layout
        self._dtype = dtype
        self._runs: list[GroupRun] = []

    def forward(
        self, values: Tensor, initial: Tensor | None, weights: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return last states and states of tokens; keep the runs where a backward follows."""
        layout = self._layout
        self._num_rows = len(values)
        self.device = values.device
        values = values.detach().to(self._dtype)
        starts = None
        if initial is not None:
            starts = initial.detach().float()
        first_position = 0
        for group, size in zip(layout.groups, layout.sizes, strict=True):
            shape = RunShape(
                directions=layout.cut.directions,
                length=group.length,
                rows=group.rows,
                inputs=values.shape[1],
                hidden=self._recurrence.hidden,
                dtype=self._dtype,
                device=values.device,
                has_initial=initial is not None,
                has_gradient=self.has_gradient,
            )
            run = self._recurrence.acquire(shape, weights)
            run.set_weights(weights)
            rows = layout.rows[first_position : first_position + size]
            torch.index_select(values, 0, rows, out=run.inputs.view(size, -1))
            if starts is not None and run.initial is not None:
                sentences = layout.sentences[group.first : group.end]
                run.initial[:, : len(sentences)] = starts.index_select(0, sentences)
                run.initial[:, len(sentences) :] = 0.0
            run.forward()
            self._runs.append(run)
            first_position += size
        states = _joined([part for run in self._runs for part in run.states])
        last = self._selected(states, layout.ends)
        tokens = last[:0]
        if layout.tokens is not None:
            tokens = self._selected(states, layout.tokens)
        if not self.has_gradient:
            self._release()
        return last, tokens

    def _selected(self, states: Tensor, positions: Tensor) -> Tensor:
        """Return the states at places, the directions concatenated, float32."""
        width = self._layout.cut.directions * states.shape[1]
        return states.index_select(0, positions).view(-1, width).float()

    def backward(
        self, d_last: Tensor | None, d_tokens: Tensor | None
    ) -> tuple[Tensor, Tensor | None, list[Tensor | None]]:
        """Return the gradients of values, initial states and weights."""
        layout = self._layout
        hidden = self._recurrence.hidden
        first_position = 0
        for run, size in zip(self._runs, layout.sizes, strict=True):
            group_positions = slice(first_position, first_position + size)
            d_states = run.d_states.view(size, hidden)
            _scatter(d_last, layout.ending[group_positions], d_states)
            # A state is read as the last one of its sentence, as that of its token, or as both.
            if d_tokens is not None and layout.token_of is not None and len(d_tokens):
                added = torch.empty_like(d_states)
                _scatter(d_tokens, layout.token_of[group_positions], added)
                d_states.add_(added)
            run.backward()
            first_position += size
        d_inputs = _joined([part for run in self._runs for part in run.d_inputs])
        assert layout.by_row is not None, "the layout is without a gradient"
        d_values = layout.by_row(d_inputs).float()
        # Rows after the last one that a token may read have a gradient of zero.
        if len(d_values) < self._num_rows:
            d_values = functional.pad(d_values, (0, 0, 0, self._num_rows - len(d_values)))
        d_initial = self._d_initial()
        d_weights = [
            _added(parts) for parts in zip(*(run.d_weights for run in self._runs), strict=True)
        ]
        self._release()
        return d_values, d_initial, d_weights

    def _d_initial(self) -> Tensor | None:
        first = self._runs[0].d_initial
        if first is None:
            return None
        d_initial = first.new_empty(len(self._layout.sentences), self._recurrence.hidden)
        for run, group in zip(self._runs, self._layout.groups, strict=True):
            sentences = self._layout.sentences[group.first : group.end]
            group_initial = run.d_initial
            assert group_initial is not None
            d_initial.index_copy_(0, sentences, group_initial[0, : len(sentences)])
        return d_initial

    def _release(self) -> None:
        for run in self._runs:
            self._recurrence.release(run)
        self._runs = []


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return parts of groups, [..., rows, dim] each, as one row a place [places, dim]."""
    rows = [part.reshape(-1, part.shape[-1]) for part in parts]
    if len(rows) == 1:
        return rows[0]
    return torch.cat(rows)


def _scatter(rows: Tensor | None, number: Tensor, out: Tensor) -> None:
    """Set each place to the row with its number, or to zero where it has none: the number after the last row."""
    if rows is None:
        out.zero_()
        return
    padded = functional.pad(rows.reshape(-1, out.shape[1]).to(out.dtype), (0, 0, 0, 1))
    torch.index_select(padded, 0, number, out=out)


def _added(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of the groups' gradients as new memory, float32: a run's own is overwritten by its next step."""
    if parts[0] is None:
        return None
    if parts[0].dtype == torch.float32:
        total = parts[0].clone()
    else:
        total = parts[0].float()
    for part in parts[1:]:
        assert part is not None
        total += part
    return total


class _PaddedStates(torch.autograd.Function):
    """One batch with gradient; its result lets go of the runs in its only backward."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, values: Tensor, initial: Tensor | None, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return call.forward(values, initial, weights)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_last: Tensor | None, d_tokens: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if ctx.call is None:
            raise RuntimeError(
                "the padded recurrence keeps no values after a backward; use implementation: torch to repeat one"
            )
        call = ctx.call
        ctx.call = None
        with torch.autocast(call.device.type, enabled=False):
            d_values, d_initial, d_weights = call.backward(d_last, d_tokens)
        return None, d_values, d_initial, *d_weights


class LibraryRun(GroupRun):
    """A group by `torch.nn.GRU` or `torch.nn.LSTM`, cuDNN's on a GPU: one call for each direction.

    The weights are copied to one block of memory in the type of the products, as cuDNN reads them.
    """

    def __init__(
        self, shape: RunShape, weights: Sequence[Tensor], *, kind: type[nn.GRU | nn.LSTM]
    ) -> None:
        """Allocate the buffers.

        Args:
            shape: Sizes and types.
            weights: Of each direction input weight, recurrent weight and both biases, as torch has them.
            kind: The recurrence of torch.
        """
        super().__init__(shape, weights)
        self._layers = _layers(kind, shape)
        self._outputs: list[Tensor] = []
        self._leaves: list[Tensor] = []
        self._starts: list[Tensor] = []
        self._gradients: Sequence[Tensor] = ()

    @property
    def state_dtype(self) -> torch.dtype:
        """That of the products."""
        return self.shape.dtype

    @property
    def states(self) -> Sequence[Tensor]:
        """State after each word of each direction."""
        return [output.detach() for output in self._outputs]

    @property
    def d_inputs(self) -> Sequence[Tensor]:
        """Gradient of the inputs of each direction."""
        return self._gradients[: len(self._leaves)]

    @property
    def d_initial(self) -> Tensor | None:
        """Gradient of the states before the first word."""
        first = len(self._leaves)
        gradients = self._gradients[first : first + len(self._starts)]
        if not gradients:
            return None
        return torch.cat(list(gradients)).float()

    @property
    def d_weights(self) -> Sequence[Tensor | None]:
        """Gradient of each weight."""
        gradients = iter(self._gradients[len(self._leaves) + len(self._starts) :])
        return [next(gradients) if is_trained else None for is_trained in self.is_trained]

    @torch.no_grad()
    def set_weights(self, weights: Sequence[Tensor]) -> None:
        """Copy the parameters to the memory that cuDNN reads."""
        torch._foreach_copy_(self._low_weights(), list(weights))

    def _compute_forward(self) -> None:
        has_gradient = self.shape.has_gradient
        self._starts = []
        with torch.set_grad_enabled(has_gradient), _exact(self.shape):
            self._leaves = [
                inputs.detach().requires_grad_(has_gradient) for inputs in self.inputs.unbind()
            ]
            pairs = zip(self._layers, self._leaves, strict=True)
            self._outputs = [
                layer(inputs, self._start(direction))[0]
                for direction, (layer, inputs) in enumerate(pairs)
            ]

    def _compute_backward(self) -> None:
        trained = [
            low
            for low, is_trained in zip(self._low_weights(), self.is_trained, strict=True)
            if is_trained
        ]
        with _exact(self.shape):
            self._gradients = torch.autograd.grad(
                self._outputs,
                [*self._leaves, *self._starts, *trained],
                list(self.d_states.unbind()),
                # What was recorded is replayed without autograd, which would free its memory.
                retain_graph=True,
            )

    def _start(self, direction: int) -> Tensor | None:
        """Return the states before the first word [1, rows, hidden]; None where they are zero."""
        if self.initial is None:
            return None
        start = self.initial[direction : direction + 1].to(self.shape.dtype)
        if self.shape.has_gradient:
            self._starts.append(start.requires_grad_())
        return start

    def _low_weights(self) -> list[Tensor]:
        return [weight for layer in self._layers for weight in layer.all_weights[0]]


def _layers(kind: type[nn.GRU | nn.LSTM], shape: RunShape) -> list[nn.GRU | nn.LSTM]:
    """Return a layer without values for each direction; torch's random numbers are not touched."""
    layers = []
    with torch.inference_mode(False):
        for _ in range(shape.directions):
            layer = kind(shape.inputs, shape.hidden, device="meta", dtype=shape.dtype)
            # In training cuDNN keeps what its backward reads.
            layers.append(layer.to_empty(device=shape.device).train(shape.has_gradient))
    return layers


def _exact(shape: RunShape) -> AbstractContextManager[None]:
    """Keep float32 products of cuDNN from being rounded to 10 bits."""
    if shape.dtype != torch.float32 or shape.device.type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
