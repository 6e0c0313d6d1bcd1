"""The machines of a sweep: which stand, and how many more may come.

On a cluster that grows, the process that launched it sets how many workers may run at once and what each has at least:

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
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysent.cost import Budget, Prices, num_affordable
from raysent.errors import ConfigError, RaysentError
from raysent.reading import parse_json
from raysent.storage import address_of, is_remote
from raysent.storage.layout import SWEEP_FILE
from raysent.storage.object_store import get_content
from raysent.sweeps.layout import ACCELERATOR, Layout, Machines, layout, this_machine, trials_per_gpu, within_memory
from raysent.sweeps.space import SearchSpace, named_files
from raysent.training.ray_session import cpus_of_largest_node, node_name, output_to_stderr, ray_session

# A resource of machines on which drivers of trials are meant to live, as `cluster.yaml` names it; and Ray's own, of the
# head.
DRIVER_RESOURCE, HEAD_RESOURCE = "raysent_driver", "node:__internal_head__"
_LOOK_S = 60.0
WORKERS_VARIABLE = "RAYSENT_WORKERS"


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

    def environment(self) -> dict[str, str]:
        """Return the environment variable that describes these workers to a sweep."""
        return {WORKERS_VARIABLE: json.dumps({key: value for key, value in asdict(self).items() if value != ()})}


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
        return Workers(int(values["num"]), int(values["CPU"]), float(values.get("GPU", 0)), accelerators)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f'{WORKERS_VARIABLE}: must look like {{"num": 8, "CPU": 4, "GPU": 1}}; given {given}'
        ) from None


def alive_nodes() -> dict[str, Mapping[str, str]]:
    """Return the nodes that are there, by name, with their labels."""
    return {node_name(node["NodeID"]): node["Labels"] for node in _alive()}


def check_files(space: SearchSpace, folder: Path) -> None:
    """See whether every node finds the files that a space names, and the run folder where it is no bucket's.

    Raises:
        ConfigError: With the first node and path of which that is not so.
    """
    needed = dict.fromkeys(named_files(space.document.values.get("base", {})), "base")
    if not is_remote(address_of(folder)):
        needed[(folder / SWEEP_FILE).absolute()] = "--run"

    else:
        _check_access(f"{address_of(folder)}/{SWEEP_FILE}")

    def missing(paths: list[Path]) -> list[Path]:
        return [path for path in paths if not path.exists()]

    # A function inside a function is sent whole: the node need not import all of this for it.
    for node, paths in _on_each_node(missing, list(needed)):
        for path in paths or ():
            what = "the run folder" if needed[path] == "--run" else str(path)
            fix = "put it on storage that all nodes share, or on S3 and name it s3://…"
            raise ConfigError(f"address: node {node} does not find {what}; {fix}")


def _on_each_node(function: Callable[[Any], Any], argument: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name of each node with cores and what a function returns there, None if it takes too long."""
    look = ray.remote(num_cpus=0)(function)
    nodes = [node["NodeID"] for node in _alive() if node["Resources"].get("CPU")]
    asked = {
        node: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(argument)
        for node in nodes
    }
    for node, answer in asked.items():
        try:
            yield node_name(node), ray.get(answer, timeout=_LOOK_S)
        except ray.exceptions.GetTimeoutError:
            yield node_name(node), None
        except ray.exceptions.RayError:  # a node that has gone meanwhile
            continue


def _problem(address: str) -> str:
    """Return why the node that this runs on cannot read an object of a bucket; empty if it can."""
    os.environ.setdefault("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1")
    try:
        return "" if get_content(address) is not None else "it is not there"
    except RaysentError as error:
        return str(error)


def _check_access(address: str) -> None:
    """See whether every node can read an object of the run in a bucket.

    Raises:
        ConfigError: With the first node that cannot, and why.
    """
    for node, found in _on_each_node(_problem, address):
        reason = f"no answer of the storage in {_LOOK_S:.0f} s" if found is None else found
        if reason:
            raise ConfigError(
                f"address: node {node} cannot read the run folder ({reason}); AWS_* variables of this "
                "command are not passed on to nodes: set them where 'ray start' runs, or give the machines a role"
            )


def machines_at(address: str | None) -> Machines:
    """Return the machines that trials may have: those that a cluster may grow to, its nodes, or this machine.

    Args:
        address: A running cluster; None for this machine.

    Raises:
        ConfigError: If no cluster answers at the address.
    """
    come = workers_to_come()
    if come is not None:
        return Machines(come.num * come.CPU, come.num * come.GPU, come.CPU, num_nodes=come.num)
    if address is None:
        return this_machine()
    with output_to_stderr(), ray_session(address):
        have = ray.cluster_resources()
        return _machines_of(_alive(), int(have.get("CPU", 0)), float(have.get("GPU", 0)))


def _machines_of(alive: Sequence[Mapping[str, Any]], cpus: int, gpus: float, *, per_gpu: int = 1) -> Machines:
    """Return the machines of a cluster that does not grow."""
    shapes = tuple((int(node["Resources"].get("CPU", 0)), float(node["Resources"].get("GPU", 0.0))) for node in alive)
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
    come, alive, have = workers_to_come(), _alive(), ray.cluster_resources()
    if come is None:
        _check_hourly(space, sum(_worst_usd(node, prices) for node in alive))
        cpus, gpus = int(have.get("CPU", 0)), float(have.get("GPU", 0))
        machines = _machines_of(alive, cpus, gpus, per_gpu=trials_per_gpu(space, have))
        return within_memory(layout(space.limits, machines, num_trials=num_trials), _driver_bytes(alive))
    workers = _affordable(space, come, alive, prices)
    models = {f"{ACCELERATOR}{name}": 1.0 for name in workers.accelerators}
    machines = Machines(
        workers.num * workers.CPU, workers.num * workers.GPU, workers.CPU, trials_per_gpu(space, models), workers.num
    )
    return within_memory(layout(space.limits, machines, num_trials=num_trials), _driver_bytes(alive))


def _driver_bytes(alive: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the memory for drivers of trials: of the machines that are meant for them, else of the head."""
    for name in (DRIVER_RESOURCE, HEAD_RESOURCE):
        found = [float(node["Resources"].get("memory", 0)) for node in alive if name in node["Resources"]]
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
    num = min(most, num_affordable(limit_usd, fixed_usd=head_usd, each_usd=each_usd))
    if num < 1:
        raise space.document.error(
            ("cost", "max_hourly"),
            f"must allow for the head and one worker, {head_usd + each_usd:.2f} usd an hour at most; given "
            f"{limit_usd:.2f}",
        )
    return num


def _affordable(space: SearchSpace, come: Workers, alive: Sequence[Mapping[str, Any]], prices: Prices) -> Workers:
    """Return the workers that dollars an hour allow, whichever type each of them will be of."""
    head_usd = sum(_worst_usd(node, prices) for node in alive if not node["Resources"].get("CPU"))
    each_usd = prices.most_expensive.worst_usd_per_hour
    return replace(come, num=num_workers(space, most=come.num, head_usd=head_usd, each_usd=each_usd))


def _check_hourly(space: SearchSpace, hourly_usd: float) -> None:
    """Refuse machines that together cost more an hour than they may.

    Raises:
        ConfigError: With the dollars of both.
    """
    limit_usd = space.cost.max_hourly_usd
    if limit_usd is not None and not Budget(max_hourly_usd=limit_usd).fits_hourly(hourly_usd):
        raise space.document.error(
            ("cost", "max_hourly"),
            f"must allow for the machines that are there; they cost {hourly_usd:.2f} usd an hour together; given "
            f"{limit_usd:.2f}",
        )


def _worst_usd(node: Mapping[str, Any], prices: Prices) -> float:
    return prices.of(node["Labels"]).worst_usd_per_hour


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]
