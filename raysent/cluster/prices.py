"""What AWS asks: spot prices and list prices through boto3, with the credentials that boto3 itself finds.

A price that cannot be read is the on-demand price of the shipped list, never 0.

What a cluster file means for a sweep: what its machines cost, and how many of them may come.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from raysent.cluster.cluster_file import ClusterFile
from raysent.config import Override, read_yaml
from raysent.cost import Price, Prices, on_demand_price, price_list, spot_price
from raysent.errors import ConfigError
from raysent.sweeps import Workers, num_workers
from raysent.sweeps.space import SearchSpace, read_space

PRODUCT = "Linux/UNIX"
# The price list answers in few regions; this is one of them.
LIST_REGION = "us-east-1"
# AWS, or what stands between, does not answer; answers what botocore cannot read; or leaves out what an answer has.
_UNANSWERED = (BotoCoreError, ClientError, ResponseParserError, LookupError, ValueError)
# How long a running sweep goes by a spot price, and how long it waits for one.
FRESH_S = 300.0
_PATIENCE = Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2})


@dataclass(frozen=True)
class Quote:
    """What one instance type costs in a region.

    Attributes:
        instance_type: As in g5.xlarge.
        region: As in us-east-1.
        on_demand: Its list price.
        spot: Zone -> spot price.
        note: What could not be read, in words; empty where everything could.
    """

    instance_type: str
    region: str
    on_demand: Price
    spot: dict[str, Price]
    note: str = ""


def quote(instance_type: str, region: str, *, ec2: Any = None, pricing: Any = None) -> Quote:
    """Ask AWS for an instance type's prices; what it does not say is taken from the shipped list.

    Args:
        instance_type: As in g5.xlarge.
        region: As in us-east-1.
        ec2: A client of EC2; None for one of boto3's own making.
        pricing: A client of the price list; None likewise.

    Raises:
        ConfigError: If neither AWS nor the list knows a price: an unknown price is no reason to spend.
    """
    notes: list[str] = []
    on_demand = _list_price(instance_type, region, pricing, notes)
    spot: dict[str, Price] = {}
    try:
        client = ec2 or boto3.client("ec2", region_name=region)
        told = spot_history(client, instance_type)
        spot = {zone: spot_price(usd, on_demand, source=f"spot price of {at}") for zone, (usd, at) in told.items()}
    except _UNANSWERED as error:
        notes.append(f"spot prices: {_short(error)}; counted as on-demand")
    return Quote(instance_type, region, on_demand, spot, "; ".join(notes))


class LiveSpot:
    """Tells spot prices while a sweep runs: of a region's zones the dearest, since nobody says which a node is in."""

    def __init__(self, region: str, *, ec2: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask nothing yet.

        Args:
            region: As in us-east-1.
            ec2: A client of EC2; None for one of boto3's own making.
            clock: Seconds.
        """
        self._region, self._ec2, self._clock = region, ec2, clock
        self._told: dict[str, tuple[float, tuple[float, str] | None]] = {}

    def __call__(self, instance_type: str) -> tuple[float, str] | None:
        """Return what a type costs an hour and where that is from; None where AWS does not say."""
        at_s, told = self._told.get(instance_type, (-math.inf, None))
        if self._clock() - at_s >= FRESH_S:
            told = self._ask(instance_type)
            self._told[instance_type] = self._clock(), told
        return told

    def _ask(self, instance_type: str) -> tuple[float, str] | None:
        try:
            self._ec2 = self._ec2 or boto3.client("ec2", region_name=self._region, config=_PATIENCE)
            zones = spot_history(self._ec2, instance_type)
        except _UNANSWERED:
            return None
        prices = [usd for usd, _ in zones.values()]
        if not prices or None in prices:
            return None  # one zone's is not known: it may be the dearest
        usd, at = max((usd, at) for usd, at in zones.values() if usd is not None)
        return usd, f"spot price of {at}"


def _list_price(instance_type: str, region: str, pricing: Any, notes: list[str]) -> Price:
    """Return the on-demand price from AWS, else from the shipped list, which then is noted."""
    try:
        client = pricing or boto3.client("pricing", region_name=LIST_REGION)
        usd = on_demand_usd(client, instance_type, region)
        if usd is not None:
            return on_demand_price(usd, source="AWS price list, today")
        notes.append("list price: AWS tells none; taken from the shipped list")
    except _UNANSWERED as error:
        notes.append(f"list price: {_short(error)}; taken from the shipped list")
    try:
        return price_list().on_demand(instance_type, region)
    except ConfigError as error:
        raise ConfigError(f"{error}; AWS was asked too ({notes[-1]})") from None


def on_demand_usd(pricing: Any, instance_type: str, region: str) -> float | None:
    """Return the dollars an hour of a shared Linux machine on demand, None where AWS lists none.

    Args:
        pricing: A client of the price list, which answers in JSON strings.
        instance_type: As in g5.xlarge.
        region: As in us-east-1.
    """
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    pages = pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
    found = [usd for page in pages for text in page["PriceList"] for usd in _hourly(json.loads(text))]
    return max(found, default=None)


def _hourly(product: dict[str, Any]) -> Iterator[float]:
    """Yield the dollars an hour that a product of the list names, zero and unreadable ones left out."""
    for offer in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in offer.get("priceDimensions", {}).values():
            usd = _number(dimension.get("pricePerUnit", {}).get("USD"))
            if dimension.get("unit") == "Hrs" and usd is not None:
                yield usd


def spot_history(ec2: Any, instance_type: str) -> dict[str, tuple[float | None, str]]:
    """Return each zone's latest spot price, None where it cannot be read, and when it was told.

    Args:
        ec2: A client of EC2 in the region that is asked about.
        instance_type: As in g5.xlarge.
    """
    now = datetime.datetime.now(datetime.UTC)
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=[instance_type], ProductDescriptions=[PRODUCT], StartTime=now
    )
    return _latest(entry for page in pages for entry in page["SpotPriceHistory"])


def _latest(entries: Iterable[dict[str, Any]]) -> dict[str, tuple[float | None, str]]:
    """Return each zone's latest entry."""
    latest: dict[str, dict[str, Any]] = {}
    for entry in entries:
        before = latest.get(entry["AvailabilityZone"])
        if before is None or entry["Timestamp"] > before["Timestamp"]:
            latest[entry["AvailabilityZone"]] = entry
    return {
        zone: (_number(entry.get("SpotPrice")), entry["Timestamp"].isoformat(timespec="minutes"))
        for zone, entry in sorted(latest.items())
    }


def _number(text: Any) -> float | None:
    """Return a price above zero, None for what is none."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def _short(error: Exception) -> str:
    """Return why AWS could not be asked, in one line."""
    return " ".join(str(error).split())[:120].rstrip(".")


# A machine's start, and what it installs: billed before Ray sees its node.
BOOT = "5m"
_PRICE_NAMES = ("cost.usd_per_hour", "cost.machines")


def price_space(
    path: Path, overrides: Sequence[Override], cluster: ClusterFile, *, ask: Callable[[str, str], Quote] = quote
) -> tuple[SearchSpace, list[str]]:
    """Read a space that knows what each machine of a cluster costs; one that says it itself keeps its own figures.

    Args:
        path: The search-space file.
        overrides: What the command line sets.
        cluster: The cluster.
        ask: Instance type, region -> what AWS or the shipped list says.

    Returns:
        The space, and what could not be asked, in words.

    Raises:
        RaysentError: If the space is wrong, or nobody knows a machine's price.
    """
    written = read_yaml(path).values.get("cost")
    names = {f"cost.{name}" for name in written} if isinstance(written, dict) else set()
    if (names | {override.name for override in overrides}) & set(_PRICE_NAMES):
        return read_space(path, overrides=overrides), []
    told, notes = quotes(cluster, ask=ask)
    option = f"--cluster {cluster.path}"
    prices = [
        Override("cost.machines", told, option),
        Override("cost.region", cluster.region, option),
        *([] if "cost.boot" in names else [Override("cost.boot", BOOT, option)]),
    ]
    return read_space(path, overrides=[*prices, *overrides]), notes


def quotes(cluster: ClusterFile, *, ask: Callable[[str, str], Quote] = quote) -> tuple[dict[str, float], list[str]]:
    """Return each instance type's price on demand, and what could not be asked.

    Raises:
        ConfigError: If nobody knows one.
    """
    told = [ask(name, cluster.region) for name in cluster.instance_types]
    # Spot prices are asked for while the sweep runs.
    notes = {
        f"prices on demand: {one.on_demand.source}; AWS was not to be asked"
        for one in told
        if "AWS" not in one.on_demand.source
    }
    return {one.instance_type: one.on_demand.usd_per_hour for one in told}, sorted(notes)


def workers_for(cluster: ClusterFile, space: SearchSpace) -> Workers:
    """Return how many workers may stand at once, as the file says and dollars an hour allow, and what each has.

    Raises:
        ConfigError: If not even one is allowed beside the head, or none is of the market that is asked for.
    """
    market = space.cost.market
    of_market = cluster.limited(num_workers=cluster.max_workers, market=market)
    prices = Prices(space.cost)
    head = cluster.node_types[cluster.document.values["head_node_type"]]
    num = num_workers(
        space,
        most=of_market.max_workers,
        head_usd=prices.of(head["labels"]).worst_usd_per_hour,
        each_usd=max(prices.of(kind["labels"]).worst_usd_per_hour for kind in cluster.worker_types.values()),
    )
    return Workers(num, int(cluster.minimum("CPU")), cluster.minimum("GPU"))
