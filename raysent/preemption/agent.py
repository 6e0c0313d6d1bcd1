"""The node agent: a process on every worker node that waits for an interruption notice and drains the Ray node.

It polls the instance metadata service of AWS, version 2 (first a token, then the request), every few seconds. SIGTERM,
which a machine that is shut down sends to its processes, counts as a notice too. A metadata service that does not
answer is polled again.

On a cluster that raysent launched, the agent also ends the machine once no sweep renews its permit. A sweep that runs
names its machines at every poll, in the control service of Ray on the head. If the sweep or the head dies, no permit is
renewed, and each machine ends itself: it costs no more than the sweep has set aside. Times are this machine's own; no
two clocks are compared.

Source: Amazon EC2 User Guide, "Spot Instance interruption notices": `spot/instance-action` returns 404 until about two
minutes before the machine is terminated, then the action and its time in UTC.
"""

from __future__ import annotations

import datetime
import logging
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raysent.errors import RaysentError
from raysent.reading import parse_json

POLL_S = 5.0
# systemd and container runtimes leave at least this time between SIGTERM and SIGKILL.
SHUTDOWN_S = 25.0
# Time for the first permit of a machine: a sweep names it at its next poll.
FIRST_PERMIT_S = 60.0
_ENDPOINT = "http://169.254.169.254"
_ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_TOKEN_S = 21600
_TIMEOUT_S = 2.0

_log = logging.getLogger("raysent.node-agent")

Drain = Callable[[float, str], None]
"""Drains the Ray node of this machine; called with the seconds left and the reason."""

Permits = Callable[[], Mapping[str, tuple[str, float]]]
"""Returns the permits that name this machine: name -> its renewal, and the seconds for which it is valid."""


@dataclass
class Watch:
    """Ends this machine when its permits have run out. Call `poll` regularly.

    Attributes:
        permits: Reads the permits; raises RaysentError if the head does not answer.
        end: Ends this machine.
        clock: Returns seconds of this machine.
    """

    permits: Permits
    end: Callable[[], object]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._renewals: dict[str, str] = {}
        self._valid_until_s = self.clock() + FIRST_PERMIT_S
        self.has_ended = False

    def poll(self) -> None:
        """End the machine if no permit is valid, else look for renewals."""
        if not self._is_over():
            try:
                self._read()
            except RaysentError as error:
                _log.warning(
                    "%s; this machine ends in %.0f s", error, self._valid_until_s - self.clock()
                )
            self._is_over()

    def _read(self) -> None:
        at_s = self.clock()
        for name, (renewal, seconds) in self.permits().items():
            if self._renewals.get(name) != renewal:
                until_s = at_s + seconds
                self._valid_until_s = (
                    max(self._valid_until_s, until_s) if self._renewals else until_s
                )
                self._renewals[name] = renewal

    def _is_over(self) -> bool:
        """Return whether the permits have run out; the machine is then ended, again if that has failed."""
        if self.clock() < self._valid_until_s:
            return False
        _log.warning("no sweep renews the permit of this machine; it ends now")
        self.has_ended = True
        self.end()
        return True


def shut_down_machine() -> None:
    """Shut this machine down, which terminates it; its processes get SIGTERM first."""
    command = ["sudo", "-n", "/sbin/shutdown", "-P", "now"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        _log.error(
            "%s: exit code %d: %s",
            " ".join(command),
            result.returncode,
            result.stderr.strip()[:200],
        )


class MetadataError(RaysentError):
    """The metadata service does not answer, or not in the documented format."""


@dataclass(frozen=True)
class Notice:
    """An interruption notice for this machine.

    Attributes:
        action: `terminate`, `stop` or `hibernate`.
        time_s: Time of the action, in seconds since 1970.
    """

    action: str
    time_s: float


class InstanceMetadata:
    """The metadata service of this machine.

    Args:
        endpoint: Its URL; the default is AWS_EC2_METADATA_SERVICE_ENDPOINT, else AWS's own address.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self.endpoint = (endpoint or os.environ.get(_ENDPOINT_VARIABLE) or _ENDPOINT).rstrip("/")
        self._token = ""
        # The service runs on the machine itself: a proxy of the user must not be used.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def notice(self) -> Notice | None:
        """Return the interruption notice, or None if there is none.

        Raises:
            MetadataError: If the service does not answer, or its answer is invalid.
        """
        text = self._get("spot/instance-action")
        return None if text is None else _read_notice(text)

    def instance_id(self) -> str:
        """Return the id of this machine.

        Raises:
            MetadataError: If the service does not answer.
        """
        found = self._get("instance-id")
        if not found:
            raise MetadataError(f"{self.endpoint}: must return instance-id; status 404")
        return found

    def _get(self, name: str) -> str | None:
        for is_last in (False, True):
            headers = {"X-aws-ec2-metadata-token": self._token or self._new_token()}
            try:
                return self._request(f"latest/meta-data/{name}", headers=headers)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401 or is_last:
                    raise MetadataError(
                        f"{self.endpoint}: must return {name}; status {error.code}"
                    ) from None
                self._token = ""
        return None

    def _new_token(self) -> str:
        try:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            self._token = self._request("latest/api/token", headers=headers, method="PUT")
        except urllib.error.HTTPError as error:
            raise MetadataError(
                f"{self.endpoint}: must return a token; status {error.code}"
            ) from None
        return self._token

    def _request(self, path: str, *, headers: dict[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(f"{self.endpoint}/{path}", headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return str(answer.read(65536).decode())
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError) as error:
            raise MetadataError(f"{self.endpoint}: must answer; {error}") from None


def _read_notice(text: str) -> Notice:
    """Parse a notice such as ``{"action": "terminate", "time": "2026-11-21T08:22:00Z"}``."""
    try:
        values = parse_json(text)
        at = datetime.datetime.fromisoformat(values["time"])
        return Notice(
            str(values["action"]),
            (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp(),
        )
    except (ValueError, KeyError, TypeError):
        raise MetadataError(
            f"spot/instance-action: must hold an action and a time; given {text[:200]!r}"
        ) from None


@dataclass
class NodeAgent:
    """Waits for a notice, then drains the Ray node.

    Attributes:
        metadata: Metadata service of this machine.
        drain: Drains the Ray node of this machine.
        poll_s: Polling interval, in seconds.
        watch: Ends the machine without a permit; None to let it live.
    """

    metadata: InstanceMetadata
    drain: Drain
    poll_s: float = POLL_S
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self._wake = threading.Event()
        self._is_shutting_down = False
        self._drained: Notice | None = None
        self._is_reachable = True
        self._last_refusal = ""

    def shut_down(self) -> None:
        """Drain at once and stop, because the machine is shutting down. May be called from a signal handler."""
        self._is_shutting_down = True
        self._wake.set()

    def run(self) -> None:
        """Poll until the machine is shut down."""
        while not self._is_shutting_down:
            self.poll()
            if self.watch is not None:
                self.watch.poll()
            self._wake.wait(self.poll_s)
        if self._drained is None:
            self._drain(Notice("shutdown", time.time() + SHUTDOWN_S))

    def poll(self) -> None:
        """Request the notice once; drain for a new notice or deadline, and retry if the last drain failed."""
        try:
            notice = self.metadata.notice()
        except MetadataError as error:
            if self._is_reachable:
                _log.warning("%s; retried every %g s", error, self.poll_s)
            self._is_reachable = False
            return
        self._is_reachable = True
        if notice is not None and notice != self._drained:
            self._drain(notice)

    def _drain(self, notice: Notice) -> None:
        left_s = notice.time_s - time.time()
        try:
            self.drain(left_s, f"{notice.action} in {left_s:.0f} s")
        except RaysentError as error:
            if str(error) != self._last_refusal:
                _log.warning("%s; retried every %g s", error, self.poll_s)
            self._last_refusal = str(error)
            return
        self._drained = notice
        _log.warning("drained for %s in %.0f s", notice.action, left_s)
