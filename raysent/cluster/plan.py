"""What a cluster file means for a sweep: what its machines cost, and how many of them may come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from raysent.cluster.aws_prices import Quote, quote
from raysent.cluster.cluster_file import ClusterFile
from raysent.config import Override, read_yaml
from raysent.cost import Prices
from raysent.sweeps import Workers, num_workers
from raysent.sweeps.space import SearchSpace, read_space

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
    return Workers(num, int(cluster.least("CPU")), cluster.least("GPU"))
