"""Classifiers on frozen vectors. In: features [rows, dim] and a task's rows. Out: scores, log-probabilities, a probe.

A protocol says how rows are divided, what is fitted and how its strength is chosen; figures of different protocols,
or of one protocol's configurations, are never put in one table. `PROTOCOLS` is their registry.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from raysent.errors import ConfigError, DataError, did_you_mean
from raysent.evaluation.probes.results import FoldResult, Probe, ProbeResult, accuracy
from raysent.evaluation.tasks import TaskData

__all__ = [
    "PROTOCOLS",
    "FoldResult",
    "Probe",
    "ProbeResult",
    "accuracy",
    "check_protocol",
    "fit_probe",
    "protocol_name",
    "settings",
]

# Name -> the module of this folder whose `fit` and `settings` it is; a configuration that is not a protocol's default
# stands here as `protocol/configuration`. A module is imported when it is asked for: workers that train need none.
PROTOCOLS = {
    "fast": "fast",
    "senteval": "senteval",
    "senteval/prototyping": "senteval",
    "kiros": "kiros",
    "kiros/features": "kiros",
}


def protocol_name(protocol: str, configuration: str | None = None) -> str:
    """Return the name in `PROTOCOLS` of a protocol and one of its configurations.

    Raises:
        ConfigError: If there is no such protocol, or it has no such configuration.
    """
    known = list(dict.fromkeys(name.partition("/")[0] for name in PROTOCOLS))
    if protocol not in PROTOCOLS:
        raise ConfigError(f"--protocol {protocol}: unknown protocol{did_you_mean(protocol, known)}")
    if configuration in (None, "default"):
        return protocol
    name = f"{protocol}/{configuration}"
    if name not in PROTOCOLS:
        others = [other.partition("/")[2] for other in PROTOCOLS if other.startswith(f"{protocol}/")]
        raise ConfigError(
            f"--config {configuration}: must be a configuration of {protocol}: {', '.join(['default', *others])}"
        )
    return name


def check_protocol(name: str) -> None:
    """Check that a protocol, or one with its configuration, is known.

    Raises:
        ConfigError: If it is not.
    """
    protocol, _, configuration = name.partition("/")
    protocol_name(protocol, configuration or None)


def settings(protocol: str) -> dict[str, object]:
    """Return a protocol's settings: plain values that change whenever its figures may."""
    module, configuration = _module(protocol)
    found: dict[str, object] = module.settings(configuration)
    return found


def fit_probe(features: np.ndarray, data: TaskData, *, protocol: str = "fast", source: str = "features") -> ProbeResult:
    """Fit and score the probe of a task.

    Args:
        features: The rows' features, float32 [rows, dim]; read in place, never copied by `fast`.
        data: The task's rows.
        protocol: A name in `PROTOCOLS`.
        source: What gave the features, for messages.

    Raises:
        ConfigError: If the protocol is unknown.
        DataError: If a feature is not finite, or the training rows are all of one class.
    """
    check_protocol(protocol)
    if features.shape[0] != len(data.labels):
        raise DataError(f"{source}: {data.task} has {len(data.labels)} rows; given features of {features.shape[0]}")
    _check_finite(features, source, data.task)
    _check_classes(data)
    module, configuration = _module(protocol)
    result: ProbeResult = module.fit(features, data, configuration=configuration)
    return result


def _module(protocol: str) -> tuple[Any, str]:
    """Return a protocol's module and the configuration that its name asks for."""
    return import_module(f"{__name__}.{PROTOCOLS[protocol]}"), protocol.partition("/")[2] or "default"


def _check_finite(features: np.ndarray, source: str, task: str) -> None:
    broken = 0
    for start in range(0, len(features), 4096):
        broken += int((~np.isfinite(features[start : start + 4096]).all(axis=1)).sum())
    if broken:
        raise DataError(
            f"{source}: vectors must be finite; given NaN or infinity in {broken} of {len(features)} rows of {task}; "
            "the model is damaged or diverged, train it again with a lower learning rate"
        )


def _check_classes(data: TaskData) -> None:
    labels = data.labels[data.train] if len(data.train) else data.labels
    present = np.unique(labels)
    if len(present) < 2:
        names = ", ".join(data.label_names[label] for label in present) or "none"
        raise DataError(f"{data.task}: needs training rows of at least two classes; given {names}")
