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
from raysent.cluster.doctor import Finding, asks_for_token, examine, saves_in_time
from raysent.cluster.drill import Drilled, drill, local_cluster
from raysent.cluster.jobs import SHIPPED_FOLDER, Ended, Jobs, download, ship
from raysent.cluster.launcher import Launcher, read_token
from raysent.cluster.plan import price_space, quotes, workers_for
from raysent.cluster.policies import head_policy, worker_policy

__all__ = [
    "SHIPPED_FOLDER",
    "Account",
    "ClusterFile",
    "ClusterSettings",
    "Drilled",
    "Ended",
    "Finding",
    "Jobs",
    "Launcher",
    "Machine",
    "asks_for_token",
    "download",
    "drill",
    "examine",
    "head_policy",
    "local_cluster",
    "price_space",
    "quotes",
    "read_cluster",
    "read_token",
    "saves_in_time",
    "self_destruct",
    "ship",
    "worker_policy",
    "workers_for",
]
