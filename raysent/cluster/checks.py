"""What a cluster file must hold, asked without any cloud: Ray's own schema, AWS's parameters, and safety.

Ray's launcher checks its schema only, and lets through a misspelt machine setting, an unknown market, and a cluster
that anyone on the internet can run code on. Each rule here is a generator of (path, message).
"""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import jsonschema
from botocore.validate import ParamValidator
from ray.autoscaler._private.util import prepare_config, validate_config

from raysent.cluster.autoscaling import SCORER, SCORER_VARIABLE, TYPES_VARIABLE
from raysent.config import Document, KeyPath
from raysent.cost import MARKET_LABEL, TYPE_LABEL
from raysent.errors import did_you_mean

Fault = tuple[KeyPath, str]

_START_KEYS = ("head_start_ray_commands", "worker_start_ray_commands")
_TAGS = {"raysent-cluster": "{{ cluster }}", "raysent-sweep": "{{ sweep }}", "raysent-expires": "{{ expires }}"}
_TOKEN_FILE = ".ray/auth_token"
_OPEN_DASHBOARD = re.compile(r"--dashboard-host[= ]\s*(?!127\.0\.0\.1)(\S+)")


def check_cluster(document: Document) -> None:
    """Check a cluster file.

    Raises:
        ConfigError: For the first rule that does not hold, with file, line and what it must be.
    """
    for rule in RULES:
        for path, message in rule(document.values):
            raise document.error(path, message)


def _fits_schema(values: dict[str, Any]) -> Iterator[Fault]:
    """Ray's launcher takes it."""
    try:
        validate_config(prepare_config(copy.deepcopy(values)))
    except jsonschema.ValidationError as error:
        yield tuple(map(str, error.absolute_path)), error.message.splitlines()[0]
    except (KeyError, TypeError, AttributeError) as error:
        yield (), f"Ray's launcher cannot read it: {type(error).__name__} {error}"
    except (ValueError, RuntimeError) as error:
        yield (), " ".join(str(error).split())


def _is_aws(values: dict[str, Any]) -> Iterator[Fault]:
    """Only AWS is known, and a region and node types have to be named."""
    provider = values["provider"]
    if provider.get("type") != "aws":
        yield ("provider", "type"), f"must be aws; given '{provider.get('type')}'"
    if not provider.get("region"):
        yield ("provider",), "must name a region, as in us-east-1"
    if values.get("head_node_type") not in values.get("available_node_types", {}):
        yield ("head_node_type",), "must be one of available_node_types"
    if not values.get("auth", {}).get("ssh_user"):
        yield ("auth",), "must name ssh_user, who logs in on the machines"


def _has_no_credentials(values: dict[str, Any]) -> Iterator[Fault]:
    """Credentials come from boto3's own chain."""
    if "aws_credentials" in values["provider"]:
        yield (
            ("provider", "aws_credentials"),
            "must not stand in a file; use AWS_PROFILE or another way that boto3 knows",
        )


def _machines_are_known_to_aws(values: dict[str, Any]) -> Iterator[Fault]:
    """What a machine is started with is what AWS takes, by name, kind and choice."""
    shape = _machine_shape()
    for name, kind in values["available_node_types"].items():
        path = ("available_node_types", name, "node_config")
        given = kind["node_config"]
        found = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **given}, shape)
        for problem, _, details in found._errors:
            if problem == "unknown field":
                where = details["unknown_param"]
                yield path, f"{where}: AWS knows no such setting{did_you_mean(where, details['valid_names'])}"
        if found.has_errors():
            yield path, " ".join(found.generate_report().split())
        yield from _wrong_choices(given, shape, path)
        if "InstanceType" not in given:
            yield path, "must name InstanceType, as in g5.xlarge"


@functools.cache
def _machine_shape() -> Any:
    """Return the form of a machine's settings. It comes with botocore: no credentials, no network."""
    return botocore.session.Session().get_service_model("ec2").operation_model("RunInstances").input_shape


def _wrong_choices(given: Any, shape: Any, path: KeyPath) -> Iterator[Fault]:
    """Yield every text that is none of those AWS lists; botocore itself lets them through."""
    if shape.type_name == "structure" and isinstance(given, dict):
        for key, value in given.items():
            yield from _wrong_choices(value, shape.members[key], (*path, key))
    elif shape.type_name == "list" and isinstance(given, list):
        for number, value in enumerate(given):
            yield from _wrong_choices(value, shape.member, (*path, str(number)))
    elif isinstance(given, str) and getattr(shape, "enum", None) and given not in shape.enum:
        known = shape.enum if len(shape.enum) < 20 else []
        yield path, f"AWS knows no '{given}' here{did_you_mean(given, known or _near(given, shape.enum))}"


def _near(given: str, known: list[str]) -> list[str]:
    """Return the names that begin as the given one does: there are hundreds."""
    return [name for name in known if name.split(".")[0] == given.split(".", maxsplit=1)[0]][:12]


def _head_only_leads(values: dict[str, Any]) -> Iterator[Fault]:
    """The head is on demand, has no cores to give to trials, and there is one of it."""
    name = values["head_node_type"]
    head, path = values["available_node_types"][name], ("available_node_types", name)
    if head.get("max_workers", math.inf) != 0:
        yield (*path, "max_workers"), "must be 0: there is one head"
    if head["resources"].get("CPU") != 0:
        yield (*path, "resources"), "must say CPU: 0, so that no trial trains on the head"
    if not head["resources"].get("raysent_driver"):
        yield (*path, "resources"), "must say raysent_driver: 64, or how many trials at once the head may drive"
    if "InstanceMarketOptions" in head["node_config"]:
        yield (*path, "node_config", "InstanceMarketOptions"), "must not be there: a lost head loses the cluster"


def _workers_scale(values: dict[str, Any]) -> Iterator[Fault]:
    """Workers come for waiting trials only, and say what they bring; a stopped one is not kept."""
    for name, kind in values["available_node_types"].items():
        path = ("available_node_types", name)
        if kind.get("min_workers", 0):
            yield (*path, "min_workers"), "must be 0, so that no machine waits for work"
        if name != values["head_node_type"] and not kind["resources"].get("CPU"):
            yield (*path, "resources"), "must name CPU, and GPU where it has one, to plan trials before it comes"
    if values["provider"].get("cache_stopped_nodes", True):
        yield ("provider",), "must say cache_stopped_nodes: false; stopped machines go on paying for their disks"


def _labels_tell_prices(values: dict[str, Any]) -> Iterator[Fault]:
    """Every node says its type and its market as they are, so that its price is known."""
    for name, kind in values["available_node_types"].items():
        is_spot = kind["node_config"].get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        wanted = {TYPE_LABEL: kind["node_config"]["InstanceType"], MARKET_LABEL: "spot" if is_spot else "on-demand"}
        for label, value in wanted.items():
            if kind.get("labels", {}).get(label) != value:
                yield (
                    ("available_node_types", name, "labels"),
                    f"must say {label}: {value}, by which its price is known",
                )


def _chooses_machines(values: dict[str, Any]) -> Iterator[Fault]:
    """Ray's own autoscaler would ask for ever for a type that is not to be had."""
    starts = " ".join(values.get("head_start_ray_commands", []))
    for wanted in (f"{SCORER_VARIABLE}={SCORER}", f"{TYPES_VARIABLE}={{{{ node_types }}}}"):
        if wanted not in starts:
            yield ("head_start_ray_commands",), f"must export {wanted} before 'ray start'"


def _installs_no_nightly(values: dict[str, Any]) -> Iterator[Fault]:
    """Without setup commands Ray's launcher installs a nightly build of itself."""
    if not values.get("setup_commands"):
        yield ("setup_commands",), "must be given; Ray's own would install a nightly build"
    elif not any("{{ wheel }}" in command for command in values["setup_commands"]):
        yield ("setup_commands",), "must install '{{ wheel }}', the raysent that submits"


def _machines_are_ours(values: dict[str, Any]) -> Iterator[Fault]:
    """Tagged with the cluster, the sweep and the time to live, disks too; ending means being gone."""
    for name, kind in values["available_node_types"].items():
        given, path = kind["node_config"], ("available_node_types", name, "node_config")
        tagged = {entry.get("ResourceType"): entry.get("Tags", []) for entry in given.get("TagSpecifications", [])}
        for resource in ("instance", "volume"):
            tags = {tag["Key"]: tag["Value"] for tag in tagged.get(resource, [])}
            for key, value in _TAGS.items():
                if tags.get(key) != value:
                    yield (*path, "TagSpecifications"), f"must tag the {resource} {key}: '{value}'"
        if given.get("InstanceInitiatedShutdownBehavior") != "terminate":
            yield path, "must say InstanceInitiatedShutdownBehavior: terminate"
        if "{{ self_destruct }}" not in given.get("UserData", ""):
            yield path, "must hold '{{ self_destruct }}' in UserData, which ends the machine at its time"


def _machines_are_closed(values: dict[str, Any]) -> Iterator[Fault]:
    """Reached by the operator alone, under a role of their own, and asked for their data by token only."""
    for name, kind in values["available_node_types"].items():
        given, path = kind["node_config"], ("available_node_types", name, "node_config")
        if given.get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield (*path, "MetadataOptions"), "must say HttpTokens: required (IMDSv2)"
        if given.get("MetadataOptions", {}).get("HttpPutResponseHopLimit") != 1:
            yield (*path, "MetadataOptions"), "must say HttpPutResponseHopLimit: 1"
        if given.get("SecurityGroupIds") != ["{{ security_group }}"]:
            yield (*path, "SecurityGroupIds"), "must be ['{{ security_group }}']; Ray's own lets in the whole internet"
        wanted = "{{ head_profile }}" if name == values["head_node_type"] else "{{ worker_profile }}"
        if given.get("IamInstanceProfile") != {"Name": wanted}:
            yield (*path, "IamInstanceProfile"), f"must be {{Name: '{wanted}'}}; Ray's own may do everything"


def _asks_for_its_token(values: dict[str, Any]) -> Iterator[Fault]:
    """Every start of Ray has token authentication on, and the token's file is the machine user's alone."""
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


def _dashboard_stays_inside(values: dict[str, Any]) -> Iterator[Fault]:
    """The dashboard runs code for whoever reaches it, so only the head itself does."""
    starts = " ".join(values.get("head_start_ray_commands", []))
    if "--dashboard-host=127.0.0.1" not in starts or _OPEN_DASHBOARD.search(starts):
        yield ("head_start_ray_commands",), "must say --dashboard-host=127.0.0.1; it is reached through an SSH tunnel"


# In this order: later ones read what earlier ones have made sure of.
RULES: tuple[Callable[[dict[str, Any]], Iterator[Fault]], ...] = (
    _fits_schema,
    _is_aws,
    _has_no_credentials,
    _machines_are_known_to_aws,
    _head_only_leads,
    _workers_scale,
    _labels_tell_prices,
    _chooses_machines,
    _installs_no_nightly,
    _machines_are_ours,
    _machines_are_closed,
    _asks_for_its_token,
    _dashboard_stays_inside,
)
