"""A Ray cluster on AWS, from a file to machines and back.

cluster_file.py  `cluster.yaml`, read and filled in
checks.py        what it must hold
policies.py      what its machines may do in the account
account.py       its security group, roles and machines at AWS
wheel.py         the raysent that is running, packed for it
launcher.py      Ray's launcher, driven; its token
jobs.py          commands on it through Ray's job API; results brought home
plan.py          what a file means for a sweep: prices, number of workers
saves.py         what saving a checkpoint to the storage takes
drill.py         a node taken away under a small training
doctor.py        whether it is safe and ready
"""

from raysent.cluster.account import Account, Machine
from raysent.cluster.cluster_file import ClusterFile, ClusterSettings, read_cluster, self_destruct
from raysent.cluster.doctor import Finding, check_save_time, check_token_required, diagnose
from raysent.cluster.drill import DrillResult, drill, local_cluster
from raysent.cluster.jobs import SHIPPED_FOLDER, JobResult, Jobs, download, ship
from raysent.cluster.launcher import Launcher, read_token
from raysent.cluster.policies import head_policy, worker_policy
from raysent.cluster.prices import price_space, quotes, workers_for

__all__ = [
    "SHIPPED_FOLDER",
    "Account",
    "ClusterFile",
    "ClusterSettings",
    "DrillResult",
    "Finding",
    "JobResult",
    "Jobs",
    "Launcher",
    "Machine",
    "check_save_time",
    "check_token_required",
    "diagnose",
    "download",
    "drill",
    "head_policy",
    "local_cluster",
    "price_space",
    "quotes",
    "read_cluster",
    "read_token",
    "self_destruct",
    "ship",
    "worker_policy",
    "workers_for",
]
