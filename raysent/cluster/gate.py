"""Ray's node providers with a gate: a worker is launched only if the sweep has admitted it.

Ray's autoscaler (v2) launches machines for waiting work without regard to a budget, and asks for a refused type again
and again. Here every launch needs a permit, which a sweep renews while it runs; each sweep of the cluster has its own:

    permits/SWEEP.json  {"until": Unix seconds, "launches": {type: number in all}, "targets": {type: most at once}}
    launches.jsonl      one line for each launch and refusal: time, event, type, sweep, and instance or reason

Without a valid permit nothing is launched, so a dead sweep launches nothing. A machine is tagged with the sweep whose
permit it was launched by, and that sweep pays for it. The cluster file names the class:

    provider: {type: external, module: raysent.cluster.gate.AwsProvider, raysent: {folder: ~/raysent-fleet}}

Runs inside Ray's autoscaler on the head.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import threading
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from raysent.cluster.cluster_file import EXPIRES_TAG, SWEEP_TAG, TIME_FORM
from raysent.errors import ArtifactError, CloudError
from raysent.ray_private import aws_provider
from raysent.reading import parse_json, read_json

# The gate extends classes that Ray may change; these versions have them, tokens, and priorities of machines.
_INSTALL_RAY = "pip install 'ray[default]>=2.56,<2.61'"

try:
    from ray.autoscaler.node_launch_exception import NodeLaunchException
    from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

    _AwsNodeProvider = aws_provider()
except (ImportError, AttributeError) as error:
    raise CloudError(
        f"Ray {version('ray')}: must have the classes that launch machines ({error}); 2.56 to 2.60 have them: "
        f"{_INSTALL_RAY}"
    ) from None

_PERMITS_FOLDER = "permits"
_LAUNCHES_FILE = "launches.jsonl"
# The section of the provider's configuration with the folder of both files.
_SECTION = "raysent"
LAUNCHED = "launched"
REFUSED = "refused"
_NOT_ADMITTED = "not admitted"
RELEASED = "released"
# What a tag may not contain.
_NOT_IN_TAGS = re.compile(r"[^\w.:/=+@-]+")


class LaunchGate:
    """A mixin for a node provider of Ray: launches workers by permit, and records every launch and refusal."""

    provider_config: dict[str, Any]
    # The sweep that admitted what is being launched; empty for the head.
    admitting_sweep = ""

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: Any, labels: Any
    ) -> Any:
        """Launch workers if the permit allows it. Ray calls this from several threads, for workers only.

        Raises:
            NodeLaunchException: If the launch is not admitted, or the cloud refuses it.
        """
        kind = tags.get(TAG_RAY_USER_NODE_TYPE, "")
        folder = Path(self.provider_config[_SECTION]["folder"]).expanduser()
        with _TURN:
            parts, reason = admitted(folder, kind, count, now=time.time())
            if reason:
                Record(folder, "").not_admitted(kind, reason)
                raise NodeLaunchException("NotAdmitted", f"{kind}: {reason}", None)
            created: dict[str, Any] = {}
            for record, number in parts:
                self.admitting_sweep = record.sweep
                try:
                    launched = super().create_node_with_resources_and_labels(  # type: ignore[misc]
                        node_config, tags, number, resources, labels
                    )
                except BaseException as error:
                    record.write(REFUSED, kind, reason=reason_of(error))
                    if created:  # for another sweep: Ray asks for the others again
                        break
                    raise
                # A provider that returns no names has launched what was asked for; AWS may launch fewer.
                for name in list(launched or {}) or [""] * number:
                    record.write(LAUNCHED, kind, instance=name)
                created |= launched or {}
            return created


class AwsProvider(LaunchGate, _AwsNodeProvider):  # type: ignore[misc, valid-type]
    """Ray's AWS provider with the gate. It tags machines with what must not be part of Ray's launch hash."""

    def get_command_runner(
        self, log_prefix: str, node_id: str, auth_config: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Return what runs commands on a machine.

        Ray copies the key of `auth` to the head, which reaches the workers by it. The head itself is reached by a key
        that only the operator's computer has.
        """
        head_key = Path(self.provider_config[_SECTION].get("head_key", ""))
        is_head = self.node_tags(node_id).get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD
        if is_head and head_key.is_file():
            auth_config = {**auth_config, "ssh_private_key": str(head_key)}
        return super().get_command_runner(log_prefix, node_id, auth_config, *args, **kwargs)

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> Any:
        """Launch machines, the head included, with the tags of the provider's configuration."""
        settings = self.provider_config[_SECTION]
        machine_tags = {
            **settings["tags"],
            EXPIRES_TAG: expiry(time.time() + settings["time_to_live_s"]),
        }
        if self.admitting_sweep:
            machine_tags[SWEEP_TAG] = tag_of(self.admitting_sweep)
        pairs = [{"Key": key, "Value": value} for key, value in machine_tags.items()]
        specs = list(node_config.get("TagSpecifications", []))
        specs += [{"ResourceType": kind, "Tags": pairs} for kind in ("instance", "volume")]
        return super().create_node({**node_config, "TagSpecifications": merged(specs)}, tags, count)


_TURN = threading.Lock()


class Record:
    """The permit and the launches of one sweep in the folder of a cluster, as the gate and the sweep read them."""

    def __init__(self, folder: Path, sweep: str = "sweep") -> None:
        """Use a folder; it is created with the first line."""
        self.folder = folder
        self.sweep = sweep

    @property
    def permit_path(self) -> Path:
        """The file with the permit."""
        return self.folder / _PERMITS_FOLDER / f"{self.sweep}.json"

    def permit(self) -> Mapping[str, Any]:
        """Return the permit; empty if there is none or it cannot be read."""
        with contextlib.suppress(ArtifactError):
            values = read_json(self.permit_path)
            if isinstance(values, dict):
                return values
        return {}

    def num_admitted(self, kind: str, *, now: float) -> int | None:
        """Return how many machines of a type may still be launched; None without a valid permit."""
        permit = self.permit()
        if now > float(permit.get("until", 0.0)):
            return None
        launched = [
            line for line in self.lines() if line["event"] == LAUNCHED and line["type"] == kind
        ]
        return max(0, int(permit.get("launches", {}).get(kind, 0)) - len(launched))

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the sweep, without a torn last one."""
        try:
            texts = (self.folder / _LAUNCHES_FILE).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        lines = []
        for text in texts:
            with contextlib.suppress(ValueError):
                line = parse_json(text)
                if line.get("sweep", self.sweep) == self.sweep:
                    lines.append(line)
        return lines

    def write(self, event: str, kind: str, **values: Any) -> None:
        """Append a line."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LAUNCHES_FILE).open("a", encoding="utf-8") as stream:
            line = {
                "time": round(time.time(), 3),
                "event": event,
                "type": kind,
                "sweep": self.sweep,
                **values,
            }
            stream.write(json.dumps(line) + "\n")

    def not_admitted(self, kind: str, reason: str) -> None:
        """Append a refusal of the gate, unless the last line is the same: Ray asks again every few seconds."""
        last = self.lines()[-1:]
        if not last or (last[0]["event"], last[0]["type"], last[0].get("reason")) != (
            _NOT_ADMITTED,
            kind,
            reason,
        ):
            self.write(_NOT_ADMITTED, kind, reason=reason)


def admitted(
    folder: Path, kind: str, count: int, *, now: float
) -> tuple[list[tuple[Record, int]], str]:
    """Return the sweeps that admit `count` machines of a type, and how many each; or why they may not be launched."""
    records = [
        Record(folder, path.stem) for path in sorted((folder / _PERMITS_FOLDER).glob("*.json"))
    ]
    admitted_numbers = [(record, record.num_admitted(kind, now=now)) for record in records]
    valid = [(record, number) for record, number in admitted_numbers if number is not None]
    if not valid:
        return [], "no sweep is running that admits machines"
    total = sum(number for _, number in valid)
    if count > total:
        return [], f"{total} launches are admitted; Ray wants {count}"
    parts: list[tuple[Record, int]] = []
    for record, number in valid:
        part = min(number, count - sum(part_taken for _, part_taken in parts))
        if part:
            parts.append((record, part))
    return parts, ""


def tag_of(sweep: str) -> str:
    """Return the value of the tag that names a sweep; a tag holds fewer characters than a name."""
    return _NOT_IN_TAGS.sub("-", sweep)[:200]


def expiry(at: float) -> str:
    """Return the text of the tag that holds the end of a machine's time to live; `at` is in Unix seconds."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(TIME_FORM)


def reason_of(error: BaseException) -> str:
    """Return the cloud's reason for a refused launch, in one line."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        return f"{response['Error'].get('Code', '')}: {response['Error'].get('Message', '')}"[:300]
    if isinstance(error, NodeLaunchException):
        return f"{error.category}: {error.description}"[:300]
    return " ".join(str(error).split())[:300] or type(error).__name__


def merged(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tag specifications with one entry for each kind of resource; AWS rejects two."""
    by_kind: dict[str, dict[str, str]] = {}
    for spec in specs:
        tags = by_kind.setdefault(spec["ResourceType"], {})
        tags.update({tag["Key"]: tag["Value"] for tag in spec.get("Tags", [])})
    return [
        {
            "ResourceType": kind,
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }
        for kind, tags in by_kind.items()
    ]
