"""Where a model computes, and how a batch comes there without waiting.

Work is given to a GPU and not waited for, so that the next batch is laid out while the last one is computed. That holds
only while nothing asks for a value: a copy from memory that the system may move does, as do `item`, `nonzero` and
whatever else has a shape that depends on values.

How exactly this process multiplies float32 matrices on its CPU; set once at the start and kept in the run's record.

With precision "medium" torch hands float32 products to oneDNN, which is about twice as fast as its default library on
AMD. Where the CPU has matrix tiles (AMX) that mode multiplies in bfloat16, and where there is a GPU it rounds the
GPU's float32 products, so it is left off there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def default_device() -> torch.device:
    """Return the GPU where there is one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def to_device(values: npt.NDArray[Any], device: torch.device | None) -> Tensor:
    """Return values as int64 on a device; None is the CPU, where nothing is copied that need not be."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
    if device is not None and device.type == "cuda":
        # Pinned memory is kept by torch until the copy is done.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


_CPU_DESCRIPTION = Path("/proc/cpuinfo")


def set_matmul_precision() -> str:
    """Choose the fastest products of full float32 accuracy.

    Returns:
        The word that was set, for the record: `medium` (oneDNN, float32 accuracy) or `highest`.
    """
    word = "medium" if _is_exact_with_onednn() and not torch.cuda.is_available() else "highest"
    torch.set_float32_matmul_precision(word)
    return word


def _is_exact_with_onednn() -> bool:
    """Return whether the CPU is known to have AVX-512 and no matrix tiles; False where it cannot be known."""
    try:
        flags = next(line for line in _CPU_DESCRIPTION.read_text().splitlines() if line.startswith("flags")).split()
    except (OSError, StopIteration):
        return False
    return "avx512_bf16" in flags and not any(flag.startswith("amx") for flag in flags)
