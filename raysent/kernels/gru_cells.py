"""The operations of a GRU between two products, for one time step of all sentences, by a compiled kernel on a CPU.

    r, z = sigmoid(P + U h),  c = tanh(P_c + r * (U_c h + b')),  h = c + z * (h - c)

The kernel reads and writes every value once. The buffers of one direction are kept between training steps: allocating
new pages costs as much as the computation.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from raysent.kernels.native import Arguments, load

ROW_MULTIPLE = 16  # the number of rows of a product is a multiple of this
TOKEN_MULTIPLE = 256  # the number of tokens summed in one weight gradient is a multiple of this
_GROWTH = 1.25  # a new workspace has space for longer batches
_MAX_FREE = 16  # an encoder of two directions uses two at the same time in each thread


@dataclass(frozen=True)
class Shape:
    """Size and type of a workspace.

    Attributes:
        hidden: Size of a state.
        dtype: Type of the products.
        device: Device of the products.
        tokens: Number of tokens, if a backward follows; otherwise the number of sentences.
        batch: Number of sentences.
    """

    hidden: int
    dtype: torch.dtype
    device: torch.device
    tokens: int
    batch: int

    @property
    def enlarged(self) -> Shape:
        """The shape with space for longer batches."""
        tokens = int(self.tokens * _GROWTH) + TOKEN_MULTIPLE
        return Shape(self.hidden, self.dtype, self.device, tokens, self.batch + ROW_MULTIPLE)

    def holds(self, other: Shape) -> bool:
        """Return whether a workspace of this shape is large enough for another."""
        own_kind = (self.hidden, self.dtype, self.device)
        is_alike = own_kind == (other.hidden, other.dtype, other.device)
        fits = (
            self.tokens >= other.tokens + TOKEN_MULTIPLE
            and self.batch >= other.batch + ROW_MULTIPLE
        )
        return is_alike and fits


class Workspace:
    """Buffers from a forward to its backward; rows are tokens, time-major, or sentences if no backward follows.

    Attributes:
        shape: Size and type.
        gates: r, z and c after their activation functions, float32 [tokens, 3 * hidden]; if products are in another
            type, these and `products` in 16 bits each, int32 [tokens, 2 * hidden].
        products: U_c h + b' of the candidate, float32 [tokens, hidden].
        states: State before each token, in the type of the products [tokens, hidden].
        d_products: Gradient of U h, in the type of the products [tokens, 3 * hidden]; `gates` itself in float32.
        recurrent: U h of one time step, in the type of the products [batch, 3 * hidden].
        d_recurrent: Gradient through U of one time step, in the type of the products [batch, hidden].
    """

    def __init__(self, shape: Shape) -> None:
        """Allocate the buffers; the operating system provides memory only for pages that are written."""
        self.shape = shape
        hidden = shape.hidden
        dtype = shape.dtype
        is_low = dtype != torch.float32
        self.states = self._rows(shape.tokens, hidden, dtype)
        if is_low:
            # Two numbers of 16 bits in each int32: the three gates and the product are two of these.
            self.gates = self._rows(shape.tokens, 2 * hidden, torch.int32)
            self.products = self._rows(0, hidden, dtype)
            self.d_products = self._rows(shape.tokens, 3 * hidden, dtype)
        else:
            self.gates = self._rows(shape.tokens, 3 * hidden, dtype)
            self.products = self._rows(shape.tokens, hidden, dtype)
            self.d_products = self.gates
        self.recurrent = self._rows(shape.batch, 3 * hidden, dtype)
        self.d_recurrent = self._rows(shape.batch, hidden, dtype)

    def _rows(self, count: int, size: int, dtype: torch.dtype) -> Tensor:
        # A later step may need gradients even if this one does not.
        with torch.inference_mode(False):
            return torch.zeros(count, size, dtype=dtype, device=self.shape.device)


class Workspaces:
    """The workspaces of one encoder, freed with it. Threads that use the encoder at the same time share none."""

    def __init__(self, kind: Callable[[Shape], Any] = Workspace) -> None:
        """Keep what `kind` returns for a shape, which has this shape as `shape`."""
        self._kind = kind
        self._free: deque[Any] = deque(maxlen=_MAX_FREE)

    def acquire(self, shape: Shape) -> Any:
        """Return a free workspace, or a new one; a free one that is too small is dropped."""
        # An IndexError means that none is free; asking first would let another thread take the last one.
        with contextlib.suppress(IndexError):
            while True:
                workspace = self._free.pop()
                if workspace.shape.holds(shape):
                    return workspace
        return self._kind(shape.enlarged)

    def release(self, workspace: Any) -> None:
        """Keep a workspace for the next use; the one that was free for the longest time is freed if there are many."""
        self._free.append(workspace)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an empty object: a copied encoder has buffers of its own."""
        return type(self)(self._kind)

    def __reduce__(self) -> tuple[type[Self], tuple[Callable[[Shape], Any]]]:
        """Pickle without buffers."""
        return type(self), (self._kind,)


@dataclass(frozen=True)
class TimeStep:
    """One time step of a batch.

    Attributes:
        first: Its first token.
        batch: Number of sentences that reach it.
        next_batch: Number of sentences that reach the next time step; they are the first ones.
    """

    first: int
    batch: int
    next_batch: int


@dataclass(frozen=True)
class Order:
    """The tokens of one direction, time-major.

    Attributes:
        tokens: Word of each token [tokens].
        batch_sizes: Number of sentences that reach time step t, decreasing [time].
        has_initial: Whether initial states are given. If so, `batch` tokens that are never read precede those of the
            first time step, in the rows of the initial states.
    """

    tokens: Tensor
    batch_sizes: Sequence[int]
    has_initial: bool = False

    @property
    def batch(self) -> int:
        """Number of sentences."""
        return self.batch_sizes[0]

    @property
    def num_before(self) -> int:
        """Number of rows before those of the first time step."""
        return self.batch if self.has_initial else 0

    @property
    def steps(self) -> list[TimeStep]:
        """The time steps of the batch."""
        sizes = self.batch_sizes
        firsts = accumulate(sizes, initial=self.num_before)
        return [TimeStep(*step) for step in zip(firsts, sizes, (*sizes[1:], 0), strict=False)]


class _Direction(Arguments):
    """The arguments shared by all time steps; `Direction` in compiled/gru.cpp has the same fields in the same order."""

    _fields_ = (
        ("hidden", ctypes.c_int64),
        ("is_low_projected", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *(
                    "tokens",
                    "projected",
                    "bias",
                    "gates",
                    "products",
                    "states",
                    "recurrent",
                    "last",
                ),
                *("d_state", "d_recurrent", "d_products", "sums", "left", "d_projected", "d_bias"),
            )
        ),
    )


class Cell:
    """One direction: `forward` for each time step in order, then `start_backward`, `backward` in reverse, `gradients`.

    Attributes:
        last: State after the last token of each sentence, float32 [batch, hidden].

    Raises:
        CompilerError: If there is no compiler.
    """

    last: Tensor

    def __init__(
        self,
        workspace: Workspace,
        order: Order,
        projected: Tensor,
        bias: Tensor,
        *,
        needs_backward: bool,
    ) -> None:
        """Start with states of zero.

        `projected` is W x + b of each distinct word, float32 or in the type of the products [distinct, 3 * hidden];
        `bias` is b' of the candidate, float32 [hidden].
        """
        self._workspace = workspace
        self._order = order
        self._projected = projected
        self._bias = bias
        library = load("gru")
        kind = str(workspace.shape.dtype).removeprefix("torch.")
        self._forward = library[f"gru_forward_{kind}"]
        self._backward = library[f"gru_backward_{kind}"]
        states = workspace.states[: order.batch]
        is_state = states.dtype == torch.float32 and not needs_backward
        if is_state:
            self.last = states
        else:
            self.last = torch.empty_like(states, dtype=torch.float32)
        self._arguments = _Direction(workspace.shape.hidden, projected.dtype != torch.float32)
        self._arguments.set(tokens=order.tokens, projected=projected, bias=bias, last=self.last)
        self._arguments.set(states=workspace.states, recurrent=workspace.recurrent)
        if needs_backward:
            self._arguments.set(gates=workspace.gates, products=workspace.products)

    def forward(self, step: TimeStep) -> None:
        """Compute the states of the next time step, or `last`, from `recurrent`, which the first step does not read."""
        self._forward(
            ctypes.byref(self._arguments),
            *map(ctypes.c_int64, (step.first, step.batch, step.next_batch)),
        )

    def start_backward(self, d_last: Tensor) -> None:
        """Start with the gradient of `last`, float32 [batch, hidden], which is overwritten."""
        workspace = self._workspace
        projected = self._projected
        self._d_state = d_last
        self._d_bias = torch.zeros_like(self._bias)
        self._arguments.set(d_state=d_last, d_bias=self._d_bias)
        self._arguments.set(d_recurrent=workspace.d_recurrent, d_products=workspace.d_products)
        if projected.dtype == torch.float32:
            self._d_projected = torch.zeros_like(projected)
            self._arguments.set(sums=self._d_projected)
            return
        # The kernel writes the rows of words with tokens, once or, if there are several, after the sum of the others.
        self._left = torch.bincount(
            self._order.tokens[self._order.num_before :], minlength=len(projected)
        )
        self._d_projected = torch.empty_like(projected)
        self._d_projected[self._left == 0] = 0.0
        self._sums = torch.empty_like(projected, dtype=torch.float32)
        self._arguments.set(sums=self._sums, left=self._left, d_projected=self._d_projected)

    def backward(self, step: TimeStep) -> None:
        """Compute `d_products` from `d_recurrent` of the next time step."""
        self._backward(
            ctypes.byref(self._arguments),
            *map(ctypes.c_int64, (step.first, step.batch, step.next_batch)),
        )

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of `projected` and of the candidate's bias."""
        return self._d_projected, self._d_bias
