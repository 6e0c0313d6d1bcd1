"""Compiled kernels for tests, which machines without a compiler skip."""

from __future__ import annotations

import pytest

from raysent.errors import CompilerError
from raysent.kernels.native import load


def need_kernel(name: str, *, implementation: str = "compiled") -> None:
    """Skip a test of the compiled implementation where the kernel cannot be built."""
    if implementation == "compiled":
        try:
            load(name)
        except CompilerError as error:
            pytest.skip(str(error))
