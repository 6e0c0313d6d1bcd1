"""Spot interruptions: the cloud's notice drains the Ray node, and training reads the drain.

agent.py      the process on every worker node that polls AWS for a notice, and its watch of the machine's permit
ray_nodes.py  permits, draining Ray nodes and reading drains, for all supported versions of Ray

The agent must start without torch, so this package imports neither `training` nor `cluster`.
"""

from raysent.preemption.agent import InstanceMetadata, MetadataError, NodeAgent, Notice
from raysent.preemption.ray_nodes import (
    REFUSED_TOKEN,
    capture_stderr,
    drain_node,
    find_node,
    node_notice,
    renew_permit,
    worker_notice,
)

__all__ = [
    "REFUSED_TOKEN",
    "InstanceMetadata",
    "MetadataError",
    "NodeAgent",
    "Notice",
    "capture_stderr",
    "drain_node",
    "find_node",
    "node_notice",
    "renew_permit",
    "worker_notice",
]
