"""What each searched name does: one small plot a name, its values against the metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import Figure, Note, Section, label
from raysent.report.figures import ACCENT, BEST, QUIET, drawn
from raysent.report.parameters import Parameter, parameters_of, short_names
from raysent.report.run import Run, Trial
from raysent.sweeps.trial import BROKEN


def section(run: Run) -> Section | None:
    """Return the slices of a sweep."""
    if not run.is_sweep:
        return None
    key, title = "slices", "What each searched name does"
    trials = [t for t in run.ranked if run.value(t) is not None and t.status not in BROKEN]
    parameters = [parameter for parameter in parameters_of(run, trials) if parameter.is_varied]
    if len(trials) < 2 or not parameters:
        return Section(key, title, blocks=[Note("Too few trials: two with different searched values are needed.")])
    names = short_names(run.searched)
    lead = (
        f"{run.metric} against each name; filled marks finished, hollow ones stopped early; the best trial stands out."
    )
    return Section(key, title, lead, [_slice(run, trials, p, names[p.name]) for p in parameters])


def _slice(run: Run, trials: Sequence[Trial], parameter: Parameter, name: str) -> Figure:
    ticks, texts = parameter.ticks()
    places = parameter.coordinates()
    pad = 0.08 * ((places.max() - places.min()) or 1.0)
    best = [trial for trial in trials if run.best is not None and trial.name == run.best.name]
    finished = [trial for trial in trials if trial.status == "finished" and trial not in best]
    others = [trial for trial in trials if trial.status != "finished" and trial not in best]
    at = dict(zip((trial.name for trial in trials), places.round(6).tolist(), strict=True))
    return drawn(
        [
            _marks(run, others, parameter, at, {"size": 8, "color": ACCENT, "symbol": "circle-open"}),
            _marks(run, finished, parameter, at, {"size": 8, "color": ACCENT}),
            _marks(run, best, parameter, at, {"size": 11, "color": BEST}),
        ],
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


def _marks(
    run: Run, trials: Sequence[Trial], parameter: Parameter, at: Mapping[str, float], marker: Mapping[str, Any]
) -> Any:
    """Return the marks of some trials; `at` holds every trial's place on the axis."""
    return go.Scatter(
        x=[at[trial.name] for trial in trials],
        y=[round(run.value(trial) or 0.0, 6) for trial in trials],
        mode="markers",
        marker={"opacity": 0.85, "line": {"width": 1.5 if "symbol" in marker else 0}, **marker},
        text=[f"{label(trial.name)}, {label(trial.params.get(parameter.name))}" for trial in trials],
        hovertemplate="%{text}: %{y:.4g}<extra></extra>",
    )
