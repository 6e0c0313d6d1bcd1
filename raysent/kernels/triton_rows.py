"""The updates of word tables by Triton, one launch each; see `row_adam` for the formulas.

Triton is imported at the first use, not with this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from raysent.kernels.triton_sources import load_source

_BLOCK = 256
_WINDOW_BLOCK = 512


@dataclass(frozen=True)
class RowTable:
    """A table and its moments, whose rows are updated in place.

    Attributes:
        weight: Values, float32 [rows, dim].
        mean: First moments [rows, dim].
        square: Second moments [rows, dim].
        last: Step of each row's last update [rows].
    """

    weight: Tensor
    mean: Tensor
    square: Tensor
    last: Tensor


@dataclass(frozen=True)
class AdamNumbers:
    """Constants of Adam.

    Attributes:
        betas: Decay of the first and second moment per step.
        eps: What is added to the root of the second moment.
        tiny: What replaces zero in denominators.
    """

    betas: tuple[float, float]
    eps: float
    tiny: float


class TritonRows:
    """The kernels, compiled at their first use."""

    @cached_property
    def _kernels(self) -> Any:
        return load_source("rows")

    def catch_up(
        self, table: RowTable, rows: Tensor, drift: Tensor, num_steps: int, numbers: AdamNumbers
    ) -> None:
        """Update rows, each given once, to their values in dense Adam after `num_steps` steps."""
        if not len(rows):
            return
        self._kernels.catch_up[(len(rows),)](
            rows,
            table.weight,
            table.mean,
            table.square,
            table.last,
            drift,
            drift.shape[1],
            num_steps,
            math.log(numbers.betas[0]),
            math.log(numbers.betas[1]),
            numbers.eps,
            numbers.tiny,
            table.weight.shape[1],
            BLOCK=_BLOCK,
        )

    def step(
        self,
        table: RowTable,
        rows: Tensor,
        gradient: Tensor,
        num_steps: int,
        rate: float,
        correction: float,
        numbers: AdamNumbers,
    ) -> None:
        """Perform step `num_steps` on rows that are up to date, each given once with its gradient."""
        if not len(rows):
            return
        self._kernels.step[(len(rows),)](
            rows,
            gradient,
            table.weight,
            table.mean,
            table.square,
            table.last,
            num_steps,
            rate,
            correction,
            *numbers.betas,
            numbers.eps,
            table.weight.shape[1],
            BLOCK=_BLOCK,
        )

    def extend_drift(
        self, drift: Tensor, decay: Tensor, num_steps: int, size: float, size_of_eps: float
    ) -> None:
        """Add a step to the drift of rows whose last gradient was in the window before it."""
        window = decay.shape[1]
        first = max(0, num_steps - window)
        count = num_steps - first
        self._kernels.extend_drift[(1,)](
            drift,
            drift.shape[1],
            decay,
            window,
            first,
            count,
            window - count,
            size,
            size_of_eps,
            BLOCK=_WINDOW_BLOCK,
        )
