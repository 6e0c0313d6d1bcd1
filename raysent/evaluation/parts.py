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
from raysent.evaluation.probes.results import (
    FoldResult,
    Probe,
    ProbeResult,
    balance_measures,
    log_probabilities,
)
from raysent.evaluation.protocols.fast import STRENGTHS, dense_fits, result_of_folds
from raysent.evaluation.targets import MIN_SCORED_ROWS, Targets
from raysent.evaluation.task import NO_ROWS, TaskData
from raysent.evaluation.units import Int64, folds_of_units
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import RUN_FILE

NUM_PARTS = 3
PARTS_FILE = "parts.json"
_SEED = 2222


def has_parts(data: TaskData) -> bool:
    """Return whether a task's rows are divided into parts: those without validation rows of their own."""
    return data.split != "train-validation-test"


def part_numbers(data: TaskData) -> Int64:
    """Return the part of each row that trains, int64 [train rows]; rows that belong together are in one.

    Args:
        data: A task's rows, divided into train and test.
    """
    units = data.units[data.train] if len(data.units) else data.units
    return folds_of_units(data.labels[data.train], NUM_PARTS, seed=_SEED, units=units)


def write_parts(folder: Path, parts: Sequence[Path]) -> None:
    """Write, beside a model that learned all rows, which models learned the rows without each part.

    Args:
        folder: The model's.
        parts: Folders of models inside the run's folder, by the part that is left out.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    places = [os.path.relpath(part.resolve(), folder.resolve()) for part in parts]
    write_json(folder / PARTS_FILE, {"parts": places})


def part_folders(path: str) -> list[Path]:
    """Return the folders of the models that learned two thirds of the rows each; none of a model without such.

    Args:
        path: The model that learned all rows, as an argument of `load`.

    Raises:
        ArtifactError: If the file that names them is damaged.
    """
    file = Path(path) / PARTS_FILE
    if not file.is_file():
        return []
    about = read_json(file)
    try:
        places = [Path(path, name).resolve() for name in about["parts"]]
    except (KeyError, TypeError):
        raise ArtifactError(
            f"{address_of(file)}: must name the models of the parts; remove it, or resume the sweep"
        ) from None
    return places


def fit_parts(encoder: Any, encode: Encode, data: TaskData, parts: Sequence[Any]) -> PartedResult:
    """Return the result of a model that learned all rows that train.

    Args:
        encoder: The model.
        encode: What encodes texts by it, such as a store of its vectors.
        data: The rows, divided into train and test.
        parts: Models of the same setting, each of which learned the rows without one part.
    """
    rows, numbers = data.select(data.train), part_numbers(data)
    candidates = [np.empty((len(rows), len(data.label_names)), np.float32) for _ in STRENGTHS]
    for part, model in enumerate(parts):
        unseen = np.flatnonzero(numbers == part)
        probes = _Probes(model, rows, np.flatnonzero(numbers != part))
        for place, candidate in enumerate(candidates):
            candidate[unseen] = probes.log_probabilities(unseen, place)
    targets = Targets.of(rows)
    best = targets.best(candidates, STRENGTHS)
    whole = _Probes(encode, data, data.train)
    held_out, tested = candidates[best], whole.log_probabilities(data.test, best)
    uses_layer = False
    strength: float | None = STRENGTHS[best]
    if all(has_own_layer(model, data) for model in (encoder, *parts)):
        of_layers = _of_layers(rows, numbers, parts)
        uses_layer = _is_better(of_layers, held_out, targets)
    if uses_layer:
        texts = [data.sentences[0][row] for row in data.test]
        held_out, tested, strength = of_layers, own_log_probabilities(encoder, texts), None
    fold = FoldResult(data.train, held_out, data.test, tested, strength)
    result = result_of_folds([fold], data, whole.probe(best), whole.num_unfinished)
    measures = {**balance_measures(data, result), **result.measures}
    return PartedResult(replace(result, measures=measures), uses_layer)


def without_learned(path: str, data: TaskData) -> TaskData | None:
    """Return a task whose validation rows are those that a trained model has left out; None where it left out none.

    Args:
        path: The folder of the training.
        data: The rows, divided into train and test.
    """
    file = Path(path) / RUN_FILE
    labels = (read_json(file)["config"].get("labels") or {}) if file.is_file() else {}
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
class PartedResult:
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

    def log_probabilities(self, rows: Int64, strength: int) -> np.ndarray:
        """Return those of rows by the probe at the place of a strength, float32 [rows, classes]."""
        found: np.ndarray = log_probabilities(self._margins[rows, :, strength]).numpy()
        return found

    def probe(self, strength: int) -> Probe:
        """Return the probe at the place of a strength."""
        return self._fits.probe(self._path, strength, STRENGTHS[strength])


def _of_layers(rows: TaskData, numbers: Int64, parts: Sequence[Any]) -> np.ndarray:
    """Return the log-probabilities of rows by the own layers of models that did not learn them [rows, classes]."""
    found = np.empty((len(rows), len(rows.label_names)), np.float32)
    for part, model in enumerate(parts):
        unseen = np.flatnonzero(numbers == part)
        found[unseen] = own_log_probabilities(model, [rows.sentences[0][row] for row in unseen])
    return found


def _is_better(one: np.ndarray, other: np.ndarray, targets: Targets) -> bool:
    """Return whether predictions of rows are better than others: by the score, of few rows by the log loss."""
    (score, loss), (other_score, other_loss) = targets.measure([one, other])
    if len(targets) < MIN_SCORED_ROWS:
        return bool(loss > other_loss)
    return bool(score >= other_score)
