"""What runs use of a GPU's memory: measured, kept in the cache for later runs of their kind, and said where it is full.

Estimates count tensors; what a run really holds also depends on the kernels of a GPU and on what its libraries keep.
The ratio of the two is kept for each kind of run, which is encoders, objective and model of the GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from raysent.errors import RaysentError, TrainingError
from raysent.models.config import towers
from raysent.storage import cache_folder, content_key, read_json, write_json
from raysent.training.memory import estimate_bytes, show_bytes
from raysent.training.run import RunConfig

_FOLDER = "gpu_use"


@contextmanager
def measured_use(config: RunConfig, device: torch.device) -> Iterator[None]:
    """Measure the memory that a run takes of a GPU inside the block, and keep it for later runs of its kind.

    Raises:
        TrainingError: If the GPU's memory is full.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except torch.OutOfMemoryError:
        raise TrainingError(_full(config, device)) from None
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        keep_use(config, name, torch.cuda.max_memory_allocated(device))


def _full(config: RunConfig, device: torch.device) -> str:
    size = config.training.batch_size
    memory = "the GPU's memory"
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        memory += f", {show_bytes(total)}, of which others may hold a part"
    return (
        f"training.batch_size: a step must fit into {memory}; given {size}, which does not; lower it, or set "
        "training.accumulate, which computes a step in parts"
    )


def keep_use(config: RunConfig, gpu: str, num_bytes: int) -> None:
    """Keep how many bytes a run took of a GPU, as part of its estimate; the largest of several counts."""
    ratio = max(num_bytes / estimate_bytes(config), use_ratio(config, gpu) or 0.0)
    path = _path(config, gpu)
    with contextlib.suppress(RaysentError, OSError):  # only the next sweep would have had it
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"ratio": ratio})


def use_ratio(config: RunConfig, gpu: str) -> float | None:
    """Return how many times their estimate runs of this kind took on such a GPU; None if none has been measured."""
    with contextlib.suppress(RaysentError, OSError, TypeError, ValueError, KeyError):
        ratio = float(read_json(_path(config, gpu))["ratio"])
        if 0 < ratio < float("inf"):
            return ratio
    return None


def _path(config: RunConfig, gpu: str) -> Path:
    kinds = [
        tower.type for tower in towers(config.encoder, config.second_encoder, config.objective)
    ]
    key = content_key(kinds, config.objective.type, config.training.precision, gpu)
    return cache_folder() / _FOLDER / f"{key}.json"
