"""`components`: the encoders, objectives, tasks and other components that are installed."""

from __future__ import annotations

from typing import Any

import pandas as pd

from raysent.ensembles.methods import METHODS
from raysent.errors import ConfigError, did_you_mean
from raysent.evaluation.protocols import PROTOCOLS
from raysent.evaluation.tasks import TASKS
from raysent.models.codes import CODES
from raysent.models.encoders import ENCODERS
from raysent.models.objectives import OBJECTIVES
from raysent.models.schemes import SCHEMES
from raysent.registry import Component, Registry
from raysent.sweeps.samplers import SAMPLERS
from raysent.sweeps.schedulers import SCHEDULERS
from raysent.sweeps.trackers import TRACKERS

# Kinds of components that wings have: the values of entry points are registries, such as that of formats.
_OF_WINGS: Registry[Registry[Any]] = Registry(
    "registry",
    read=lambda registry: {registry.group.partition(".")[2]: registry},
    plural="registries",
)


def registries() -> dict[str, Registry[Any]]:
    """Return the registry of each kind of component, by the kind's name in `components`."""
    return {
        "encoders": ENCODERS,
        "objectives": OBJECTIVES,
        "codes": CODES,
        "schemes": SCHEMES,
        "tasks": TASKS,
        "protocols": PROTOCOLS,
        "ensemble_methods": METHODS,
        "samplers": SAMPLERS,
        "schedulers": SCHEDULERS,
        "trackers": TRACKERS,
        **_OF_WINGS,
    }


def _summary(kind: str, component: Component[Any]) -> str:
    reads = (
        f"; reads {component.value.Config.model_construct().reads}." if kind == "objectives" else ""
    )
    return f"{component.summary.removesuffix('.')}{reads}" if reads else component.summary


def components(kind: str | None = None) -> pd.DataFrame:
    """Return the encoders, objectives, tasks and other components that are installed.

    Another package adds one by an entry point of the group ``raysent.KIND``.

    Args:
        kind: Only components of this kind, such as ``encoders``.

    Returns:
        Columns ``kind``, ``name``, ``package`` and ``summary``. ``attrs["broken"]`` has entry points that cannot be
        loaded, by kind and name such as ``encoders.mine``, and why.

    Raises:
        ConfigError: If there is no such kind.
    """
    registry_of = registries()
    if kind is not None and kind not in registry_of:
        raise ConfigError(f"{kind}: unknown kind of component{did_you_mean(kind, registry_of)}")
    rows: list[dict[str, str]] = []
    broken: dict[str, str] = {}
    for name, registry in registry_of.items():
        if kind in (None, name):
            rows += [
                {
                    "kind": name,
                    "name": one.name,
                    "package": one.package,
                    "summary": _summary(name, one),
                }
                for one in registry.components()
            ]
            broken |= {f"{name}.{point}": reason for point, reason in registry.broken.items()}
    table = pd.DataFrame(rows, columns=["kind", "name", "package", "summary"])
    table.attrs["broken"] = broken
    return table
