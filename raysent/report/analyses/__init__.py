"""Analyses of models and trainings beyond their scores. One file each; the folder is the registry.

    models, tasks, settings -> `Request.compute` -> analyses/KIND-NAME.json -> `Analysis.blocks`, on page and terminal

A file has a table `REQUESTS`: the name that `raysent analyse` takes -> a subclass of `Request`, whose fields are its
settings. What it computes is a subclass of `Analysis`: plain values, and how they are shown.

predictions.py  examples of predictions
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pydantic

from raysent.config import StrictModel
from raysent.errors import ArtifactError
from raysent.evaluation.evaluate import Evaluator
from raysent.registry import Registry, by_table
from raysent.report.blocks import Block, Section
from raysent.storage import address_of, read_json, write_json
from raysent.storage.layout import ANALYSES_FOLDER

_KIND = "raysent analysis"


class Analysis(StrictModel):
    """The result of an analysis: plain values, so that a page needs neither the models nor the data.

    Attributes:
        SECTION: The section of the page, without blocks.
    """

    SECTION: ClassVar[Section]

    @property
    def name(self) -> str:
        """Distinguishes it from others of its kind, e.g. `TREC qt-uni`."""
        raise NotImplementedError

    def blocks(self) -> list[Block]:
        """Return the tables, figures and notes that show it."""
        raise NotImplementedError


class Request(StrictModel):
    """The settings of an analysis.

    Attributes:
        RESULT: What it computes.
    """

    RESULT: ClassVar[type[Analysis]]

    def compute(
        self, models: Sequence[str | Path], tasks: Sequence[str] | None, evaluator: Evaluator
    ) -> Sequence[Analysis]:
        """Return one result for each model, task or comparison.

        Args:
            models: Folders of models or runs.
            tasks: Names of tasks; None for the usual ones.
            evaluator: Evaluates models on tasks, and knows the folder of task files.

        Raises:
            RaysentError: If a model, a task or a setting cannot be used.
        """
        raise NotImplementedError


ANALYSES: Registry[type[Request]] = Registry(
    "analysis", package=__name__, folders=__path__, read=by_table("REQUESTS"), plural="analyses"
)


def write_analysis(folder: Path, analysis: Analysis) -> Path:
    """Write an analysis into a folder and return its path; replaces one of the same kind and name.

    Raises:
        ArtifactError: If the folder cannot be written.
    """
    path = folder / ANALYSES_FOLDER / f"{_file_word(type(analysis).__name__)}-{_file_word(analysis.name)}.json"
    write_json(path, {"kind_of_file": _KIND, **analysis.model_dump(mode="json")})
    return path


def read_analyses(folder: Path) -> tuple[Analysis, ...]:
    """Return all analyses in a folder, by kind and name.

    Raises:
        ArtifactError: If a file is truncated or of another version.
    """
    return tuple(
        _read(path, request.RESULT)
        for request in ANALYSES.values()
        for path in sorted((folder / ANALYSES_FOLDER).glob(f"{_file_word(request.RESULT.__name__)}-*.json"))
    )


def _read(path: Path, kind: type[Analysis]) -> Analysis:
    values = read_json(path)
    if not isinstance(values, dict) or values.pop("kind_of_file", None) != _KIND:
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
