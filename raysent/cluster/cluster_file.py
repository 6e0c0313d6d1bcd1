"""`cluster.yaml`: a cluster in the form of Ray's own launcher, read, checked, and filled in.

In: a YAML file, some of whose texts hold ``{{ names }}``. Out: plain values that `ray up` takes.
"""

from __future__ import annotations

import copy
import datetime
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import pydantic

from raysent.cluster.autoscaling import NodeType
from raysent.cluster.checks import check_cluster
from raysent.config import Document, StrictModel, read_yaml, shipped_path, validate
from raysent.cost import MARKET_LABEL, parse_duration
from raysent.errors import ConfigError, did_you_mean

FILE = "cluster.yaml"
# What every machine and its disk is tagged with: its cluster, the sweep it serves, and when it ends itself.
CLUSTER_TAG, SWEEP_TAG, EXPIRES_TAG = "raysent-cluster", "raysent-sweep", "raysent-expires"
# The form in which `raysent-expires` tells a time, always UTC.
TIME_FORM = "%Y-%m-%dT%H:%M:%SZ"

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_STORAGE = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9/_.=-]*?))?/?")

# Ends the machine at its time, whatever became of Ray; `terminate` on shutdown does the rest. Held by cron, so that
# it outlives a reboot.
_SELF_DESTRUCT = r"""#!/bin/sh
cat > /etc/cron.d/raysent-time-to-live <<'END'
* * * * * root [ "$(date +\%s)" -lt {expires_s} ] || /sbin/shutdown -P now
END
chmod 644 /etc/cron.d/raysent-time-to-live
"""


def _checked_storage(text: str) -> str:
    if not _STORAGE.fullmatch(text):
        raise ValueError(f"must look like s3://bucket/prefix; given '{text}'")
    return text.rstrip("/")


def _checked_lifetime(text: str) -> str:
    try:
        seconds = parse_duration(text)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    if not seconds:
        raise ValueError(f"must be above 0; given '{text}'")
    return text


def _checked_operator(text: str) -> str:
    if text == "auto":
        return text
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(f"must be auto or an address such as 203.0.113.7/32; given '{text}'") from None
    if network.num_addresses > _MAX_OPERATORS:
        raise ValueError(f"must be at most {_MAX_OPERATORS} addresses, as in 203.0.113.0/24; given '{text}'")
    return str(network)


_MAX_OPERATORS = 256


class ClusterSettings(StrictModel):
    """What raysent reads from `metadata.raysent` of a cluster file.

    Attributes:
        storage: Where runs are kept, `s3://bucket/prefix`; the machines reach nothing else of S3.
        time_to_live: After this every machine ends itself.
        operator: The address that reaches the head over SSH; `auto` for this machine's public one.
        image: The machine image, `ami-…`, or the name of a public parameter that names one.
    """

    storage: Annotated[str, pydantic.AfterValidator(_checked_storage)]
    time_to_live: Annotated[str, pydantic.AfterValidator(_checked_lifetime)] = "24h"
    operator: Annotated[str, pydantic.AfterValidator(_checked_operator)] = "auto"
    image: str

    @property
    def bucket(self) -> str:
        """The bucket of the storage."""
        return cast(re.Match[str], _STORAGE.fullmatch(self.storage))["bucket"]

    @property
    def prefix(self) -> str:
        """The prefix of the storage, without slashes around it; empty for the whole bucket."""
        return (cast(re.Match[str], _STORAGE.fullmatch(self.storage))["prefix"] or "").strip("/")


@dataclass(frozen=True)
class ClusterFile:
    """A cluster file that has passed every check.

    Attributes:
        path: Where it stands.
        document: Its values, with their lines.
        settings: What raysent reads from it.
    """

    path: Path
    document: Document
    settings: ClusterSettings

    @property
    def name(self) -> str:
        """The cluster's name, a tag of everything that belongs to it."""
        return str(self.document.values["cluster_name"])

    @property
    def region(self) -> str:
        """The region, as in us-east-1."""
        return str(self.document.values["provider"]["region"])

    @property
    def ssh_user(self) -> str:
        """Who logs in on its machines."""
        return str(self.document.values["auth"]["ssh_user"])

    @property
    def node_types(self) -> dict[str, dict[str, Any]]:
        """The node types by name, the head's included."""
        return cast(dict[str, dict[str, Any]], self.document.values["available_node_types"])

    @cached_property
    def instance_types(self) -> list[str]:
        """The instance types of all node types, each once."""
        return sorted({kind["node_config"]["InstanceType"] for kind in self.node_types.values()})

    @property
    def head_type(self) -> str:
        """The head's instance type."""
        return str(self.node_types[self.document.values["head_node_type"]]["node_config"]["InstanceType"])

    @property
    def worker_types(self) -> dict[str, dict[str, Any]]:
        """The node types by name, without the head's."""
        head = self.document.values["head_node_type"]
        return {name: kind for name, kind in self.node_types.items() if name != head}

    @property
    def max_workers(self) -> int:
        """How many workers may stand at once."""
        most = int(self.document.values["max_workers"])
        return min(most, sum(int(kind.get("max_workers", most)) for kind in self.worker_types.values()))

    @property
    def autoscaling(self) -> dict[str, NodeType]:
        """What the autoscaler has to know of each type of worker."""
        return {
            name: NodeType(int(kind.get("priority", 0)), kind["labels"][MARKET_LABEL])
            for name, kind in self.worker_types.items()
        }

    def minimum(self, resource: str) -> float:
        """Return how much of a resource every type of worker has at least."""
        return min(float(kind["resources"].get(resource, 0)) for kind in self.worker_types.values())

    def limited(self, *, num_workers: int, market: str = "auto") -> ClusterFile:
        """Return this cluster with fewer workers, of one market where that is asked.

        Args:
            num_workers: How many may stand at once.
            market: `spot`, `on-demand`, or `auto` for both.

        Raises:
            ConfigError: If no type of worker is of that market.
        """
        values = copy.deepcopy(self.document.values)
        of_market = [name for name, kind in self.autoscaling.items() if market in ("auto", kind.market)]
        if not of_market:
            raise self.document.error(
                ("available_node_types",), f"must hold a worker with labels: {{market: {market}}}, as --market asks"
            )
        values["max_workers"] = num_workers
        for name in self.worker_types:
            kind = values["available_node_types"][name]
            kind["max_workers"] = min(num_workers, kind.get("max_workers", num_workers)) if name in of_market else 0
        return replace(self, document=replace(self.document, values=values))

    def expires_at(self, now: datetime.datetime) -> datetime.datetime:
        """Return when machines that are started at `now` (UTC) end themselves."""
        return now + datetime.timedelta(seconds=parse_duration(self.settings.time_to_live))

    def render(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return what `ray up` takes.

        Args:
            values: Name -> what stands for ``{{ name }}``.

        Raises:
            ConfigError: If the file holds a name that has no value.
        """
        return cast(dict[str, Any], _render(self.document, self.document.values, (), values))


def self_destruct(expires: datetime.datetime) -> str:
    """Return the start script that ends a machine at its time (UTC)."""
    return _SELF_DESTRUCT.format(expires_s=int(expires.timestamp()))


def read_cluster(path: Path) -> ClusterFile:
    """Read a cluster file and check all that can be checked without a cloud.

    Args:
        path: The file; `cluster.yaml`, where the working directory has none, is the shipped file.

    Raises:
        ConfigError: With file, line and the nearest fix.
    """
    if path == Path(FILE) and not path.exists():
        path = shipped_path(FILE)
    document = read_yaml(path)
    check_cluster(document)
    name = str(document.values["cluster_name"])
    if not _NAME.fullmatch(name):
        raise document.error(
            ("cluster_name",), f"must be at most 40 letters a-z, digits and dashes, a letter first; given '{name}'"
        )
    given = document.values.get("metadata", {}).get("raysent")
    if not isinstance(given, dict):
        raise document.error(("metadata",), "must hold 'raysent' with storage, time_to_live, operator and image")
    return ClusterFile(
        path, document, validate(ClusterSettings, replace(document, values=given), at=("metadata", "raysent"))
    )


def _render(document: Document, node: Any, path: tuple[str, ...], values: Mapping[str, str]) -> Any:
    """Return a value with what stands in ``{{ }}`` put in, texts only: nothing can change the file's form."""
    if isinstance(node, dict):
        return {key: _render(document, value, (*path, key), values) for key, value in node.items()}
    if isinstance(node, list):
        return [_render(document, value, (*path, str(number)), values) for number, value in enumerate(node)]
    if not isinstance(node, str) or "{{" not in node:
        return node

    def replacement(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in values:
            raise document.error(path, f"'{{{{ {name} }}}}' is filled in by nothing{did_you_mean(name, values)}")
        return values[name]

    return re.sub(r"\{\{\s*(?P<name>\w+)\s*\}\}", replacement, node)


__all__ = [
    "CLUSTER_TAG",
    "EXPIRES_TAG",
    "SWEEP_TAG",
    "TIME_FORM",
    "ClusterFile",
    "ClusterSettings",
    "read_cluster",
    "self_destruct",
]
