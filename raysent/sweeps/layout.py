"""How trials share the cores and GPUs of machines: how many train at once, on what part of them, and what stays idle.

Trials side by side on one core each do more than one after another on all: threads wait for each other. A small trial
does not fill a large GPU, so several share one: as many as have room there, but where machines stand anyway no more
than it takes to give each trial a place, as an idle GPU costs the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from raysent.errors import ConfigError
from raysent.progress import messages
from raysent.sweeps.space import Limits

# Memory that a trial with workers of its own takes on the head, see `benchmarks/results/memory.md`, and a margin.
DRIVER_BYTES = 800 << 20
# Ray counts a part of a GPU in ten-thousandths.
_PARTS_OF_GPU = 10_000
_ROUNDING = 1e-6


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

    @property
    def num(self) -> int:
        """How many machines there are."""
        return len(self.shapes) or self.num_nodes or 1

    def num_fitting(self, cpus: int, gpus: float) -> int:
        """Return how many workers of this size fit, each on one machine."""
        shapes = self.shapes
        if not shapes:
            shapes = ((self.cpus // self.num, self.gpus / self.num),) * self.num
        return sum(
            min(of_cpus // cpus, math.floor(of_gpus / gpus + _ROUNDING))
            if gpus
            else of_cpus // cpus
            for of_cpus, of_gpus in shapes
        )

    def gpus_per_worker(self, workers: int, *, num_trials: int) -> float:
        """Return a worker's part of a GPU by default: workers of one trial never share one.

        Args:
            workers: Workers of each trial.
            num_trials: Trials that may train at once.
        """
        if not self.gpus:
            return 0.0
        if workers > 1:
            return 1.0
        smallest = _part_of_gpu(self.trials_per_gpu)
        if self.num_nodes is not None:
            return smallest
        at_once = min(num_trials, self.num_fitting(1, smallest))
        parts = map(_part_of_gpu, range(1, self.trials_per_gpu + 1))
        return next(part for part in parts if self.num_fitting(1, part) >= at_once)


def _part_of_gpu(num_sharing: int) -> float:
    return math.floor(_PARTS_OF_GPU / num_sharing) / _PARTS_OF_GPU


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

    @property
    def num_gpus(self) -> int:
        """GPUs that are used at once: Ray fills one with parts before it takes the next."""
        num_workers = self.concurrent * self.workers_per_trial
        if not self.gpus_per_worker:
            return 0
        if self.gpus_per_worker >= 1:
            return math.ceil(num_workers * self.gpus_per_worker)
        return math.ceil(num_workers / math.floor(1 / self.gpus_per_worker + _ROUNDING))


def layout(limits: Limits, machines: Machines, *, num_trials: int) -> Layout:
    """Share a cluster's cores and GPUs among trials: as many at once as fit, one core each, more where cores are left.

    Args:
        limits: What the space asks for.
        machines: The cluster.
        num_trials: How many are left to train.

    Raises:
        ConfigError: If one trial alone does not fit.
    """
    workers = limits.workers_per_trial
    most = num_trials if limits.concurrent is None else min(num_trials, limits.concurrent)
    gpus_per_worker = limits.gpus_per_worker
    if gpus_per_worker is None:
        gpus_per_worker = machines.gpus_per_worker(workers, num_trials=max(1, most))
    num_fitting = machines.num_fitting(1, gpus_per_worker) // workers
    if num_fitting < 1:
        raise ConfigError(
            f"limits: one trial needs {workers} cores and {workers * gpus_per_worker:g} GPUs; there are "
            f"{machines.cpus} cores and {machines.gpus:g} GPUs; {_cure(limits, machines)}"
        )
    at_once = max(1, min(num_fitting, most))
    is_nested = limits.backend == "train"
    if limits.backend == "auto":
        is_nested = workers > 1 or gpus_per_worker > 0
    cores = _cores_per_worker(machines, at_once * workers, gpus_per_worker)
    return Layout(at_once, workers, cores, gpus_per_worker, is_nested)


def _cure(limits: Limits, machines: Machines) -> str:
    if not machines.cpus:
        return "start workers, or name those that will come: --set cluster.workers='{count: 4, cpu: 4}'"
    if limits.workers_per_trial == 1:
        return "lower limits.gpus_per_worker"
    return "lower limits.workers_per_trial or limits.gpus_per_worker"


def _cores_per_worker(machines: Machines, num_workers: int, gpus_each: float) -> int:
    """Return the cores that each of so many workers can have, where each is on one machine."""
    if machines.num_nodes is None:
        cores = machines.cpus // num_workers
        if machines.cpus_per_node is not None:
            cores = min(cores, machines.cpus_per_node)
    else:
        per_machine = math.ceil(num_workers / machines.num_nodes)
        cores = machines.cpus // machines.num_nodes // per_machine
    cores = max(1, cores)
    # A worker does not span machines: three machines of three cores hold three workers of two cores, not four.
    while cores > 1 and machines.num_fitting(cores, gpus_each) < num_workers:
        cores -= 1
    return cores


def idle_parts(plan: Layout, machines: Machines, limits: Limits, *, num_trials: int) -> list[str]:
    """Return what stays idle of machines that stand anyway, and why, a line each; none of those that are launched.

    Args:
        plan: How trials share the machines.
        machines: The machines.
        limits: What the space asks for.
        num_trials: How many trials are left to train.
    """
    lines: list[str] = []
    num_idle = int(machines.gpus) - plan.num_gpus
    if machines.num_nodes is not None:
        return lines
    if num_idle > 0:
        lines.append(
            f"{num_idle} of {machines.gpus:g} GPUs stay idle: {_why_idle(plan, limits, num_trials)}"
        )
    cores = sum(cpus for cpus, gpus in machines.shapes if not gpus)
    if plan.gpus_per_worker and cores:
        lines.append(
            f"{cores} cores of machines without a GPU stay idle: the trials train on GPUs; "
            "limits.gpus_per_worker=0 trains all of them on cores"
        )
    return lines


def _why_idle(plan: Layout, limits: Limits, num_trials: int) -> str:
    if not plan.gpus_per_worker:
        return "limits.gpus_per_worker is 0"
    if plan.concurrent == limits.concurrent:
        return f"limits.concurrent is {limits.concurrent}"
    if plan.concurrent == num_trials and limits.gpus_per_worker is not None:
        return f"limits.gpus_per_worker is {limits.gpus_per_worker:g}, and {num_trials} trials are left"
    if plan.concurrent == num_trials and plan.gpus_per_worker < 1:
        return f"{num_trials} trials are left, and {1 / plan.gpus_per_worker:.0f} share each of the others"
    if plan.concurrent == num_trials:
        return f"{num_trials} trials are left; limits.workers_per_trial gives each several"
    return "each trial needs a core, or as many workers, of its own beside a GPU"


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
