"""Kernels in Triton, which PyTorch's builds for CUDA bring along; everything works without them too.

The other files of this folder import Triton, which takes a second, so they are read where a GPU first needs one:

    kernels = load_source("cells")    # a module; raises ImportError where Triton is not installed

With `TRITON_INTERPRET=1` in the environment at that moment they run on a CPU, without being compiled.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def load_source(name: str) -> ModuleType:
    """Return the kernels of a file of this folder, as a module of its own at each call.

    Args:
        name: The file's name without suffix.

    Raises:
        ImportError: If Triton is not installed.
    """
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: must be a file of kernels")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
