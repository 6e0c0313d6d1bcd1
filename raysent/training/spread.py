"""Jobs that know nothing of each other, over the cores of a Ray cluster. In: a function and jobs. Out: results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from raysent.errors import RaysentError
from raysent.training.ray_train import ray_session

Job = TypeVar("Job")
Result = TypeVar("Result")
_MAX_RETRIES = 3


def map_on_ray(
    function: Callable[[Job], Result], jobs: Sequence[Job], *, num_cpus: int | None = None, address: str | None = None
) -> Iterator[tuple[int, Result]]:
    """Do jobs on a cluster, a core each; a job whose node goes is done again.

    What jobs name by path must be reachable from every node.

    Args:
        function: Does one job; importable on the nodes.
        jobs: The jobs; they and their results are sent over the network.
        num_cpus: Cores of this machine to use; by default all.
        address: A cluster, instead of this machine.

    Yields:
        A job's place among the jobs and its result, as they come.

    Raises:
        ConfigError: If no cluster answers at the address.
        RaysentError: What a job raised.
    """
    import ray  # noqa: PLC0415 - late, for asking for help must not import it

    with ray_session(address, num_cpus=num_cpus):
        remote = ray.remote(num_cpus=1, max_retries=_MAX_RETRIES)(_on_node)
        places = {remote.remote(function, Path.cwd(), job): place for place, job in enumerate(jobs)}
        waiting = list(places)
        while waiting:
            (done,), waiting = ray.wait(waiting, num_returns=1)
            try:
                yield places[done], ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, RaysentError):
                    raise error.cause from None
                raise


def _on_node(function: Callable[[Any], Any], folder: Path, job: Any) -> Any:
    """Do a job where relative paths mean what they mean to the caller."""
    if folder.is_dir():
        os.chdir(folder)
    return function(job)
