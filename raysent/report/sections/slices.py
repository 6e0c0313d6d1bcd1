"""What each searched name does: one small plot a name, its values against the metric."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from raysent.report.blocks import Figure, Note, Section, label
from raysent.report.figures import ACCENT, BEST, QUIET, drawn
from raysent.report.parameters import Parameter, parameters_of, short_names
from raysent.report.run_files import BROKEN, Run, Trial


def section(run: Run) -> Section | None:
    """Return the slices of a sweep."""
    if not run.is_sweep:
        return None
    key, title = "slices", "What each searched name does"
    trials = [t for t in run.ranked() if run.value(t) is not None and t.status not in BROKEN]
    parameters = [parameter for parameter in parameters_of(run, trials) if parameter.is_varied]
    if len(trials) < 2 or not parameters:
        return Section(key, title, blocks=[Note("Too few trials: two with different searched values are needed.")])
    names = short_names(run.searched)
    lead = (
        f"{run.metric} against each name; filled marks finished, hollow ones stopped early; the best trial stands out."
    )
    return Section(key, title, lead, [_slice(run, trials, p, names[p.name]) for p in parameters])


def _slice(run: Run, trials: Sequence[Trial], parameter: Parameter, name: str) -> Figure:
    values = [run.value(trial) for trial in trials]
    best = run.best.name if run.best else ""
    ticks, texts = parameter.ticks()
    places = parameter.coordinates()
    pad = 0.08 * ((places.max() - places.min()) or 1.0)
    told = [f"{label(trial.name)} ({label(trial.status)})" for trial in trials]
    given = [f"{label(name)} {label(trial.params.get(parameter.name))}" for trial in trials]
    marks = go.Scatter(
        x=places,
        y=values,
        mode="markers",
        marker={
            "size": [11 if trial.name == best else 8 for trial in trials],
            "color": [BEST if trial.name == best else ACCENT for trial in trials],
            "symbol": ["circle" if trial.status == "finished" else "circle-open" for trial in trials],
            "opacity": 0.85,
            "line": {"width": [0 if trial.status == "finished" else 1.5 for trial in trials]},
        },
        text=[f"{first}<br>{second}" for first, second in zip(told, given, strict=True)],
        hovertemplate="%{text}: %{y:.4g}<extra></extra>",
    )
    return drawn(
        [marks],
        height=260,
        label=f"{run.metric} against {parameter.name} over {len(trials)} trials.",
        narrow=True,
        xaxis_title={"text": label(name), "font": {"size": 13}},
        xaxis_tickvals=ticks,
        xaxis_ticktext=[label(text) for text in texts],
        xaxis_range=[places.min() - pad, places.max() + pad],
        xaxis_tickfont={"size": 11, "color": QUIET},
        yaxis_tickfont={"size": 11, "color": QUIET},
    )
