"""Searched values against the metric, one line a trial across all axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import Note, Section, label
from raysent.report.figures import ACCENT, BEST, FAINT, INK, drawn
from raysent.report.parameters import Parameter, parameters_of, short_names
from raysent.report.run import Run
from raysent.sweeps.trial import BROKEN


def section(run: Run) -> Section | None:
    """Return the parallel coordinates of a sweep."""
    if not run.is_sweep:
        return None
    key, title = "parallel", "Searched values side by side"
    trials = [t for t in run.ranked if run.value(t) is not None and t.status not in BROKEN]
    parameters = [parameter for parameter in parameters_of(run, trials) if parameter.is_varied]
    if len(trials) < 2 or not parameters:
        return Section(key, title, blocks=[Note("Too few trials: two with different searched values are needed.")])
    trials.reverse()  # the best trial is drawn last, on top
    parameters = [parameter for parameter in parameters_of(run, trials) if parameter.is_varied]
    metric = [run.value(trial) or 0.0 for trial in trials]
    names = short_names(run.searched)
    figure = drawn(
        [_traces(parameters, metric, names, run)],
        height=400,
        label=f"Parallel coordinates of {len(parameters)} searched names and {run.metric} over {len(trials)} trials.",
        caption="Drag along an axis to keep only the lines through that stretch; a dash: the name did not apply.",
        margin={"l": 70, "r": 60, "t": 64, "b": 24},
    )
    lead = f"One line a trial, stronger the better its {run.metric}; trials stopped early carry their last figure."
    return Section(key, title, lead, [figure])


def _traces(parameters: Sequence[Parameter], metric: list[float], names: dict[str, str], run: Run) -> Any:
    low, high = min(metric), max(metric)
    better = [[0, FAINT], [0.999, ACCENT], [1, BEST]]
    if run.mode == "min":
        better = [[1 - place, colour] for place, colour in reversed(better)]  # type: ignore[operator]
    return go.Parcoords(
        line={"color": metric, "colorscale": better, "cmin": low, "cmax": high if high > low else low + 1.0},
        dimensions=[*(_axis(p, names[p.name]) for p in parameters), {"label": label(run.metric), "values": metric}],
        labelfont={"size": 12, "color": INK},
        tickfont={"size": 11, "color": INK},
        rangefont={"size": 1, "color": "rgba(0,0,0,0)"},
        labelangle=-12 if len(parameters) > 5 else 0,
    )


def _axis(parameter: Parameter, name: str) -> dict[str, Any]:
    places = parameter.coordinates()
    ticks, texts = parameter.ticks()
    return {"label": label(name), "values": places.tolist(), "tickvals": ticks, "ticktext": texts}
