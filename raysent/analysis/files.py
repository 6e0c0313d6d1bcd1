"""Analyses as files of a folder: `analyses/<kind>-<name>.json`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import pydantic

from raysent.config import StrictModel
from raysent.errors import ArtifactError
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import ANALYSES_FOLDER

KIND = "raysent analysis"


class Analysis(StrictModel):
    """The result of an analysis: plain values, so that a report needs neither the models nor the data."""

    @property
    def name(self) -> str:
        """Distinguishes it from others of its kind, e.g. `TREC qt-uni`."""
        raise NotImplementedError


AnyAnalysis = TypeVar("AnyAnalysis", bound=Analysis)


def write_analysis(folder: Path, analysis: Analysis) -> Path:
    """Write an analysis into a folder and return its path; replaces one of the same kind and name.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    path = folder / ANALYSES_FOLDER / f"{_file_word(type(analysis).__name__)}-{_file_word(analysis.name)}.json"
    write_json(path, {"kind_of_file": KIND, **analysis.model_dump(mode="json")})
    return path


def read_kind(folder: Path, kind: type[AnyAnalysis]) -> list[AnyAnalysis]:
    """Return the analyses of one kind in a folder, by name.

    Raises:
        ArtifactError: If a file is truncated or of another version.
    """
    paths = sorted((folder / ANALYSES_FOLDER).glob(f"{_file_word(kind.__name__)}-*.json"))
    return [_read(path, kind) for path in paths]


def _read(path: Path, kind: type[AnyAnalysis]) -> AnyAnalysis:
    values = read_json(path)
    if not isinstance(values, dict) or values.pop("kind_of_file", None) != KIND:
        raise ArtifactError(f"{address_of(path)}: not an analysis; remove it")
    try:
        # JSON has lists in place of tuples.
        return kind.model_validate(values, strict=False)
    except pydantic.ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "its content"
        raise ArtifactError(f"{address_of(path)}: {where} is not as this version writes it; analyse again") from None


def _file_word(text: str) -> str:
    """Return text as a part of a file's name on every system: `ParameterEffect` is `parameter-effect`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "-", text)
    return re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-").lower()
