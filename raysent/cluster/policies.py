"""Least-privilege IAM policies of a cluster's machines and of who launches it, as plain JSON values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from raysent.cluster.cluster_file import CLUSTER_TAG, ClusterFile
from raysent.config import leaves
from raysent.sweeps.space.local_paths import table_of

Policy = dict[str, Any]

TRUST: Policy = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def head_role(cluster: str) -> str:
    """Return the name of the role and instance profile of a cluster's head."""
    return f"{cluster}-raysent-head"


def worker_role(cluster: str) -> str:
    """Return the name of the role and instance profile of a cluster's workers."""
    return f"{cluster}-raysent-worker"


def head_policy(cluster: ClusterFile, *, account: str) -> Policy:
    """Return the policy of the head: start machines of the listed types, terminate the cluster's, and store runs.

    Args:
        cluster: The cluster.
        account: The account id.
    """
    return _policy(
        *_run_instances(cluster, account),
        *_tag_and_end(cluster, account),
        # These actions cannot be restricted to single resources.
        _allow(
            "Describe",
            "ec2:Describe*",
            "*",
            {"StringEquals": {"aws:RequestedRegion": cluster.region}},
        ),
        _allow(
            "PassWorkerRole",
            "iam:PassRole",
            f"arn:aws:iam::{account}:role/{worker_role(cluster.name)}",
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        *_storage(cluster),
    )


def worker_policy(cluster: ClusterFile) -> Policy:
    """Return the policy of a worker: read and write runs below the prefix of the storage."""
    return _policy(*_storage(cluster))


def operator_policy(cluster: ClusterFile, *, account: str) -> Policy:
    """Return the policy of who launches a cluster: `up`, `sweep --cluster`, `attach`, `stop`, `status` and `down`.

    Args:
        cluster: The cluster.
        account: The account id.
    """
    arn = f"arn:aws:ec2:{cluster.region}:{account}"
    roles = [
        f"arn:aws:iam::{account}:role/{role(cluster.name)}" for role in (head_role, worker_role)
    ]
    profiles = [role.replace(":role/", ":instance-profile/") for role in roles]
    return _policy(
        *_run_instances(cluster, account),
        *_tag_and_end(cluster, account),
        _allow("Describe", "ec2:Describe*", "*"),
        _allow(
            "SecurityGroupAndKeys",
            ["ec2:CreateSecurityGroup", "ec2:CreateKeyPair", "ec2:CreateTags"],
            [f"{arn}:security-group/*", f"{arn}:vpc/*", f"{arn}:key-pair/*"],
        ),
        _allow(
            "OpenToTheOperator",
            ["ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress"],
            f"{arn}:security-group/*",
            {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": cluster.name}},
        ),
        _allow(
            "RolesOfTheMachines",
            [
                "iam:CreateRole",
                "iam:TagRole",
                "iam:PutRolePolicy",
                "iam:ListRolePolicies",
                "iam:DeleteRolePolicy",
                "iam:PassRole",
            ],
            roles,
        ),
        _allow(
            "ProfilesOfTheMachines",
            [
                "iam:CreateInstanceProfile",
                "iam:TagInstanceProfile",
                "iam:GetInstanceProfile",
                "iam:AddRoleToInstanceProfile",
            ],
            profiles,
        ),
        # These actions cannot be restricted to single resources.
        _allow(
            "PricesQuotasAndImages",
            ["pricing:GetProducts", "servicequotas:GetServiceQuota", "ssm:GetParameter"],
            "*",
        ),
        *_storage(cluster),
    )


def input_policy(addresses: Sequence[str]) -> Policy:
    """Return the policy that allows to read the ``s3://`` addresses of a search space: files, or all below a prefix."""
    statements = []
    for number, (bucket, prefix) in enumerate(
        sorted({split_address(address) for address in addresses})
    ):
        arn = f"arn:aws:s3:::{bucket}"
        objects: str | list[str] = f"{arn}/*"
        prefixes = ["", "*"]
        if prefix:
            objects = [f"{arn}/{prefix}", f"{arn}/{prefix}/*"]
            prefixes = [prefix, f"{prefix}/*"]
        statements.append(_allow(f"ReadInput{number}", ["s3:GetObject"], objects))
        statements.append(
            _allow(
                f"ListInput{number}", "s3:ListBucket", arn, {"StringLike": {"s3:prefix": prefixes}}
            )
        )
    return _policy(*statements)


def split_address(address: str) -> tuple[str, str]:
    """Return bucket and prefix of an ``s3://`` address; a pattern ends before its first wildcard's folder."""
    bucket, _, key = address.removeprefix("s3://").partition("/")
    wild = re.search(r"[*?\[]", key)
    if wild:
        key = key[: wild.start()].rpartition("/")[0]
    return bucket, key.strip("/")


def s3_addresses(values: Any) -> list[str]:
    """Return every ``s3://`` address in plain values, such as those of a space and tables of tasks, each once."""
    leaves_and_tables = [table_of(value)[0] or value for value in leaves(values)]
    return sorted(
        {
            value
            for value in leaves(leaves_and_tables)
            if isinstance(value, str) and value.startswith("s3://")
        }
    )


def _run_instances(cluster: ClusterFile, account: str) -> list[Policy]:
    """Allow to start machines of the listed types with the cluster's tag, from any image and in any subnet."""
    arn = f"arn:aws:ec2:{cluster.region}:{account}"
    tag = {f"aws:RequestTag/{CLUSTER_TAG}": cluster.name}
    return [
        _allow(
            "StartListedTypes",
            "ec2:RunInstances",
            f"{arn}:instance/*",
            {
                "StringEquals": {
                    **tag,
                    "ec2:InstanceType": cluster.instance_types,
                    "ec2:MetadataHttpTokens": "required",
                }
            },
        ),
        _allow("CreateVolumes", "ec2:RunInstances", f"{arn}:volume/*", {"StringEquals": tag}),
        _allow(
            "UseSecurityGroup",
            "ec2:RunInstances",
            f"{arn}:security-group/*",
            {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": cluster.name}},
        ),
        _allow(
            "UseImagesAndNetwork",
            "ec2:RunInstances",
            [
                f"arn:aws:ec2:{cluster.region}::image/*",
                *(
                    f"{arn}:{kind}/*"
                    for kind in (
                        "subnet",
                        "network-interface",
                        "key-pair",
                        "spot-instances-request",
                    )
                ),
            ],
        ),
    ]


def _tag_and_end(cluster: ClusterFile, account: str) -> list[Policy]:
    """Allow to tag machines at their start, and to terminate the cluster's; its own tag cannot be added or changed."""
    arn = f"arn:aws:ec2:{cluster.region}:{account}"
    ours = {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": cluster.name}}
    return [
        _allow(
            "TagAtStart",
            "ec2:CreateTags",
            [f"{arn}:instance/*", f"{arn}:volume/*"],
            {"StringEquals": {"ec2:CreateAction": "RunInstances"}},
        ),
        _allow(
            "TagCluster",
            "ec2:CreateTags",
            f"{arn}:instance/*",
            # Ray stores the state of a machine in tags.
            {**ours, "ForAllValues:StringLike": {"aws:TagKeys": ["ray-*", "Name"]}},
        ),
        _allow("TerminateCluster", "ec2:TerminateInstances", f"{arn}:instance/*", ours),
    ]


def _storage(cluster: ClusterFile) -> list[Policy]:
    bucket = f"arn:aws:s3:::{cluster.settings.bucket}"
    prefix = cluster.settings.prefix
    below = "*"
    prefixes = ["*"]
    if prefix:
        below = f"{prefix}/*"
        prefixes = [prefix, below]
    actions = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    listed = {"StringLike": {"s3:prefix": prefixes}}
    return [
        _allow("ReadWriteRuns", actions, f"{bucket}/{below}"),
        _allow("ListRuns", "s3:ListBucket", bucket, listed),
    ]


def _policy(*statements: Policy) -> Policy:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(
    sid: str, actions: str | list[str], resources: str | list[str], condition: Policy | None = None
) -> Policy:
    statement: Policy = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    if condition:
        return {**statement, "Condition": condition}
    return statement
