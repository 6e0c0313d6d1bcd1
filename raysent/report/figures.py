"""The look that all figures share. Colours are names of the page's style sheet, so they follow light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from raysent.report.blocks import Figure

INK, QUIET, RULE = "var(--ink)", "var(--quiet)", "var(--rule)"
ACCENT, BEST, FAINT, BAD = "var(--accent)", "var(--best)", "var(--faint)", "var(--bad)"
# Classes and runs, told apart by every kind of sight, on light and on dark (Okabe and Ito, 2008).
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#b8a900")
CLEAR = "rgba(0,0,0,0)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def drawn(
    traces: Sequence[Any],
    *,
    height: int,
    label: str,
    title: str = "",
    caption: str = "",
    narrow: bool = False,
    **layout: Any,
) -> Figure:
    """Return the traces as a figure of the report.

    Args:
        traces: Plotly traces, in drawing order.
        height: Pixels.
        label: One sentence for those who cannot see the figure.
        title: A few words above it.
        caption: One sentence below it.
        narrow: True for a small figure that stands beside others.
        layout: Plotly's layout, over the shared look.
    """
    axis: dict[str, Any] = {
        "gridcolor": RULE,
        "linecolor": RULE,
        "zeroline": False,
        "ticks": "",
        "automargin": True,
        "title": {"standoff": 8, "font": {"size": 12, "color": QUIET}},
    }
    figure = go.Figure(
        data=list(traces),
        layout={
            "template": "none",
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
            "height": height,
            "showlegend": False,
            "hovermode": "closest",
            "hoverlabel": {"font": {"family": FONT, "size": 12}},
            "xaxis": axis,
            "yaxis": axis,
        },
    )
    figure.update_layout(**layout)
    return Figure(json=figure.to_json() or "", height=height, label=label, title=title, caption=caption, narrow=narrow)
