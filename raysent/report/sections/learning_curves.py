"""The metric as training goes on, one line a trial."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import Note, Section, label, significant
from raysent.report.figures import ACCENT, BEST, QUIET, drawn
from raysent.report.run import Run, Trial
from raysent.sweeps.trial import BROKEN

# More lines than these hide each other, and make the page heavy.
MAX_LINES = 150


def section(run: Run) -> Section | None:
    """Return the learning curves: the best trial stands out, those stopped early are faded, chance is dotted."""
    if not run.is_sweep and not run.trials:
        return None
    trials = [trial for trial in reversed(run.ranked) if any(y is not None for y in _values(run, trial))]
    if not trials:
        return Section("curves", "Learning curves", blocks=[Note("No trial has made a report yet.")])
    shown = trials[-MAX_LINES:]
    lead = f"{run.metric} on the frozen pool against the share of training done."
    if run.is_sweep:
        lead += " The best trial is the thick line; trials that were stopped early or broke are faded."
    figure = drawn(
        [_line(run, trial) for trial in shown],
        height=420,
        label=f"Lines of {run.metric} against the share of training, one for each of {len(shown)} trials.",
        caption=f"the {len(shown)} best of {len(trials)} trials" if len(shown) < len(trials) else "",
        xaxis_title_text="share of training",
        xaxis_tickformat=".0%",
        xaxis_range=[0, 1.02],
        yaxis_title_text=label(run.metric),
        shapes=_chance_line(run),
        annotations=_annotations(run),
    )
    return Section("curves", "Learning curves", lead, [figure])


def _values(run: Run, trial: Trial) -> list[float | None]:
    return [point.metrics.get(run.metric) for point in trial.points]


def _line(run: Run, trial: Trial) -> Any:
    is_best = run.best is not None and trial.name == run.best.name
    is_faded = trial.status == "stopped" or trial.status in BROKEN
    values = _values(run, trial)
    return go.Scatter(
        x=[point.index / run.num_reports for point in trial.points],
        y=values,
        mode="lines+markers" if is_best or len(values) == 1 else "lines",
        line={"color": BEST if is_best else ACCENT, "width": 3 if is_best else 1.5},
        marker={"size": 7 if is_best else 5},
        opacity=1.0 if is_best else 0.3 if is_faded else 0.75,
        name=label(trial.name),
        hovertemplate=f"{label(trial.name)} ({label(trial.status)})<br>%{{x:.0%}}: %{{y:.4g}}<extra></extra>",
    )


def _chance_line(run: Run) -> list[dict[str, Any]]:
    if run.chance is None:
        return []
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": run.chance, "y1": run.chance}
    return [{"type": "line", **ends, "line": {"color": QUIET, "dash": "dot", "width": 1.5}}]


def _annotations(run: Run) -> list[dict[str, Any]]:
    """Name the line of chance, and the best trial at its last point."""
    plain = {"showarrow": False, "yanchor": "bottom"}
    notes: list[dict[str, Any]] = []
    if run.chance is not None:
        text = f"chance {significant(run.chance, 3)}"
        place = {"x": 0.01, "xref": "paper", "xanchor": "left", "y": run.chance}
        notes.append({**plain, **place, "text": text, "font": {"color": QUIET, "size": 12}})
    best = run.best
    value = _values(run, best)[-1] if best and best.points else None
    if best and run.is_sweep and value is not None and math.isfinite(value):
        place = {"x": best.points[-1].index / run.num_reports, "y": value, "xanchor": "right", "yshift": 6}
        notes.append({**plain, **place, "text": label(best.name), "font": {"color": BEST, "size": 13}})
    return notes
