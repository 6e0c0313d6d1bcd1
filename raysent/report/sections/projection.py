"""Maps of sentences: t-SNE of models' vectors, coloured by class, or by how alike people found a pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from raysent.analysis import Projection
from raysent.report.blocks import Figure, Section, label
from raysent.report.figures import PALETTE, QUIET, drawn
from raysent.report.run import Run

SCALE = "Viridis"
# A map is nearly square on a wide page, where three stand side by side.
HEIGHT = 400


def section(run: Run) -> Section | None:
    """Return the maps; None where none was made."""
    maps = run.analyses_of(Projection)
    if not maps:
        return None
    lead = (
        "Each point is a sentence, or a pair as [u * v ; |u − v|], placed by t-SNE so that neighbours stay neighbours. "
        "What is near is alike to the model; distances between far groups, and their sizes, mean nothing. No label "
        "was seen in placing."
    )
    return Section("maps", "Maps of sentences", lead, [_figure(found) for found in maps])


def _figure(found: Projection) -> Figure:
    shown = f"{len(found.x):,} of {found.num_rows:,} rows" if len(found.x) < found.num_rows else "all rows"
    blank = {"visible": False, "showgrid": False}
    return drawn(
        _classes(found) if found.label_names else [_scores(found)],
        height=HEIGHT,
        label=f"A map of {shown} of {found.task} by the vectors of {found.model}.",
        title=f"{found.task}, {found.model}",
        caption=f"{shown}, perplexity {found.perplexity:g}, seed {found.seed}",
        narrow=True,
        xaxis=blank,
        yaxis={**blank, "scaleanchor": "x"},
        showlegend=bool(found.label_names),
        legend={"orientation": "h", "y": -0.02, "font": {"size": 12}, "itemsizing": "constant"},
    )


def _classes(found: Projection) -> list[Any]:
    """Return the points class by class, so that the legend can hide one."""
    colours = np.array(found.colours).astype(int)
    return [
        _points(found, np.flatnonzero(colours == place), name=label(name), color=PALETTE[place % len(PALETTE)])
        for place, name in enumerate(found.label_names)
    ]


def _scores(found: Projection) -> Any:
    scores = np.array(found.colours)
    bar = {"thickness": 8, "len": 0.5, "outlinewidth": 0, "tickfont": {"size": 11, "color": QUIET}}
    order = np.random.default_rng(0).permutation(len(scores))  # so that no score lies on top of all others
    return _points(
        found, order, name="", color=scores[order].round(2).tolist(), colorscale=SCALE, showscale=True, colorbar=bar
    )


def _points(found: Projection, places: np.ndarray, *, name: str, **marker: Any) -> Any:
    return go.Scatter(
        x=[found.x[place] for place in places],
        y=[found.y[place] for place in places],
        text=[label(found.texts[place]) for place in places],
        name=name,
        mode="markers",
        marker={"size": 3.5, "opacity": 0.75, **marker},
        hovertemplate="%{text}<extra>" + ("%{marker.color}" if "showscale" in marker else name) + "</extra>",
    )
