"""The shared look of the figures. Colours are variables of the style sheet, so that they follow light and dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import Figure

INK, QUIET, RULE = "var(--ink)", "var(--quiet)", "var(--rule)"
PAPER = "var(--paper)"
ACCENT, BEST, BAD = "var(--accent)", "var(--best)", "var(--bad)"
# For several classes or runs. Source: Okabe and Ito, 2008, colours that people with colour blindness can tell apart.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#b8a900")
CLEAR = "rgba(0,0,0,0)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# Above the plot: below it, the axis title would be overprinted on a narrow screen.
LEGEND = {
    "orientation": "h",
    "x": 0,
    "y": 1.0,
    "yanchor": "bottom",
    "font": {"size": 12},
    "traceorder": "normal",
}
# The layout of a vertical axis of names, without grid lines.
NAMES_AXIS: dict[str, Any] = {
    "yaxis_type": "category",
    "yaxis_gridcolor": CLEAR,
    "yaxis_tickfont_size": 12,
}


def figure(
    traces: Sequence[Any],
    *,
    height: int,
    label: str,
    title: str = "",
    caption: str = "",
    is_narrow: bool = False,
    **layout: Any,
) -> Figure:
    """Return traces as a figure of the report.

    Args:
        traces: Plotly traces, in drawing order.
        height: Pixels.
        label: A sentence in place of the figure.
        title: Text above it.
        caption: Text below it.
        is_narrow: Whether it stands beside others.
        layout: Plotly's layout; overrides the shared look.
    """
    axis: dict[str, Any] = {
        "gridcolor": RULE,
        "linecolor": RULE,
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "title": {"standoff": 8, "font": {"size": 12, "color": QUIET}},
    }
    drawn = go.Figure(
        data=list(traces),
        layout={
            "template": "none",
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
            "height": height,
            "showlegend": False,
            "legend": LEGEND,
            "hovermode": "closest",
            "hoverlabel": {"font": {"family": FONT, "size": 12}},
            "xaxis": axis,
            "yaxis": axis,
        },
    )
    drawn.update_layout(**layout)
    return Figure(drawn.to_json() or "", height, label, title, caption, is_narrow)


def whiskers(values: Sequence[float], ends: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return the error bars of values with their intervals."""
    above = [high - value for value, (_, high) in zip(values, ends, strict=True)]
    below = [value - low for value, (low, _) in zip(values, ends, strict=True)]
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return {**bars, "color": QUIET, "thickness": 1.6, "width": 5}


def level_line(value: float, color: str) -> dict[str, Any]:
    """Return a plotly shape: a horizontal line over the whole width."""
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": value, "y1": value}
    return {
        "type": "line",
        **ends,
        "line": {"color": color, "dash": "dot", "width": 1.5},
        "layer": "below",
    }


def level_text(value: float, text: str, color: str) -> dict[str, Any]:
    """Return a plotly annotation: a text at the left end of a horizontal line."""
    place = {"x": 0.01, "xref": "paper", "xanchor": "left", "y": value, "yanchor": "bottom"}
    return {
        **place,
        "showarrow": False,
        "text": text,
        "font": {"color": color, "size": 12},
        "bgcolor": PAPER,
    }


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the last part of each dotted name, or as many parts as make it unique."""
    short = {}
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            tail = ".".join(parts[-depth:])
            if sum(other == tail or other.endswith("." + tail) for other in names) == 1:
                break
        short[name] = tail
    return short
