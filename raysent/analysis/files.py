"""An analysis as a file of a run's folder: `analyses/<kind>-<name>.json`, and back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import pydantic

from raysent.config import StrictModel
from raysent.errors import ArtifactError
from raysent.storage import read_json, write_json
from raysent.storage.layout import ANALYSES_FOLDER

KIND = "raysent analysis"


class Analysis(StrictModel):
    """What an analysis found: plain values, so that a report needs no model and no data."""

    @property
    def name(self) -> str:
        """What tells it apart from others of its kind, as `qt-uni TREC`."""
        raise NotImplementedError


Found = TypeVar("Found", bound=Analysis)


def write_analysis(home: Path, found: Analysis) -> Path:
    """Write an analysis into a run's folder and return its path; one of the same name is replaced.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    path = home / ANALYSES_FOLDER / f"{_file_word(type(found).__name__)}-{_file_word(found.name)}.json"
    write_json(path, {"kind_of_file": KIND, **found.model_dump(mode="json")})
    return path


def read_analyses(home: Path, kind: type[Found]) -> list[Found]:
    """Return a run's analyses of a kind, by name; none where there is none.

    Raises:
        ArtifactError: If a file is torn or of another version.
    """
    paths = sorted((home / ANALYSES_FOLDER).glob(f"{_file_word(kind.__name__)}-*.json"))
    return [_read(path, kind) for path in paths]


def _read(path: Path, kind: type[Found]) -> Found:
    values = read_json(path)
    if not isinstance(values, dict) or values.pop("kind_of_file", None) != KIND:
        raise ArtifactError(f"{path}: not an analysis; remove it")
    try:
        # Lists of JSON stand for tuples.
        return kind.model_validate(values, strict=False)
    except pydantic.ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ArtifactError(f"{path}: {where or 'it'} is not as this version writes it; analyse again") from None


def _file_word(text: str) -> str:
    """Return text as a part of a file's name on every system: `ParameterEffect` is `parameter-effect`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "-", text)
    return re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-").lower()
