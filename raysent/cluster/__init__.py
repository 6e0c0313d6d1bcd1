"""A Ray cluster on AWS, from `cluster.yaml` to running machines and back.

cluster_file.py  reads `cluster.yaml`, checks it, and fills in its placeholders
policies.py      IAM policies of its machines
account.py       its security group, roles and machines in the AWS account; what keeps it from being launched
fleet.py         the machines of a running sweep: admitted, billed from AWS's list, terminated
permits.py       permits of machines, renewed by a thread that asks no cloud
sharing.py       several sweeps on one cluster: which are alive, and which pays for the head
slurm.py         a sweep as one file for sbatch
gate.py          Ray's AWS provider with a gate: a worker is launched only if it is admitted
prices.py        what its machines cost, and how many a sweep may use
launch_plan.py   the step before money: what a sweep launches and costs at most, and whether it can work
usage.py         who uses a cluster: asked before anything is ended
launcher.py      Ray's launcher, the token, and the wheel of the running raysent
submission.py    a sweep on a cluster that is launched for it
following.py     a submitted sweep as its stored run describes it, followed and stopped
signs.py         the signs of life of a sweep that is followed
stored_sweep.py  whether a submitted sweep is alive, by its stored run
head.py          what the head runs for a submitted sweep
sweeps.py        the functions of the public API: sweeps on a cluster, and clusters launched, listed and terminated
commands.py      the commands and options that do the same
cloud.py         what a sweep that runs here asks for: spot prices, and the machines that come
jobs.py          commands through Ray's job API; download of results
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
