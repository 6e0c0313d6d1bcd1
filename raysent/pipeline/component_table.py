"""What is installed: encoders, objectives, samplers and all else that a registry knows."""

from __future__ import annotations

import importlib
from typing import Any

import pandas as pd

from raysent.errors import ConfigError, did_you_mean
from raysent.registry import Component, Registry

# Kind, as `raysent.components` names it -> where its registry is.
_REGISTRIES = {
    "encoders": ("raysent.models.encoders", "ENCODERS"),
    "objectives": ("raysent.models.objectives", "OBJECTIVES"),
    "codes": ("raysent.models.codes", "CODES"),
    "schemes": ("raysent.models.schemes", "SCHEMES"),
    "tasks": ("raysent.evaluation.tasks", "TASKS"),
    "protocols": ("raysent.evaluation.protocols", "PROTOCOLS"),
    "ensemble_methods": ("raysent.ensembles.methods", "METHODS"),
    "samplers": ("raysent.sweeps.samplers", "SAMPLERS"),
    "schedulers": ("raysent.sweeps.schedulers", "SCHEDULERS"),
    "trackers": ("raysent.sweeps.trackers", "TRACKERS"),
    "formats": ("raysent.exports.formats", "FORMATS"),
}


def registries() -> dict[str, Registry[Any]]:
    """Return the registry of each kind of component, by the kind's name in `components`."""
    return {
        kind: getattr(importlib.import_module(module), attribute) for kind, (module, attribute) in _REGISTRIES.items()
    }


def _summary(kind: str, component: Component[Any]) -> str:
    reads = f"; reads {component.value.Config().reads}." if kind == "objectives" else ""
    return f"{component.summary.removesuffix('.')}{reads}" if reads else component.summary


def components(kind: str | None = None) -> pd.DataFrame:
    """Return the encoders, objectives, tasks and other components that are installed.

    Another package adds one by an entry point of the group ``raysent.KIND``.

    Args:
        kind: Only components of this kind, such as ``encoders``.

    Returns:
        Columns ``kind``, ``name``, ``package`` and ``summary``. ``attrs["broken"]`` has entry points that cannot be
        loaded, by name, and why.

    Raises:
        ConfigError: If there is no such kind.
    """
    if kind is not None and kind not in _REGISTRIES:
        raise ConfigError(f"{kind}: unknown kind of component{did_you_mean(kind, _REGISTRIES)}")
    rows: list[dict[str, str]] = []
    broken: dict[str, str] = {}
    for name, registry in registries().items():
        if kind in (None, name):
            rows += [
                {"kind": name, "name": one.name, "package": one.package, "summary": _summary(name, one)}
                for one in registry.components()
            ]
            broken |= dict(registry.broken)
    table = pd.DataFrame(rows, columns=["kind", "name", "package", "summary"])
    table.attrs["broken"] = broken
    return table
