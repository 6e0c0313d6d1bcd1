"""A Ray cluster on AWS, from a file to machines and back.

cluster_file.py  `cluster.yaml`, read and filled in
checks.py        what it must hold
policies.py      what its machines may do in the account
"""

from raysent.cloud.cluster.cluster_file import ClusterFile, ClusterSettings, read_cluster, self_destruct
from raysent.cloud.cluster.policies import head_policy, worker_policy

__all__ = ["ClusterFile", "ClusterSettings", "head_policy", "read_cluster", "self_destruct", "worker_policy"]
