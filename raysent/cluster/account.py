"""A cluster in the AWS account: security group, roles and machines. boto3 finds the credentials.

What keeps a cluster from being launched is found before it costs money: one line each, with what mends it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import ipaddress
import json
import math
import os
import re
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from raysent.cluster.cluster_file import CLUSTER_TAG, EXPIRES_TAG, SWEEP_TAG, TIME_FORM, ClusterFile
from raysent.cluster.policies import (
    TRUST,
    head_policy,
    head_role,
    input_policy,
    split_address,
    worker_policy,
    worker_role,
)
from raysent.cost import MARKET_LABEL, TYPE_LABEL
from raysent.errors import CloudError, ConfigError
from raysent.storage import storage_errors

_CHECK_IP = "https://checkip.amazonaws.com"
# Start of the name of a role's policy for what a sweep reads, one for each sweep, beside the one named `raysent`.
_INPUTS = "raysent-inputs"
# Seconds until EC2 knows a new instance profile.
PROFILE_S = 15.0
# No command waits longer for an answer of AWS.
_PATIENCE = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 4})
_ALIVE = ("pending", "running", "stopping", "stopped")
# Start of an instance type -> AWS's quotas of vCPUs for it: on demand, spot. The last one is for all other types.
_QUOTAS = {
    "p": ("L-417A185B", "L-7212CCBC"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "vt": ("L-DB2E81BA", "L-3819A6DF"),
    "": ("L-1216C47A", "L-34B43A08"),
}
_ENDED = ("terminated", "shutting-down")
# Codes of AWS for an action that the credentials may not take.
_DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
# In trial requests, where the image of the file is not known: AWS looks at permissions first.
_TRIAL_IMAGE = "ami-00000000"
_ENDED_AT = re.compile(r"\((\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}) (?:GMT|UTC)\)")


@dataclass(frozen=True)
class Machine:
    """A machine in the cloud's list.

    Attributes:
        name: Its id.
        node_type: Its type in the cluster file; empty if unknown.
        labels: Its instance type and market, which determine its price.
        launched: Unix seconds of its launch.
        ended: Unix seconds of its end; None while it is billed; NaN if it has ended at an unknown time.
        is_interrupted: Whether the cloud ended it.
        sweep: The sweep that it was launched for; empty if unknown.
        is_head: Whether it is its cluster's head.
        cluster: Name of its cluster.
        state: Its state at AWS, as in running.
        zone: As in us-east-1a.
        address: Its public address; empty if it has none.
        expires: When it terminates itself; None if its tag cannot be read.
    """

    name: str
    node_type: str
    labels: Mapping[str, str]
    launched: float
    ended: float | None = None
    is_interrupted: bool = False
    sweep: str = ""
    is_head: bool = False
    cluster: str = ""
    state: str = ""
    zone: str = ""
    address: str = ""
    expires: datetime.datetime | None = None

    @property
    def instance_type(self) -> str:
        """As in g5.xlarge."""
        return self.labels[TYPE_LABEL]

    @property
    def market(self) -> str:
        """`spot` or `on-demand`."""
        return self.labels[MARKET_LABEL]

    @property
    def launched_at(self) -> datetime.datetime:
        """When it was launched, in UTC."""
        return datetime.datetime.fromtimestamp(self.launched, datetime.UTC)

    @property
    def is_orphan(self) -> bool:
        """Whether the machine has outlived its time to live, or that time is unknown."""
        return self.expires is None or self.expires <= datetime.datetime.now(datetime.UTC)


@contextlib.contextmanager
def aws_errors(what: str) -> Iterator[None]:
    """Turn errors of AWS inside the block into a CloudError of one line that starts with `what`."""
    try:
        yield
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise CloudError(f"{what}: {' '.join(str(error).split())}") from None


def _public_address() -> str:
    """Return this machine's public address, as AWS sees it.

    Raises:
        CloudError: If it cannot be determined.
    """
    try:
        with urllib.request.urlopen(_CHECK_IP, timeout=10) as response:
            address = response.read(64).decode().strip()
        return f"{ipaddress.IPv4Address(address)}/32"
    except (OSError, ValueError) as error:
        reason = f"this machine's public address cannot be determined ({error})"
        raise CloudError(f"metadata.raysent.operator: {reason}; set it in the file") from None


class Account:
    """The AWS account of a cluster, in its region."""

    def __init__(self, region: str) -> None:
        """Create the clients, with the credentials that boto3 finds; no request is sent yet."""
        self.region = region
        self._quotas: dict[str, float | None] = {}
        with aws_errors("AWS"):
            self.ec2, self.iam, self.sts, self.ssm = (
                boto3.client(service, region_name=region, config=_PATIENCE)
                for service in ("ec2", "iam", "sts", "ssm")
            )

    @functools.cached_property
    def s3(self) -> Any:
        """The client of S3."""
        return boto3.client("s3", region_name=self.region, config=_PATIENCE)

    def account_id(self) -> str:
        """Return the account id.

        Raises:
            CloudError: If there are no credentials, or AWS rejects them.
        """
        with aws_errors("AWS credentials"):
            return str(self.sts.get_caller_identity()["Account"])

    def quota(self, code: str) -> float | None:
        """Return a quota of EC2 in vCPUs, or None if AWS does not return it."""
        if code not in self._quotas:
            self._quotas[code] = None
            with contextlib.suppress(CloudError), aws_errors(f"quota {code}"):
                client = boto3.client("service-quotas", region_name=self.region, config=_PATIENCE)
                response = client.get_service_quota(ServiceCode="ec2", QuotaCode=code)
                self._quotas[code] = float(response["Quota"]["Value"])
        return self._quotas[code]

    def describe_image(self, name: str) -> dict[str, Any] | None:
        """Return AWS's description of an image; None if there is none of this id in the region.

        Raises:
            CloudError: If AWS returns another error.
        """
        with aws_errors(f"image {name}"):
            try:
                images = self.ec2.describe_images(ImageIds=[name])["Images"]
            except ClientError as error:
                if not error.response["Error"]["Code"].startswith("InvalidAMIID"):
                    raise
                return None
        return images[0] if images else None

    def has_objects(self, address: str) -> bool:
        """Return whether there are objects at an ``s3://`` address or below it.

        Raises:
            CloudError: If these credentials may not list it, or there is no such bucket.
        """
        bucket, prefix = split_address(address)
        with aws_errors(address):
            return bool(
                self.s3.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1).get("KeyCount", 0)
            )

    def prepare(self, cluster: ClusterFile) -> dict[str, str]:
        """Create or update the security group and the roles of a cluster; what its sweeps may read stays.

        Returns:
            The values of ``{{ image }}``, ``{{ security_group }}``, ``{{ head_profile }}`` and
            ``{{ worker_profile }}``.

        Raises:
            CloudError: If AWS returns an error.
        """
        account = self.account_id()
        operator = cluster.settings.operator
        group = self._security_group(cluster, _public_address() if operator == "auto" else operator)
        head = head_role(cluster.name)
        worker = worker_role(cluster.name)
        is_new = self._role(worker, worker_policy(cluster), cluster)
        if self._role(head, head_policy(cluster, account=account), cluster) or is_new:
            time.sleep(PROFILE_S)
        return {
            "image": self.image(cluster),
            "security_group": group,
            "head_profile": head,
            "worker_profile": worker,
        }

    def key_pair(self, name: str, file: Path, cluster: str) -> str:
        """Return the name of a key pair whose private half is in a file; a new one if AWS or this computer lacks it.

        Args:
            name: Start of its name.
            file: The private half, which only the user can read.
            cluster: The cluster that it is tagged with.

        Raises:
            CloudError: If AWS returns an error.
        """
        name_file = file.with_suffix(".name")
        with aws_errors(f"key pair {name}"):
            if file.exists() and name_file.exists():
                key_name = name_file.read_text(encoding="utf-8").strip()
                filters = [{"Name": "key-name", "Values": [key_name]}]
                if self.ec2.describe_key_pairs(Filters=filters)["KeyPairs"]:
                    return key_name
            key_name = f"{name}-{uuid.uuid4().hex[:8]}"
            tags = [{"Key": CLUSTER_TAG, "Value": cluster}]
            key_pair = self.ec2.create_key_pair(
                KeyName=key_name,
                KeyType="ed25519",
                TagSpecifications=[{"ResourceType": "key-pair", "Tags": tags}],
            )
        with storage_errors(file):
            for path in (file, name_file):
                path.unlink(missing_ok=True)
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as stream:
                stream.write(str(key_pair["KeyMaterial"]))
            name_file.write_text(key_name, encoding="utf-8")
        return key_name

    def machines(self, cluster: str | None = None) -> list[Machine]:
        """Return the machines with raysent's tag that have not terminated, oldest first.

        Args:
            cluster: Name of their cluster; None for all clusters.
        """
        _, machines = list_machines(self.ec2, cluster, states=_ALIVE)
        return sorted(machines, key=lambda machine: (machine.launched, machine.name))

    def terminate(self, machines: Sequence[Machine]) -> None:
        """Terminate machines.

        Raises:
            CloudError: If AWS returns an error.
        """
        if machines:
            with aws_errors(f"terminating machines in {self.region}"):
                self.ec2.terminate_instances(InstanceIds=[machine.name for machine in machines])

    def image(self, cluster: ClusterFile) -> str:
        """Return the id of the machine image; if the file names a public parameter, its value.

        Raises:
            CloudError: If AWS does not know the parameter.
        """
        image = cluster.settings.image
        if image.startswith("ami-"):
            return image
        with aws_errors(f"{cluster.path}: metadata.raysent.image: {image}"):
            return str(self.ssm.get_parameter(Name=image)["Parameter"]["Value"])

    def _security_group(self, cluster: ClusterFile, operator: str) -> str:
        """Return the id of a group that allows SSH from the operator and all traffic among the cluster's machines."""
        filters = [
            {"Name": "group-name", "Values": [_group_name(cluster)]},
            {"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster.name]},
        ]
        with aws_errors(f"security group {_group_name(cluster)}"):
            groups = self.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
            if groups:
                group = groups[0]
            else:
                group = self.ec2.create_security_group(**self._new_group(cluster))
            name = str(group["GroupId"])
            wanted_rules: dict[tuple[Any, ...], dict[str, Any]] = {
                ("tcp", 22, 22, operator): {
                    "FromPort": 22,
                    "ToPort": 22,
                    "IpRanges": [{"CidrIp": operator}],
                },
                ("-1", -1, -1, name): {"UserIdGroupPairs": [{"GroupId": name}]},
            }
            of_group = [{"Name": "group-id", "Values": [name]}]
            rules = self.ec2.describe_security_group_rules(Filters=of_group)["SecurityGroupRules"]
            rule_of_id = {
                rule["SecurityGroupRuleId"]: _ingress(rule)
                for rule in rules
                if not rule["IsEgress"]
            }
            # What is missing first: a running cluster keeps its access if AWS refuses a request.
            missing = [
                {"IpProtocol": rule[0], **source}
                for rule, source in wanted_rules.items()
                if rule not in rule_of_id.values()
            ]
            if missing:
                self.ec2.authorize_security_group_ingress(GroupId=name, IpPermissions=missing)
            stale = [rule_id for rule_id, rule in rule_of_id.items() if rule not in wanted_rules]
            if stale:
                self.ec2.revoke_security_group_ingress(GroupId=name, SecurityGroupRuleIds=stale)
        return name

    def _new_group(self, cluster: ClusterFile) -> dict[str, Any]:
        networks = self.ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])[
            "Vpcs"
        ]
        if not networks:
            fix = "create one with 'aws ec2 create-default-vpc'"
            raise ConfigError(
                f"{cluster.path}: provider.region: {self.region} has no default network; {fix}"
            )
        return {
            "GroupName": _group_name(cluster),
            "Description": f"raysent {cluster.name}: SSH from its operator",
            "VpcId": networks[0]["VpcId"],
            "TagSpecifications": [
                {
                    "ResourceType": "security-group",
                    "Tags": [{"Key": CLUSTER_TAG, "Value": cluster.name}],
                }
            ],
        }

    def _role(self, name: str, policy: Mapping[str, Any], cluster: ClusterFile) -> bool:
        """Create a role and its instance profile, or update the policy of an existing one; return whether it is new."""
        with aws_errors(f"role {name}"):
            tags = [{"Key": CLUSTER_TAG, "Value": cluster.name}]
            with contextlib.suppress(self.iam.exceptions.EntityAlreadyExistsException):
                self.iam.create_role(
                    RoleName=name, AssumeRolePolicyDocument=json.dumps(TRUST), Tags=tags
                )
            self.iam.put_role_policy(
                RoleName=name, PolicyName="raysent", PolicyDocument=json.dumps(policy)
            )
            with contextlib.suppress(self.iam.exceptions.EntityAlreadyExistsException):
                self.iam.create_instance_profile(InstanceProfileName=name, Tags=tags)
                self.iam.get_waiter("instance_profile_exists").wait(InstanceProfileName=name)
            roles = self.iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"][
                "Roles"
            ]
            if not roles:
                self.iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        return not roles

    def allow_inputs(self, cluster: str, sweep: str, inputs: Sequence[str]) -> None:
        """Let both roles of a cluster read what a sweep reads besides the runs.

        Args:
            cluster: Name of the cluster, whose roles exist.
            sweep: The sweep; what others may read stays.
            inputs: ``s3://`` addresses.

        Raises:
            CloudError: If AWS returns an error.
        """
        if not inputs:
            return
        for role in (worker_role(cluster), head_role(cluster)):
            with aws_errors(f"role {role}"):
                document = json.dumps(input_policy(inputs))
                self.iam.put_role_policy(
                    RoleName=role, PolicyName=_inputs_of(sweep), PolicyDocument=document
                )

    def remove_inputs(self, cluster: str, sweep: str | None = None) -> None:
        """Take away again what a sweep may read, or what all sweeps of a cluster may.

        Raises:
            CloudError: If AWS returns an error.
        """
        missing = self.iam.exceptions.NoSuchEntityException
        for role in (worker_role(cluster), head_role(cluster)):
            with aws_errors(f"role {role}"), contextlib.suppress(missing):
                for name in self.iam.list_role_policies(RoleName=role)["PolicyNames"]:
                    if sweep:
                        is_removed = name == _inputs_of(sweep)
                    else:
                        is_removed = name.startswith(_INPUTS)
                    if is_removed:
                        self.iam.delete_role_policy(RoleName=role, PolicyName=name)


def check_ready(cluster: ClusterFile, account: Account) -> None:
    """Check that AWS can launch a cluster: its image and disks, its storage, and quotas for its machines.

    Raises:
        CloudError: For the first thing that is missing.
    """
    account.account_id()
    for problem in launch_problems(cluster, account):
        raise CloudError(problem)


def launch_problems(cluster: ClusterFile, account: Account) -> Iterator[str]:
    """Yield what keeps AWS from launching a cluster, each in one line with what mends it; nothing is changed."""
    for check in (_check_image, _check_storage, _check_quotas):
        try:
            check(cluster, account)
        except CloudError as error:
            yield str(error)


def missing_permissions(cluster: ClusterFile, account: Account) -> list[str]:
    """Return the actions of EC2 that AWS denies to these credentials, by trial requests that change nothing."""
    config = cluster.head["node_config"]
    tags = [{"Key": CLUSTER_TAG, "Value": cluster.name}]
    trials: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "ec2:RunInstances": (
            account.ec2.run_instances,
            {
                "MinCount": 1,
                "MaxCount": 1,
                "InstanceType": config["InstanceType"],
                "ImageId": _TRIAL_IMAGE,
                "MetadataOptions": config["MetadataOptions"],
                "TagSpecifications": [
                    {"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")
                ],
            },
        ),
        "ec2:CreateSecurityGroup": (
            account.ec2.create_security_group,
            {"GroupName": _group_name(cluster), "Description": "trial"},
        ),
    }
    with contextlib.suppress(CloudError):
        name = account.image(cluster)
        trials["ec2:RunInstances"][1]["ImageId"] = name
    return [action for action, trial in trials.items() if _is_denied(*trial)]


def _is_denied(request: Callable[..., Any], values: Mapping[str, Any]) -> bool:
    try:
        request(**values, DryRun=True)
    except ClientError as error:
        return error.response["Error"]["Code"] in _DENIED
    except BotoCoreError:
        return False
    return False


def tight_quotas(cluster: ClusterFile, account: Account) -> Iterator[str]:
    """Yield a line for each quota that allows fewer workers than the file does, and for quotas that are unknown."""
    unknown = []
    for code, (name, kind) in _types_by_quota(cluster).items():
        instance_type = kind["node_config"]["InstanceType"]
        needed = float(kind["resources"]["CPU"])
        max_workers = int(kind.get("max_workers", cluster.max_workers))
        allowed = account.quota(code)
        if allowed is None:
            unknown.append(code)
        elif allowed < needed * max_workers:
            yield (
                f"quota {code} allows {allowed:g} vCPUs: {int(allowed / needed)} of {max_workers} "
                f"{instance_type} ({name})"
            )
    if unknown:
        yield (
            f"quotas {', '.join(unknown)} are not known (servicequotas:GetServiceQuota): AWS may "
            "launch fewer machines"
        )


def check_inputs(account: Account, inputs: Sequence[str]) -> None:
    """Check that there is something at every ``s3://`` address that a sweep reads.

    Raises:
        CloudError: For the first address without.
    """
    for address in inputs:
        try:
            has_text = account.has_objects(address)
        except CloudError as error:
            raise CloudError(f"{error}; 'aws s3 ls {address}' must work here") from None
        if not has_text:
            raise CloudError(
                f"{address}: nothing is there; 'aws s3 cp --recursive FOLDER {address}' uploads it"
            )


def _check_image(cluster: ClusterFile, account: Account) -> None:
    listing = (
        f"AWS lists its images: aws ssm get-parameters-by-path --region {cluster.region} --recursive "
        "--path /aws/service/deeplearning/ami/x86_64 --query Parameters[].Name"
    )
    try:
        name = account.image(cluster)
        description = account.describe_image(name)
    except CloudError as error:
        raise CloudError(f"{error}; {listing}") from None
    if description is None or description.get("State") != "available":
        raise CloudError(f"{name}: no such image in {cluster.region}; {listing}")


def _check_storage(cluster: ClusterFile, account: Account) -> None:
    try:
        account.has_objects(cluster.settings.storage)
    except CloudError as error:
        bucket = cluster.settings.bucket
        region = cluster.region
        raise CloudError(
            f"{error}; if there is no such bucket: aws s3 mb s3://{bucket} --region {region}"
        ) from None


def _quota_of(cluster: ClusterFile, name: str) -> str:
    """Return the code of AWS's quota of vCPUs for a type of worker."""
    instance_type = cluster.worker_types[name]["node_config"]["InstanceType"]
    family = next((start for start in _QUOTAS if instance_type.startswith(start)), "")
    return _QUOTAS[family][cluster.markets[name] == "spot"]


def _types_by_quota(cluster: ClusterFile) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the type of the largest need for each quota of the workers."""
    largest: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, kind in cluster.worker_types.items():
        code = _quota_of(cluster, name)
        if code not in largest or kind["resources"]["CPU"] > largest[code][1]["resources"]["CPU"]:
            largest[code] = (name, kind)
    return largest


def _check_quotas(cluster: ClusterFile, account: Account) -> None:
    """Check that the quotas of vCPUs allow a machine of one type at least; new accounts have none for GPUs."""
    refusals = []
    for name, kind in cluster.worker_types.items():
        instance_type = kind["node_config"]["InstanceType"]
        needed = float(kind["resources"]["CPU"])  # cores of a worker are vCPUs of its machine
        code = _quota_of(cluster, name)
        allowed = account.quota(code)
        # One type that may be launched is enough, and an unknown quota may allow it.
        if allowed is None or allowed >= needed:
            return
        desired_value = needed * int(kind.get("max_workers", cluster.max_workers))
        refusals.append(
            f"the quota {code} allows {allowed:g} vCPUs, and one {instance_type} needs {needed:g}; request more: aws "
            f"service-quotas request-service-quota-increase --region {cluster.region} --service-code ec2 "
            f"--quota-code {code} --desired-value {desired_value:g}"
        )
    if refusals:
        raise CloudError(
            f"{cluster.path}: available_node_types: no type of worker can be launched: {refusals[0]}"
        )


def _inputs_of(sweep: str) -> str:
    return f"{_INPUTS}-{re.sub(r'[^A-Za-z0-9_+=,.@-]', '-', sweep)}"[:128]


def _ingress(rule: Mapping[str, Any]) -> tuple[Any, ...]:
    source = rule.get("CidrIpv4") or rule.get("ReferencedGroupInfo", {}).get("GroupId")
    return rule["IpProtocol"], rule["FromPort"], rule["ToPort"], source


def _group_name(cluster: ClusterFile) -> str:
    return f"raysent-{cluster.name}"


def list_machines(
    ec2: Any, cluster: str | None, *, states: Sequence[str] | None = None
) -> tuple[float, list[Machine]]:
    """Return AWS's time, and the machines with raysent's tag.

    Args:
        ec2: A boto3 client of EC2.
        cluster: Name of their cluster; None for all clusters.
        states: The states that count; None for all, also the ended ones that AWS still lists.

    Raises:
        CloudError: If AWS does not answer.
    """
    if cluster:
        filters = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]
    else:
        filters = [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
    if states is not None:
        filters.append({"Name": "instance-state-name", "Values": list(states)})
    with aws_errors("describe_instances"):
        pages = list(ec2.get_paginator("describe_instances").paginate(Filters=filters))
    now = time.time()  # this machine's clock may be wrong: the cloud's is taken where it is given
    with contextlib.suppress(KeyError, ValueError, TypeError):
        now = parsedate_to_datetime(
            pages[-1]["ResponseMetadata"]["HTTPHeaders"]["date"]
        ).timestamp()
    instances = [
        instance
        for page in pages
        for group in page["Reservations"]
        for instance in group["Instances"]
    ]
    return now, [_machine(instance) for instance in instances]


def _machine(instance: Mapping[str, Any]) -> Machine:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    ended: float | None = None
    if instance["State"]["Name"] in _ENDED:
        at = _ENDED_AT.search(instance.get("StateTransitionReason", ""))
        if at:
            ended = _utc(at[1], "%Y-%m-%d %H:%M:%S").timestamp()
        else:
            ended = math.nan
    expires = None
    with contextlib.suppress(ValueError):
        expires = _utc(tags.get(EXPIRES_TAG, ""), TIME_FORM)
    return Machine(
        instance["InstanceId"],
        tags.get("ray-user-node-type", ""),
        {
            TYPE_LABEL: instance["InstanceType"],
            MARKET_LABEL: instance.get("InstanceLifecycle", "on-demand"),
        },
        instance["LaunchTime"].timestamp(),
        ended,
        is_interrupted=instance.get("StateReason", {}).get("Code", "").startswith("Server.Spot"),
        sweep=tags.get(SWEEP_TAG, ""),
        is_head=tags.get("ray-node-type") == "head",
        cluster=tags.get(CLUSTER_TAG, ""),
        state=instance["State"]["Name"],
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        address=instance.get("PublicIpAddress", ""),
        expires=expires,
    )


def _utc(text: str, form: str) -> datetime.datetime:
    return datetime.datetime.strptime(text, form).replace(tzinfo=datetime.UTC)
