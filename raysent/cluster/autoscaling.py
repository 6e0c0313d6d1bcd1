"""Chooses the node type that Ray's autoscaler starts for waiting trials. Runs inside the autoscaler on the head.

The scorer of Ray 2.60 knows neither priorities nor availability: if no spot machine is available, it requests the same
type without end. Environment variables of the head replace it:

    RAY_AUTOSCALER_UTILIZATION_SCORER=raysent.cluster.autoscaling.score
    RAYSENT_NODE_TYPES=spot-g6=30/spot,on-demand-g4dn=0/on-demand    (type=priority/market)

A type that was not available comes last until that record expires (AUTOSCALER_NODE_AVAILABILITY_MAX_STALENESS_S). A
sweep whose deadline is near may ask for on-demand machines first.
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
    """Priority and market of a node type.

    Attributes:
        priority: Higher is started first.
        market: `spot` or `on-demand`.
    """

    priority: int = 0
    market: str = "on-demand"


def format_types(types: Mapping[str, NodeType]) -> str:
    """Return the value of the variable for these node types."""
    return ",".join(f"{name}={kind.priority}/{kind.market}" for name, kind in types.items())


@functools.cache
def read_types(text: str) -> dict[str, NodeType]:
    """Return the node types of a value of the variable."""
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
    """Return the score of a node type for the waiting work, higher is better; None if nothing fits.

    Args:
        node_resources: Resources of such a node.
        resources: Resources that each waiting task needs.
        node_type: Name of the node type.
        node_availability_summary: Ray's record of recent launch failures.
    """
    fit = _rays_score(node_resources, resources, node_type, node_availability_summary=node_availability_summary)
    if fit is None:
        return None
    record = node_availability_summary.node_availabilities.get(node_type)
    is_available = record is None or record.is_available
    kind = read_types(os.environ.get(TYPES_VARIABLE, "")).get(node_type, NodeType())
    # Ray's own first value: no GPU machine for work that needs no GPU.
    is_fitting, *how_well = fit
    return is_available, is_fitting, kind.market != "spot" or not _prefers_on_demand(), kind.priority, *how_well


def prefer_on_demand(is_preferred: bool) -> None:
    """Set which market the autoscaler of the connected cluster prefers: on demand, or the one of highest priority."""
    store = _store()
    if is_preferred:
        store._internal_kv_put(_KEY, _ON_DEMAND, overwrite=True, namespace=_NAMESPACE)
    else:
        store._internal_kv_del(_KEY, namespace=_NAMESPACE)


def _prefers_on_demand() -> bool:
    with contextlib.suppress(Exception):  # not a public interface of Ray; without it, priorities decide
        return bool(_store()._internal_kv_get(_KEY, namespace=_NAMESPACE) == _ON_DEMAND)
    return False


def _store() -> Any:
    return importlib.import_module("ray.experimental.internal_kv")


def _rays_score(*arguments: Any, **named: Any) -> Any:
    return importlib.import_module("ray.autoscaler._private.resource_demand_scheduler")._default_utilization_scorer(
        *arguments, **named
    )
