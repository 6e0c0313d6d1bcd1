"""Triton's kernels against their formulas in torch; `test_triton` runs these tests with `TRITON_INTERPRET=1`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysent.kernels import row_adam
from raysent.kernels.cell_kernels import TorchCells
from raysent.kernels.row_adam import RowAdam
from raysent.kernels.triton_cells import TritonCells
from raysent.kernels.triton_rows import TritonRows

# Triton 3.9 says that its next version computes otherwise by default.
pytestmark = pytest.mark.filterwarnings("ignore")

# The tensors of each kernel with their sizes in states, 0 for a bias; and those in the type of the products.
KERNELS = {
    "after_forward": {"gates": 3, "products": 3, "bias": 0, "before": 1, "after": 1, "low_after": 1},
    "after_backward": {
        "gates": 3, "products": 3, "bias": 0, "before": 1, "d_states": 1, "carried": 1, "carry": 1,
    },
    "gates_forward": {"gates": 3, "products": 2, "before": 1, "reset_states": 1},
    "state_forward": {"gates": 3, "product": 1, "bias": 0, "before": 1, "after": 1, "low_after": 1},
    "state_backward": {"gates": 3, "before": 1, "d_states": 1, "carried": 1, "carry": 1},
    "gates_backward": {"gates": 3, "d_reset_states": 1, "before": 1, "carry": 1},
}  # fmt: skip
LOW = {"gates", "products", "product", "low_after", "carried", "reset_states", "d_reset_states"}


def buffers(name, *, directions, rows, hidden, dtype):
    """Tensors of one kernel as a loop has them: time steps of longer buffers."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for tensor, parts in KERNELS[name].items():
        if not parts:
            made[tensor] = torch.randn(directions, hidden, generator=generator)
            continue
        values = torch.rand(directions, 3, rows, parts * hidden, generator=generator)
        made[tensor] = values.to(dtype if tensor in LOW else torch.float32)[:, 1]
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_triton_kernel_of_a_cell_is_the_formula(name, dtype):
    """Every tensor afterwards, at a size that fills no block and one that fills several."""
    for hidden in (5, 300):
        sizes = {"directions": 2, "rows": 3, "hidden": hidden, "dtype": dtype}
        ours, expected = buffers(name, **sizes), buffers(name, **sizes)
        getattr(TritonCells(), name)(**ours)
        getattr(TorchCells(), name)(**expected)
        # The same value may be rounded to either neighbour.
        tolerance = 1e-5 if dtype == torch.float32 else 8e-3
        for tensor, values in expected.items():
            torch.testing.assert_close(ours[tensor], values, rtol=tolerance, atol=tolerance)


def test_triton_kernels_pass_their_own_check():
    """What a GPU runs once before it is used."""
    TritonCells().check(torch.device("cpu"))


def test_triton_updates_rows_as_torch_does(monkeypatch):
    """Several steps with other rows and rates, a dense gradient, and the flush of all rows."""
    random = np.random.default_rng(0)
    tables = []
    for kernels in (None, TritonRows()):
        monkeypatch.setattr(row_adam, "triton_rows", lambda _, kernels=kernels: kernels)
        weight = torch.nn.Parameter(torch.ones(7, 300))
        tables.append(RowAdam(weight, learning_rate=0.1, is_compiled=False))
    for number in range(9):
        rows = torch.from_numpy(np.sort(random.choice(7, size=3, replace=False)))
        values = torch.from_numpy(random.normal(size=(3, 300)).astype(np.float32))
        for adam in tables:
            adam.learning_rate = 0.1 / (1 + number)
            adam.catch_up(rows)
            sparse = torch.sparse_coo_tensor(rows[None], values, (7, 300), is_coalesced=True)
            adam.weight.grad = sparse if number != 4 else sparse.to_dense()
            adam.step()
    for adam in tables:
        adam.flush()
    one, other = (adam.state_dict() for adam in tables)
    torch.testing.assert_close(tables[1].weight.data, tables[0].weight.data, rtol=1e-5, atol=1e-6)
    for name in ("mean", "square", "last", "drift"):
        torch.testing.assert_close(other[name], one[name], rtol=1e-5, atol=1e-7)


def test_triton_kernels_of_rows_pass_their_own_check():
    """What a GPU runs once before it is used."""
    row_adam._check(TritonRows(), torch.device("cpu"))
