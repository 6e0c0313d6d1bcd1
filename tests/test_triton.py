"""Triton's kernels against the formulas in torch, by Triton's interpreter; and that they compile for GPUs.

Both need Triton, which PyTorch's builds for a CPU do not bring along: `pip install 'raysent[triton]'`.
"""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from raysent.kernels import cell_kernels as cells
from raysent.kernels import triton_sources
from raysent.kernels.cell_kernels import TorchCells
from raysent.kernels.triton_cells import TritonCells

has_triton = pytest.mark.skipif(
    triton_sources.find_spec("triton") is None, reason="needs Triton: pip install 'raysent[triton]'"
)
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


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels that Triton interprets."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield TritonCells()


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


@has_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_triton_kernel_of_a_cell_is_the_formula(interpreted, name, dtype):
    """Every tensor afterwards, at a size that fills no block and one that fills several."""
    for hidden in (5, 300):
        sizes = {"directions": 2, "rows": 3, "hidden": hidden, "dtype": dtype}
        ours, expected = buffers(name, **sizes), buffers(name, **sizes)
        getattr(interpreted, name)(**ours)
        getattr(TorchCells(), name)(**expected)
        # The same value may be rounded to either neighbour.
        tolerance = 1e-5 if dtype == torch.float32 else 8e-3
        for tensor, values in expected.items():
            torch.testing.assert_close(ours[tensor], values, rtol=tolerance, atol=tolerance)


@has_triton
def test_triton_kernels_pass_their_own_check(interpreted):
    """What a GPU runs once before it is used."""
    interpreted.check(torch.device("cpu"))


@has_triton
@pytest.mark.parametrize("capability", [75, 90])
def test_triton_kernels_compile_without_a_gpu(capability, monkeypatch):
    """To code of a T4 and of an H200, in the types that each has."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    script = Path(__file__).with_name("compile_triton.py")
    command = [sys.executable, str(script), str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(KERNELS)


def test_a_gpu_without_triton_takes_the_formulas_and_says_so(monkeypatch, caplog):
    """Once, with what is missing; so does one that cannot compile."""
    gpu = torch.device("cuda", 0)
    for reason, prepare in {
        "none is installed": lambda: monkeypatch.setattr(
            triton_sources, "find_spec", lambda _: None
        ),
        "no C compiler": lambda: _refuse(monkeypatch, RuntimeError("no C compiler\nsecond line")),
    }.items():
        cells.cell_kernels.cache_clear()
        caplog.clear()
        prepare()
        with caplog.at_level(logging.WARNING, logger="raysent"):
            found = [cells.cell_kernels(gpu) for _ in range(2)]
        assert [type(kernels) for kernels in found] == [TorchCells] * 2
        [message] = [record.getMessage() for record in caplog.records]
        assert reason in message
        assert "\n" not in message
    _refuse(monkeypatch, torch.OutOfMemoryError("full"))
    cells.cell_kernels.cache_clear()
    with pytest.raises(torch.OutOfMemoryError):
        cells.cell_kernels(gpu)
    cells.cell_kernels.cache_clear()


def _refuse(monkeypatch, error):
    def check(self, device):
        raise error

    monkeypatch.setattr(triton_sources, "find_spec", lambda _: object())
    monkeypatch.setattr(TritonCells, "check", check)


def test_both_kinds_of_cells_have_the_same_methods():
    """With the same parameters."""
    for name, tensors in KERNELS.items():
        ours, theirs = (
            inspect.signature(getattr(kind, name)) for kind in (TorchCells, TritonCells)
        )
        assert ours == theirs
        assert [*ours.parameters][1:] == [*tensors]
