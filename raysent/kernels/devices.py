"""Devices: the one that computes, asynchronous copies, and the precision of float32 products.

A GPU computes asynchronously, so that the next batch is prepared in the meantime. Some operations synchronize: a copy
from pageable memory, `item`, `nonzero`, and every operation whose output shape depends on values.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysent.errors import ConfigError
from raysent.kernels.device_choice import chosen_device, usable_gpus
from raysent.platforms import cpu_info

# Whether tests take the paths of a GPU on this CPU.
_acts_as_gpu = False


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Compute inside the block with so many threads; their number decides in which order sums are taken."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def default_device() -> torch.device:
    """Return the current GPU, or the CPU where there is none or it is chosen.

    Raises:
        ConfigError: If GPUs are chosen, and there is none.
    """
    if usable_gpus(1) and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if chosen_device() == "cuda":
        raise ConfigError(
            "device cuda: must be a device of this machine, on which PyTorch finds no GPU; choose cpu"
        )
    return torch.device("cpu")


def to_device(values: npt.NDArray[Any] | Tensor, device: torch.device | None) -> Tensor:
    """Return integers as an int64 tensor, or a tensor as it is, on a device without synchronization; None: the CPU."""
    tensor = values
    if not isinstance(tensor, Tensor):
        tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
    if device is not None and device.type == "cuda" and tensor.device.type == "cpu":
        # torch keeps the pinned memory until the copy is done.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def to_device_together(
    arrays: Mapping[str, npt.NDArray[Any]], device: torch.device | None
) -> dict[str, Tensor]:
    """Return arrays of integers below 2^31 as int64 tensors on a device, by one copy without synchronization."""
    if device is None or not is_gpu(device) or device.type == "cpu":
        return {name: to_device(values, device) for name, values in arrays.items()}
    sizes = [values.size for values in arrays.values()]
    # Half as many bytes are copied, and widened on the device.
    joined = np.empty(sum(sizes), dtype=np.int32)
    np.concatenate([values.reshape(-1) for values in arrays.values()], out=joined, casting="unsafe")
    together = to_device(torch.from_numpy(joined), device).long()
    parts = torch.split(together, sizes)
    return {
        name: part.view(values.shape)
        for part, (name, values) in zip(parts, arrays.items(), strict=True)
    }


def in_float32(values: Tensor) -> Tensor:
    """Return values in float32; what is in it already takes no operation."""
    if values.dtype == torch.float32:
        return values
    return values.float()


def is_gpu(device: torch.device) -> bool:
    """Return whether a device computes as GPUs do: by launches that cost time, and without reading values meanwhile."""
    return _acts_as_gpu or device.type != "cpu"


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Compute inside the block on a GPU with algorithms that give the same bits in each run, where PyTorch has them.

    On a CPU they do in any case, with the same number of threads.
    """
    if device.type != "cuda":
        yield
        return
    # cuBLAS reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
    before = torch.get_deterministic_debug_mode()
    settings: Any = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    # All memory is written before it is read.
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        settings.fill_uninitialized_memory = fills


@contextmanager
def acting_as_gpu() -> Iterator[None]:
    """Let the CPU take inside the block what is decided for GPUs, so that it can be tested without one."""
    global _acts_as_gpu  # noqa: PLW0603 - of the whole process, as a GPU is
    before = _acts_as_gpu
    _acts_as_gpu = True
    try:
        yield
    finally:
        _acts_as_gpu = before


def product_dtype(device: torch.device) -> torch.dtype:
    """Return the type of the products: autocast's, or float32."""
    is_enabled = torch.is_autocast_enabled(device.type)
    if is_enabled:
        return torch.get_autocast_dtype(device.type)
    return torch.float32


def set_matmul_precision() -> str:
    """Set the fastest float32 products of full accuracy, for the whole process.

    With `medium`, torch computes float32 products on the CPU by oneDNN, about twice as fast as its default library on
    AMD. On a CPU with AMX this mode multiplies in bfloat16, and on a GPU it rounds float32 inputs, so it is not used
    there.

    Returns:
        The precision, for the record of the run: `medium` (oneDNN, float32 accuracy) or `highest`.
    """
    flags = cpu_info("flags").split()
    is_exact = "avx512_bf16" in flags and not any(flag.startswith("amx") for flag in flags)
    has_gpu = usable_gpus(1) and torch.cuda.is_available()
    precision = "medium" if is_exact and not has_gpu else "highest"
    torch.set_float32_matmul_precision(precision)
    return precision


def multiplies_in_bfloat16() -> bool:
    """Return whether the CPU has instructions for products in bfloat16; False on other systems than Linux."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(cpu_info("flags").split())
