"""Machines that are taken away: the cloud's notice becomes a drain of the Ray node, and a drain reaches the training.

ray_nodes.py   everything that is asked of Ray here, behind one gate for its versions
metadata.py    the interruption notice of AWS, from the instance's own metadata service
overhearing.py what Ray's native code says beside its exceptions
agent.py       the small process on every worker node that carries the one to the other

It stands below the training, and apart from `cloud`, because the agent has to start without torch.
"""

from raysent.preemption.agent import NodeAgent
from raysent.preemption.metadata import InstanceMetadata, MetadataError, Notice
from raysent.preemption.ray_nodes import (
    REFUSED_TOKEN,
    capture_stderr,
    drain_node,
    find_node,
    node_notice,
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
    "worker_notice",
]
