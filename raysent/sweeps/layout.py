"""How trials share the cores and GPUs of machines: how many at once, and what each has.

One small trial does not fill a large GPU, which mostly waits for one time step of a recurrence after another; several
side by side do: as many of the largest trial as fit into its memory, at most four. Plain values in and out: no machine
is asked, but this one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from raysent.errors import ConfigError
from raysent.progress import messages
from raysent.sweeps.space import Limits, SearchSpace
from raysent.training.memory import GIB, estimate_bytes
from raysent.training.run import RunConfig

# Memory that a trial with workers of its own takes on the head: `python -m benchmarks.head_memory`, and a margin.
DRIVER_BYTES = 800 << 20
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


@dataclass(frozen=True)
class Machines:
    """What a cluster has for trials.

    Attributes:
        cpus: Cores in all.
        gpus: GPUs in all.
        cpus_per_node: Cores of the largest machine; None where there is one machine.
        trials_per_gpu: How many trials a GPU has room for.
        num_nodes: On a cluster that grows, how many alike it may grow to; workers then are packed so that no other is
            asked for.
        shapes: Cores and GPUs of each machine; empty where all are alike.
    """

    cpus: int
    gpus: float = 0.0
    cpus_per_node: int | None = None
    trials_per_gpu: int = 1
    num_nodes: int | None = None
    shapes: tuple[tuple[int, float], ...] = ()

    def num_fitting(self, cpus: int, gpus: float) -> int:
        """Return how many workers of this size fit, each on one machine."""
        shapes = self.shapes
        if not shapes:
            num = self.num_nodes or 1
            shapes = ((self.cpus // num, self.gpus / num),) * num
        return sum(
            min(of_cpus // cpus, math.floor(of_gpus / gpus + 1e-6)) if gpus else of_cpus // cpus
            for of_cpus, of_gpus in shapes
        )

    def gpus_per_worker(self, workers: int) -> float:
        """Return a worker's part of a GPU by default: workers of one trial never share one."""
        shared = self.trials_per_gpu if workers == 1 else 1
        return math.floor(10_000 / shared) / 10_000 if self.gpus else 0.0  # Ray counts in ten-thousandths


@dataclass(frozen=True)
class Layout:
    """How trials share the cluster.

    Attributes:
        concurrent: Trials at once.
        workers_per_trial: Ray Train workers of each.
        cpus_per_worker: Cores of each worker.
        gpus_per_worker: GPUs of each worker.
        is_nested: Whether a trial trains on Ray Train workers of its own, else inside a reused Tune actor.
    """

    concurrent: int
    workers_per_trial: int
    cpus_per_worker: int
    gpus_per_worker: float
    is_nested: bool


def this_machine() -> Machines:
    """Return the cores and GPUs of this machine."""
    return Machines(os.cpu_count() or 1, float(torch.cuda.device_count()))


def layout(limits: Limits, machines: Machines, *, num_trials: int) -> Layout:
    """Share a cluster's cores and GPUs among trials: as many at once as fit, one core each, more where cores are left.

    Trials side by side on one core each do more than one after another on all: threads wait for each other.

    Args:
        limits: What the space asks for.
        machines: The cluster.
        num_trials: How many are left to train.

    Raises:
        ConfigError: If one trial alone does not fit.
    """
    cpus, gpus = machines.cpus, machines.gpus
    workers = limits.workers_per_trial
    gpus_per_worker = machines.gpus_per_worker(workers) if limits.gpus_per_worker is None else limits.gpus_per_worker
    fitting = machines.num_fitting(1, gpus_per_worker) // workers
    at_once = min(fitting, num_trials)
    if fitting < 1:
        raise ConfigError(
            f"limits: one trial needs {workers} cores and {workers * gpus_per_worker:g} GPUs; there are {cpus} cores "
            f"and {gpus:g} GPUs; lower limits.workers_per_trial or limits.gpus_per_worker"
        )
    at_once = max(1, at_once if limits.concurrent is None else min(at_once, limits.concurrent))
    nested = limits.backend == "train" or (limits.backend == "auto" and (workers > 1 or gpus_per_worker > 0))
    cores = min(cpus // (at_once * workers), machines.cpus_per_node or cpus)
    if machines.num_nodes is not None:
        cores = cpus // machines.num_nodes // math.ceil(at_once * workers / machines.num_nodes)
    cores = max(1, cores)
    # A worker does not span machines: three machines of three cores hold three workers of two cores, not four.
    while cores > 1 and machines.num_fitting(cores, gpus_per_worker) < at_once * workers:
        cores -= 1
    return Layout(at_once, workers, cores, gpus_per_worker, nested)


def within_memory(found: Layout, memory_bytes: float | None) -> Layout:
    """Return a layout with so few trials at once that their processes on the head fit into its memory, and say so.

    Args:
        found: How trials share the cluster.
        memory_bytes: Memory of the head for processes; None if it is unknown.
    """
    if not found.is_nested or memory_bytes is None:
        return found
    most = max(1, int(memory_bytes // DRIVER_BYTES))
    if found.concurrent <= most:
        return found
    messages.print(
        f"{most} trials at once instead of {found.concurrent}: each needs {DRIVER_BYTES / 2**30:.1f} GiB on the head, "
        f"which has {memory_bytes / 2**30:.1f} GiB for them; more need a larger head",
        soft_wrap=True,
    )
    return replace(found, concurrent=most)


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
    # Without constraints that leave an edge, the base is what there is.
    edges = (list(space.edges()) if space.domains else []) or [{}]
    need = max(trial_bytes(space.config(params)) for params in edges)
    return share_gpu(min(GPU_BYTES[kind] for kind in kinds), need)


def share_gpu(gpu_bytes: int, need_bytes: int) -> int:
    """Return how many trials that need `need_bytes` each fit on one GPU: 1 to 4."""
    return max(1, min(MAX_TRIALS, int(_USABLE * gpu_bytes / (_MARGIN * need_bytes))))


def trial_bytes(config: RunConfig) -> int:
    """Return about how many bytes of a GPU's memory a run takes, as its encoders and objective answer."""
    return _CONTEXT_BYTES + estimate_bytes(config)
