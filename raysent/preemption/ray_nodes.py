"""Interface to Ray about nodes that end: drain a node, read whether it is being drained, and its machine's permits.

These calls are not part of Ray's stable API, so they are used nowhere else. With a version of Ray that lacks them,
draining raises one clear error and no notice is reported: a run then has its regular checkpoints only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from raysent.errors import RaysentError
from raysent.ray_private import control_client, draining_nodes, free_resources
from raysent.reading import parse_json

# Text in Ray's messages about a missing or wrong token.
REFUSED_TOKEN = "InvalidAuthToken"
# Time between a notice of AWS and the interruption; assumed if a drain has no deadline.
USUAL_NOTICE_S = 120.0
_CONNECT_TIMEOUT_S = 5.0
# What the control service holds of permits, and how long one request about them may take.
_PERMITS, _PERMIT_TIMEOUT_S = b"raysent-permit:", 3.0
_MAX_CAPTURED_BYTES = 100_000

SecondsLeft = Callable[[], float | None]
"""Returns the seconds until the node is interrupted, or None if it is not being drained."""


class DrainError(RaysentError):
    """A node cannot be drained."""


@contextlib.contextmanager
def capture_stderr() -> Iterator[Callable[[], str]]:
    """Redirect standard error inside the block, including that of native code; yield a function that returns its text.

    Ray's native code writes reasons there that its exceptions leave out.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as captured:
        original = os.dup(2)
        os.dup2(captured.fileno(), 2)

        def text() -> str:
            # pread does not move the position at which native code writes.
            return os.pread(captured.fileno(), _MAX_CAPTURED_BYTES, 0).decode(errors="replace")

        try:
            yield text
        finally:
            os.dup2(original, 2)
            os.close(original)


def drain_node(address: str, node_id: str, *, left_s: float, why: str) -> None:
    """Drain a node before its interruption: Ray schedules nothing new on it, and informs the processes on it.

    Args:
        address: Address of the cluster, `host:port`.
        node_id: Id of the node, hexadecimal.
        left_s: Seconds until the interruption.
        why: Reason, for the logs.

    Raises:
        DrainError: If this version of Ray cannot drain, no cluster answers, or it refuses.
    """
    deadline_ms = int((time.time() + max(0.0, left_s)) * 1000)
    with _control_service(address) as client:
        reasons = importlib.import_module("ray.core.generated.autoscaler_pb2").DrainNodeReason
        reason = reasons.Value("DRAIN_NODE_REASON_PREEMPTION")
        is_accepted, refusal = client.drain_node(node_id, reason, why, deadline_ms)
    if not is_accepted:
        raise DrainError(f"{address}: must drain node {node_id[:12]}; refused: {refusal}")


def find_node(address: str, ips: Sequence[str]) -> str | None:
    """Return the id of the alive node at one of a machine's IP addresses, in their order, or None if there is none.

    Raises:
        DrainError: If this version of Ray cannot list nodes, or no cluster answers.
    """
    with _control_service(address) as client:
        nodes = client.get_all_node_info(timeout=10)
    for ip in ips:
        alive = [
            node_id
            for node_id, node in nodes.items()
            if node.state == 0 and node.node_manager_address == ip
        ]
        if alive:
            return str(alive[-1].hex())
    return None


def open_nodes(address: str) -> dict[str, tuple[str, Mapping[str, float], Mapping[str, float]]]:
    """Return machine -> its node's id, its resources, and those that are free, of nodes where Ray may place work.

    Raises:
        DrainError: If this version of Ray cannot say, or this process is not connected to that cluster.
    """
    with _control_service(address) as client:
        draining = draining_nodes()()
        free = free_resources()
        nodes = {
            node_id.hex(): node for node_id, node in client.get_all_node_info(timeout=10).items()
        }
    return {
        str(node.instance_id): (name, node.resources_total, free[name])
        for name, node in nodes.items()
        if node.state == 0 and name in free and name not in draining
    }


def renew_permit(address: str, name: str, machines: Sequence[str], *, seconds: float) -> None:
    """Let machines live for `seconds` more.

    Args:
        address: Address of the cluster, `host:port`.
        name: Name of the permit: each sweep has its own.
        machines: Their ids, as the cloud names them.
        seconds: For how long.

    Raises:
        DrainError: If no cluster answers.
    """
    values = {"renewal": uuid.uuid4().hex, "seconds": seconds, "machines": list(machines)}
    with _control_service(address) as client:
        client.internal_kv_put(
            _PERMITS + name.encode(), json.dumps(values).encode(), True, None, _PERMIT_TIMEOUT_S
        )


def permits_of(address: str, machine: str) -> dict[str, tuple[str, float]]:
    """Return the permits that name a machine: name -> its renewal, and the seconds for which it is valid.

    Raises:
        DrainError: If no cluster answers.
    """
    with _control_service(address, connect_s=_PERMIT_TIMEOUT_S) as client:
        names = client.internal_kv_keys(_PERMITS, None, _PERMIT_TIMEOUT_S)
        found = client.internal_kv_multi_get(names, None, _PERMIT_TIMEOUT_S) if names else {}
    permits = {}
    for name, text in found.items():
        with contextlib.suppress(
            ValueError, KeyError, TypeError, UnicodeDecodeError
        ):  # another program wrote it
            values = parse_json(text.decode())
            if machine in values["machines"]:
                permits[name.decode()] = str(values["renewal"]), float(values["seconds"])
    return permits


def node_notice() -> SecondsLeft:
    """Return the notice of the Ray node of this process."""
    import ray  # noqa: PLC0415 - not at the top: the agent must start without ray

    try:
        node_id = str(ray.get_runtime_context().get_node_id())
        draining = draining_nodes()
    except AttributeError:
        return lambda: None
    return _Deadline(lambda: draining().get(node_id))


def worker_notice() -> SecondsLeft:
    """Return the notice of a Ray Train worker group: of the first of its nodes that is drained.

    All workers must call it equally often: it synchronizes them, so that all get the same answer.
    """
    import ray.train  # noqa: PLC0415 - as above

    preemption_info: Any = getattr(ray.train, "get_preemption_info", None)
    if preemption_info is None:
        return lambda: None

    def deadline_ms() -> int | None:
        info = preemption_info()
        return None if info is None else info.deadline_ms or 0

    return _Deadline(deadline_ms)


class _Deadline:
    """Converts a deadline of Ray, in milliseconds since 1970 (0 if unknown), to the seconds left."""

    def __init__(self, read_deadline_ms: Callable[[], int | None]) -> None:
        self._read_deadline_ms = read_deadline_ms
        self._noticed_s: float | None = None

    def __call__(self) -> float | None:
        deadline_ms = self._read_deadline_ms()
        if deadline_ms is None:
            self._noticed_s = None
            return None
        now_s = time.time()
        if self._noticed_s is None:
            self._noticed_s = now_s
        return (deadline_ms / 1000 if deadline_ms else self._noticed_s + USUAL_NOTICE_S) - now_s


@contextlib.contextmanager
def _control_service(address: str, *, connect_s: float = _CONNECT_TIMEOUT_S) -> Iterator[Any]:
    """Yield a client of a cluster's control service (GCS); whatever fails inside the block is a DrainError."""
    try:
        # Ray's own connection timeout is as long as most of a notice.
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=connect_s).close()
        with capture_stderr():
            client = control_client(address)
        yield client
    except Exception as error:  # a private API may raise anything
        import ray  # noqa: PLC0415 - as above

        reason = " ".join(str(error).split())
        text = f"must be a cluster whose nodes can be drained; Ray {ray.__version__}: {reason}"
        if REFUSED_TOKEN in reason:
            text = (
                "requires its token, and none or another was given; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to "
                "the token's file"
            )
        raise DrainError(f"{address}: {text}") from None
