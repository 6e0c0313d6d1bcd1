"""A GRU over padded groups as a loop over time steps, forward and backward, in memory that is the same at every step.

    after:   r, z = sigmoid(x + U h),  c = tanh(x_c + r * (U_c h + b')),  h' = c + z * (h - c)
    before:  r, z = sigmoid(x + U h),  c = tanh(x_c + U_c (r * h) + b'),  h' = c + z * (h - c)

x is the projected input with all biases but b', blocks r, z, c. A time step is one product `after` and two `before`,
and what is between products, which `cell_kernels` has as one launch each on a GPU. Both directions are computed
together. The gates replace the inputs that they were computed from, and gradients replace the gates, so that a group
keeps seven numbers for each number of a state.

The launches of all time steps are recorded and replayed as one, see `recordings`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysent.kernels.cell_kernels import CellKernels, cell_kernels
from raysent.kernels.padded_recurrence import GroupRun, RunShape


class LoopRun(GroupRun):
    """A group by raysent's loop.

    Buffers are [directions, time, rows, size]; those with one time step more have the state before the first word
    first.
    """

    def __init__(self, shape: RunShape, weights: Sequence[Tensor], *, resets_before: bool) -> None:
        """Allocate the buffers.

        Args:
            shape: Sizes and types; `inputs` are three times `hidden`.
            weights: Of each direction U [3 * hidden, hidden] and b' [hidden].
            resets_before: Whether the reset gate acts before the product.
        """
        super().__init__(shape, weights)
        self._resets_before = resets_before
        self._kernels: CellKernels = cell_kernels(shape.device)
        hidden = shape.hidden
        dtype = shape.dtype
        steps = (shape.directions, shape.length, shape.rows)
        with torch.inference_mode(False):
            self._weight = self._new(shape.directions, 3 * hidden, hidden)
            self._bias = self._new(shape.directions, hidden, dtype=torch.float32)
            self._all_states = self._new(
                shape.directions, shape.length + 1, shape.rows, hidden, dtype=torch.float32
            )
            # The same in the type of the products.
            self._low_states = self._all_states
            if dtype != torch.float32:
                self._low_states = self._new(shape.directions, shape.length + 1, shape.rows, hidden)
            # U h of each time step, or r * h and room for two products.
            self._products = self._new(*steps, hidden if resets_before else 3 * hidden)
            step = (shape.directions, shape.rows)
            self._gate_products = self._new(*step, 2 * hidden)
            self._product = self._new(*step, hidden)
            self._carry = self._new(*step, hidden, dtype=torch.float32)
        self._gradients: list[Tensor] = []

    def _new(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(shape, dtype=dtype or self.shape.dtype, device=self.shape.device)

    @property
    def state_dtype(self) -> torch.dtype:
        """States are float32."""
        return torch.float32

    @property
    def states(self) -> Sequence[Tensor]:
        """State after each word."""
        return [self._all_states[:, 1:]]

    @property
    def d_inputs(self) -> Sequence[Tensor]:
        """Gradient of the inputs, in their own memory."""
        return [self.inputs]

    @property
    def d_initial(self) -> Tensor | None:
        """Gradient of the states before the first word."""
        return None if self.initial is None else self._carry

    @property
    def d_weights(self) -> Sequence[Tensor | None]:
        """Gradient of each direction's U and b'."""
        return [
            gradient if is_trained else None
            for gradient, is_trained in zip(self._gradients, self.is_trained, strict=True)
        ]

    @torch.no_grad()
    def set_weights(self, weights: Sequence[Tensor]) -> None:
        """Copy the parameters."""
        parts = [part for pair in zip(self._weight, self._bias, strict=True) for part in pair]
        torch._foreach_copy_(parts, [weight.detach() for weight in weights])

    @torch.no_grad()
    def _compute_forward(self) -> None:
        if self.initial is None:
            self._all_states[:, 0].zero_()
        else:
            self._all_states[:, 0].copy_(self.initial)
        if self._low_states is not self._all_states:
            self._low_states[:, 0].copy_(self._all_states[:, 0])
        columns = self._weight.transpose(1, 2)
        for time in range(self.shape.length):
            if self._resets_before:
                self._step_before(time, columns)
            else:
                self._step_after(time, columns)

    def _step_after(self, time: int, columns: Tensor) -> None:
        products = self._products[:, time]
        torch.bmm(self._low_states[:, time], columns, out=products)
        self._kernels.after_forward(
            self.inputs[:, time],
            products,
            self._bias,
            self._all_states[:, time],
            self._all_states[:, time + 1],
            self._low_states[:, time + 1],
        )

    def _step_before(self, time: int, columns: Tensor) -> None:
        hidden = self.shape.hidden
        reset_states = self._products[:, time]
        torch.bmm(self._low_states[:, time], columns[:, :, : 2 * hidden], out=self._gate_products)
        self._kernels.gates_forward(
            self.inputs[:, time], self._gate_products, self._all_states[:, time], reset_states
        )
        torch.bmm(reset_states, columns[:, :, 2 * hidden :], out=self._product)
        self._kernels.state_forward(
            self.inputs[:, time],
            self._product,
            self._bias,
            self._all_states[:, time],
            self._all_states[:, time + 1],
            self._low_states[:, time + 1],
        )

    @torch.no_grad()
    def _compute_backward(self) -> None:
        hidden = self.shape.hidden
        self._carry.zero_()
        self._product.zero_()
        for time in reversed(range(self.shape.length)):
            gates = self.inputs[:, time]
            products = self._products[:, time]
            before = self._all_states[:, time]
            if not self._resets_before:
                self._kernels.after_backward(
                    gates,
                    products,
                    self._bias,
                    before,
                    self.d_states[:, time],
                    self._product,
                    self._carry,
                )
                torch.bmm(products, self._weight, out=self._product)
                continue
            self._kernels.state_backward(
                gates, before, self.d_states[:, time], self._product, self._carry
            )
            torch.bmm(gates[..., 2 * hidden :], self._weight[:, 2 * hidden :], out=self._product)
            self._kernels.gates_backward(gates, self._product, before, self._carry)
            torch.bmm(gates[..., : 2 * hidden], self._weight[:, : 2 * hidden], out=self._product)
        self._carry.add_(self._product)
        self._set_d_weights()

    def _set_d_weights(self) -> None:
        """Compute the gradients of the weights, each as one product over all time steps."""
        hidden = self.shape.hidden
        before = self._low_states[:, :-1].flatten(1, 2)
        inputs = self.inputs.flatten(1, 2)
        products = self._products.flatten(1, 2)
        if self._resets_before:
            d_gates = torch.bmm(inputs[..., : 2 * hidden].transpose(1, 2), before)
            d_candidate = torch.bmm(inputs[..., 2 * hidden :].transpose(1, 2), products)
            d_weight = torch.cat([d_gates, d_candidate], dim=1)
            d_bias = inputs[..., 2 * hidden :].float().sum(dim=1)
        else:
            d_weight = torch.bmm(products.transpose(1, 2), before)
            d_bias = products[..., 2 * hidden :].float().sum(dim=1)
        self._gradients = [part for pair in zip(d_weight, d_bias, strict=True) for part in pair]
