"""Which type of machine Ray's autoscaler starts for waiting trials. Runs inside the autoscaler on a cluster's head.

Ray 2.60's own choice knows neither priorities nor that a type could not be had just now: where there is no spot machine
it asks for the same type for ever. Its environment names this one instead:

    RAY_AUTOSCALER_UTILIZATION_SCORER=raysent.cluster.autoscaling.score
    RAYSENT_NODE_TYPES=spot-g6=30/spot,on-demand-g4dn=0/on-demand    (type=priority/market)

A type that could not be had comes last until Ray forgets that (AUTOSCALER_NODE_AVAILABILITY_MAX_STALENESS_S). A sweep
may ask for machines on demand first, where its deadline is near.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TYPES_VARIABLE = "RAYSENT_NODE_TYPES"
SCORER_VARIABLE = "RAY_AUTOSCALER_UTILIZATION_SCORER"
SCORER = "raysent.cluster.autoscaling.score"

_KEY, _NAMESPACE = b"market", b"raysent"
_ON_DEMAND = b"on-demand"


@dataclass(frozen=True)
class NodeType:
    """What is known of one type of node.

    Attributes:
        priority: Higher is started first.
        market: `spot` or `on-demand`.
    """

    priority: int = 0
    market: str = "on-demand"


def format_types(types: Mapping[str, NodeType]) -> str:
    """Return node types as the variable holds them."""
    return ",".join(f"{name}={kind.priority}/{kind.market}" for name, kind in types.items())


@functools.cache
def read_types(text: str) -> dict[str, NodeType]:
    """Return the node types that a variable's text names."""
    types = {}
    for entry in filter(None, text.split(",")):
        name, _, rest = entry.rpartition("=")
        priority, _, market = rest.partition("/")
        types[name] = NodeType(int(priority), market)
    return types


def score(
    node_resources: dict[str, float],
    resources: Sequence[Mapping[str, float]],
    node_type: str,
    *,
    node_availability_summary: Any,
) -> tuple[Any, ...] | None:
    """Return how good a node type is for what waits, higher is better; None where nothing of it fits.

    Args:
        node_resources: What such a node has.
        resources: What waits.
        node_type: Its name.
        node_availability_summary: Ray's record of what could be had lately.
    """
    fit = _rays_score(node_resources, resources, node_type, node_availability_summary=node_availability_summary)
    if fit is None:
        return None
    record = node_availability_summary.node_availabilities.get(node_type)
    is_to_be_had = record is None or record.is_available
    kind = read_types(os.environ.get(TYPES_VARIABLE, "")).get(node_type, NodeType())
    # Ray's own first figure: no machine with a GPU for work without.
    is_fitting, *how_well = fit
    return is_to_be_had, is_fitting, kind.market != "spot" or not _prefers_on_demand(), kind.priority, *how_well


def prefer_on_demand(is_wanted: bool) -> None:
    """Tell the autoscaler of the cluster that this process is connected to which market comes first."""
    store = _store()
    if is_wanted:
        store._internal_kv_put(_KEY, _ON_DEMAND, overwrite=True, namespace=_NAMESPACE)
    else:
        store._internal_kv_del(_KEY, namespace=_NAMESPACE)


def _prefers_on_demand() -> bool:
    with contextlib.suppress(Exception):  # the store's interface is not public; without it priorities decide
        return bool(_store()._internal_kv_get(_KEY, namespace=_NAMESPACE) == _ON_DEMAND)
    return False


def _store() -> Any:
    return importlib.import_module("ray.experimental.internal_kv")


def _rays_score(*arguments: Any, **named: Any) -> Any:
    return importlib.import_module("ray.autoscaler._private.resource_demand_scheduler")._default_utilization_scorer(
        *arguments, **named
    )
