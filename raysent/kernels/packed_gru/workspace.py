"""Buffers of one direction of one tower, kept between steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

ROWS = 16  # the rows of one product are a multiple of this


TOKENS = 256  # the tokens that one weight gradient adds up, also


_SPARE = 1.25  # a new workspace has room for longer batches to come


@dataclass(frozen=True)
class Shape:
    """What a workspace is for.

    Attributes:
        hidden: Size of a state.
        low: Type of the products.
        device: Where they are computed.
        tokens: Tokens that are kept for a backward; where none follows, the sentences.
        batch: Sentences.
    """

    hidden: int
    low: torch.dtype
    device: torch.device
    tokens: int
    batch: int

    @property
    def spare(self) -> Shape:
        """The same with room for longer batches."""
        return Shape(self.hidden, self.low, self.device, int(self.tokens * _SPARE) + TOKENS, self.batch + ROWS)

    def holds(self, other: Shape) -> bool:
        """Return whether a workspace of this shape serves another."""
        is_alike = (self.hidden, self.low, self.device) == (other.hidden, other.low, other.device)
        return is_alike and self.tokens >= other.tokens + TOKENS and self.batch >= other.batch + ROWS


class Workspace:
    """Buffers from a forward to its backward; rows are tokens, time-major, or sentences where nothing is kept.

    Attributes:
        shape: What it is for.
        gates: r, z and c after their non-linearity, float32 [tokens, 3 * hidden].
        products: U_c h + b' of the candidate, float32 [tokens, hidden].
        states: State before each token, float32 [tokens, hidden].
        low_states: The same as the products read it; `states` itself in float32.
        d_products: Gradient of U h, in the products' type [tokens, 3 * hidden]; `gates` itself in float32.
        step: One time's U h, in the products' type [batch, 3 * hidden].
        d_step: One time's gradient through U, in the products' type [batch, hidden].
    """

    def __init__(self, shape: Shape) -> None:
        """Make room; a page that is never written is never taken."""
        self.shape = shape
        hidden, low = shape.hidden, shape.low
        self.gates = self._rows(shape.tokens, 3 * hidden)
        self.products = self._rows(shape.tokens, hidden)
        self.states = self._rows(shape.tokens, hidden)
        is_low = low != torch.float32
        self.low_states = self._rows(shape.tokens, hidden, low) if is_low else self.states
        self.d_products = self._rows(shape.tokens, 3 * hidden, low) if is_low else self.gates
        self.step = self._rows(shape.batch, 3 * hidden, low)
        self.d_step = self._rows(shape.batch, hidden, low)

    def _rows(self, count: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        # Kept for later steps, which may want gradients where this one does not.
        with torch.inference_mode(False):
            return torch.zeros(count, size, dtype=dtype, device=self.shape.device)


class Workspaces:
    """The workspaces of one encoder: as many as it uses at once, gone when it is."""

    def __init__(self) -> None:
        self._free: list[Workspace] = []

    def take(self, shape: Shape) -> Workspace:
        """Return a workspace that nobody uses, a kept one where it fits; one that does not is forgotten."""
        while self._free:
            room = self._free.pop()
            if room.shape.holds(shape):
                return room
        return Workspace(shape.spare)

    def give_back(self, room: Workspace) -> None:
        """Keep a workspace for the next who needs one."""
        self._free.append(room)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an empty one: a copied encoder has buffers of its own."""
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Travel without buffers."""
        return type(self), ()
