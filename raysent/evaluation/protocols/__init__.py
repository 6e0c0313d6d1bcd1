"""Protocols: how a task's rows are divided, which probe is fitted, and how its regularization is chosen.

In: features [rows, dim] and a task's rows. Out: scores, log-probabilities per fold, and a probe for new sentences.

Scores of different protocols, or of two configurations of one protocol, are not comparable and never share a table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from raysent.errors import ConfigError, DataError
from raysent.evaluation.probes.results import ProbeResult, balance_measures
from raysent.evaluation.task import TaskData
from raysent.registry import Registry, by_table

__all__ = ["DIVIDED", "PROTOCOLS", "EvaluationProtocol", "fit_probe", "protocol_name"]

# The configuration of `fast` that divides a task without given splits into train and test first.
DIVIDED = "fast/divided"

_CHUNK = 4096
# Of published protocols; each fold needs a row of some class.
NUM_FOLDS = 10


@runtime_checkable
class EvaluationProtocol(Protocol):
    """A protocol in one configuration.

    Call order: `settings` once per evaluation, as part of the key of its records; then `fit` once per model and task.
    `fit_probe` checks what `fit` gets.

    A module in this folder, or one that an entry point of the group ``raysent.protocols`` names, holds a table
    `PROTOCOLS`, name -> protocol. Configurations other than the default are named ``protocol/configuration``.
    """

    def settings(self) -> dict[str, object]:
        """Return plain values that change whenever scores may change."""

    def fit(self, features: np.ndarray, data: TaskData) -> ProbeResult:
        """Fit and score the probe of a task.

        Args:
            features: float32 [rows, dim], all finite.
            data: The task's rows, with at least two classes among those that may train.
        """


PROTOCOLS: Registry[EvaluationProtocol] = Registry(
    "protocol", package=__name__, folders=__path__, read=by_table("PROTOCOLS")
)


def protocol_name(protocol: str, configuration: str | None = None) -> str:
    """Return the name in `PROTOCOLS` of a protocol and one of its configurations.

    Args:
        protocol: The protocol, or ``protocol/configuration``.
        configuration: The configuration; by default the one in `protocol`, else the protocol's own default.

    Raises:
        ConfigError: If there is no such protocol, or it has no such configuration.
    """
    family, _, written = protocol.partition("/")
    PROTOCOLS.find(family, where=f"protocol {family}")
    configuration = configuration or written or "default"
    if configuration == "default":
        return family
    name = f"{family}/{configuration}"
    if name not in PROTOCOLS:
        configurations = ["default"]
        for known_name in PROTOCOLS:
            if known_name.startswith(f"{family}/"):
                configurations.append(known_name.partition("/")[2])
        raise ConfigError(
            f"config {configuration}: must be a configuration of {family}: {', '.join(configurations)}"
        )
    return name


def fit_probe(
    features: np.ndarray, data: TaskData, *, protocol: str = "fast", source: str = "features"
) -> ProbeResult:
    """Fit and score the probe of a task.

    Args:
        features: The rows' features, float32 [rows, dim]; `fast` reads them without a copy.
        data: The task's rows.
        protocol: A name in `PROTOCOLS`.
        source: What the features come from, for messages.

    Raises:
        ConfigError: If the protocol is unknown, or cannot divide or score the task's rows as the task requires.
        DataError: If a feature is not finite, or the training rows are all of one class.
    """
    chosen_protocol = PROTOCOLS[protocol_name(protocol)]
    if features.shape[0] != len(data.labels):
        raise DataError(
            f"{source}: {data.task} has {len(data.labels)} rows; given features of {features.shape[0]}"
        )
    _check_finite(features, source, data.task)
    _check_classes(data)
    _check_supported(protocol, data)
    probed = chosen_protocol.fit(features, data)
    return replace(probed, measures={**balance_measures(data, probed), **probed.measures})


def check_rows(data: TaskData, *, protocol: str, model: str) -> None:
    """Check that a model without vectors can be evaluated on a task: as `fit_probe` does, and by `fast` alone.

    Raises:
        ConfigError: If the protocol is another.
        DataError: If the training rows are all of one class.
    """
    if protocol.partition("/")[0] != "fast":
        raise ConfigError(
            f"protocol {protocol}: must be fast for {model}, which has no vectors; leave {model} out"
        )
    _check_classes(data)


def _check_supported(protocol: str, data: TaskData) -> None:
    """Refuse what published protocols do not have: folds of the task's own, and other measures than accuracy."""
    if protocol_name(protocol).partition("/")[0] == "fast":
        return
    unsupported: list[str] = []
    if len(data.folds):
        unsupported.append("folds of whole groups")
    if data.metric != "accuracy":
        unsupported.append(data.metric)
    if not data.is_scored and np.bincount(_fitted_labels(data)).max() < NUM_FOLDS:
        unsupported.append(f"fewer than {NUM_FOLDS} training rows of every class")
    if unsupported:
        raise ConfigError(
            f"protocol {protocol}: must be fast for {data.task}, which has {unsupported[0]}; leave it out"
        )


def _fitted_labels(data: TaskData) -> np.ndarray:
    """Return the classes of the rows that may train: all of a task without given splits."""
    if not len(data.train):
        return data.labels
    labels: np.ndarray = data.labels[data.train]
    return labels


def _check_finite(features: np.ndarray, source: str, task: str) -> None:
    num_broken = 0
    for start in range(0, len(features), _CHUNK):
        num_broken += int((~np.isfinite(features[start : start + _CHUNK]).all(axis=1)).sum())
    if num_broken:
        raise DataError(
            f"{source}: vectors must be finite; given NaN or infinity in {num_broken} of {len(features)} rows of "
            f"{task}; the model is damaged or diverged, train it again with a lower learning rate"
        )


def _check_classes(data: TaskData) -> None:
    present = np.unique(_fitted_labels(data))
    if len(present) < 2:
        names = ", ".join(data.label_names[label] for label in present) or "none"
        raise DataError(f"{data.task}: needs training rows of at least two classes; given {names}")
