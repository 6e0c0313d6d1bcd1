"""How trials share a cluster's cores and GPUs, in plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysent.errors import ConfigError
from raysent.search_space import Limits


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
    """

    cpus: int
    gpus: float = 0.0
    cpus_per_node: int | None = None
    trials_per_gpu: int = 1
    num_nodes: int | None = None

    def gpus_per_worker(self, workers: int) -> float:
        """Return a worker's part of a GPU where nobody says: workers of one trial never share one."""
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
    fit_by_cpu = cpus // workers
    nodes = machines.num_nodes or 1
    fit_by_gpu = math.floor(gpus / nodes / gpus_per_worker) * nodes // workers if gpus_per_worker else fit_by_cpu
    at_once = min(fit_by_cpu, fit_by_gpu, num_trials)
    if min(fit_by_cpu, fit_by_gpu) < 1:
        raise ConfigError(
            f"limits: one trial needs {workers} cores and {workers * gpus_per_worker:g} GPUs; there are {cpus} cores "
            f"and {gpus:g} GPUs; lower --workers-per-trial or --gpus-per-worker"
        )
    at_once = max(1, at_once if limits.concurrent is None else min(at_once, limits.concurrent))
    nested = limits.backend == "train" or (limits.backend == "auto" and (workers > 1 or gpus_per_worker > 0))
    cores = min(cpus // (at_once * workers), machines.cpus_per_node or cpus)
    if machines.num_nodes is not None:
        cores = cpus // machines.num_nodes // math.ceil(at_once * workers / machines.num_nodes)
    return Layout(at_once, workers, max(1, cores), gpus_per_worker, nested)
