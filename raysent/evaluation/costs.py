"""What a model costs: numbers in its file, bytes, hours of training."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from pathlib import Path

from raysent.evaluation.members import model_folder, part_paths
from raysent.models import TENSORS_FILE
from raysent.storage import read_json, tensor_types
from raysent.storage.layout import COMPOSITION_FILE, ENSEMBLE_FILE, FUSION_FILE, OUTCOME_FILE

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Costs:
    """A model's costs; None where they are unknown.

    Attributes:
        num_parameters: Numbers in the model's file: of all towers, including word vectors.
        num_bytes: Size of the files that the model is loaded from.
        training_hours: Wall-clock time of training and validation.
    """

    num_parameters: int | None = None
    num_bytes: int | None = None
    training_hours: float | None = None

    def __add__(self, other: Costs) -> Costs:
        """Return the costs of both together; unknown if one of them is."""
        return Costs(*(None if None in pair else sum(pair) for pair in zip(astuple(self), astuple(other), strict=True)))


def costs_of(path: Path) -> Costs:
    """Return the costs of a run, a trial or a model; of an ensemble, those of its members together.

    Raises:
        ArtifactError: If a file is truncated.
    """
    folder = model_folder(path)
    if folder is not None:
        # The outcome of a model in a run's folder is in that folder.
        hours = (_training_hours(place / OUTCOME_FILE) for place in (folder, folder.parent))
        known = next((value for value in hours if value is not None), None)
        return Costs(_num_parameters(folder / TENSORS_FILE), _num_bytes(folder), known)
    if any((path / file).is_file() for file in (ENSEMBLE_FILE, COMPOSITION_FILE, FUSION_FILE)):
        return sum((costs_of(Path(member)) for member in part_paths(path)), Costs(0, 0, 0.0))
    return Costs()


def _num_bytes(folder: Path) -> int:
    parts = (file for file in folder.iterdir() if file.name.startswith(("model.", "vocabulary.")) and file.is_file())
    return sum(file.stat().st_size for file in parts)


def _num_parameters(path: Path) -> int | None:
    if not path.is_file():
        return None
    return sum(int(math.prod(about["shape"])) for about in tensor_types(path).values())


def _training_hours(path: Path) -> float | None:
    if not path.is_file():
        return None
    values = read_json(path)
    seconds = values.get("seconds") if isinstance(values, dict) else None
    return seconds / _SECONDS_PER_HOUR if isinstance(seconds, int | float) else None
