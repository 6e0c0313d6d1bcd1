"""The number of trials that share one GPU: as many of the largest trial as fit into its memory, at most four.

One small trial does not fill a large GPU, which mostly waits for one time step of a recurrence after another; several
side by side do. In: a search space and the cluster's resources, as plain values. No GPU is queried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysent.sweeps.space import SearchSpace
from raysent.training.memory import GIB, estimate_bytes
from raysent.training.run import RunConfig

# Ray's name of a GPU -> its memory; the smallest where models of several sizes share a name.
GPU_BYTES = {
    "T4": 15 * GIB,
    "P100": 16 * GIB,
    "V100": 16 * GIB,
    "A10G": 22 * GIB,
    "L4": 22 * GIB,
    "A100": 39 * GIB,
    "L40S": 44 * GIB,
    "A100-40G": 39 * GIB,
    "A100-80G": 79 * GIB,
    "H100": 79 * GIB,
    "H200": 140 * GIB,
    "B200": 178 * GIB,
}
ACCELERATOR = "accelerator_type:"

# More trials gain little: two to four recurrences fill the gaps that one leaves.
MAX_TRIALS = 4
# The fraction of a GPU's memory that is planned with, and the factor on a trial's memory that allows for fragmentation.
_USABLE, _MARGIN = 0.9, 2.0
# A process's CUDA context, with its libraries and their workspaces.
_CONTEXT_BYTES = GIB


def trials_per_gpu(space: SearchSpace, resources: Mapping[str, float]) -> int:
    """Return how many trials of a space share each GPU of a cluster.

    Args:
        space: The search space.
        resources: Ray's resources by name, which include the models of the GPUs.

    Returns:
        At least 1; 1 where the memory of a GPU is not known.
    """
    kinds = [name.removeprefix(ACCELERATOR) for name in resources if name.startswith(ACCELERATOR)]
    if not kinds or any(kind not in GPU_BYTES for kind in kinds):
        return 1
    need = max(trial_bytes(space.config(params)) for params in _edges(space))
    return share_gpu(min(GPU_BYTES[kind] for kind in kinds), need)


def share_gpu(gpu_bytes: int, need_bytes: int) -> int:
    """Return how many trials that need `need_bytes` each fit on one GPU: 1 to 4."""
    return max(1, min(MAX_TRIALS, int(_USABLE * gpu_bytes / (_MARGIN * need_bytes))))


def trial_bytes(config: RunConfig) -> int:
    """Return about how many bytes of a GPU's memory a run takes, as its encoders and objective answer."""
    return _CONTEXT_BYTES + estimate_bytes(config)


def _edges(space: SearchSpace) -> list[dict[str, Any]]:
    """Return parameters that include both ends of every domain; no parameters where nothing is searched."""
    return (list(space.edges()) if space.domains else []) or [{}]
