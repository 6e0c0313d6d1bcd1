"""Models looked at beyond their scores: analyses of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysent.config import Document, validate
from raysent.evaluation.evaluate import Evaluator
from raysent.pipeline.evaluation import scores_folder
from raysent.progress import ProgressLines
from raysent.report import ANALYSES, Analysis, write_analysis
from raysent.storage import address_of
from raysent.storage.layout import EVALUATION_FOLDER


@dataclass(frozen=True)
class Analysed:
    """Results of an analysis.

    Attributes:
        results: One value for each model, task or comparison.
        paths: The files that keep them, as a user names them; the report of their folder shows them.
    """

    results: tuple[Analysis, ...]
    paths: tuple[str, ...]


def analyse(
    name: str,
    models: Sequence[str | Path],
    *,
    tasks: Sequence[str] | None = None,
    data: str | Path | None = None,
    into: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> Analysed:
    """Look closer than scores; results are stored in the run's folder and shown in its report.

    Args:
        name: ``examples``, predictions beside the right ones; or one of another package.
        models: As for `evaluate`.
        tasks: As for `evaluate`; by default all with a probe.
        data: Folder of task files.
        into: Folder for the results; by default the first model's.
        progress: Whether to show progress on standard error.
        settings: Of ``examples``: rows, protocol, seed. See `report/analyses`.

    Raises:
        RaysentError: If the analysis, a model, a task or a setting is wrong.
    """
    request = validate(ANALYSES.find(name, where=f"analyse {name}"), Document(settings))
    folder = Path(into) if into is not None else scores_folder(models)
    with ProgressLines(prefix="evaluating ", is_quiet=not progress) as bar:
        evaluator = Evaluator(folder / EVALUATION_FOLDER, None if data is None else Path(data), progress=bar)
        found = tuple(request.compute(models, tasks, evaluator))
    return Analysed(found, tuple(address_of(write_analysis(folder, one)) for one in found))
