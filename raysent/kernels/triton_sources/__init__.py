"""Kernels in Triton, which PyTorch's builds for CUDA bring along; everything works without them too.

The other files of this folder import Triton, which takes a second, so they are read where a GPU first needs one:

    kernels = load_source("cells")    # a module; raises ImportError where Triton is not installed

With `TRITON_INTERPRET=1` in the environment at that moment they run on a CPU, without being compiled.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

_log = logging.getLogger("raysent")


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


def usable(device: torch.device, what: str, check: Callable[[], None]) -> bool:
    """Return whether kernels run on a device; where a GPU lacks them, say once what is missing.

    Args:
        device: Where they are to run.
        what: What they compute, for the message.
        check: Compiles and runs them, and raises where that fails or gives something else than their formulas.
    """
    if device.type != "cuda":
        return False
    try:
        if find_spec("triton") is None:
            raise ImportError("none is installed")
        check()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Triton, a C compiler, or the driver
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        _log.warning(
            "Triton: must compile the kernels of %s for this GPU; given %s; torch's operations give the same results, "
            "in more launches",
            what,
            reason,
        )
        return False
    return True
