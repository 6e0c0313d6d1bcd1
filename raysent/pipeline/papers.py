"""The tables of the papers, reproduced or planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysent.progress import messages
from raysent.reproduction import ModelEstimate, Reproduction, estimate, read_paper, wanted_models
from raysent.reproduction import Scale as PaperScale
from raysent.reproduction import reproduce as reproduce_paper


def reproduce(
    paper: str,
    *,
    tables: Sequence[str] | None = None,
    claims: Sequence[str] = (),
    scale: PaperScale = "small",
    data: str | Path = "data",
    output: str | Path | None = None,
    max_hours: float | None = None,
    progress: bool = True,
) -> Reproduction:
    """Train a paper's models and evaluate them beside the reported figures; continues after an interruption.

    Args:
        paper: Name of a shipped paper, such as ``quick_thoughts``, or a file.
        tables: Numbers of the tables; all by default.
        claims: Claims to run on several seeds; ``all`` for every one.
        scale: ``small``, or ``paper`` for the published settings.
        data: Folder of corpora, pairs, vectors and tasks.
        output: Folder of models, records and results; ``runs/PAPER-SCALE`` by default.
        max_hours: No model is begun after this time.
        progress: Whether to show progress on standard error.

    Returns:
        Tables and claims; what could not run has a reason.

    Raises:
        ConfigError: If the paper, a table or a claim is unknown.
    """
    folder = Path("runs") / f"{Path(paper).stem}-{scale}" if output is None else Path(output)
    return reproduce_paper(
        paper,
        data=Path(data),
        output=folder,
        scale=scale,
        tables=tables,
        claims=claims,
        max_hours=max_hours,
        progress=(lambda line: messages.print(line, soft_wrap=True)) if progress else None,
    )


def plan_reproduction(
    paper: str,
    *,
    tables: Sequence[str] | None = None,
    claims: Sequence[str] = (),
    scale: PaperScale = "small",
    data: str | Path = "data",
) -> list[ModelEstimate]:
    """Return the models of a paper's tables and claims, with parameters, hours and dollars; nothing is trained.

    Arguments are those of `reproduce`.
    """
    found = read_paper(paper)
    wanted = wanted_models(found, tables=tables, claims=claims)
    return estimate(found, wanted, scale=scale, data=Path(data))
