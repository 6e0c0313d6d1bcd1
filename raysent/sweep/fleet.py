"""The machines of a sweep: which stand, how many more may come, and how trials share them.

On a cluster that grows, whoever brought it up tells how many workers may stand at once, and what each has at least:

    RAYSENT_WORKERS='{"num": 8, "CPU": 4, "GPU": 1}'
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysent.artifacts import address_of, is_remote
from raysent.cost import Budget, Prices, num_affordable
from raysent.errors import ConfigError
from raysent.search_space import SearchSpace, named_files
from raysent.sweep.layout import Layout, Machines, layout
from raysent.sweep.record import SWEEP_FILE
from raysent.sweep.sharing import trials_per_gpu
from raysent.train import cpus_of_largest_node, node_name

_LOOK_S = 60.0
WORKERS_VARIABLE = "RAYSENT_WORKERS"


@dataclass(frozen=True)
class Workers:
    """The workers that a cluster may grow to.

    Attributes:
        num: At once.
        CPU: Cores that each has at least.
        GPU: GPUs that each has at least.
    """

    num: int
    CPU: int
    GPU: float = 0.0

    def told(self) -> dict[str, str]:
        """Return the variable that tells a sweep of them."""
        return {WORKERS_VARIABLE: json.dumps(asdict(self))}


def workers_to_come() -> Workers | None:
    """Return what this process was told of workers; None for a cluster that stays as it is.

    Raises:
        ConfigError: If the variable holds something else.
    """
    told = os.environ.get(WORKERS_VARIABLE)
    if told is None:
        return None
    try:
        values = json.loads(told)
        return Workers(int(values["num"]), int(values["CPU"]), float(values.get("GPU", 0)))
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f'{WORKERS_VARIABLE}: must look like {{"num": 8, "CPU": 4, "GPU": 1}}; given {told}'
        ) from None


def standing() -> dict[str, Mapping[str, str]]:
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

    def missing(paths: list[Path]) -> list[Path]:
        return [path for path in paths if not path.exists()]

    # A function inside a function is sent whole: the node need not import all of this for it.
    look = ray.remote(num_cpus=0)(missing)
    nodes = [node["NodeID"] for node in _alive() if node["Resources"].get("CPU")]
    asked = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(list(needed))
        for node in nodes
    ]
    for node, answer in zip(nodes, asked, strict=True):
        with contextlib.suppress(ray.exceptions.RayError):  # a node that has gone meanwhile
            for path in ray.get(answer, timeout=_LOOK_S):
                what = "the run folder" if needed[path] == "--run" else str(path)
                fix = "put it on storage that all nodes share, or on S3 and name it s3://…"
                raise ConfigError(f"--address: node {node_name(node)} does not find {what}; {fix}")


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
        machines = Machines(
            int(have.get("CPU", 0)), float(have.get("GPU", 0)), cpus_of_largest_node(), trials_per_gpu(space, have)
        )
        return layout(space.limits, machines, num_trials=num_trials)
    workers = _affordable(space, come, alive, prices)
    machines = Machines(
        workers.num * workers.CPU, workers.num * workers.GPU, workers.CPU, trials_per_gpu(space, have), workers.num
    )
    return layout(space.limits, machines, num_trials=num_trials)


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
    num = min(most, num_affordable(limit_usd, standing_usd=head_usd, each_usd=each_usd))
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
    each_usd = prices.dearest.worst_usd_per_hour
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
