"""Where a model computes, and how a batch comes there without waiting.

Work is given to a GPU and not waited for, so that the next batch is laid out while the last one is computed. That holds
only while nothing asks for a value: a copy from memory that the system may move does, as do `item`, `nonzero` and
whatever else has a shape that depends on values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def default_device() -> torch.device:
    """Return the GPU where there is one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def on_device(values: npt.NDArray[Any], device: torch.device | None) -> Tensor:
    """Return values as int64 on a device; None is the CPU, where nothing is copied that need not be."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
    if device is not None and device.type == "cuda":
        # Pinned memory is kept by torch until the copy is done.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
