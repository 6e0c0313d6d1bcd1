"""A Ray cluster on AWS, from `cluster.yaml` to running machines and back.

cluster_file.py  reads `cluster.yaml` and fills in its placeholders
checks.py        the rules for `cluster.yaml`
policies.py      IAM policies of its machines
account.py       its security group, roles and machines in the AWS account
fleet.py         the machines of a running sweep: admitted, billed from AWS's list, terminated
sharing.py       several sweeps on one cluster: which are alive, and which pays for the head
slurm.py         a sweep as one file for sbatch
gate.py          Ray's AWS provider with a gate: a worker is launched only if it is admitted
prices.py        what its machines cost, and how many a sweep may use
launcher.py      Ray's launcher, the token, and the wheel of the running raysent
submission.py    a sweep on a cluster that is launched for it
following.py     a submitted sweep followed through broken connections, and stopped, from any computer
stored.py        what is stored with a submitted run
head.py          what the head runs for a submitted sweep
jobs.py          commands through Ray's job API; download of results
readiness.py     what keeps a cluster from being launched
"""

from raysent.cluster.account import Account, Machine
from raysent.cluster.cluster_file import ClusterFile, ClusterSettings, read_cluster, self_destruct
from raysent.cluster.following import StoredRun, SubmittedSweep, find_run, follow_run, stop_run
from raysent.cluster.jobs import SHIPPED_FOLDER, ConnectionLostError, JobResult, Jobs, Output, download, ship
from raysent.cluster.launcher import Head, Launcher, read_token
from raysent.cluster.policies import head_policy, worker_policy
from raysent.cluster.prices import Quote, price_space, quote, quotes, workers_for
from raysent.cluster.slurm import sbatch_file
from raysent.cluster.submission import (
    Submission,
    SweepJob,
    prepare_resumption,
    prepare_submission,
    run_submission,
    submit,
)

__all__ = [
    "SHIPPED_FOLDER",
    "Account",
    "ClusterFile",
    "ClusterSettings",
    "ConnectionLostError",
    "Head",
    "JobResult",
    "Jobs",
    "Launcher",
    "Machine",
    "Output",
    "Quote",
    "StoredRun",
    "Submission",
    "SubmittedSweep",
    "SweepJob",
    "download",
    "find_run",
    "follow_run",
    "head_policy",
    "prepare_resumption",
    "prepare_submission",
    "price_space",
    "quote",
    "quotes",
    "read_cluster",
    "read_token",
    "run_submission",
    "sbatch_file",
    "self_destruct",
    "ship",
    "stop_run",
    "submit",
    "worker_policy",
    "workers_for",
]
