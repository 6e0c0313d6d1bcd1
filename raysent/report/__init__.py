"""A run's folder -> one self-contained HTML page, readable without a network, in light, in dark and on paper.

`run_files` reads a `Run`, `sections/` says one thing each, `page.html.j2` lays out. A new page is a module in
`sections/` and its place in `SECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from raysent import __version__
from raysent.report.blocks import Section, kind_of
from raysent.report.run import Run
from raysent.report.run_files import read_run
from raysent.report.sections import (
    calibration,
    disagreements,
    efficiency,
    ensemble,
    examples,
    failures,
    importance,
    importance_for_dollars,
    leaderboard,
    learning_curves,
    members,
    neighbours,
    parallel_coordinates,
    parameter_effect,
    projection,
    reported,
    reproduce,
    score_against_dollars,
    slices,
    spending,
    summary,
    task_scores,
    trial_costs,
)
from raysent.storage import write_text
from raysent.storage.layout import REPORT_FILE

__all__ = ["REPORT_FILE", "write"]


# In the order of reading.
SECTIONS: tuple[Callable[[Run], Section | None], ...] = (
    summary.section,
    leaderboard.section,
    learning_curves.section,
    task_scores.section,
    ensemble.section,
    calibration.section,
    members.section,
    neighbours.section,
    efficiency.section,
    parameter_effect.section,
    importance.section,
    parallel_coordinates.section,
    slices.section,
    spending.section,
    trial_costs.section,
    score_against_dollars.section,
    importance_for_dollars.section,
    projection.section,
    examples.section,
    disagreements.section,
    reported.section,
    failures.section,
    reproduce.section,
)

# Words of a cell's mark that the style sheet knows; any other is left out of the markup.
MARKS = frozenset({"best", "finished", "stopped", "failed", "nan", "running", "waiting"})


def write(run: Path) -> Path:
    """Write `report.html` into a run's folder and return its path.

    Args:
        run: Folder of a sweep, or of a single training.

    Raises:
        ArtifactError: If the folder is no run, a file in it is broken, or it cannot be written.
    """
    path = run / REPORT_FILE
    write_text(path, render(read_run(run)))
    return path


def render(run: Run) -> str:
    """Return the page of a run."""
    found = [section(run) for section in SECTIONS]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(kind_of=kind_of, script_safe=_script_safe)
    return environment.get_template("page.html.j2").render(
        title=run.name,
        kind=run.kind,
        version=__version__,
        sections=[section for section in found if section is not None],
        plotly=get_plotlyjs(),
        marks=MARKS,
    )


def _script_safe(json: str) -> Markup:
    """Return JSON that cannot end the script element that holds it."""
    return Markup(json.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
