"""What the machines of a cluster cost, and how many of them a sweep may use.

Prices are read from AWS through boto3, which finds the credentials. A price that cannot be read is never 0: a list
price is then taken from the list in the package, and a spot price counts as the on-demand price.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from raysent.cluster.cluster_file import ClusterFile
from raysent.config import Override, read_yaml
from raysent.cost import Price, Prices, on_demand_price, price_list
from raysent.errors import ConfigError
from raysent.reading import parse_json
from raysent.sweeps import Workers, num_workers
from raysent.sweeps.space import SearchSpace, read_space

_PRODUCT = "Linux/UNIX"
# The price list API exists in a few regions only; this is one of them.
_LIST_REGION = "us-east-1"
# AWS is not reachable or refuses, botocore cannot read the response, or the response is incomplete.
_AWS_FAILURES = (BotoCoreError, ClientError, ResponseParserError, LookupError, ValueError)
# How long a running sweep uses a spot price before it requests a new one, and the limits of that request.
FRESH_S = 300.0
_PATIENCE = Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2})
# Time from the start of a machine to the start of its Ray node, setup included; it is billed.
_BOOT = "5m"
# Family of instance types -> Ray's name of its GPU.
_GPU_OF_FAMILY = {
    "g4dn": "T4", "g5": "A10G", "g6": "L4", "g6e": "L40S", "p3": "V100", "p4d": "A100-40G", "p4de": "A100-80G",
    "p5": "H100", "p5e": "H200", "p5en": "H200",
}  # fmt: skip
# The source of a price that AWS was asked for.
_ASKED = "AWS price list, today"
_PRICE_NAMES = ("cost.usd_per_hour", "cost.machines")


def list_price(instance_type: str, region: str, *, pricing: Any = None) -> Price:
    """Read the list price of an instance type from AWS; one that AWS does not return comes from the package.

    Args:
        instance_type: As in g5.xlarge.
        region: As in us-east-1.
        pricing: A boto3 client of the price list; None to create one.

    Raises:
        ConfigError: If neither AWS nor the package knows it.
    """
    try:
        client = pricing or boto3.client("pricing", region_name=_LIST_REGION, config=_PATIENCE)
        usd = on_demand_usd(client, instance_type, region)
        if usd is not None:
            return on_demand_price(usd, source=_ASKED)
        reason = "returns no list price"
    except _AWS_FAILURES as error:
        reason = " ".join(str(error).split())[:120].rstrip(".")
    try:
        price = price_list().on_demand(instance_type, region)
    except ConfigError as error:
        raise ConfigError(f"{error}; AWS: {reason}") from None
    return replace(price, source=f"{price.source}; AWS was not available ({reason})")


class LiveSpot:
    """Current spot prices for a running sweep. The zone of a node is unknown, so the highest of a region's zones."""

    def __init__(
        self, region: str, *, ec2: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare; no request is sent yet.

        Args:
            region: As in us-east-1.
            ec2: A boto3 client of EC2; None to create one.
            clock: Returns seconds.
        """
        self._region = region
        self._ec2 = ec2
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[float, str] | None]] = {}

    def __call__(self, instance_type: str) -> tuple[float, str] | None:
        """Return dollars an hour of a type and the source of that price, or None if AWS does not return one."""
        at_s, price = self._known.get(instance_type, (-math.inf, None))
        if self._clock() - at_s >= FRESH_S:
            price = self._request(instance_type)
            self._known[instance_type] = self._clock(), price
        return price

    def _request(self, instance_type: str) -> tuple[float, str] | None:
        try:
            self._ec2 = self._ec2 or boto3.client("ec2", region_name=self._region, config=_PATIENCE)
            zones = spot_history(self._ec2, instance_type)
        except _AWS_FAILURES:
            return None
        prices = [usd for usd, _ in zones.values()]
        if not prices or None in prices:
            return None  # a zone without a known price may be the most expensive
        usd, at = max((usd, at) for usd, at in zones.values() if usd is not None)
        return usd, f"spot price of {at}"


def on_demand_usd(pricing: Any, instance_type: str, region: str) -> float | None:
    """Return the dollars an hour of a shared Linux machine on demand, or None if AWS lists none.

    Args:
        pricing: A boto3 client of the price list, whose responses contain JSON texts.
        instance_type: As in g5.xlarge.
        region: As in us-east-1.
    """
    product = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in product.items()
    ]
    pages = pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
    prices = [
        usd for page in pages for text in page["PriceList"] for usd in _hourly(parse_json(text))
    ]
    return max(prices, default=None)


def spot_history(ec2: Any, instance_type: str) -> dict[str, tuple[float | None, str]]:
    """Return the latest spot price of each zone, None if it cannot be read, and its time.

    Args:
        ec2: A boto3 client of EC2 in the region.
        instance_type: As in g5.xlarge.
    """
    now = datetime.datetime.now(datetime.UTC)
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=[instance_type], ProductDescriptions=[_PRODUCT], StartTime=now
    )
    latest: dict[str, dict[str, Any]] = {}
    for entry in (offer for page in pages for offer in page["SpotPriceHistory"]):
        before = latest.get(entry["AvailabilityZone"])
        if before is None or entry["Timestamp"] > before["Timestamp"]:
            latest[entry["AvailabilityZone"]] = entry
    return {
        zone: (_number(entry.get("SpotPrice")), entry["Timestamp"].isoformat(timespec="minutes"))
        for zone, entry in sorted(latest.items())
    }


def price_space(
    path: Path, overrides: Sequence[Override], cluster: ClusterFile
) -> tuple[SearchSpace, list[str]]:
    """Read a search space and set the prices of a cluster's machines, unless the space sets prices.

    Args:
        path: The search-space file.
        overrides: Overrides from the command line.
        cluster: The cluster.

    Returns:
        The space, and in words which prices are not from AWS.

    Raises:
        RaysentError: If the space is invalid, or a machine has no known price.
    """
    written = read_yaml(path).values.get("cost")
    if isinstance(written, dict):
        names = {f"cost.{name}" for name in written}
    else:
        names = set()
    if (names | {override.name for override in overrides}) & set(_PRICE_NAMES):
        return read_space(path, overrides=overrides), []
    # On demand; spot prices are requested while the sweep runs.
    list_prices = {name: list_price(name, cluster.region) for name in cluster.instance_types}
    other_sources = {price.source for price in list_prices.values() if price.source != _ASKED}
    option = f"--cluster {cluster.path}"
    usual = {
        "cost.attached": price_list().attached_usd(cluster.region, disk_gib=cluster.disk_gib),
        "cost.boot": _BOOT,
    }
    prices = [
        Override(
            "cost.machines",
            {name: price.usd_per_hour for name, price in list_prices.items()},
            option,
        ),
        Override("cost.region", cluster.region, option),
        *(Override(name, value, option) for name, value in usual.items() if name not in names),
    ]
    notes = [f"prices on demand: {source}" for source in sorted(other_sources)]
    return read_space(path, overrides=[*prices, *overrides]), notes


def held_usd_per_hour(cluster: ClusterFile, space: SearchSpace, *, num_workers: int) -> float:
    """Return the most that the head and `num_workers` workers cost an hour, at their highest prices."""
    prices = Prices(space.cost)
    of_market = cluster.limited(num_workers=num_workers, market=space.cost.market)
    each = max(
        prices.of(kind["labels"]).worst_usd_per_hour for kind in of_market.worker_types.values()
    )
    return prices.of(cluster.head["labels"]).worst_usd_per_hour + num_workers * each


def workers_for(cluster: ClusterFile, space: SearchSpace) -> Workers:
    """Return the most workers that the file and the limit on dollars an hour allow, and the resources of each.

    Raises:
        ConfigError: If not even one worker is allowed beside the head, or none is of the space's market.
    """
    market = space.cost.market
    of_market = cluster.limited(num_workers=cluster.max_workers, market=market)
    prices = Prices(space.cost)
    num = num_workers(
        space,
        most=of_market.max_workers,
        head_usd=prices.of(cluster.head["labels"]).worst_usd_per_hour,
        each_usd=max(
            prices.of(kind["labels"]).worst_usd_per_hour for kind in of_market.worker_types.values()
        ),
    )
    types = sorted(
        {kind["node_config"]["InstanceType"] for kind in of_market.worker_types.values()}
    )
    gpus = [_GPU_OF_FAMILY.get(name.split(".")[0], "") for name in types]
    accelerators: tuple[str, ...] = ()
    if all(gpus):
        accelerators = tuple(dict.fromkeys(gpus))
    return Workers(num, int(of_market.minimum("CPU")), of_market.minimum("GPU"), accelerators)


def _hourly(product: dict[str, Any]) -> Iterator[float]:
    """Yield the dollars an hour of a product's offers, without zero and unreadable prices."""
    for offer in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in offer.get("priceDimensions", {}).values():
            usd = _number(dimension.get("pricePerUnit", {}).get("USD"))
            if dimension.get("unit") == "Hrs" and usd is not None:
                yield usd


def _number(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    if math.isfinite(value) and value > 0:
        return value
    return None
