"""`cluster.yaml`: a cluster in the format of Ray's launcher, read, checked, and rendered.

In: a YAML file whose texts may contain placeholders such as ``{{ image }}``. Out: plain values for `ray up`.
"""

from __future__ import annotations

import copy
import getpass
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import pydantic

from raysent.cluster.checks import check_cluster
from raysent.config import Document, StrictModel, read_yaml, shipped_path, validate
from raysent.cost import MARKET_LABEL, parse_duration
from raysent.cost.budget import ALONE_S
from raysent.errors import ConfigError, did_you_mean

FILE = "cluster.yaml"
# Tags of every machine and its disk: its cluster, the sweep it serves, and when it terminates itself.
CLUSTER_TAG, SWEEP_TAG, EXPIRES_TAG = "raysent-cluster", "raysent-sweep", "raysent-expires"
# The format of the time in `raysent-expires`, always UTC.
TIME_FORM = "%Y-%m-%dT%H:%M:%SZ"

# The disk of a machine of the shipped file.
_USUAL_DISK_GIB = 150.0
# The most addresses that may reach the head.
_MAX_OPERATORS = 256

# In the name of the cluster, so that colleagues with one AWS account have a cluster each.
_USER = re.compile(r"\{\{\s*user\s*\}\}")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_STORAGE = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9/_.=-]*?))?/?")

# The provider that Ray loads on the head and here, and the folder on the head that it shares with the sweep.
PROVIDER = "raysent.cluster.gate.AwsProvider"
FLEET_FOLDER = "~/raysent-fleet"
# The lease of the head: a file with the seconds for which it is valid after it was written.
LEASE_FILE = "lease"
_EXTERNAL: dict[str, Any] = {
    "cluster_synced_files": [],
    "rsync_exclude": [],
    "rsync_filter": [],
    "file_mounts_sync_continuously": False,
}
# Runs every minute, whatever happens to Ray: shuts the machine down, which terminates it, when it is too old, without
# Ray, or past its lease. The text is the same for every machine and sweep, as it is part of Ray's launch hash.
_SELF_DESTRUCT = r"""#!/bin/sh
mkdir -p /var/lib/raysent && touch /var/lib/raysent/alive
cat > /usr/local/sbin/raysent-time-to-live <<'END'
#!/bin/sh
alive=/var/lib/raysent/alive lease={lease} now=$(date +%s)
pgrep -x raylet > /dev/null && touch "$alive"
[ "$(cut -d. -f1 /proc/uptime)" -lt {lifetime_s} ] || exec /sbin/shutdown -P now
[ "$((now - $(stat -c %Y "$alive")))" -lt {alone_s} ] || exec /sbin/shutdown -P now
[ ! -e "$lease" ] || [ "$((now - $(stat -c %Y "$lease")))" -lt "$(cat "$lease")" ] || exec /sbin/shutdown -P now
END
chmod 755 /usr/local/sbin/raysent-time-to-live
echo '* * * * * root /usr/local/sbin/raysent-time-to-live' > /etc/cron.d/raysent-time-to-live
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


class ClusterSettings(StrictModel):
    """The section `metadata.raysent` of a cluster file.

    Attributes:
        storage: Where runs are stored, `s3://bucket/prefix`; the machines have access to nothing else of S3.
        time_to_live: After this time every machine terminates itself.
        operator: The addresses that may reach the head over SSH; `auto` for this machine's public address.
        image: The machine image, `ami-…`, or the name of a public parameter whose value is one.
    """

    storage: Annotated[str, pydantic.AfterValidator(_checked_storage)]
    time_to_live: Annotated[str, pydantic.AfterValidator(_checked_lifetime)] = "24h"
    operator: Annotated[str, pydantic.AfterValidator(_checked_operator)] = "auto"
    image: str

    @property
    def bucket(self) -> str:
        """Bucket of the storage."""
        return cast(re.Match[str], _STORAGE.fullmatch(self.storage))["bucket"]

    @property
    def prefix(self) -> str:
        """Prefix of the storage, without slashes around it; empty for the whole bucket."""
        return (cast(re.Match[str], _STORAGE.fullmatch(self.storage))["prefix"] or "").strip("/")


@dataclass(frozen=True)
class ClusterFile:
    """A cluster file that has passed every check.

    Attributes:
        path: The file.
        document: Its values, with their line numbers.
        settings: Its section `metadata.raysent`.
    """

    path: Path
    document: Document
    settings: ClusterSettings

    @property
    def name(self) -> str:
        """Name of the cluster; all its resources are tagged with it."""
        return str(self.document.values["cluster_name"])

    @property
    def region(self) -> str:
        """AWS region, as in us-east-1."""
        return str(self.document.values["provider"]["region"])

    @property
    def node_types(self) -> dict[str, dict[str, Any]]:
        """Node types by name, including the head."""
        return cast(dict[str, dict[str, Any]], self.document.values["available_node_types"])

    @cached_property
    def instance_types(self) -> list[str]:
        """Instance types of all node types, each once."""
        return sorted({kind["node_config"]["InstanceType"] for kind in self.node_types.values()})

    @property
    def head(self) -> dict[str, Any]:
        """The node type of the head."""
        return self.node_types[self.document.values["head_node_type"]]

    @property
    def worker_types(self) -> dict[str, dict[str, Any]]:
        """Node types by name, without the head."""
        head = self.document.values["head_node_type"]
        return {name: kind for name, kind in self.node_types.items() if name != head}

    @property
    def disk_gib(self) -> float:
        """The most GiB of disk of a machine; a machine whose disk the image determines counts as the shipped file's."""
        disks = [kind["node_config"].get("BlockDeviceMappings", []) for kind in self.node_types.values()]
        return max(sum(float(one.get("Ebs", {}).get("VolumeSize", 0)) for one in of) or _USUAL_DISK_GIB for of in disks)

    @property
    def max_workers(self) -> int:
        """The most workers at once."""
        most = int(self.document.values["max_workers"])
        return min(most, sum(int(kind.get("max_workers", most)) for kind in self.worker_types.values()))

    @property
    def markets(self) -> dict[str, str]:
        """Market of each type of worker."""
        return {name: str(kind["labels"][MARKET_LABEL]) for name, kind in self.worker_types.items()}

    def minimum(self, resource: str) -> float:
        """Return the least amount of a resource over all types of worker."""
        return min(float(kind["resources"].get(resource, 0)) for kind in self.worker_types.values())

    def limited(self, *, num_workers: int, market: str = "auto") -> ClusterFile:
        """Return this cluster with at most `num_workers` workers, of one market if `market` names one.

        Args:
            num_workers: The most workers at once.
            market: `spot`, `on-demand`, or `auto` for both.

        Raises:
            ConfigError: If no type of worker is of that market.
        """
        values = copy.deepcopy(self.document.values)
        of_market = [name for name, of in self.markets.items() if market in ("auto", of)]
        if not of_market:
            raise self.document.error(
                ("available_node_types",), f"must have a worker with labels: {{market: {market}}} for --market {market}"
            )
        values["max_workers"] = num_workers
        for name in self.worker_types:
            kind = values["available_node_types"][name]
            kind["max_workers"] = min(num_workers, kind.get("max_workers", num_workers)) if name in of_market else 0
        return replace(self, document=replace(self.document, values=values))

    def render(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the values for `ray up`, without placeholders.

        Args:
            values: Name of a placeholder -> its value.

        Raises:
            ConfigError: If a placeholder of the file has no value.
        """
        rendered = cast(dict[str, Any], _render(self.document, self.document.values, (), values))
        rendered["provider"] |= {"type": "external", "module": PROVIDER, "raysent": self._provider_settings(values)}
        # Keys that Ray requires of a provider that is not its own.
        return {**_EXTERNAL, **rendered}

    def _provider_settings(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return what the gate on the head needs: it adds the tags that Ray's launch hash must not contain."""
        lifetime_s = parse_duration(self.settings.time_to_live)
        return {"folder": FLEET_FOLDER, "time_to_live_s": lifetime_s, "tags": {SWEEP_TAG: values.get("sweep", "")}}


def self_destruct(cluster: ClusterFile) -> str:
    """Return the start script of every machine, which ends it at its age limit, without Ray, or past its lease."""
    user = cluster.document.values["auth"]["ssh_user"]
    return _SELF_DESTRUCT.format(
        lifetime_s=int(parse_duration(cluster.settings.time_to_live)),
        alone_s=int(ALONE_S),
        lease=f"{FLEET_FOLDER.replace('~', f'/home/{user}')}/{LEASE_FILE}",
    )


def read_cluster(path: Path) -> ClusterFile:
    """Read a cluster file and check it, without access to a cloud.

    Args:
        path: The file; the default file of the package if it is `cluster.yaml` and the working directory has none.

    Raises:
        ConfigError: If the file is invalid, with file, line and the nearest fix.
    """
    if path == Path(FILE) and not path.exists():
        path = shipped_path(FILE)
    document = read_yaml(path)
    if isinstance(document.values.get("cluster_name"), str):
        name = _USER.sub(_user(), document.values["cluster_name"])
        document = replace(document, values={**document.values, "cluster_name": name})
    check_cluster(document)
    name = str(document.values["cluster_name"])
    if not _NAME.fullmatch(name):
        raise document.error(
            ("cluster_name",),
            f"must be at most 40 letters a-z, digits and dashes, and start with a letter; given '{name}'",
        )
    given = document.values.get("metadata", {}).get("raysent")
    if not isinstance(given, dict):
        raise document.error(("metadata",), "must have 'raysent' with storage, time_to_live, operator and image")
    return ClusterFile(
        path, document, validate(ClusterSettings, replace(document, values=given), at=("metadata", "raysent"))
    )


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in a container
        name = f"u{os.getuid()}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24] or "user"


def _render(document: Document, node: Any, path: tuple[str, ...], values: Mapping[str, str]) -> Any:
    """Return a value with its placeholders replaced, in texts only: a value cannot change the structure of the file."""
    if isinstance(node, dict):
        return {key: _render(document, value, (*path, key), values) for key, value in node.items()}
    if isinstance(node, list):
        return [_render(document, value, (*path, str(number)), values) for number, value in enumerate(node)]
    if not isinstance(node, str) or "{{" not in node:
        return node

    def replacement(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in values:
            raise document.error(path, f"'{{{{ {name} }}}}' has no value{did_you_mean(name, values)}")
        return values[name]

    return re.sub(r"\{\{\s*(?P<name>\w+)\s*\}\}", replacement, node)
