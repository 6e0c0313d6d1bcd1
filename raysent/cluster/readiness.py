"""What keeps a cluster from being launched, found before it costs money: one line each, with what mends it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from raysent.cluster.account import Account
from raysent.cluster.cluster_file import ClusterFile
from raysent.cluster.policies import head_role, worker_role
from raysent.errors import CloudError

# Start of an instance type -> AWS's quotas of vCPUs for it: on demand, spot. The last one is for all other types.
_QUOTAS = {
    "p": ("L-417A185B", "L-7212CCBC"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "vt": ("L-DB2E81BA", "L-3819A6DF"),
    "": ("L-1216C47A", "L-34B43A08"),
}


def check_ready(cluster: ClusterFile, account: Account) -> None:
    """Check that AWS can launch a cluster: its image and disks, its storage, and quotas for its machines.

    Raises:
        CloudError: For the first thing that is missing.
    """
    account.account_id()
    _check_image(cluster, account)
    try:
        account.has_objects(cluster.settings.storage)
    except CloudError as error:
        bucket, region = cluster.settings.bucket, cluster.region
        raise CloudError(f"{error}; if there is no such bucket: aws s3 mb s3://{bucket} --region {region}") from None
    _check_quotas(cluster, account)


def check_inputs(account: Account, inputs: Sequence[str]) -> None:
    """Check that there is something at every ``s3://`` address that a sweep reads.

    Raises:
        CloudError: For the first address without.
    """
    for address in inputs:
        try:
            found = account.has_objects(address)
        except CloudError as error:
            raise CloudError(f"{error}; 'aws s3 ls {address}' must work here") from None
        if not found:
            raise CloudError(f"{address}: nothing is there; 'aws s3 cp --recursive FOLDER {address}' uploads it")


def check_roles(cluster: ClusterFile, account: Account, inputs: Sequence[str]) -> None:
    """Check that nothing denies the roles of a cluster to read what a sweep reads, as IAM simulates it.

    Raises:
        CloudError: For the first address that is denied. An account without the right to simulate is no error.
    """
    for address in inputs:
        for role in (head_role(cluster.name), worker_role(cluster.name)):
            denied: list[str] = []
            with contextlib.suppress(CloudError):
                denied = account.denied(role, address)
            if denied:
                raise CloudError(
                    f"{address}: {role} may not {' and '.join(denied)}: a boundary or a policy of the organization "
                    f"denies it; 'aws iam get-role --role-name {role}' shows the boundary"
                )


def _check_image(cluster: ClusterFile, account: Account) -> None:
    listing = (
        f"AWS lists its images: aws ssm get-parameters-by-path --region {cluster.region} --recursive "
        "--path /aws/service/deeplearning/ami/x86_64 --query Parameters[].Name"
    )
    try:
        name = account.image(cluster)
        found = account.describe_image(name)
    except CloudError as error:
        raise CloudError(f"{error}; {listing}") from None
    if found is None or found.get("State") != "available":
        raise CloudError(f"{name}: no such image in {cluster.region}; {listing}")
    root = str(found.get("RootDeviceName", ""))
    disks = {str(one.get("DeviceName")): one.get("Ebs", {}) for one in found.get("BlockDeviceMappings", [])}
    needed = int(disks.get(root, {}).get("VolumeSize", 0))
    for kind, node in cluster.node_types.items():
        given = {one["DeviceName"]: one.get("Ebs", {}) for one in node["node_config"].get("BlockDeviceMappings", [])}
        if given and root not in given:
            raise CloudError(
                f"{name}: its disk is {root}; set DeviceName of {kind} to it, or the machine gets another disk"
            )
        size = int(given.get(root, {}).get("VolumeSize", needed))
        if size < needed:
            raise CloudError(f"{name}: needs {needed} GiB; {kind} has {size}: raise its VolumeSize")


def _check_quotas(cluster: ClusterFile, account: Account) -> None:
    """Check that the quotas of vCPUs allow a machine of one type at least; new accounts have none for GPUs."""
    refusals = []
    for name, kind in cluster.worker_types.items():
        instance_type, needed = kind["node_config"]["InstanceType"], float(kind["resources"]["CPU"])
        family = next((one for one in _QUOTAS if instance_type.startswith(one)), "")
        code = _QUOTAS[family][cluster.markets[name] == "spot"]
        allowed = account.quota(code)
        if allowed is None or allowed >= needed:
            return
        wanted = needed * int(kind.get("max_workers", cluster.max_workers))
        refusals.append(
            f"the quota {code} allows {allowed:g} vCPUs, and one {instance_type} needs {needed:g}; request more: aws "
            f"service-quotas request-service-quota-increase --region {cluster.region} --service-code ec2 "
            f"--quota-code {code} --desired-value {wanted:g}"
        )
    if refusals:
        raise CloudError(f"{cluster.path}: available_node_types: no type of worker can be launched: {refusals[0]}")
