"""What a GRU does between two products, one time of all sentences at once: in torch's operations, or compiled.

    r, z = sigmoid(P + U h),  c = tanh(P_c + r * (U_c h + b')),  h = c + z * (h - c)

Both compute the same; the compiled one reads and writes every value once.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from raysent.kernels.compiled import load, try_load
from raysent.kernels.packed_gru.workspace import Workspace


@dataclass(frozen=True)
class Inputs:
    """What one direction reads.

    Attributes:
        projected: W x + b of each distinct word, float32 [distinct, 3 * hidden].
        bias: b' of the candidate, float32 [hidden].
        tokens: Word of each token, time-major [tokens].
        batch: Number of sentences.
        is_kept: Whether a backward follows.
        groups: Gives the tokens ordered by word, and where each word's begin; None where the last tokens are words of
            their own, one each, and those before them are never read.
    """

    projected: Tensor
    bias: Tensor
    tokens: Tensor
    batch: int
    is_kept: bool
    groups: Callable[[], tuple[Tensor, Tensor]] | None


@dataclass(frozen=True)
class Time:
    """One time of a batch.

    Attributes:
        first: Its first token.
        batch: Sentences that reach it.
        following: Those, the first of them, that reach the next one.
    """

    first: int
    batch: int
    following: int


class Cell(ABC):
    """One direction of one tower; `forward` from the first time to the last, then `backward` the other way.

    Attributes:
        last: State after the last token of each sentence, float32 [batch, hidden].
    """

    last: Tensor

    def __init__(self, room: Workspace, inputs: Inputs) -> None:
        """Begin with states of zero."""
        self._room, self._inputs = room, inputs
        self._is_low = room.shape.low != torch.float32

    @abstractmethod
    def forward(self, time: Time) -> None:
        """Take one step, from `step` (not read at the first time) to the states of the next time, or to `last`."""

    @abstractmethod
    def begin_backward(self, d_last: Tensor) -> None:
        """Begin with the gradient of `last`, float32 [batch, hidden]; it is overwritten."""

    @abstractmethod
    def backward(self, time: Time) -> None:
        """Take one step back, from `d_step` (of `following` sentences) to `d_products`."""

    @abstractmethod
    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of `projected` and of the candidate's bias."""


class TorchCell(Cell):
    """In torch's operations."""

    def __init__(self, room: Workspace, inputs: Inputs) -> None:
        super().__init__(room, inputs)
        self._scratch = torch.empty(3, inputs.batch, room.shape.hidden, device=room.shape.device)
        room.states[: inputs.batch].zero_()
        self.last = torch.empty_like(self._scratch[0]) if inputs.is_kept else room.states[: inputs.batch]

    def forward(self, time: Time) -> None:
        """Take one step."""
        room, inputs, hidden = self._room, self._inputs, self._room.shape.hidden
        rows, after = self._rows(time)
        gates, product, before = room.gates[rows], room.products[rows], room.states[rows]
        torch.index_select(inputs.projected, 0, inputs.tokens[time.first : time.first + time.batch], out=gates)
        reset_update, candidate = gates[:, : 2 * hidden], gates[:, 2 * hidden :]
        if time.first == 0:
            product.copy_(inputs.bias.expand_as(product))
        else:
            step = room.step[: time.batch]
            reset_update += step[:, : 2 * hidden]
            torch.add(step[:, 2 * hidden :], inputs.bias, out=product)
        reset_update.sigmoid_()
        candidate.addcmul_(reset_update[:, :hidden], product).tanh_()
        kept = torch.sub(before, candidate, out=self._scratch[0, : time.batch]).mul_(reset_update[:, hidden:])
        self._write(after, kept, candidate, time)

    def _rows(self, time: Time) -> tuple[slice, slice]:
        """Return the rows of this time and of the next."""
        if not self._inputs.is_kept:
            return slice(0, time.batch), slice(0, time.following)
        end = time.first + time.batch
        return slice(time.first, end), slice(end, end + time.following)

    def _write(self, after: slice, kept: Tensor, candidate: Tensor, time: Time) -> None:
        """Add up z (h - c) and c, for those who go on and for those who end."""
        room, on, ended = self._room, slice(0, time.following), slice(time.following, time.batch)
        torch.add(kept[on], candidate[on], out=room.states[after])
        torch.add(kept[ended], candidate[ended], out=self.last[ended])
        if self._is_low:
            room.low_states[after] = room.states[after]

    def begin_backward(self, d_last: Tensor) -> None:
        """Begin with the gradient of `last`."""
        self._d_state = d_last
        self._d_inputs = torch.empty(len(self._inputs.tokens), 3 * self._room.shape.hidden, device=d_last.device)

    def backward(self, time: Time) -> None:
        """Take one step back."""
        room, hidden, batch = self._room, self._room.shape.hidden, time.batch
        rows = slice(time.first, time.first + batch)
        gates, d_inputs, d_products = room.gates[rows], self._d_inputs[rows], room.d_products[rows]
        reset, update, candidate = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
        one, two, d_kept = (part[:batch] for part in self._scratch)
        d_state, d_candidate = self._d_state[:batch], d_inputs[:, 2 * hidden :]
        d_state[: time.following] += room.d_step[: time.following]
        torch.mul(d_state, update, out=d_kept)  # z d
        torch.sub(d_state, d_kept, out=one)  # (1 - z) d
        torch.mul(candidate, candidate, out=two)
        torch.addcmul(one, one, two, value=-1, out=d_candidate)  # (1 - z)(1 - c^2) d
        torch.sub(room.states[rows], candidate, out=one).mul_(d_kept)  # (h - c) z d
        torch.addcmul(one, one, update, value=-1, out=d_inputs[:, hidden : 2 * hidden])
        torch.mul(d_candidate, reset, out=one)  # r d_c, which also goes to U_c h
        torch.mul(one, room.products[rows], out=two)
        torch.addcmul(two, two, reset, value=-1, out=d_inputs[:, :hidden])
        # In float32 this overwrites the gates, which are no longer needed.
        d_products[:, 2 * hidden :] = one
        d_products[:, : 2 * hidden] = d_inputs[:, : 2 * hidden]
        d_state.copy_(d_kept)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of `projected` and of the candidate's bias."""
        d_candidate = self._room.d_products[: len(self._inputs.tokens), 2 * self._room.shape.hidden :]
        return self._d_projected(), d_candidate.sum(dim=0, dtype=torch.float32)

    def _d_projected(self) -> Tensor:
        """Add up the gradient of each word's tokens."""
        inputs = self._inputs
        if inputs.groups is None:
            return self._d_inputs[len(inputs.tokens) - len(inputs.projected) :]
        order, starts = inputs.groups()
        # Twice as fast as index_add_.
        sums = functional.embedding_bag(order, self._d_inputs, starts, mode="sum")
        return functional.pad(sums, (0, 0, 0, len(inputs.projected) - len(sums)))


class _Direction(ctypes.Structure):
    """What all times share, as the kernel reads it; the same fields stand in compiled/gru.cpp."""

    _fields_ = (
        ("hidden", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("tokens", "projected", "bias", "gates", "products", "states", "low_states", "step", "last"),
                *("d_state", "d_step", "d_products", "d_projected", "d_bias"),
            )
        ),
    )


class CompiledCell(Cell):
    """In one pass of a compiled kernel, on a CPU.

    Raises:
        CompilerError: If there is no compiler.
    """

    def __init__(self, room: Workspace, inputs: Inputs) -> None:
        super().__init__(room, inputs)
        library, kind = load("gru"), str(room.shape.low).removeprefix("torch.")
        self._forward, self._backward = library[f"gru_forward_{kind}"], library[f"gru_backward_{kind}"]
        self.last = torch.empty(inputs.batch, room.shape.hidden) if inputs.is_kept else room.states[: inputs.batch]
        self._direction = _Direction(hidden=room.shape.hidden)
        self._point(tokens=inputs.tokens, projected=inputs.projected, bias=inputs.bias, last=self.last)
        self._point(states=room.states, step=room.step, low_states=room.low_states if self._is_low else None)
        if inputs.is_kept:
            self._point(gates=room.gates, products=room.products)

    def _point(self, **tensors: Tensor | None) -> None:
        """Tell the kernel where these are; it reads rows that follow each other, and so must they."""
        for name, tensor in tensors.items():
            if tensor is not None and not tensor.is_contiguous():
                raise ValueError(f"{name} must be contiguous")
            setattr(self._direction, name, None if tensor is None else tensor.data_ptr())

    def forward(self, time: Time) -> None:
        """Take one step."""
        self._forward(ctypes.byref(self._direction), *map(ctypes.c_int64, (time.first, time.batch, time.following)))

    def begin_backward(self, d_last: Tensor) -> None:
        """Begin with the gradient of `last`."""
        self._d_state = d_last
        self._d_projected, self._d_bias = torch.zeros_like(self._inputs.projected), torch.zeros_like(self._inputs.bias)
        self._point(d_state=d_last, d_step=self._room.d_step, d_products=self._room.d_products)
        self._point(d_projected=self._d_projected, d_bias=self._d_bias)

    def backward(self, time: Time) -> None:
        """Take one step back."""
        self._backward(ctypes.byref(self._direction), *map(ctypes.c_int64, (time.first, time.batch, time.following)))

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of `projected` and of the candidate's bias."""
        return self._d_projected, self._d_bias


def choose_cell(implementation: str, device: torch.device) -> type[Cell]:
    """Return the cell of an `implementation`; of `auto` the compiled one on a CPU, where there is a compiler."""
    if implementation == "auto":
        implementation = "compiled" if device.type == "cpu" and try_load("gru") is not None else "packed"
    return CompiledCell if implementation == "compiled" else TorchCell
