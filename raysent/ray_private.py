"""The names of Ray that are no part of its API, each with why it is needed; no other file of the package has one.

Ray may rename them in any version, so `make versions` runs the tests that use them with the lowest and the newest
version. All are imported when they are called: the agent of a machine starts without Ray. They are six modules; with
one less a notice would not reach a trial, a closed terminal would end a sweep unsaved, other machines could reach its
ports, a launch would know no budget or be refused late, or each trial with several workers would need a process more.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any


def control_client(address: str) -> Any:
    """Return a client of a cluster's control service.

    Ray's API lists nodes to processes that are connected to the cluster. The agent of a machine that is about to be
    interrupted has to drain it without such a connection, which would start processes; permits of machines are kept
    there, as nothing else of a cluster is readable from everywhere; and only the service knows a node's instance.
    """
    # By name, because a later version of Ray may not have it.
    return importlib.import_module("ray._raylet").GcsClient(address=address)


def draining_nodes() -> Callable[[], Mapping[str, int]]:
    """Return what reads which nodes are drained, with their deadlines in milliseconds since 1970.

    Ray's own libraries learn of a node that is about to end, processes of tasks and actors do not: without this a trial
    would lose what it trained since its last checkpoint. The client above has it too, in newer versions alone.

    Raises:
        AttributeError: If this version of Ray does not have it.
    """
    reader: Callable[[], Mapping[str, int]] = _state().state.get_draining_nodes
    return reader


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Return node -> its free resources; Ray's API has the sum of all nodes alone, which says nothing of a place."""
    free: Mapping[str, Mapping[str, float]] = _state().available_resources_per_node()
    return free


def _state() -> Any:
    return importlib.import_module("ray._private.state")


@contextmanager
def starting_on_this_machine(*, only_loopback: bool, in_own_groups: bool) -> Iterator[None]:
    """Change how `ray.init` starts Ray's processes inside the block.

    Args:
        only_loopback: Whether they listen on 127.0.0.1 alone, as they do on macOS and Windows. On Linux Ray listens on
            every interface, its option for the node's address refuses 127.0.0.1, and its variable for this is read
            when Ray is imported, which the user's program may have done.
        in_own_groups: Whether they have process groups of their own. A closed terminal, `timeout` and batch systems
            send a signal to all processes of a command; a sweep needs Ray's to save its trials in answer.
    """
    services: Any = importlib.import_module("ray._private.services")
    constants, start = services.ray_constants, services.ConsolePopen
    was_cluster = constants.ENABLE_RAY_CLUSTER
    if only_loopback:
        constants.ENABLE_RAY_CLUSTER = False
    if in_own_groups:
        services.ConsolePopen = partial(start, process_group=0)
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = was_cluster
        services.ConsolePopen = start


def train_controller() -> Any:
    """Return the class of the controller of Ray Train.

    Ray Train starts an actor for it. A trial with several workers is an actor already, in which the controller runs
    instead: otherwise each such trial would need some 800 MB more on the head.
    """
    return importlib.import_module("ray.train.v2._internal.execution.controller").TrainController


def launcher_checks() -> Any:
    """Return the module with `prepare_config` and `validate_config` of Ray's launcher.

    A cluster file that the launcher would refuse, with a traceback after the first machine costs, is refused before.
    """
    return importlib.import_module("ray.autoscaler._private.util")


def aws_provider() -> Any:
    """Return the class by which Ray's autoscaler launches machines on AWS.

    Its launches have to pass a gate that knows the budget, and the autoscaler takes a class of one's own in its place;
    an own provider would be all of Ray's again.

    Raises:
        ImportError: If this version of Ray does not have it.
    """
    return importlib.import_module("ray.autoscaler._private.aws.node_provider").AWSNodeProvider
