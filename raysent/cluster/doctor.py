"""What saving a checkpoint to the storage of runs takes: on spot machines it has to fit well into the notice.

Whether a cluster is safe and ready: every check in one line. None changes anything but that of saves, when asked.
"""

from __future__ import annotations

import datetime
import stat
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

import numpy as np
import torch

import raysent
from raysent.cluster.account import Account, Machine
from raysent.cluster.cluster_file import ClusterFile
from raysent.cluster.launcher import DASHBOARD_PORT, Launcher, answers
from raysent.cluster.prices import quote
from raysent.cost import price_list
from raysent.errors import ConfigError, RaysentError
from raysent.storage import address_of, open_folder, remove_folder, storage_errors
from raysent.training.checkpoint import Progress, save_checkpoint

# AWS's; a checkpoint may take half of it, for it is written twice and has to be heard of first.
NOTICE_S = 120.0
SHARE_OF_NOTICE = 0.5
NUM_SAVES = 20


@dataclass(frozen=True)
class Saves:
    """What saves took.

    Attributes:
        where: The storage.
        num_bytes: Of each checkpoint.
        seconds: Of each save, its upload included.
    """

    where: str
    num_bytes: int
    seconds: tuple[float, ...]

    @property
    def p99_s(self) -> float:
        """What 99 in 100 saves take at most; of few saves the longest."""
        return float(np.quantile(self.seconds, 0.99, method="higher"))

    @property
    def fit_into_notice(self) -> bool:
        """Whether that is safe on spot machines."""
        return self.p99_s <= SHARE_OF_NOTICE * NOTICE_S

    def __str__(self) -> str:
        """Return the finding in words."""
        limit_s = SHARE_OF_NOTICE * NOTICE_S
        text = (
            f"P99 of {len(self.seconds)} saves of {self.num_bytes / 2**20:.0f} MiB from here to {self.where}: "
            f"{self.p99_s:.2f} s; half of a notice is {limit_s:.0f} s"
        )
        return text if self.fit_into_notice else f"{text}; use --market on-demand, or smaller models"


def measure_save_time(storage: str, *, num_bytes: int, num_saves: int = NUM_SAVES) -> Saves:
    """Save checkpoints below a storage as training does, and remove them again.

    Args:
        storage: A local folder, or ``s3://BUCKET/PREFIX``.
        num_bytes: Of each checkpoint, at least 4.
        num_saves: How many.

    Raises:
        RaysentError: If nothing can be written there.
    """
    if num_bytes < 4 or num_saves < 1:
        raise ConfigError("a checkpoint to measure must have 4 bytes at least, and be saved once at least")
    folder = open_folder(f"{storage.rstrip('/')}/doctor-{uuid.uuid4().hex[:8]}")
    tensors = {"state": torch.rand(num_bytes // 4)}
    seconds = []
    try:
        for step in range(num_saves):
            begun = time.perf_counter()
            with storage_errors(address_of(folder)):
                save_checkpoint(folder, tensors, Progress(step=step), key="doctor")
            seconds.append(time.perf_counter() - begun)
    finally:
        remove_folder(folder)
    return Saves(storage, num_bytes, tuple(seconds))


# Whoever reaches one of these runs code on the cluster: the dashboard with the job API, Ray Client, and Ray itself.
PORTS = {DASHBOARD_PORT: "dashboard and job API", 10001: "Ray Client", 6379: "Ray"}
# Token authentication came with this version.
_OLDEST_RAY = (2, 52)

Verdict = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: What was asked.
        verdict: `ok`, `failed`, or `unknown` where it cannot be told now.
        text: Why, and what mends it.
    """

    check: str
    verdict: Verdict
    text: str


def diagnose(launcher: Launcher, *, reach: Callable[[str, int], bool] = answers) -> Iterator[Finding]:
    """Yield what each check finds.

    Args:
        launcher: The cluster's launcher; its file has been checked when it was read.
        reach: Whether a host answers at a port.
    """
    cluster, account = launcher.cluster, launcher.account
    yield Finding("file", "ok", f"{cluster.path}: token mode on, dashboard on 127.0.0.1, IMDSv2, own group and roles")
    yield _versions()
    yield _token(launcher)
    credentials = _credentials(account)
    yield credentials
    if credentials.verdict != "ok":
        yield Finding(
            "prices", "unknown", f"cannot be asked without credentials; list of {price_list().as_of} stands in"
        )
        yield Finding("machines", "unknown", "cannot be listed without credentials")
        return
    yield from _prices(cluster)
    yield from _standing(cluster, account, reach)


def check_token_required(address: str) -> Finding:
    """Return whether a dashboard refuses who brings no token.

    Args:
        address: As in http://127.0.0.1:8265.
    """
    check = "token mode"
    try:
        with urllib.request.urlopen(f"{address}/api/jobs/", timeout=10):
            return Finding(check, "failed", f"{address} answers without a token; start Ray with RAY_AUTH_MODE=token")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Finding(check, "ok", f"{address} refuses who brings no token")
        return Finding(check, "unknown", f"{address} answers with HTTP {error.code}")
    except (OSError, ValueError) as error:
        return Finding(check, "unknown", f"{address} does not answer: {error}")


def check_save_time(cluster: ClusterFile, *, num_bytes: int, storage: str | None = None) -> Finding:
    """Return whether a checkpoint is saved well within the notice that spot machines get; writes to the storage.

    Args:
        cluster: Knows the storage, and whether it has spot machines.
        num_bytes: Of a checkpoint.
        storage: Another storage than the cluster's.
    """
    check = "checkpoint"
    try:
        found = measure_save_time(storage or cluster.settings.storage, num_bytes=num_bytes)
    except RaysentError as error:
        return Finding(check, "failed", str(error))
    has_spot = any(kind.market == "spot" for kind in cluster.autoscaling.values())
    return Finding(check, "ok" if found.fit_into_notice or not has_spot else "failed", str(found))


def _versions() -> Finding:
    """Ray here and there are one version, new enough to ask for tokens."""
    ray = version("ray")
    text = f"raysent {raysent.__version__}, Ray {ray}; the cluster gets the same"
    if tuple(map(int, ray.split(".")[:2])) < _OLDEST_RAY:
        return Finding("versions", "failed", f"Ray {ray} knows no tokens; 2.52 or newer does")
    return Finding("versions", "ok", text)


def _token(launcher: Launcher) -> Finding:
    """The token's file is its owner's alone."""
    path = launcher.token_file
    if not path.exists():
        return Finding("token", "unknown", f"{path}: made by 'raysent cluster up'")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode != 0o600:
        return Finding("token", "failed", f"{path}: must have mode 600; given {mode:o}; 'chmod 600 {path}'")
    return Finding("token", "ok", f"{path}: mode 600")


def _credentials(account: Account) -> Finding:
    try:
        return Finding("credentials", "ok", f"account {account.account_id()}")
    except RaysentError as error:
        return Finding("credentials", "failed", str(error))


def _prices(cluster: ClusterFile) -> Iterator[Finding]:
    """What every listed machine costs can be told."""
    for instance_type in cluster.instance_types:
        check = f"price of {instance_type}"
        try:
            told = quote(instance_type, cluster.region)
        except RaysentError as error:
            yield Finding(check, "failed", str(error))
            continue
        cheapest = min((price.usd_per_hour for price in told.spot.values()), default=None)
        spot = "no spot price" if cheapest is None else f"spot from {cheapest:.4f}"
        text = f"{told.on_demand.usd_per_hour:.4f} usd an hour on demand ({told.on_demand.source}), {spot}"
        yield Finding(check, "unknown" if told.note else "ok", text + (f"; {told.note}" if told.note else ""))


def _standing(cluster: ClusterFile, account: Account, reach: Callable[[str, int], bool]) -> Iterator[Finding]:
    """What stands at AWS is closed and not forgotten."""
    try:
        machines, doors = account.machines(cluster.name), account.open_rules(cluster)
    except RaysentError as error:
        yield Finding("machines", "failed", str(error))
        return
    yield Finding("security group", "failed" if doors else "ok", "; ".join(doors) or "SSH from the operator only")
    yield from _ports(machines, reach)
    late = [machine.name for machine in machines if machine.is_orphan(datetime.datetime.now(datetime.UTC))]
    text = f"outlived their time: {', '.join(late)}; 'raysent cluster orphans --remove'" if late else "none is late"
    yield Finding("orphans", "failed" if late else "ok", text)


def _ports(machines: list[Machine], reach: Callable[[str, int], bool]) -> Iterator[Finding]:
    """Nothing that runs code answers from here."""
    addresses = [machine.address for machine in machines if machine.address]
    if not addresses:
        yield Finding("ports", "unknown", "no machine stands")
        return
    for port, what in PORTS.items():
        found = [address for address in addresses if reach(address, port)]
        text = f"{what} answers at {', '.join(found)}; close it" if found else f"{what} does not answer from here"
        yield Finding(f"port {port}", "failed" if found else "ok", text)
