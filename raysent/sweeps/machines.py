"""The machines of a sweep: which stand, how many more may come, and how many trials a GPU of theirs has room for.

One small trial does not fill a large GPU, which mostly waits for one time step of a recurrence after another; several
side by side do: as many of the largest trial as fit into its memory, at most four.

On a cluster that grows, the space says how many workers may run at once and what each has at least (`cluster.workers`),
or the process that launched the cluster does:

    RAYSENT_WORKERS='{"num": 8, "CPU": 4, "GPU": 1}'
"""

from __future__ import annotations

import json
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
from raysent.kernels.device_choice import usable_gpus
from raysent.kernels.devices import default_device
from raysent.platforms import num_cores
from raysent.progress import messages
from raysent.reading import parse_json
from raysent.storage import address_of, is_remote
from raysent.storage.layout import SWEEP_FILE
from raysent.storage.object_store import get_content
from raysent.sweeps.layout import Layout, Machines, idle_parts, layout, within_memory
from raysent.sweeps.space import SearchSpace, named_files
from raysent.training.gpu_use import use_ratio
from raysent.training.memory import GIB, estimate_bytes
from raysent.training.ray_session import (
    cpus_of_largest_node,
    node_name,
    output_to_stderr,
    ray_session,
)
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
# What was measured has seen fragmentation already.
_USABLE, _MARGIN, _MEASURED_MARGIN = 0.9, 2.0, 1.25
# A process's CUDA context, with its libraries and their workspaces.
_CONTEXT_BYTES = GIB

# A resource of machines on which drivers of trials are meant to live, as `cluster.yaml` names it; and Ray's own, of the
# head.
DRIVER_RESOURCE, HEAD_RESOURCE = "raysent_driver", "node:__internal_head__"
_LOOK_S = 60.0
WORKERS_VARIABLE = "RAYSENT_WORKERS"


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


def workers_to_come(space: SearchSpace | None = None) -> Workers | None:
    """Return the workers that this process may use; None for a cluster that does not grow.

    Args:
        space: What is swept, which may say it where the process that launched the cluster does not.

    Raises:
        ConfigError: If the variable holds something else.
    """
    variable = os.environ.get(WORKERS_VARIABLE)
    if variable is None:
        named = None if space is None else space.cluster.workers
        if named is None:
            return None
        accelerators: tuple[str, ...] = ()
        if named.accelerator is not None:
            accelerators = (named.accelerator,)
        return Workers(named.count, named.cpu, named.gpu, accelerators)
    try:
        values = parse_json(variable)
        accelerators = tuple(map(str, values.get("accelerators", ())))
        return Workers(
            int(values["num"]), int(values["CPU"]), float(values.get("GPU", 0)), accelerators
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f'{WORKERS_VARIABLE}: must look like {{"num": 8, "CPU": 4, "GPU": 1}}; given {variable}'
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
    if address is None and WORKERS_VARIABLE not in os.environ:
        return this_machine(space)
    come = workers_to_come(space)
    if come is not None:
        return _machines_to_come(come, space)
    assert address is not None
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


def share(space: SearchSpace, *, address: str | None, num_trials: int, prices: Prices) -> Layout:
    """Return how the trials that are left share the cluster, as it stands or as it may grow.

    Args:
        space: What is swept.
        address: The Ray cluster; None for one of the sweep's own on this machine.
        num_trials: Trials that are left.
        prices: Knows what a node costs.

    Raises:
        ConfigError: If one trial alone does not fit, one machine alone costs more an hour than all may, or the space
            waits for workers where none will come.
    """
    if address is None and space.cluster.workers is not None:
        raise space.document.error(
            ("cluster", "workers"), "holds on a Ray cluster; name it by --address, or leave it out"
        )
    come, alive = workers_to_come(space), _alive()
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
    plan = layout(space.limits, machines, num_trials=num_trials)
    for line in idle_parts(plan, machines, space.limits, num_trials=num_trials):
        messages.print(line, soft_wrap=True)
    return within_memory(plan, _driver_bytes(alive))


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
