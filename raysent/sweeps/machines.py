"""The machines of a sweep: which stand, how many more may come, and how trials share their cores and GPUs.

One small trial does not fill a large GPU, which mostly waits for one time step of a recurrence after another; several
side by side do: as many of the largest trial as fit into its memory, at most four.

On a cluster that grows, the process that launched it sets how many workers may run at once and what each has at least:

    RAYSENT_WORKERS='{"num": 8, "CPU": 4, "GPU": 1}'
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysent.cost import Prices
from raysent.errors import ConfigError, RaysentError
from raysent.kernels.devices import default_device, usable_gpus
from raysent.platforms import num_cores
from raysent.progress import messages
from raysent.reading import parse_json
from raysent.storage import address_of, is_remote
from raysent.storage.layout import SWEEP_FILE
from raysent.storage.object_store import get_content
from raysent.sweeps.space import Limits, SearchSpace, named_files
from raysent.training.gpu_use import use_ratio
from raysent.training.memory import GIB, estimate_bytes
from raysent.training.ray_session import (
    cpus_of_largest_node,
    node_name,
    output_to_stderr,
    ray_session,
)
from raysent.training.run import RunConfig

# Memory that a trial with workers of its own takes on the head, see `benchmarks/results/memory.md`, and a margin.
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
# What was measured has seen fragmentation already.
_USABLE, _MARGIN, _MEASURED_MARGIN = 0.9, 2.0, 1.25
# A process's CUDA context, with its libraries and their workspaces.
_CONTEXT_BYTES = GIB

# A resource of machines on which drivers of trials are meant to live, as `cluster.yaml` names it; and Ray's own, of the
# head.
DRIVER_RESOURCE, HEAD_RESOURCE = "raysent_driver", "node:__internal_head__"
_LOOK_S = 60.0
WORKERS_VARIABLE = "RAYSENT_WORKERS"


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
            min(of_cpus // cpus, math.floor(of_gpus / gpus + 1e-6)) if gpus else of_cpus // cpus
            for of_cpus, of_gpus in shapes
        )

    def gpus_per_worker(self, workers: int) -> float:
        """Return a worker's part of a GPU by default: workers of one trial never share one."""
        shared = self.trials_per_gpu if workers == 1 else 1
        return (
            math.floor(10_000 / shared) / 10_000 if self.gpus else 0.0
        )  # Ray counts in ten-thousandths


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


def this_machine(space: SearchSpace | None = None) -> Machines:
    """Return the cores and GPUs of this machine, and how many trials of a space share a GPU; 1 without a space."""
    default_device()  # refuses a chosen GPU that is not there
    found = Machines(num_cores(), usable_gpus(float(torch.cuda.device_count())))
    if space is None or not found.gpus:
        return found
    gpus = [torch.cuda.get_device_properties(number) for number in range(int(found.gpus))]
    smallest = min(gpus, key=lambda gpu: gpu.total_memory)
    need_bytes, margin = _largest_need(space, getattr(smallest, "name", ""))
    shared = share_gpu(smallest.total_memory, need_bytes, margin=margin)
    return replace(found, trials_per_gpu=shared)


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
    gpus_per_worker = (
        machines.gpus_per_worker(workers)
        if limits.gpus_per_worker is None
        else limits.gpus_per_worker
    )
    fitting = machines.num_fitting(1, gpus_per_worker) // workers
    at_once = min(fitting, num_trials)
    if fitting < 1:
        raise ConfigError(
            f"limits: one trial needs {workers} cores and {workers * gpus_per_worker:g} GPUs; there are {cpus} cores "
            f"and {gpus:g} GPUs; lower limits.workers_per_trial or limits.gpus_per_worker"
        )
    at_once = max(1, at_once if limits.concurrent is None else min(at_once, limits.concurrent))
    nested = limits.backend == "train" or (
        limits.backend == "auto" and (workers > 1 or gpus_per_worker > 0)
    )
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
    return share_gpu(min(GPU_BYTES[kind] for kind in kinds), _largest_trial_bytes(space))


def _largest_trial_bytes(space: SearchSpace) -> int:
    return max(trial_bytes(space.config(params)) for params in space.edges())


def _largest_need(space: SearchSpace, gpu: str) -> tuple[int, float]:
    """Return the bytes of the largest trial of a space, and the margin that they need.

    They are what runs of its kind were measured to take on such a GPU, where all of the space were; else estimates.
    """
    configs = [space.config(params) for params in space.edges()]
    ratios = [use_ratio(config, gpu) for config in configs]
    measured = [
        _CONTEXT_BYTES + int(ratio * estimate_bytes(config))
        for config, ratio in zip(configs, ratios, strict=True)
        if ratio is not None
    ]
    if len(measured) == len(configs):
        return max(measured), _MEASURED_MARGIN
    return _largest_trial_bytes(space), _MARGIN


def share_gpu(gpu_bytes: int, need_bytes: int, *, margin: float = _MARGIN) -> int:
    """Return how many trials that need `need_bytes` each, times a margin, fit on one GPU: 1 to 4."""
    return max(1, min(MAX_TRIALS, int(_USABLE * gpu_bytes / (margin * need_bytes))))


def trial_bytes(config: RunConfig) -> int:
    """Return about how many bytes of a GPU's memory a run takes, as its encoders and objective answer."""
    return _CONTEXT_BYTES + estimate_bytes(config)


def gpu_share() -> float:
    """Return the part of a GPU that one evaluation reserves on the cluster: that of the smallest trial.

    It is 0 unless every machine with cores has GPUs that may be used.
    """
    come = workers_to_come()
    nodes = [node["Resources"] for node in _alive()] if come is None else []
    gpus = (
        [float(one.get("GPU", 0.0)) for one in nodes if one.get("CPU")]
        if come is None
        else [come.GPU]
    )
    return 1 / MAX_TRIALS if usable_gpus(min(gpus, default=0.0)) else 0.0


@dataclass(frozen=True)
class Workers:
    """The workers that a cluster may grow to.

    Attributes:
        num: At once.
        CPU: Cores that each has at least.
        GPU: GPUs that each has at least.
        accelerators: Ray's names of their GPUs, such as L4; empty if one is unknown.
    """

    num: int
    CPU: int
    GPU: float = 0.0
    accelerators: tuple[str, ...] = ()

    def machines(self, *, per_gpu: int = 1) -> Machines:
        """Return these workers as machines for trials, of which so many share a GPU."""
        gpus = usable_gpus(self.num * self.GPU)
        return Machines(self.num * self.CPU, gpus, self.CPU, per_gpu, num_nodes=self.num)

    def environment(self) -> dict[str, str]:
        """Return the environment variable that describes these workers to a sweep."""
        return {
            WORKERS_VARIABLE: json.dumps(
                {key: value for key, value in asdict(self).items() if value != ()}
            )
        }


def workers_to_come() -> Workers | None:
    """Return the workers that this process may use; None for a cluster that does not grow.

    Raises:
        ConfigError: If the variable holds something else.
    """
    given = os.environ.get(WORKERS_VARIABLE)
    if given is None:
        return None
    try:
        values = parse_json(given)
        accelerators = tuple(map(str, values.get("accelerators", ())))
        return Workers(
            int(values["num"]), int(values["CPU"]), float(values.get("GPU", 0)), accelerators
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f'{WORKERS_VARIABLE}: must look like {{"num": 8, "CPU": 4, "GPU": 1}}; given {given}'
        ) from None


def alive_nodes() -> dict[str, Mapping[str, str]]:
    """Return the nodes that are there, by name, with their labels."""
    return {node_name(node["NodeID"]): node["Labels"] for node in _alive()}


def check_files(space: SearchSpace, folder: Path) -> None:
    """See whether every node finds the files that a space names, and the run folder.

    Raises:
        ConfigError: With the first node and path of which that is not so.
    """
    needed, run = (
        named_files(space.base),
        (folder / SWEEP_FILE).absolute(),
    )
    if is_remote(address_of(folder)):
        _check_access(f"{address_of(folder)}/{SWEEP_FILE}")
    else:
        needed.append(run)

    def missing(paths: list[Path]) -> list[Path]:
        return [path for path in paths if not path.exists()]

    # A function inside a function is sent whole: the node need not import all of this for it.
    for node, paths in _on_each_node(missing, needed):
        for path in paths or ():
            what = "the run folder" if path == run else str(path)
            fix = "put it on storage that all nodes share, or on S3 and name it s3://…"
            raise ConfigError(f"address: node {node} does not find {what}; {fix}")


def _on_each_node(function: Callable[[Any], Any], argument: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each node with cores and what a function returns there, None if it takes too long."""
    look = ray.remote(num_cpus=0)(function)
    nodes = [node["NodeID"] for node in _alive() if node["Resources"].get("CPU")]
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    asked = [look.options(scheduling_strategy=place).remote(argument) for place in places]
    for node, answer in zip(nodes, asked, strict=True):
        try:
            yield node_name(node), ray.get(answer, timeout=_LOOK_S)
        except ray.exceptions.GetTimeoutError:
            yield node_name(node), None
        except ray.exceptions.RayError:  # a node that has gone meanwhile
            continue


def _check_access(address: str) -> None:
    for node, found in _on_each_node(_problem, address):
        reason = f"no answer of the storage in {_LOOK_S:.0f} s" if found is None else found
        if reason:
            raise ConfigError(
                f"address: node {node} cannot read the run folder ({reason}); AWS_* variables of this "
                "command are not passed on to nodes: set them where 'ray start' runs, or give the machines a role"
            )


def _problem(address: str) -> str:
    """Return why the node that this runs on cannot read an object of a bucket; empty if it can."""
    os.environ.setdefault("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1")
    try:
        return "" if get_content(address) is not None else "it is not there"
    except RaysentError as error:
        return str(error)


def machines_at(address: str | None, space: SearchSpace) -> Machines:
    """Return the machines that trials may have: those that a cluster may grow to, its nodes, or this machine.

    Args:
        address: A running cluster; None for this machine.
        space: Whose trials may share a GPU.

    Raises:
        ConfigError: If no cluster answers at the address.
    """
    come = workers_to_come()
    if come is not None:
        return _machines_to_come(come, space)
    if address is None:
        return this_machine(space)
    with output_to_stderr(), ray_session(address):
        return _machines_there(_alive(), space)


def _machines_to_come(come: Workers, space: SearchSpace) -> Machines:
    models = {f"{ACCELERATOR}{name}": 1.0 for name in come.accelerators}
    return come.machines(per_gpu=trials_per_gpu(space, models))


def _machines_there(alive: Sequence[Mapping[str, Any]], space: SearchSpace) -> Machines:
    have, of_nodes = ray.cluster_resources(), [node["Resources"] for node in alive]
    shapes = tuple(
        (int(one.get("CPU", 0)), usable_gpus(float(one.get("GPU", 0.0)))) for one in of_nodes
    )
    cpus, gpus = int(have.get("CPU", 0)), usable_gpus(float(have.get("GPU", 0)))
    per_gpu = trials_per_gpu(space, have)
    # A single node is this machine, whose memory is known whatever the model of its GPU.
    if len(alive) == 1 and (here := this_machine(space)).gpus:
        per_gpu = here.trials_per_gpu
    return Machines(cpus, gpus, cpus_of_largest_node(), per_gpu, shapes=shapes)


def share(space: SearchSpace, *, num_trials: int, prices: Prices) -> Layout:
    """Return how the trials that are left share the cluster, as it stands or as it may grow.

    Args:
        space: What is swept.
        num_trials: Trials that are left.
        prices: Knows what a node costs.

    Raises:
        ConfigError: If one trial alone does not fit, or one machine alone costs more an hour than all may.
    """
    come, alive = workers_to_come(), _alive()
    usd = [prices.of(node["Labels"]).worst_usd_per_hour for node in alive]
    if come is None:
        _check_hourly(space, sum(usd))
        machines = _machines_there(alive, space)
    else:
        # Whichever type each worker will be of.
        each_usd = prices.most_expensive.worst_usd_per_hour
        head_usd = sum(
            one for one, node in zip(usd, alive, strict=True) if not node["Resources"].get("CPU")
        )
        num = num_workers(space, most=come.num, head_usd=head_usd, each_usd=each_usd)
        machines = _machines_to_come(replace(come, num=num), space)
    return within_memory(
        layout(space.limits, machines, num_trials=num_trials), _driver_bytes(alive)
    )


def _driver_bytes(alive: Sequence[Mapping[str, Any]]) -> float | None:
    for name in (DRIVER_RESOURCE, HEAD_RESOURCE):
        found = [
            float(node["Resources"].get("memory", 0)) for node in alive if name in node["Resources"]
        ]
        if found:
            return sum(found) or None
    return None


def num_workers(space: SearchSpace, *, most: int, head_usd: float, each_usd: float) -> int:
    """Return how many workers may stand at once beside the head: the most, and what dollars an hour allow.

    Args:
        space: What is swept, and at how much an hour.
        most: As many as may come in any case.
        head_usd: Dollars an hour of what stands in any case.
        each_usd: Dollars an hour of each worker, at most.

    Raises:
        ConfigError: If not even one is allowed.
    """
    limit_usd = space.cost.max_hourly_usd
    if limit_usd is None or not each_usd:
        return most
    num = min(most, int((limit_usd - head_usd) / each_usd + 1e-9))
    if num < 1:
        raise space.document.error(
            ("cost", "max_hourly"),
            f"must allow for the head and one worker, {head_usd + each_usd:.2f} usd an hour at most; given "
            f"{limit_usd:.2f}",
        )
    return num


def _check_hourly(space: SearchSpace, hourly_usd: float) -> None:
    limit_usd = space.cost.max_hourly_usd
    if not space.budget().fits_hourly(hourly_usd):
        raise space.document.error(
            ("cost", "max_hourly"),
            f"must allow for the machines that are there; they cost {hourly_usd:.2f} usd an hour together; given "
            f"{limit_usd:.2f}",
        )


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
