"""Checks of whether a cluster is safe and ready, each with a result of one line.

The checks change nothing, except that `check_save_time` writes checkpoints to the storage and removes them again.
"""

from __future__ import annotations

import datetime
import stat
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

import numpy as np
import torch

import raysent
from raysent.cluster.account import Account, Machine
from raysent.cluster.cluster_file import ClusterFile
from raysent.cluster.gate import INSTALL_RAY, OLDEST_RAY, TRIED_RAY
from raysent.cluster.launcher import DASHBOARD_PORT, Launcher, answers, wheel_name
from raysent.cluster.policies import head_role, worker_role
from raysent.cluster.prices import BOOT, quote
from raysent.cost import price_list
from raysent.errors import ArtifactError, ConfigError, RaysentError
from raysent.progress import format_duration
from raysent.storage import address_of, open_folder, read_json, remove_folder, storage_errors
from raysent.training.checkpoint import Progress, save_checkpoint

# Everyone who reaches one of these ports can run code on the cluster.
PORTS = {DASHBOARD_PORT: "dashboard and job API", 10001: "Ray Client", 6379: "Ray"}
# The notice of AWS. A save may take half of it: a checkpoint is written twice, and noticing takes time too.
NOTICE_S = 120.0
SHARE_OF_NOTICE = 0.5
NUM_SAVES = 20

# Spot machines of a lower score than this are often refused.
LEAST_SCORE = 4
_OTHER_TYPES = "; launches may be refused, and then types of lower priority are launched"

# Start of an instance type -> AWS's quotas of vCPUs for it: on demand, spot. The last one is for all other types.
_QUOTAS = {
    "p": ("L-417A185B", "L-7212CCBC"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "vt": ("L-DB2E81BA", "L-3819A6DF"),
    "": ("L-1216C47A", "L-34B43A08"),
}

Verdict = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Name of the check.
        verdict: `ok`, `failed`, or `unknown` if it cannot be determined now.
        text: The reason, and the fix.
    """

    check: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Saves:
    """How long saves of checkpoints took.

    Attributes:
        where: The storage.
        num_bytes: Size of each checkpoint.
        seconds: Time of each save, its upload included.
    """

    where: str
    num_bytes: int
    seconds: tuple[float, ...]

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the seconds; the maximum if there are fewer than 100 saves."""
        return float(np.quantile(self.seconds, 0.99, method="higher"))

    @property
    def fit_into_notice(self) -> bool:
        """Whether saves are fast enough for spot machines."""
        return self.p99_s <= SHARE_OF_NOTICE * NOTICE_S

    def __str__(self) -> str:
        """Return the result in words."""
        limit_s = SHARE_OF_NOTICE * NOTICE_S
        text = (
            f"P99 of {len(self.seconds)} saves of {self.num_bytes / 2**20:.0f} MiB from here to {self.where}: "
            f"{self.p99_s:.2f} s; half of a notice is {limit_s:.0f} s"
        )
        return text if self.fit_into_notice else f"{text}; use --market on-demand, or smaller models"


def diagnose(
    launcher: Launcher, *, inputs: Sequence[str] = (), reach: Callable[[str, int], bool] = answers
) -> Iterator[Finding]:
    """Yield the result of each check.

    Args:
        launcher: The cluster's launcher; its file was checked when it was read.
        inputs: ``s3://`` addresses that sweeps read, such as the corpus.
        reach: Whether a host accepts connections at a port.
    """
    cluster, account = launcher.cluster, launcher.account
    yield Finding("file", "ok", f"{cluster.path}: token mode on, dashboard on 127.0.0.1, IMDSv2, own group and roles")
    yield _versions(launcher)
    yield _token(launcher)
    yield _first_trial(launcher)
    credentials = _credentials(account)
    yield credentials
    if credentials.verdict != "ok":
        as_of = price_list().as_of
        yield Finding("prices", "unknown", f"cannot be read without credentials; the list of {as_of} is used instead")
        yield Finding("machines", "unknown", "cannot be listed without credentials")
        return
    yield _image(cluster, account)
    yield _storage(cluster, account)
    for address in inputs:
        yield from _input(address, cluster, account)
    yield from _quotas(cluster, account)
    yield from _capacity(cluster, account)
    yield from _prices(cluster)
    yield from _machines(cluster, account, reach)


def check_token_required(address: str) -> Finding:
    """Return whether a dashboard rejects requests without a token.

    Args:
        address: As in http://127.0.0.1:8265.
    """
    check = "token mode"
    try:
        with urllib.request.urlopen(f"{address}/api/jobs/", timeout=10):
            return Finding(check, "failed", f"{address} answers without a token; start Ray with RAY_AUTH_MODE=token")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Finding(check, "ok", f"{address} rejects requests without a token")
        return Finding(check, "unknown", f"{address} answers with HTTP {error.code}")
    except (OSError, ValueError) as error:
        return Finding(check, "unknown", f"{address} does not answer: {error}")


def check_save_time(cluster: ClusterFile, *, num_bytes: int, storage: str | None = None) -> Finding:
    """Return whether checkpoints are saved well within the notice of a spot interruption; writes to the storage.

    Args:
        cluster: Defines the storage, and whether there are spot machines.
        num_bytes: Size of a checkpoint.
        storage: A storage to use instead of the cluster's.
    """
    check = "checkpoint"
    try:
        found = measure_save_time(storage or cluster.settings.storage, num_bytes=num_bytes)
    except RaysentError as error:
        return Finding(check, "failed", str(error))
    has_spot = "spot" in cluster.markets.values()
    return Finding(check, "ok" if found.fit_into_notice or not has_spot else "failed", str(found))


def measure_save_time(storage: str, *, num_bytes: int, num_saves: int = NUM_SAVES) -> Saves:
    """Save checkpoints below a storage as training does, time them, and remove them.

    Args:
        storage: A local folder, or ``s3://BUCKET/PREFIX``.
        num_bytes: Size of each checkpoint, at least 4.
        num_saves: Number of saves.

    Raises:
        RaysentError: If the storage is not writable.
    """
    if num_bytes < 4 or num_saves < 1:
        raise ConfigError("the checkpoint must have at least 4 bytes and be saved at least once")
    folder = open_folder(f"{storage.rstrip('/')}/doctor-{uuid.uuid4().hex[:8]}")
    tensors = {"state": torch.rand(num_bytes // 4)}
    seconds = []
    try:
        for step in range(num_saves):
            start = time.perf_counter()
            with storage_errors(address_of(folder)):
                save_checkpoint(folder, tensors, Progress(step=step), key="doctor")
            seconds.append(time.perf_counter() - start)
    finally:
        remove_folder(folder)
    return Saves(storage, num_bytes, tuple(seconds))


def _versions(launcher: Launcher) -> Finding:
    """Check that Ray supports tokens, and that the last head got the versions that are running here."""
    ray = version("ray")
    text = f"raysent {raysent.__version__}, Ray {ray}; the cluster gets the same"
    given = tuple(map(int, ray.split(".")[:2]))
    if given < OLDEST_RAY:
        return Finding("versions", "failed", f"Ray {ray} does not support tokens; 2.52 or newer does")
    if given > TRIED_RAY:
        return Finding("versions", "unknown", f"{text}; the newest Ray that was tried here is 2.60; {INSTALL_RAY}")
    if launcher.file.exists() and wheel_name() not in launcher.file.read_text(encoding="utf-8"):
        fix = f"if it is running: raysent cluster up {launcher.cluster.path} --update"
        return Finding("versions", "unknown", f"{text}; the last head was launched with another raysent; {fix}")
    return Finding("versions", "ok", text)


def _token(launcher: Launcher) -> Finding:
    """Check that only its owner can read the token."""
    path = launcher.token_file
    if not path.exists():
        return Finding("token", "unknown", f"{path}: created by 'raysent cluster up'")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode != 0o600:
        return Finding("token", "failed", f"{path}: must have mode 600; given {mode:o}; 'chmod 600 {path}'")
    return Finding("token", "ok", f"{path}: mode 600")


def _first_trial(launcher: Launcher) -> Finding:
    """Tell how long the last sweep waited for its head and its first machine, which are billed from their launch."""
    check, path = "time to first trial", launcher.first_trial_file
    if not path.is_file():
        return Finding(
            check, "unknown", f"no sweep has launched this cluster from here yet; {BOOT} of boot are assumed"
        )
    try:
        known = read_json(path)
        took, date = format_duration(known["seconds"]), known["date"]
    except (ArtifactError, KeyError, TypeError):
        return Finding(check, "unknown", f"{path}: damaged; the next sweep replaces it")
    return Finding(check, "ok", f"{took} from the launch to the first trial of the sweep of {date}")


def _credentials(account: Account) -> Finding:
    try:
        return Finding("credentials", "ok", f"account {account.account_id()}")
    except RaysentError as error:
        return Finding("credentials", "failed", str(error))


def _image(cluster: ClusterFile, account: Account) -> Finding:
    """Check that the machine image exists, and that the file's disk is its disk and large enough."""
    check = "image"
    listing = (
        f"aws ssm get-parameters-by-path --region {cluster.region} --recursive "
        "--path /aws/service/deeplearning/ami/x86_64 --query Parameters[].Name"
    )
    try:
        name = account.image(cluster)
        found = account.describe_image(name)
    except RaysentError as error:
        return Finding(check, "failed", f"{error}; AWS lists its images: {listing}")
    if found is None or found.get("State") != "available":
        return Finding(check, "failed", f"{name}: no such image in {cluster.region}; AWS lists its images: {listing}")
    root = str(found.get("RootDeviceName", ""))
    disks = {str(one.get("DeviceName")): one.get("Ebs", {}) for one in found.get("BlockDeviceMappings", [])}
    needed = int(disks.get(root, {}).get("VolumeSize", 0))
    for kind, node in cluster.node_types.items():
        given = {one["DeviceName"]: one.get("Ebs", {}) for one in node["node_config"].get("BlockDeviceMappings", [])}
        if given and root not in given:
            text = f"{name}: its disk is {root}; set DeviceName of {kind} to it, or the machine gets another disk"
            return Finding(check, "failed", text)
        size = int(given.get(root, {}).get("VolumeSize", needed))
        if size < needed:
            return Finding(check, "failed", f"{name}: needs {needed} GiB; {kind} has {size}: raise its VolumeSize")
    return Finding(check, "ok", f"{name}: {found.get('Name', 'available')}")


def _storage(cluster: ClusterFile, account: Account) -> Finding:
    """Check that the bucket for runs exists."""
    check, settings = "storage", cluster.settings
    try:
        account.has_objects(settings.storage)
    except RaysentError as error:
        fix = f"aws s3 mb s3://{settings.bucket} --region {cluster.region}"
        return Finding(check, "failed", f"{error}; if there is no such bucket: {fix}")
    return _key(check, settings.storage, cluster, account) or Finding(check, "ok", f"{settings.storage}: can be listed")


def _input(address: str, cluster: ClusterFile, account: Account) -> Iterator[Finding]:
    """Check that there is something at an address, and that both roles may read it."""
    check = f"input {address}"
    if not address.startswith("s3://"):
        yield Finding(check, "ok", "local; it is uploaded with the sweep")
        return
    try:
        if not account.has_objects(address):
            yield Finding(check, "failed", f"nothing is there; 'aws s3 cp --recursive FOLDER {address}' uploads it")
            return
    except RaysentError as error:
        yield Finding(check, "failed", f"{error}; 'aws s3 ls {address}' must work here")
        return
    encrypted = _key(check, address, cluster, account)
    if encrypted is not None:
        yield encrypted
        return
    for role in (head_role(cluster), worker_role(cluster)):
        try:
            denied = account.denied(role, address)
        except RaysentError as error:
            text = f"can be listed here; {error}; 'raysent cluster up' creates the roles"
            yield Finding(check, "unknown", text)
            return
        if denied:
            text = f"{role} may not {' and '.join(denied)}: a boundary or a policy of the organization denies it"
            yield Finding(check, "failed", f"{text}; 'aws iam get-role --role-name {role}' shows the boundary")
            return
    yield Finding(check, "ok", "both roles may read it, unless the bucket's own policy denies it")


def _key(check: str, address: str, cluster: ClusterFile, account: Account) -> Finding | None:
    """Return a finding if a bucket is encrypted with a customer's key, which the roles may not use on their own."""
    key = account.own_key(address)
    if not key:
        return None
    fix = (
        f"for both roles: aws kms create-grant --region {cluster.region} --key-id {key} --operations Decrypt "
        f"GenerateDataKey --grantee-principal arn:aws:iam::ACCOUNT:role/{worker_role(cluster)}"
    )
    return Finding(check, "unknown", f"{address}: is encrypted with the key {key}, which the roles need; {fix}")


def _capacity(cluster: ClusterFile, account: Account) -> Iterator[Finding]:
    """Check AWS's score of spot capacity for the most machines of each type."""
    scores: dict[str, int] = {}
    for name, kind in cluster.worker_types.items():
        if cluster.markets[name] != "spot":
            continue
        instance_type = kind["node_config"]["InstanceType"]
        num = int(kind.get("max_workers", cluster.max_workers))
        try:
            scores[name] = account.spot_score(instance_type, num)
        except RaysentError as error:
            yield Finding(f"capacity of {name}", "unknown", str(error))
            continue
        text = f"score {scores[name]} of 10 for {num} spot machines {instance_type}"
        is_low = scores[name] < LEAST_SCORE
        yield Finding(f"capacity of {name}", "unknown" if is_low else "ok", text + (_OTHER_TYPES if is_low else ""))
    if scores and max(scores.values()) < LEAST_SCORE:
        types = " ".join(cluster.worker_instance_types)
        other = f"aws ec2 get-spot-placement-scores --instance-types {types} --target-capacity {cluster.max_workers}"
        text = f"no spot type is likely to be launched now; use --market on-demand, or another region: {other}"
        yield Finding("capacity", "failed", text)


def _quotas(cluster: ClusterFile, account: Account) -> Iterator[Finding]:
    """Check that the account's quotas of vCPUs allow one machine of each type; new accounts have none for GPUs."""
    for name, kind in cluster.worker_types.items():
        instance_type, market = kind["node_config"]["InstanceType"], cluster.markets[name]
        family = next((one for one in _QUOTAS if instance_type.startswith(one)), "")
        code, check, needed = _QUOTAS[family][market == "spot"], f"quota of {name}", float(kind["resources"]["CPU"])
        allowed = account.quota(code)
        if allowed is None:
            yield Finding(check, "unknown", f"{code} of ec2 cannot be read; one {instance_type} needs {needed:g} vCPUs")
            continue
        wanted = needed * int(kind.get("max_workers", cluster.max_workers))
        fix = (
            f"aws service-quotas request-service-quota-increase --region {cluster.region} --service-code ec2 "
            f"--quota-code {code} --desired-value {wanted:g}"
        )
        text = f"{allowed:g} vCPUs; one {instance_type} needs {needed:g}, all that the file allows need {wanted:g}"
        if allowed < needed:
            yield Finding(check, "failed", f"{text}; request more: {fix}")
        else:
            yield Finding(check, "ok", text if allowed >= wanted else f"{text}; for all of them: {fix}")


def _prices(cluster: ClusterFile) -> Iterator[Finding]:
    """Check that the price of every listed machine is known."""
    for instance_type in cluster.instance_types:
        check = f"price of {instance_type}"
        try:
            found = quote(instance_type, cluster.region)
        except RaysentError as error:
            yield Finding(check, "failed", str(error))
            continue
        cheapest = min((price.usd_per_hour for price in found.spot.values()), default=None)
        spot = "no spot price" if cheapest is None else f"spot from {cheapest:.4f}"
        text = f"{found.on_demand.usd_per_hour:.4f} usd an hour on demand ({found.on_demand.source}), {spot}"
        yield Finding(check, "unknown" if found.note else "ok", text + (f"; {found.note}" if found.note else ""))


def _machines(cluster: ClusterFile, account: Account, reach: Callable[[str, int], bool]) -> Iterator[Finding]:
    """Check that the running machines are closed to the internet and within their time to live."""
    try:
        machines, rules = account.machines(cluster.name), account.open_rules(cluster)
    except RaysentError as error:
        yield Finding("machines", "failed", str(error))
        return
    yield Finding("security group", "failed" if rules else "ok", "; ".join(rules) or "SSH from the operator only")
    yield from _ports(machines, reach)
    late = [machine.name for machine in machines if machine.is_orphan(datetime.datetime.now(datetime.UTC))]
    text = f"past their time to live: {', '.join(late)}; 'raysent cluster orphans --remove'" if late else "none"
    yield Finding("orphans", "failed" if late else "ok", text)


def _ports(machines: list[Machine], reach: Callable[[str, int], bool]) -> Iterator[Finding]:
    """Check that no port that runs code is reachable from here."""
    addresses = [machine.address for machine in machines if machine.address]
    if not addresses:
        yield Finding("ports", "unknown", "no machine is running")
        return
    for port, what in PORTS.items():
        found = [address for address in addresses if reach(address, port)]
        text = f"{what} answers at {', '.join(found)}; close it" if found else f"{what} does not answer from here"
        yield Finding(f"port {port}", "failed" if found else "ok", text)
