"""The rules for a cluster file: Ray's schema, AWS's parameters, and safety. They need no access to a cloud.

Ray's launcher checks only its schema. It accepts a misspelt machine setting, an unknown market, and a cluster on which
anyone on the internet can run code. Each rule here is a generator of (path, message).
"""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import jsonschema  # Ray's, whose launcher raises its errors
from botocore.validate import ParamValidator
from ray.autoscaler._private.util import prepare_config, validate_config

from raysent.config import Document, KeyPath
from raysent.cost import MARKET_LABEL, TYPE_LABEL
from raysent.errors import did_you_mean

Fault = tuple[KeyPath, str]

_START_KEYS = ("head_start_ray_commands", "worker_start_ray_commands")
_TAGS = {"raysent-cluster": "{{ cluster }}"}
# Added at launch: they change over time, and Ray relaunches a head whose settings change.
_CHANGING_TAGS = ("raysent-sweep", "raysent-expires")
_TOKEN_FILE = ".ray/auth_token"
_OPEN_DASHBOARD = re.compile(r"--dashboard-host[= ]\s*(?!127\.0\.0\.1)(\S+)")


def check_cluster(document: Document) -> None:
    """Check a cluster file.

    Raises:
        ConfigError: For the first violation, with file, line and what must hold.
    """
    for rule in RULES:
        for path, message in rule(document.values):
            raise document.error(path, message)


def _fits_schema(values: dict[str, Any]) -> Iterator[Fault]:
    """Ray's launcher accepts the file."""
    try:
        validate_config(prepare_config(copy.deepcopy(values)))
    except jsonschema.ValidationError as error:
        yield tuple(map(str, error.absolute_path)), error.message.splitlines()[0]
    except (KeyError, TypeError, AttributeError) as error:
        yield (), f"Ray's launcher cannot read it: {type(error).__name__} {error}"
    except (ValueError, RuntimeError) as error:
        yield (), " ".join(str(error).split())


def _is_aws(values: dict[str, Any]) -> Iterator[Fault]:
    """The provider is AWS, and region, head and user are named."""
    provider = values["provider"]
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
    """AWS accepts the settings of every machine: their names, types and choices."""
    shape = _machine_shape()
    for name, kind in values["available_node_types"].items():
        path = ("available_node_types", name, "node_config")
        given = kind["node_config"]
        found = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **given}, shape)
        for problem, _, details in found._errors:
            if problem == "unknown field":
                where = details["unknown_param"]
                yield path, f"{where}: unknown to AWS{did_you_mean(where, details['valid_names'])}"
        if found.has_errors():
            yield path, " ".join(found.generate_report().split())
        yield from _wrong_choices(given, shape, path)
        if "InstanceType" not in given:
            yield path, "must name InstanceType, as in g5.xlarge"


@functools.cache
def _machine_shape() -> Any:
    """Return the schema of a machine's settings, from botocore: it needs neither credentials nor a network."""
    return botocore.session.Session().get_service_model("ec2").operation_model("RunInstances").input_shape


def _wrong_choices(given: Any, shape: Any, path: KeyPath) -> Iterator[Fault]:
    """Yield every value that is not among AWS's choices; botocore does not check these."""
    if shape.type_name == "structure" and isinstance(given, dict):
        for key, value in given.items():
            yield from _wrong_choices(value, shape.members[key], (*path, key))
    elif shape.type_name == "list" and isinstance(given, list):
        for number, value in enumerate(given):
            yield from _wrong_choices(value, shape.member, (*path, str(number)))
    elif isinstance(given, str) and getattr(shape, "enum", None) and given not in shape.enum:
        known = shape.enum if len(shape.enum) < 20 else []
        yield path, f"unknown to AWS: '{given}'{did_you_mean(given, known or _near(given, shape.enum))}"


def _near(given: str, known: list[str]) -> list[str]:
    """Return the names that start with the same word as the given one; there are hundreds of names."""
    return [name for name in known if name.split(".")[0] == given.split(".", maxsplit=1)[0]][:12]


def _head_runs_no_trials(values: dict[str, Any]) -> Iterator[Fault]:
    """There is one head, on demand, without cores for trials."""
    name = values["head_node_type"]
    head, path = values["available_node_types"][name], ("available_node_types", name)
    if head.get("max_workers", math.inf) != 0:
        yield (*path, "max_workers"), "must be 0: there is one head"
    if head["resources"].get("CPU") != 0:
        yield (*path, "resources"), "must have CPU: 0, so that no trial trains on the head"
    if not head["resources"].get("raysent_driver"):
        yield (*path, "resources"), "must have raysent_driver: 64, or how many trials at once the head may drive"
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
            yield (*path, "resources"), "must name CPU, and GPU if it has one, to plan trials before it starts"
    if values["provider"].get("cache_stopped_nodes", True):
        yield ("provider",), "must have cache_stopped_nodes: false; the disks of stopped machines are still billed"


def _labels_are_correct(values: dict[str, Any]) -> Iterator[Fault]:
    """Every node is labelled with its type and its market, which determine its price."""
    for name, kind in values["available_node_types"].items():
        is_spot = kind["node_config"].get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        wanted = {TYPE_LABEL: kind["node_config"]["InstanceType"], MARKET_LABEL: "spot" if is_spot else "on-demand"}
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
        given, path = kind["node_config"], ("available_node_types", name, "node_config")
        tagged = {entry.get("ResourceType"): entry.get("Tags", []) for entry in given.get("TagSpecifications", [])}
        for resource in ("instance", "volume"):
            tags = {tag["Key"]: tag["Value"] for tag in tagged.get(resource, [])}
            for key, value in _TAGS.items():
                if tags.get(key) != value:
                    yield (*path, "TagSpecifications"), f"must tag the {resource} {key}: '{value}'"
            for key in sorted(tags.keys() & set(_CHANGING_TAGS)):
                yield (*path, "TagSpecifications"), f"must not tag the {resource} {key}; raysent adds it at launch"
        if given.get("InstanceInitiatedShutdownBehavior") != "terminate":
            yield path, "must have InstanceInitiatedShutdownBehavior: terminate"
        if "{{ self_destruct }}" not in given.get("UserData", ""):
            yield path, "must have '{{ self_destruct }}' in UserData, which terminates the machine at its time"


def _machines_are_closed(values: dict[str, Any]) -> Iterator[Fault]:
    """Only the operator reaches the machines; each has its own role; their metadata need a token."""
    for name, kind in values["available_node_types"].items():
        given, path = kind["node_config"], ("available_node_types", name, "node_config")
        if given.get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield (*path, "MetadataOptions"), "must have HttpTokens: required (IMDSv2)"
        if given.get("MetadataOptions", {}).get("HttpPutResponseHopLimit") != 1:
            yield (*path, "MetadataOptions"), "must have HttpPutResponseHopLimit: 1"
        if given.get("SecurityGroupIds") != ["{{ security_group }}"]:
            yield (
                (*path, "SecurityGroupIds"),
                "must be ['{{ security_group }}']; Ray's default allows the whole internet",
            )
        wanted = "{{ head_profile }}" if name == values["head_node_type"] else "{{ worker_profile }}"
        if given.get("IamInstanceProfile") != {"Name": wanted}:
            yield (*path, "IamInstanceProfile"), f"must be {{Name: '{wanted}'}}; Ray's default may do everything"


def _requires_token(values: dict[str, Any]) -> Iterator[Fault]:
    """Ray always starts with token authentication, and only the machine's user can read the token."""
    for key in _START_KEYS:
        starts = [command for command in values.get(key, []) if "ray start" in command]
        if not starts:
            yield (key,), "must start Ray with 'ray start'"
        if any("RAY_AUTH_MODE=token" not in command for command in starts):
            yield (key,), "must export RAY_AUTH_MODE=token before 'ray start'"
    targets = [target for target, source in values.get("file_mounts", {}).items() if source == "{{ token_file }}"]
    if not any(target.endswith(_TOKEN_FILE) for target in targets):
        yield ("file_mounts",), f"must put '{{{{ token_file }}}}' at ~/{_TOKEN_FILE}"
    if not any("chmod 600" in command and _TOKEN_FILE in command for command in values.get("setup_commands", [])):
        yield ("setup_commands",), f"must 'chmod 600 ~/{_TOKEN_FILE}'"


def _dashboard_is_local(values: dict[str, Any]) -> Iterator[Fault]:
    """The dashboard listens on the loopback of the head: everyone who reaches it can run code."""
    starts = " ".join(values.get("head_start_ray_commands", []))
    if "--dashboard-host=127.0.0.1" not in starts or _OPEN_DASHBOARD.search(starts):
        yield ("head_start_ray_commands",), "must have --dashboard-host=127.0.0.1; an SSH tunnel reaches it"


# In this order: later rules rely on earlier ones.
RULES: tuple[Callable[[dict[str, Any]], Iterator[Fault]], ...] = (
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
