"""Being connected to Ray: a session, what its nodes have, and how little it says."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from raysent.errors import ConfigError
from raysent.preemption import REFUSED_TOKEN, overheard

_KNOCK_S = 10.0

_QUIET = {
    # How often Ray's controller looks for reports; its own 2 s would be most of a short run.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    # How often it looks whether a node goes; its own 5 s would be all of a short notice.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Relative names of corpora stay relative to where the command was given.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextlib.contextmanager
def ray_session(address: str | None, *, num_cpus: int | None = None) -> Iterator[None]:
    """Be connected to Ray inside the block; what was started for it is ended after, with so many cores if given."""
    quiet_ray()
    import ray  # noqa: PLC0415 - late: seconds that no other command should pay
    from ray.exceptions import AuthenticationError  # noqa: PLC0415

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"include_dashboard": False, "num_cpus": num_cpus} if address is None else {}
    with overheard() as said:
        try:
            _knock(address)
            ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **options)
        except (OSError, ValueError, AuthenticationError) as error:
            if isinstance(error, AuthenticationError) or REFUSED_TOKEN in said():
                raise ConfigError(
                    f"--address {address}: asks for its token, and none or another was given; set RAY_AUTH_MODE=token "
                    f"and RAY_AUTH_TOKEN_PATH to the token's file"
                ) from None
            reason = " ".join(str(error).split())
            raise ConfigError(f"--address {address}: no Ray cluster answers there ({reason})") from None
    try:
        yield
    finally:
        ray.shutdown()


def quiet_output() -> contextlib.AbstractContextManager[object]:
    """Send what Ray prints of lost nodes to standard error: standard output belongs to the results."""
    return contextlib.redirect_stdout(sys.stderr)


def quiet_ray() -> None:
    """Keep Ray from writing over our own output, and from waiting between looks; the user's settings win."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def node_name(node_id: str | None = None) -> str:
    """Return the name of a Ray node, in ledgers and messages; by default of the one that this process runs on."""
    import ray  # noqa: PLC0415 - late, as above

    return str(node_id or ray.get_runtime_context().get_node_id())[:12]


def cpus_of_largest_node() -> int:
    """Return the most cores that one worker can have: it would wait for ever for those of two nodes."""
    import ray  # noqa: PLC0415 - late, as above

    return max([1, *(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])])


def resources_per_worker(num_workers: int, gpus_per_worker: float | None) -> tuple[int, float]:
    """Return cores and GPUs of each worker.

    Raises:
        ConfigError: If the cluster has not that much.
    """
    import ray  # noqa: PLC0415 - late, as above

    have: dict[str, float] = ray.cluster_resources()
    num_cpus, num_gpus = int(have.get("CPU", 0)), have.get("GPU", 0.0)
    if num_workers > num_cpus:
        raise ConfigError(f"--workers {num_workers}: must be at most {num_cpus}, the cluster's CPUs")
    gpus = gpus_per_worker if gpus_per_worker is not None else float(num_gpus >= num_workers)
    if gpus * num_workers > num_gpus:
        raise ConfigError(
            f"--gpus-per-worker {gpus:g}: {num_workers} workers need {gpus * num_workers:g} GPUs; "
            f"the cluster has {num_gpus:g}"
        )
    return min(num_cpus // num_workers, cpus_of_largest_node()), gpus


def _knock(address: str | None) -> None:
    """See whether anything answers at ``host:port``; Ray itself would try for minutes, then end the process.

    Raises:
        OSError: If nothing does.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()
