"""What a model costs: its parameters, counted in its file, the bytes of its files, and the hours its run trained."""

from __future__ import annotations

import json
import math
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from raysent.artifacts import read_json
from raysent.errors import ArtifactError
from raysent.evaluate.members import ENSEMBLE_FILE, ensemble_members, model_folder
from raysent.model import TENSORS_FILE
from raysent.run import OUTCOME_FILE

# A safetensors file begins with the length of its JSON header, eight bytes little-endian.
_LENGTH_BYTES = 8
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Costs:
    """A model's costs; what nobody wrote down is None.

    Attributes:
        num_parameters: Numbers in the model's file: of all towers, word vectors among them.
        num_bytes: Size of the files that the model is loaded from.
        training_hours: Wall clock spent in training and validation.
    """

    num_parameters: int | None = None
    num_bytes: int | None = None
    training_hours: float | None = None

    def __add__(self, other: Costs) -> Costs:
        """Return the costs of both together; unknown where either's are."""
        return Costs(*(None if None in pair else sum(pair) for pair in zip(astuple(self), astuple(other), strict=True)))


def costs_of(path: Path) -> Costs:
    """Return the costs of a run, a trial, a model, or an ensemble: those of its members together.

    Raises:
        ArtifactError: If a file of it is torn.
    """
    folder = model_folder(path)
    if folder is not None:
        # A model within a run's folder has no outcome of its own.
        hours = (_training_hours(place / OUTCOME_FILE) for place in (folder, folder.parent))
        known = next((value for value in hours if value is not None), None)
        return Costs(_num_parameters(folder / TENSORS_FILE), _num_bytes(folder), known)
    if (path / ENSEMBLE_FILE).is_file():
        return sum((costs_of(Path(member)) for member in ensemble_members(path)), Costs(0, 0, 0.0))
    return Costs()


def _num_bytes(folder: Path) -> int:
    """Return the size of a model's weights, description and words."""
    parts = (file for file in folder.iterdir() if file.name.startswith(("model.", "vocabulary.")) and file.is_file())
    return sum(file.stat().st_size for file in parts)


def _num_parameters(path: Path) -> int | None:
    """Return how many numbers a file of tensors holds; its header alone is read."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        header = stream.read(min(length, path.stat().st_size))
    try:
        tensors: dict[str, dict[str, Any]] = json.loads(header)
        return sum(int(math.prod(about["shape"])) for name, about in tensors.items() if name != "__metadata__")
    except (ValueError, TypeError, KeyError):
        raise ArtifactError(f"{path}: truncated or not a file of tensors; restore it or train again") from None


def _training_hours(path: Path) -> float | None:
    if not path.is_file():
        return None
    values = read_json(path)
    seconds = values.get("seconds") if isinstance(values, dict) else None
    return seconds / _SECONDS_PER_HOUR if isinstance(seconds, int | float) else None
