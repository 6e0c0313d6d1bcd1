"""What Ray's native code writes to standard error, past Python's own: it says there what its exceptions leave out.

All that is asked of Ray about nodes that go: to drain one, and whether one is being drained.

None of it is in Ray's stable interface, so it is used nowhere else, and each call says what becomes of it where a
version of Ray has it not: draining is refused in one line, notices are never given, and a run is left with its
checkpoints at reports and now and then.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from raysent.errors import RaysentError

# How it names a token that is missing or wrong, over and over.
REFUSED_TOKEN = "InvalidAuthToken"
_MAX_SAID_BYTES = 100_000


@contextlib.contextmanager
def capture_stderr() -> Iterator[Callable[[], str]]:
    """Keep what is written to standard error inside the block from the screen; yields a way to read it."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        screen = os.dup(2)
        os.dup2(kept.fileno(), 2)

        def said() -> str:
            return os.pread(kept.fileno(), _MAX_SAID_BYTES, 0).decode(errors="replace")

        try:
            yield said
        finally:
            os.dup2(screen, 2)
            os.close(screen)


# What AWS gives; assumed where a drain tells no deadline.
USUAL_NOTICE_S = 120.0

_KNOCK_S = 5.0

SecondsLeft = Callable[[], float | None]


class DrainError(RaysentError):
    """A node cannot be drained."""


def drain_node(address: str, node_id: str, *, left_s: float, why: str) -> None:
    """Tell the cluster that a node will be taken: nothing new is placed there, and what runs there is told.

    Args:
        address: The cluster's, `host:port`.
        node_id: Of the node, hexadecimal.
        left_s: Seconds until it is taken.
        why: For the logs.

    Raises:
        DrainError: If this version of Ray cannot, no cluster answers, or it refuses.
    """
    client, reasons = _control_service(address)
    deadline_ms = int((time.time() + max(0.0, left_s)) * 1000)
    try:
        is_accepted, refusal = client.drain_node(
            node_id, reasons.Value("DRAIN_NODE_REASON_PREEMPTION"), why, deadline_ms
        )
    except Exception as error:  # an interface that is not public may raise anything
        raise _refused(address, error) from None
    if not is_accepted:
        raise DrainError(f"{address}: must drain node {node_id[:12]}; it refuses: {refusal}")


def find_node(address: str, ips: Sequence[str]) -> str | None:
    """Return the id of the living node at the first of a machine's IP addresses that has one; None while none has.

    Raises:
        DrainError: If this version of Ray cannot, or no cluster answers.
    """
    client, _ = _control_service(address)
    try:
        nodes = client.get_all_node_info(timeout=10)
    except Exception as error:  # as above
        raise _refused(address, error) from None
    for ip in ips:
        alive = [node_id for node_id, node in nodes.items() if node.state == 0 and node.node_manager_address == ip]
        if alive:
            return str(alive[-1].hex())
    return None


def node_notice() -> SecondsLeft:
    """Return a function that says how long the Ray node of this process will still be there; None: nobody drains it."""
    import ray  # noqa: PLC0415 - late: the agent must not wait for it

    try:
        node_id = str(ray.get_runtime_context().get_node_id())
        draining = ray._private.state.state.get_draining_nodes
    except AttributeError:
        return lambda: None
    return _Deadline(lambda: draining().get(node_id))


def worker_notice() -> SecondsLeft:
    """Return the same for a Ray Train worker: whether the node of any worker of its group goes.

    All workers must call it equally often: they agree on the answer, each waiting for the others.
    """
    import ray.train  # noqa: PLC0415 - late, as above

    ask: Any = getattr(ray.train, "get_preemption_info", None)
    if ask is None:
        return lambda: None

    def deadline_ms() -> int | None:
        told = ask()
        return None if told is None else told.deadline_ms or 0

    return _Deadline(deadline_ms)


class _Deadline:
    """Turns a deadline of Ray, in milliseconds since 1970 (0: none told), into the seconds that are left."""

    def __init__(self, ask: Callable[[], int | None]) -> None:
        self._ask = ask
        self._first_heard_s: float | None = None

    def __call__(self) -> float | None:
        deadline_ms = self._ask()
        if deadline_ms is None:
            self._first_heard_s = None
            return None
        now_s = time.time()
        if self._first_heard_s is None:
            self._first_heard_s = now_s
        return (deadline_ms / 1000 if deadline_ms else self._first_heard_s + USUAL_NOTICE_S) - now_s


def _control_service(address: str) -> tuple[Any, Any]:
    """Return the client of a cluster's control service, and the reasons for a drain that it knows.

    Raises:
        DrainError: If this version of Ray has none, or nothing answers.
    """
    try:
        # Ray itself would try for most of a notice.
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()
        # Late, as above, and gone in some version to come.
        client = importlib.import_module("ray._raylet").GcsClient
        reasons = importlib.import_module("ray.core.generated.autoscaler_pb2").DrainNodeReason
        with capture_stderr():
            return client(address=address), reasons
    except Exception as error:  # as above
        raise _refused(address, error) from None


def _refused(address: str, error: Exception) -> DrainError:
    import ray  # noqa: PLC0415 - late, as above

    reason = " ".join(str(error).split())
    if REFUSED_TOKEN in reason:
        return DrainError(
            f"{address}: asks for its token, and none or another was given; set RAY_AUTH_MODE=token and "
            f"RAY_AUTH_TOKEN_PATH to the token's file"
        )
    return DrainError(f"{address}: must be a cluster whose nodes can be drained; Ray {ray.__version__} says: {reason}")
