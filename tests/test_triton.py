"""Triton's kernels, by its interpreter and as they compile for GPUs; and what takes their place.

Both need Triton, which PyTorch's builds for a CPU do not bring along: `pip install 'raysent[triton]'`.
"""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton_by_interpreter import KERNELS

from raysent.kernels import cell_kernels as cells
from raysent.kernels import triton_sources
from raysent.kernels.cell_kernels import TorchCells
from raysent.kernels.triton_cells import TritonCells

has_triton = pytest.mark.skipif(
    triton_sources.find_spec("triton") is None, reason="needs Triton: pip install 'raysent[triton]'"
)


@has_triton
def test_triton_kernels_are_their_formulas_by_the_interpreter():
    """In a process of its own, since Triton decides when it is imported whether it interprets."""
    tests = Path(__file__).with_name("triton_by_interpreter.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout


@has_triton
@pytest.mark.parametrize("capability", [75, 90])
def test_triton_kernels_compile_without_a_gpu(capability, monkeypatch):
    """To code of a T4 and of an H200, in the types that each has."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    script = Path(__file__).with_name("compile_triton.py")
    command = [sys.executable, str(script), str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted([*KERNELS, "catch_up", "step", "extend_drift"])


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
