"""Devices: the default device, asynchronous copies, the precision of float32 products, and threads after a fork.

A GPU computes asynchronously, so that the next batch is prepared in the meantime. Some operations synchronize: a copy
from pageable memory, `item`, `nonzero`, and every operation whose output shape depends on values.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysent.kernels.compiled import cpu_info

if hasattr(os, "register_at_fork"):
    # The threads of OpenMP do not survive a fork, and a child that uses them would never return.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def default_device() -> torch.device:
    """Return the current GPU, or the CPU if there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def to_device(values: npt.NDArray[Any], device: torch.device | None) -> Tensor:
    """Return values as an int64 tensor on a device, without synchronization; None is the CPU."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
    if device is not None and device.type == "cuda":
        # torch keeps the pinned memory until the copy is done.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def set_matmul_precision() -> str:
    """Set the fastest float32 products of full accuracy, for the whole process.

    With `medium`, torch computes float32 products on the CPU by oneDNN, about twice as fast as its default library on
    AMD. On a CPU with AMX this mode multiplies in bfloat16, and on a GPU it rounds float32 inputs, so it is not used
    there.

    Returns:
        The precision, for the record of the run: `medium` (oneDNN, float32 accuracy) or `highest`.
    """
    precision = "medium" if _is_exact_with_onednn() and not torch.cuda.is_available() else "highest"
    torch.set_float32_matmul_precision(precision)
    return precision


def multiplies_in_bfloat16() -> bool:
    """Return whether the CPU has instructions for products in bfloat16; False on other systems than Linux."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(cpu_info("flags").split())


def _is_exact_with_onednn() -> bool:
    """Return whether the CPU is known to have AVX-512 and no AMX; False on other systems than Linux."""
    flags = cpu_info("flags").split()
    return "avx512_bf16" in flags and not any(flag.startswith("amx") for flag in flags)
