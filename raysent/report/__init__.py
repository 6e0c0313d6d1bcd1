"""A run's folder -> one self-contained HTML page.

The page needs no network. It follows light and dark mode, can be printed, and shows its tables without JavaScript.

run.py         reads the folder into a `Run`
blocks.py      the parts of a page as plain values
figures.py     the look of the figures, and axes of searched values
sections/      what else the page says; the table of sections is in `sections/__init__.py`
page.html.j2   the layout, with style.html.j2 and script.html.j2
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import replace
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from raysent import __version__
from raysent.report.blocks import Figure, Section, isolated, kind_of
from raysent.report.run import Run, read_run
from raysent.report.sections import FIRST, SECTIONS
from raysent.storage import write_text
from raysent.storage.layout import REPORT_FILE

__all__ = ["REPORT_FILE", "write"]

# The marks of cells that the style sheet knows; others are left out of the page.
MARKS = frozenset({"best", "finished", "stopped", "failed", "nan", "running", "waiting"})


def write(folder: Path) -> Path:
    """Write `report.html` into a run's folder and return its path.

    Args:
        folder: Folder of a sweep, of a training, or of evaluated models.

    Raises:
        ArtifactError: If the folder holds none of them, a file in it is damaged, or the page cannot be written.
    """
    path = folder / REPORT_FILE
    write_text(path, render(read_run(folder)))
    return path


def render(run: Run) -> str:
    """Return the page of a run."""
    sections = [section for make in SECTIONS if (section := make(run)) is not None]
    folded: list[Section] = []
    if run.answers:
        folded = [replace(part, is_open=False) for part in sections if part.key not in FIRST]
        sections = [part for part in sections if part.key in FIRST]
    has_figures = any(
        isinstance(block, Figure) for part in (*sections, *folded) for block in part.blocks
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(kind_of=kind_of, script_safe=_script_safe, isolated=isolated)
    return environment.get_template("page.html.j2").render(
        title=run.heading,
        kind=run.kind,
        version=__version__,
        sections=sections,
        folded=folded,
        plotly=_packed_plotly() if has_figures else "",
        marks=MARKS,
    )


@cache
def _packed_plotly() -> str:
    """Return plotly.js, compressed by gzip, in base64.

    plotly.py has only the whole bundle, 4.8 MB; the page unpacks it with the browser's DecompressionStream.
    """
    return base64.b64encode(
        gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    ).decode()


def _script_safe(json: str) -> Markup:
    return Markup(
        json.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )
