"""Dense Adam on a word table at the cost of the rows with a gradient: the same weights, without touching other rows.

Dense Adam changes every row at every step, because its moments decay after a gradient. Between two gradients of a row,
at steps l and l + k, the sum of the changes has a closed form:

    w -= m * S / (sqrt(v) + eps'),   m *= beta1^k,   v *= beta2^k
    S     = sum_{j=1..k} c_{l+j} rho^j,   rho = beta1 / sqrt(beta2),   c_s = lr_s sqrt(1 - beta2^s) / (1 - beta1^s)
    eps'  = eps * the mean of sqrt(1 - beta2^{l+j}) / beta2^{j/2} under the same weights c_{l+j} rho^j

S and eps' depend on l only, so two numbers per step are enough for all rows, under any learning-rate schedule. A row is
updated when it is about to be read; `flush` updates all rows.

Source: Kingma and Ba, 2015, algorithm 1, summed over the steps without a gradient.
Differs: eps is replaced by its weighted mean between two gradients; the sum ends after 320 steps (rho^320 < 1e-14).
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from raysent.errors import ArtifactError, ConfigError
from raysent.kernels.devices import is_gpu
from raysent.kernels.native import address, try_load
from raysent.kernels.triton_rows import AdamNumbers, RowTable, TritonRows
from raysent.kernels.triton_sources import usable

_WINDOW = 320
_INITIAL_STEPS = 1024
_BETAS = (0.9, 0.999)  # decay of the first and second moment per step
_EPS = 1e-8  # added to the square root of the second moment
_RHO = _BETAS[0] / math.sqrt(_BETAS[1])
_TINY = 1e-30  # replaces zero in denominators; not zero in float32 either
_NUMBERS = AdamNumbers(_BETAS, _EPS, _TINY)


class RowAdam:
    """Adam for one table with sparse gradients; call `catch_up`, backward, `step`, and `flush` before reading all rows.

    Attributes:
        learning_rate: May be changed before every step.
        num_steps: Number of steps so far.
    """

    def __init__(
        self, weight: nn.Parameter, *, learning_rate: float, is_compiled: bool = True
    ) -> None:
        """Start with moments of zero.

        Args:
            weight: The table [rows, dim].
            learning_rate: Step size.
            is_compiled: Whether to use the compiled kernel, if the table is on a CPU and there is a compiler.
        """
        self.weight = weight
        self.learning_rate = learning_rate
        self.num_steps = 0
        self._mean = torch.zeros_like(weight.data)
        self._square = torch.zeros_like(weight.data)
        self._last = torch.zeros(len(weight), dtype=torch.int64, device=weight.device)
        # By the step of a row's last gradient: S, and S weighted by eps' / eps.
        self._drift = torch.zeros(2, _INITIAL_STEPS, dtype=torch.float64, device=weight.device)
        lags = torch.arange(_WINDOW, 0, -1, dtype=torch.float64, device=weight.device)
        self._decay = torch.stack([_RHO**lags, _RHO**lags * _BETAS[1] ** (-lags / 2)])
        can_compile = (
            weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and weight.data.is_contiguous()
        )
        self._kernel = try_load("row_adam") if is_compiled and can_compile else None
        self._triton: TritonRows | None = None
        if weight.dtype == torch.float32 and weight.data.is_contiguous():
            self._triton = triton_rows(weight.device)

    @torch.no_grad()
    def catch_up(self, rows: Tensor) -> None:
        """Update rows to their values in dense Adam; required before they are read.

        Args:
            rows: Row indices, int64 [rows]; they may be repeated on a CPU, and must not be on a GPU.
        """
        rows = rows.contiguous()
        if self._triton is not None:
            self._triton.catch_up(self._row_table(), rows, self._drift, self.num_steps, _NUMBERS)
            return
        if self._kernel is not None:
            drift = self._drift
            (beta1, beta2) = map(ctypes.c_double, _BETAS)
            arguments = (
                ctypes.c_int64(self.num_steps),
                address(drift),
                ctypes.c_int64(drift.shape[1]),
            )
            self._kernel.row_adam_catch_up(
                *self._table(rows), *arguments, beta1, beta2, ctypes.c_double(_EPS)
            )
            return
        if not is_gpu(rows.device):
            # Rows that are up to date would not change. On a GPU this selection would synchronize.
            rows = rows[self._last.index_select(0, rows) < self.num_steps]
            if len(rows) == 0:
                return
        # In the steps since its last gradient, a row's mean and square only decay: their joint effect on the weights is
        # the sum of these steps, which `_drift` has by the step of the last gradient.
        last = self._last.index_select(0, rows)
        lag = (self.num_steps - last).double()
        size, size_of_eps = self._drift.index_select(1, last)
        eps = _EPS * size_of_eps / size.clamp(min=_TINY)
        mean = self._mean.index_select(0, rows)
        square = self._square.index_select(0, rows)
        root = square.sqrt().add_(eps.clamp(min=_TINY).to(mean.dtype)[:, None])
        weight = self.weight.data.index_select(0, rows)
        weight.sub_(mean.div(root).mul_(size.to(mean.dtype)[:, None]))
        self.weight.data.index_copy_(0, rows, weight)
        self._mean.index_copy_(0, rows, mean.mul_((_BETAS[0] ** lag).to(mean.dtype)[:, None]))
        self._square.index_copy_(0, rows, square.mul_((_BETAS[1] ** lag).to(mean.dtype)[:, None]))
        self._last.index_fill_(0, rows, self.num_steps)

    @torch.no_grad()
    def step(self) -> None:
        """Perform one step with the table's gradient, sparse, dense or None; the gradient is not changed."""
        rows, gradient = (part.contiguous() for part in self._rows_and_gradient())
        self.catch_up(rows)
        self.num_steps += 1
        beta1, beta2 = _BETAS
        correction1 = 1 - beta1**self.num_steps
        correction2 = math.sqrt(1 - beta2**self.num_steps)
        self._extend_drift(self.learning_rate * correction2 / correction1, correction2)
        rate = self.learning_rate / correction1
        if self._triton is not None:
            table = self._row_table()
            self._triton.step(table, rows, gradient, self.num_steps, rate, correction2, _NUMBERS)
            return
        if self._kernel is None:
            self._step_in_torch(rows, gradient, rate=rate, correction=correction2)
            return
        numbers = map(ctypes.c_double, (rate, correction2, beta1, beta2, _EPS))
        step = ctypes.c_int64(self.num_steps)
        self._kernel.row_adam_step(*self._table(rows), step, address(gradient), *numbers)

    def _step_in_torch(
        self, rows: Tensor, gradient: Tensor, *, rate: float, correction: float
    ) -> None:
        beta1, beta2 = _BETAS
        mean = self._mean.index_select(0, rows).mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = (
            self._square.index_select(0, rows)
            .mul_(beta2)
            .addcmul_(gradient, gradient, value=1 - beta2)
        )
        self._mean.index_copy_(0, rows, mean)
        self._square.index_copy_(0, rows, square)
        root = square.sqrt_().div_(correction).add_(_EPS)
        weight = self.weight.data.index_select(0, rows).addcdiv_(mean, root, value=-rate)
        self.weight.data.index_copy_(0, rows, weight)
        self._last.index_fill_(0, rows, self.num_steps)

    def _row_table(self) -> RowTable:
        return RowTable(self.weight.data, self._mean, self._square, self._last)

    def _table(self, rows: Tensor) -> tuple[Any, ...]:
        tensors = map(address, (self.weight.data, self._mean, self._square, self._last))
        return (
            address(rows),
            ctypes.c_int64(len(rows)),
            ctypes.c_int64(self.weight.shape[1]),
            *tensors,
        )

    def flush(self) -> None:
        """Update all rows to their values in dense Adam."""
        self.catch_up(torch.arange(len(self.weight), device=self.weight.device))

    def zero_grad(self) -> None:
        """Set the gradient to None."""
        self.weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state with which a new `RowAdam` on the same weights continues bit for bit."""
        return {
            "mean": self._mean,
            "square": self._square,
            "last": self._last,
            "drift": self._drift[:, : self.num_steps + 1].clone(),
            "num_steps": self.num_steps,
            "learning_rate": self.learning_rate,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; the weights are not part of it.

        Raises:
            ArtifactError: If the state is of a table of another shape.
        """
        if state["mean"].shape != self._mean.shape:
            given_shape = tuple(state["mean"].shape)
            shape = tuple(self._mean.shape)
            raise ArtifactError(
                f"optimizer state: must be of a table of shape {shape}; given {given_shape}; name its own run"
            )
        self.num_steps = int(state["num_steps"])
        self.learning_rate = float(state["learning_rate"])
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._last.copy_(state["last"])
        self._drift = self._drift.new_zeros(2, max(_INITIAL_STEPS, 2 * self.num_steps))
        self._drift[:, : self.num_steps + 1] = state["drift"]

    def _rows_and_gradient(self) -> tuple[Tensor, Tensor]:
        gradient = self.weight.grad
        if gradient is None:
            empty = torch.empty(0, dtype=torch.int64, device=self.weight.device)
            return empty, self.weight.data[empty]
        if not gradient.is_sparse:
            return torch.arange(len(self.weight), device=self.weight.device), gradient
        gradient = _coalesced(gradient)
        return gradient._indices()[0], gradient._values()

    def _extend_drift(self, size: float, correction2: float) -> None:
        """Add the current step, of size c_s, to the drift of rows with a last gradient in the window before it."""
        step = self.num_steps
        if step >= self._drift.shape[1]:
            self._drift = torch.cat([self._drift, torch.zeros_like(self._drift)], dim=1)
        if self._triton is not None:
            self._triton.extend_drift(self._drift, self._decay, step, size, size * correction2)
            return
        first = max(0, step - _WINDOW)
        decay = self._decay[:, _WINDOW - (step - first) :]
        self._drift[0, first:step].add_(decay[0], alpha=size)
        self._drift[1, first:step].add_(decay[1], alpha=size * correction2)


def gradient_values(parameter: nn.Parameter) -> Tensor | None:
    """Return the values of a dense or sparse gradient, to be measured or scaled in place, or None if there is none.

    Repeated rows of a sparse gradient are summed first, since the norm is that of the sums.
    """
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse:
        return gradient
    gradient = _coalesced(gradient)
    parameter.grad = gradient
    return gradient._values()


def _coalesced(gradient: Tensor) -> Tensor:
    """Return a sparse gradient with each row once; `coalesce` would be one more operation where it has."""
    if gradient.is_coalesced():
        return gradient
    return gradient.coalesce()


@lru_cache
def triton_rows(device: torch.device) -> TritonRows | None:
    """Return Triton's kernels for a GPU that has them; None where torch's operations update the rows."""
    kernels = TritonRows()
    is_usable = usable(device, "word tables", lambda: _check(kernels, device))
    if not is_usable:
        return None
    return kernels


def _check(kernels: TritonRows, device: torch.device) -> None:
    """Compile and run each kernel once.

    Raises:
        ConfigError: If the first step of a row is not that of Adam.
    """
    weight, mean, square = torch.zeros(3, 2, 3, device=device).unbind()
    table = RowTable(weight, mean, square, torch.zeros(2, dtype=torch.int64, device=device))
    rows = torch.ones(1, dtype=torch.int64, device=device)
    gradient = torch.ones(1, 3, device=device)
    drift = torch.zeros(2, 8, dtype=torch.float64, device=device)
    decay = torch.ones(2, _WINDOW, dtype=torch.float64, device=device)
    kernels.extend_drift(drift, decay, 1, 0.5, 0.25)
    kernels.catch_up(table, rows, drift, 0, _NUMBERS)
    kernels.step(table, rows, gradient, 1, 1.0, math.sqrt(1 - _BETAS[1]), _NUMBERS)
    expected = torch.tensor([[0.0] * 3, [-0.1] * 3])
    drift_values = drift[:, 0].tolist()
    if not torch.allclose(table.weight.cpu(), expected, atol=1e-5) or drift_values != [0.5, 0.25]:
        raise ConfigError("a row that is not that of the formula")
