"""Thirds of the rows that train, and predictions of each by a model that learned the others.

A model that learned a task's labels knows the rows that it learned, and its predictions of them say nothing. Where a
task has no validation rows of its own, three trainings of one setting learn two thirds of the rows each, and each
predicts the third that it has not seen: predictions of every row, which choose, weigh and compare as those of any other
member do. A fourth training, of all rows, predicts rows that are new, those that test among them.

    parts.json   in the folder of the model that learned all rows: the folders of those that learned two thirds

A model that learned two thirds and has no others beside it predicts the third that it left out, which chooses alone.

The probe of a part is fitted to the rows that its model learned; its C is the best over the rows that are left out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.errors import ArtifactError
from raysent.evaluation.own_layer import has_own_layer, own_log_probabilities
from raysent.evaluation.probes.features import Encode, task_features
from raysent.evaluation.probes.logistic import log_probabilities
from raysent.evaluation.probes.results import (
    FoldResult,
    Probe,
    ProbeResult,
    balance_measures,
)
from raysent.evaluation.protocols.fast import STRENGTHS, dense_fits, result_of_folds
from raysent.evaluation.targets import MIN_SCORED_ROWS, Targets
from raysent.evaluation.task import NO_ROWS, TaskData
from raysent.evaluation.units import Int64, folds_of_units
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import RUN_FILE

NUM_PARTS = 3
_PARTS_FILE = "parts.json"
_SEED = 2222


def has_parts(data: TaskData) -> bool:
    """Return whether a task's rows are divided into parts: those without validation rows of their own."""
    return data.split != "train-validation-test"


def part_numbers(data: TaskData) -> Int64:
    """Return the part of each row that trains, int64 [train rows]; rows that belong together are in one.

    Args:
        data: A task's rows, divided into train and test.
    """
    units = data.units
    if len(units):
        units = units[data.train]
    return folds_of_units(data.labels[data.train], NUM_PARTS, seed=_SEED, units=units)


def write_parts(folder: Path, parts: Sequence[Path]) -> None:
    """Write, beside a model that learned all rows, which models learned the rows without each part.

    Args:
        folder: The model's.
        parts: Folders of models inside the run's folder, by the part that is left out.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    # Relative, so that the run's folder can be moved.
    relative_paths = [os.path.relpath(part.resolve(), folder.resolve()) for part in parts]
    write_json(folder / _PARTS_FILE, {"parts": relative_paths})


def part_folders(path: str) -> list[Path]:
    """Return the folders of the models that learned two thirds of the rows each; none of a model without such.

    Args:
        path: The model that learned all rows, as an argument of `load`.

    Raises:
        ArtifactError: If the file that names them is damaged.
    """
    file = Path(path) / _PARTS_FILE
    if not file.is_file():
        return []
    about = read_json(file)
    try:
        folders = [Path(path, name).resolve() for name in about["parts"]]
    except (KeyError, TypeError):
        raise ArtifactError(
            f"{address_of(file)}: must name the models of the parts; remove it, or resume the sweep"
        ) from None
    return folders


def fit_parts(encoder: Any, encode: Encode, data: TaskData, parts: Sequence[Any]) -> _PartedResult:
    """Return the result of a model that learned all rows that train.

    Args:
        encoder: The model.
        encode: What encodes texts by it, such as a store of its vectors.
        data: The rows, divided into train and test.
        parts: Models of the same setting, each of which learned the rows without one part.
    """
    train_rows = data.select(data.train)
    numbers = part_numbers(data)
    shape = (len(train_rows), len(data.label_names))
    candidates = [np.empty(shape, np.float32) for _ in STRENGTHS]
    for part, model in enumerate(parts):
        unseen = np.flatnonzero(numbers == part)
        probes = _Probes(model, train_rows, np.flatnonzero(numbers != part))
        for strength_index, candidate in enumerate(candidates):
            candidate[unseen] = probes.log_probabilities(unseen, strength_index)
    targets = Targets.of(train_rows)
    best = targets.best(candidates, STRENGTHS)
    all_probes = _Probes(encode, data, data.train)
    held_out = candidates[best]
    tested = all_probes.log_probabilities(data.test, best)
    strength: float | None = STRENGTHS[best]
    uses_layer = False
    if all(has_own_layer(model, data) for model in (encoder, *parts)):
        of_layers = _of_layers(train_rows, numbers, parts)
        uses_layer = _is_better(of_layers, held_out, targets)
    if uses_layer:
        held_out = of_layers
        tested = own_log_probabilities(encoder, [data.sentences[0][row] for row in data.test])
        strength = None
    fold = FoldResult(data.train, held_out, data.test, tested, strength)
    probed = result_of_folds([fold], data, all_probes.probe(best), all_probes.num_unfinished)
    measures = {**balance_measures(data, probed), **probed.measures}
    return _PartedResult(replace(probed, measures=measures), uses_layer)


def without_learned(path: str, data: TaskData) -> TaskData | None:
    """Return a task whose validation rows are those that a trained model has left out; None where it left out none.

    Args:
        path: The folder of the training.
        data: The rows, divided into train and test.
    """
    file = Path(path) / RUN_FILE
    if not file.is_file():
        return None
    labels = read_json(file)["config"].get("labels") or {}
    part = labels.get("held_out")
    if part is None:
        return None
    numbers = part_numbers(data)
    return replace(
        data,
        split="train-validation-test",
        train=data.train[numbers != part],
        validation=data.train[numbers == part],
    )


@dataclass(frozen=True)
class _PartedResult:
    """What `fit_parts` returns.

    Attributes:
        result: Predictions of the rows that train, each by a model that did not learn it, and of those that test.
        uses_layer: Whether they are of the model's own layer, and not of a probe.
    """

    result: ProbeResult
    uses_layer: bool


class _Probes:
    """Probes on the vectors of one model, fitted to some rows, at each of `STRENGTHS`."""

    def __init__(self, encode: Encode, data: TaskData, fitted_rows: Int64) -> None:
        """Encode all rows, and fit."""
        divided = replace(
            data, split="train-test", train=fitted_rows, validation=NO_ROWS, folds=NO_ROWS
        )
        self._fits = dense_fits(task_features(encode, data), divided)
        trains = torch.zeros(len(data), 1, dtype=torch.bool)
        trains[fitted_rows] = True
        self._path = self._fits.path(trains)
        self._margins = self._fits.margins(self._path)
        self.num_unfinished = self._fits.num_unfinished

    def log_probabilities(self, rows: Int64, strength_index: int) -> np.ndarray:
        """Return those of rows by the probe of a strength, float32 [rows, classes]."""
        predicted: np.ndarray = log_probabilities(self._margins[rows, :, strength_index]).numpy()
        return predicted

    def probe(self, strength_index: int) -> Probe:
        """Return the probe of a strength."""
        return self._fits.probe(self._path, strength_index, STRENGTHS[strength_index])


def _of_layers(train_rows: TaskData, numbers: Int64, parts: Sequence[Any]) -> np.ndarray:
    """Return the log-probabilities of rows by the own layers of models that did not learn them [rows, classes]."""
    predicted = np.empty((len(train_rows), len(train_rows.label_names)), np.float32)
    for part, model in enumerate(parts):
        unseen = np.flatnonzero(numbers == part)
        texts = [train_rows.sentences[0][row] for row in unseen]
        predicted[unseen] = own_log_probabilities(model, texts)
    return predicted


def _is_better(of_layers: np.ndarray, of_probes: np.ndarray, targets: Targets) -> bool:
    """Return whether predictions of layers beat those of probes: by the score, of few rows by the log loss."""
    layers, probes = targets.measure([of_layers, of_probes])
    layer_score, layer_mean_log = layers
    probe_score, probe_mean_log = probes
    if len(targets) < MIN_SCORED_ROWS:
        return bool(layer_mean_log > probe_mean_log)
    return bool(layer_score >= probe_score)
