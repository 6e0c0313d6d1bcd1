"""What a model costs: its parameters, counted in its file, and the hours its run trained."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysent.artifacts import read_json
from raysent.errors import ArtifactError
from raysent.evaluate.members import model_folder
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
        training_hours: Wall clock spent in training and validation.
    """

    num_parameters: int | None = None
    training_hours: float | None = None


def costs_of(path: Path) -> Costs:
    """Return the costs of a run, a trial or a model.

    Raises:
        ArtifactError: If a file of it is torn.
    """
    folder = model_folder(path)
    if folder is None:
        return Costs()
    return Costs(_num_parameters(folder / TENSORS_FILE), _training_hours(path / OUTCOME_FILE))


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
