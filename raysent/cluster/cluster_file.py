"""`cluster.yaml`: a cluster in the format of Ray's launcher, read, checked, and rendered.

In: a YAML file whose texts may contain placeholders such as ``{{ image }}``. Out: plain values for `ray up`.

Ray's launcher checks only its schema. It accepts a misspelt machine setting, an unknown market, and a cluster on which
anyone on the internet can run code. The rules are Ray's schema, AWS's parameters, and safety; they need no access to a
cloud. Each is a generator of (path, message).
"""

from __future__ import annotations

import copy
import functools
import getpass
import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import botocore.session
import jsonschema  # Ray's, whose launcher raises its errors
import pydantic
from botocore.validate import ParamValidator

from raysent.config import Document, KeyPath, StrictModel, read_yaml, shipped_path, validate
from raysent.cost import MARKET_LABEL, TYPE_LABEL, PositiveDuration, parse_duration
from raysent.cost.budget import ALONE_S, FIRST_LEASE_S
from raysent.errors import did_you_mean
from raysent.ray_private import launcher_checks

Fault = tuple[KeyPath, str]

FILE = "cluster.yaml"
# Tags of every machine and its disk: its cluster, the sweep it serves, and when it terminates itself.
CLUSTER_TAG = "raysent-cluster"
SWEEP_TAG = "raysent-sweep"
EXPIRES_TAG = "raysent-expires"
# The format of the time in `raysent-expires`, always UTC.
TIME_FORM = "%Y-%m-%dT%H:%M:%SZ"

# The disk of a machine of the shipped file.
_USUAL_DISK_GIB = 150.0
# The most addresses that may reach the head.
_MAX_OPERATORS = 256

_START_KEYS = ("head_start_ray_commands", "worker_start_ray_commands")
_TAGS = {CLUSTER_TAG: "{{ cluster }}"}
# Added at launch: they change over time, and Ray relaunches a head whose settings change.
_CHANGING_TAGS = (SWEEP_TAG, EXPIRES_TAG)
_TOKEN_FILE = ".ray/auth_token"
_OPEN_DASHBOARD = re.compile(r"--dashboard-host[= ]\s*(?!127\.0\.0\.1)(\S+)")

# In the name of the cluster, so that colleagues with one AWS account have a cluster each.
_USER = re.compile(r"\{\{\s*user\s*\}\}")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_STORAGE = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[A-Za-z0-9/_.=-]*?))?/?"
)

# The provider that Ray loads on the head and here, and the folder on the head that it shares with the sweep.
_PROVIDER = f"{__package__}.gate.AwsProvider"
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
# A timer of systemd runs it, where systemd runs; else cron.
_SELF_DESTRUCT = r"""#!/bin/sh
mkdir -p /var/lib/raysent && touch /var/lib/raysent/alive
cat > /usr/local/sbin/raysent-time-to-live <<'END'
#!/bin/sh
alive=/var/lib/raysent/alive lease={lease} now=$(date +%s)
touch {checked}
pgrep -x raylet > /dev/null && touch "$alive"
[ "$(cut -d. -f1 /proc/uptime)" -lt {lifetime_s} ] || exec /sbin/shutdown -P now
[ "$((now - $(stat -c %Y "$alive")))" -lt {alone_s} ] || exec /sbin/shutdown -P now
[ ! -e "$lease" ] || [ "$((now - $(stat -c %Y "$lease")))" -lt "$(cat "$lease")" ] || exec /sbin/shutdown -P now
END
chmod 755 /usr/local/sbin/raysent-time-to-live
if [ -d /run/systemd/system ]; then
cat > /etc/systemd/system/raysent-time-to-live.service <<'END'
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/raysent-time-to-live
END
cat > /etc/systemd/system/raysent-time-to-live.timer <<'END'
[Timer]
OnActiveSec=1s
OnCalendar=minutely
AccuracySec=1s
[Install]
WantedBy=timers.target
END
systemctl daemon-reload && systemctl enable --now raysent-time-to-live.timer
else
echo '* * * * * root /usr/local/sbin/raysent-time-to-live' > /etc/cron.d/raysent-time-to-live
chmod 644 /etc/cron.d/raysent-time-to-live
fi
"""
# Of a head alone: it has a lease before anything else happens, so that it ends if its launch is never finished.
_FIRST_LEASE = r"""mkdir -p {folder} && echo {seconds} > {folder}/{file}
chown -R {user} {folder}
"""
# The file that the script touches each time it runs; a machine is set up only if that was just now.
_CHECKED_FILE = "/var/lib/raysent/checked"
_FRESH_S = 90
# A machine that was just reached may still run its start script.
_BOOT_S = 60
_SETUP_CHECK = (
    f"timeout {_FRESH_S + _BOOT_S} sh -c 'until [ $(($(date +%s) - $(stat -c %Y {_CHECKED_FILE} 2>/dev/null "
    f"|| echo 0))) -lt {_FRESH_S} ]; do sleep 1; done' || (echo 'raysent: neither systemd nor cron "
    "runs the script that ends this machine: choose an image with one of them'; false)"
)


def _checked_storage(text: str) -> str:
    if not _STORAGE.fullmatch(text):
        raise ValueError(f"must look like s3://bucket/prefix; given '{text}'")
    return text.rstrip("/")


def _checked_operator(text: str) -> str:
    if text == "auto":
        return text
    try:
        network = ipaddress.IPv4Network(text)
    except ValueError:
        raise ValueError(
            f"must be auto or an address such as 203.0.113.7/32; given '{text}'"
        ) from None
    if network.num_addresses > _MAX_OPERATORS:
        raise ValueError(
            f"must be at most {_MAX_OPERATORS} addresses, as in 203.0.113.0/24; given '{text}'"
        )
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
    time_to_live: PositiveDuration = "24h"
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
        disks = [
            kind["node_config"].get("BlockDeviceMappings", []) for kind in self.node_types.values()
        ]
        return max(
            sum(float(disk.get("Ebs", {}).get("VolumeSize", 0)) for disk in disks_of_machine)
            or _USUAL_DISK_GIB
            for disks_of_machine in disks
        )

    @property
    def max_workers(self) -> int:
        """The most workers at once."""
        most = int(self.document.values.get("max_workers", 2))  # the default of Ray
        return min(
            most, sum(int(kind.get("max_workers", most)) for kind in self.worker_types.values())
        )

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
                ("available_node_types",),
                f"must have a worker of cost.market, with labels: {{market: {market}}}",
            )
        values["max_workers"] = num_workers
        for name in self.worker_types:
            kind = values["available_node_types"][name]
            kind["max_workers"] = min(num_workers, kind.get("max_workers", num_workers))
            if name not in of_market:
                del values["available_node_types"][name]
        return replace(self, document=replace(self.document, values=values))

    def render(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the values for `ray up`, without placeholders.

        Args:
            values: Name of a placeholder -> its value.

        Raises:
            ConfigError: If a placeholder of the file has no value.
        """
        rendered = cast(dict[str, Any], _render(self.document, self.document.values, (), values))
        head = self.document.values["head_node_type"]
        path = ("available_node_types", head, "node_config", "UserData")
        of_head = {**values, "self_destruct": self_destruct(self, is_head=True)}
        rendered["available_node_types"][head]["node_config"]["UserData"] = _render(
            self.document, self.head["node_config"]["UserData"], path, of_head
        )
        rendered["setup_commands"] = [_SETUP_CHECK, *rendered["setup_commands"]]
        lifetime_s = parse_duration(self.settings.time_to_live)
        # What the gate on the head needs: it adds the tags that Ray's launch hash must not contain.
        gate = {
            "folder": FLEET_FOLDER,
            "time_to_live_s": lifetime_s,
            "tags": {SWEEP_TAG: values.get("sweep", "")},
        }
        rendered["provider"] |= {"type": "external", "module": _PROVIDER, "raysent": gate}
        # Keys that Ray requires of a provider that is not its own.
        return {**_EXTERNAL, **rendered}


def self_destruct(cluster: ClusterFile, *, is_head: bool = False) -> str:
    """Return the start script of a machine, which ends it at its age limit, without Ray, or past its lease.

    Args:
        cluster: The cluster.
        is_head: Whether the machine has a lease from its start.
    """
    user = cluster.document.values["auth"]["ssh_user"]
    folder = FLEET_FOLDER.replace("~", f"/home/{user}")
    script = _SELF_DESTRUCT.format(
        lifetime_s=int(parse_duration(cluster.settings.time_to_live)),
        alone_s=int(ALONE_S),
        lease=f"{folder}/{LEASE_FILE}",
        checked=_CHECKED_FILE,
    )
    if not is_head:
        return script
    return script + _FIRST_LEASE.format(
        folder=folder, file=LEASE_FILE, seconds=int(FIRST_LEASE_S), user=user
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
    for rule in _RULES:
        for at, message in rule(document.values):
            raise document.error(at, message)
    name = str(document.values["cluster_name"])
    if not _NAME.fullmatch(name):
        raise document.error(
            ("cluster_name",),
            f"must be at most 40 letters a-z, digits and dashes, and start with a letter; given '{name}'",
        )
    settings = document.values.get("metadata", {}).get("raysent")
    if not isinstance(settings, dict):
        raise document.error(
            ("metadata",), "must have 'raysent' with storage, time_to_live, operator and image"
        )
    return ClusterFile(
        path,
        document,
        validate(ClusterSettings, replace(document, values=settings), at=("metadata", "raysent")),
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
        return [
            _render(document, value, (*path, str(number)), values)
            for number, value in enumerate(node)
        ]
    if not isinstance(node, str) or "{{" not in node:
        return node

    def replacement(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in values:
            raise document.error(
                path, f"'{{{{ {name} }}}}' has no value{did_you_mean(name, values)}"
            )
        return values[name]

    return re.sub(r"\{\{\s*(?P<name>\w+)\s*\}\}", replacement, node)


def _fits_schema(values: dict[str, Any]) -> Iterator[Fault]:
    try:
        checks = launcher_checks()
        checks.validate_config(checks.prepare_config(copy.deepcopy(values)))
    except jsonschema.ValidationError as error:
        yield tuple(map(str, error.absolute_path)), error.message.splitlines()[0]
    except (KeyError, TypeError, AttributeError) as error:
        yield (), f"Ray's launcher cannot read it: {type(error).__name__} {error}"
    except (ValueError, RuntimeError) as error:
        yield (), " ".join(str(error).split())


def _is_aws(values: dict[str, Any]) -> Iterator[Fault]:
    provider = values["provider"]
    if not isinstance(values.get("cluster_name"), str):
        yield ("cluster_name",), "must be given"
    if provider.get("type") != "aws":
        yield ("provider", "type"), f"must be aws; given '{provider.get('type')}'"
    if not provider.get("region"):
        yield ("provider",), "must name a region, as in us-east-1"
    if values.get("head_node_type") not in values.get("available_node_types", {}):
        yield ("head_node_type",), "must be one of available_node_types"
    if not values.get("auth", {}).get("ssh_user"):
        yield ("auth",), "must name ssh_user, the user to log in as"


def _has_no_credentials(values: dict[str, Any]) -> Iterator[Fault]:
    """The file holds no credentials: boto3 finds them."""
    if "aws_credentials" in values["provider"]:
        yield (
            ("provider", "aws_credentials"),
            "must not be in a file; use AWS_PROFILE or another source of boto3",
        )


def _node_config_is_valid(values: dict[str, Any]) -> Iterator[Fault]:
    """AWS knows the settings of every machine: their names and types."""
    shape = _machine_shape()
    for name, kind in values["available_node_types"].items():
        path = ("available_node_types", name, "node_config")
        node_config = kind["node_config"]
        report = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **node_config}, shape)
        for problem, _, details in report._errors:
            if problem == "unknown field":
                parameter = details["unknown_param"]
                yield (
                    path,
                    f"{parameter}: unknown to AWS{did_you_mean(parameter, details['valid_names'])}",
                )
        if report.has_errors():
            yield path, " ".join(report.generate_report().split())
        if "InstanceType" not in node_config:
            yield path, "must name InstanceType, as in g5.xlarge"


@functools.cache
def _machine_shape() -> Any:
    """Return the schema of a machine's settings, from botocore: it needs neither credentials nor a network."""
    return (
        botocore.session.Session()
        .get_service_model("ec2")
        .operation_model("RunInstances")
        .input_shape
    )


def _head_runs_no_trials(values: dict[str, Any]) -> Iterator[Fault]:
    """There is one head, on demand, without cores for trials."""
    name = values["head_node_type"]
    head = values["available_node_types"][name]
    path = ("available_node_types", name)
    if head.get("max_workers", math.inf) != 0:
        yield (*path, "max_workers"), "must be 0: there is one head"
    if head["resources"].get("CPU") != 0:
        yield (*path, "resources"), "must have CPU: 0, so that no trial trains on the head"
    if not head["resources"].get("raysent_driver"):
        yield (
            (*path, "resources"),
            "must have raysent_driver: 64, or how many trials at once the head may drive",
        )
    if "InstanceMarketOptions" in head["node_config"]:
        yield (
            (*path, "node_config", "InstanceMarketOptions"),
            "must not be set: if the head is interrupted, the cluster is lost",
        )


def _workers_scale(values: dict[str, Any]) -> Iterator[Fault]:
    """Workers start only for waiting trials, have declared resources, and are not kept when stopped."""
    for name, kind in values["available_node_types"].items():
        path = ("available_node_types", name)
        if kind.get("min_workers", 0):
            yield (*path, "min_workers"), "must be 0, so that no machine waits for work"
        if name != values["head_node_type"] and not kind["resources"].get("CPU"):
            yield (
                (*path, "resources"),
                "must name CPU, and GPU if it has one, to plan trials before it starts",
            )
    if values["provider"].get("cache_stopped_nodes", True):
        yield (
            ("provider",),
            "must have cache_stopped_nodes: false; the disks of stopped machines are still billed",
        )


def _labels_are_correct(values: dict[str, Any]) -> Iterator[Fault]:
    """Every node is labelled with its type and its market, which determine its price."""
    for name, kind in values["available_node_types"].items():
        is_spot = kind["node_config"].get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        wanted = {
            TYPE_LABEL: kind["node_config"]["InstanceType"],
            MARKET_LABEL: "spot" if is_spot else "on-demand",
        }
        for label, value in wanted.items():
            if kind.get("labels", {}).get(label) != value:
                yield (
                    ("available_node_types", name, "labels"),
                    f"must have {label}: {value}, which determines its price",
                )


def _uses_autoscaler_v2(values: dict[str, Any]) -> Iterator[Fault]:
    """Ray's autoscaler v2 runs on the head: v1 reads no new limits while it runs."""
    if "RAY_enable_autoscaler_v2=0" in " ".join(values.get("head_start_ray_commands", [])):
        yield ("head_start_ray_commands",), "must not set RAY_enable_autoscaler_v2=0"


def _installs_no_nightly(values: dict[str, Any]) -> Iterator[Fault]:
    """Without setup commands, Ray's launcher installs a nightly build of Ray."""
    if not values.get("setup_commands"):
        yield ("setup_commands",), "must be given; Ray's default installs a nightly build"
    elif not any("{{ wheel }}" in command for command in values["setup_commands"]):
        yield ("setup_commands",), "must install '{{ wheel }}', the raysent that is running here"


def _machines_are_tagged(values: dict[str, Any]) -> Iterator[Fault]:
    """Machines and disks are tagged with the cluster, and terminate on shutdown."""
    for name, kind in values["available_node_types"].items():
        node_config = kind["node_config"]
        path = ("available_node_types", name, "node_config")
        tagged = {
            entry.get("ResourceType"): entry.get("Tags", [])
            for entry in node_config.get("TagSpecifications", [])
        }
        for resource in ("instance", "volume"):
            tags = {tag.get("Key", ""): tag.get("Value") for tag in tagged.get(resource, [])}
            for key, value in _TAGS.items():
                if tags.get(key) != value:
                    yield (*path, "TagSpecifications"), f"must tag the {resource} {key}: '{value}'"
            for key in sorted(tags.keys() & set(_CHANGING_TAGS)):
                yield (
                    (*path, "TagSpecifications"),
                    f"must not tag the {resource} {key}; raysent adds it at launch",
                )
        if node_config.get("InstanceInitiatedShutdownBehavior") != "terminate":
            yield path, "must have InstanceInitiatedShutdownBehavior: terminate"
        if "{{ self_destruct }}" not in node_config.get("UserData", ""):
            yield (
                path,
                "must have '{{ self_destruct }}' in UserData, which terminates the machine at its time",
            )


def _machines_are_closed(values: dict[str, Any]) -> Iterator[Fault]:
    """Only the operator reaches the machines; each has its own role; their metadata need a token."""
    for name, kind in values["available_node_types"].items():
        node_config = kind["node_config"]
        path = ("available_node_types", name, "node_config")
        if node_config.get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield (*path, "MetadataOptions"), "must have HttpTokens: required (IMDSv2)"
        if node_config.get("MetadataOptions", {}).get("HttpPutResponseHopLimit") != 1:
            yield (*path, "MetadataOptions"), "must have HttpPutResponseHopLimit: 1"
        if node_config.get("SecurityGroupIds") != ["{{ security_group }}"]:
            yield (
                (*path, "SecurityGroupIds"),
                "must be ['{{ security_group }}']; Ray's default allows the whole internet",
            )
        profile = "{{ worker_profile }}"
        if name == values["head_node_type"]:
            profile = "{{ head_profile }}"
        if node_config.get("IamInstanceProfile") != {"Name": profile}:
            yield (
                (*path, "IamInstanceProfile"),
                f"must be {{Name: '{profile}'}}; Ray's default may do everything",
            )


def _requires_token(values: dict[str, Any]) -> Iterator[Fault]:
    """Ray always starts with token authentication, and only the machine's user can read the token."""
    for key in _START_KEYS:
        starts = [command for command in values.get(key, []) if "ray start" in command]
        if not starts:
            yield (key,), "must start Ray with 'ray start'"
        if any("RAY_AUTH_MODE=token" not in command for command in starts):
            yield (key,), "must export RAY_AUTH_MODE=token before 'ray start'"
    targets = [
        target
        for target, source in values.get("file_mounts", {}).items()
        if source == "{{ token_file }}"
    ]
    if not any(target.endswith(_TOKEN_FILE) for target in targets):
        yield ("file_mounts",), f"must put '{{{{ token_file }}}}' at ~/{_TOKEN_FILE}"
    if not any(
        "chmod 600" in command and _TOKEN_FILE in command
        for command in values.get("setup_commands", [])
    ):
        yield ("setup_commands",), f"must 'chmod 600 ~/{_TOKEN_FILE}'"


def _dashboard_is_local(values: dict[str, Any]) -> Iterator[Fault]:
    """The dashboard listens on the loopback of the head: everyone who reaches it can run code."""
    starts = " ".join(values.get("head_start_ray_commands", []))
    if "--dashboard-host=127.0.0.1" not in starts or _OPEN_DASHBOARD.search(starts):
        yield (
            ("head_start_ray_commands",),
            "must have --dashboard-host=127.0.0.1; an SSH tunnel reaches it",
        )


# In this order: later rules rely on earlier ones.
_RULES: tuple[Callable[[dict[str, Any]], Iterator[Fault]], ...] = (
    _fits_schema,
    _is_aws,
    _has_no_credentials,
    _node_config_is_valid,
    _head_runs_no_trials,
    _workers_scale,
    _labels_are_correct,
    _uses_autoscaler_v2,
    _installs_no_nightly,
    _machines_are_tagged,
    _machines_are_closed,
    _requires_token,
    _dashboard_is_local,
)
