"""The shared look of the figures. Colours are variables of the style sheet, so that they follow light and dark mode.

Axes of searched values are linear, logarithmic, or have a place for each category.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from raysent.report.blocks import DASH, Figure, number, text_of
from raysent.report.run import Run
from raysent.sweeps import Trial
from raysent.sweeps.space import Choice, Domain

INK, QUIET, RULE = "var(--ink)", "var(--quiet)", "var(--rule)"
PAPER = "var(--paper)"
ACCENT, BEST, FAINT, BAD = "var(--accent)", "var(--best)", "var(--faint)", "var(--bad)"
# For several classes or runs. Source: Okabe and Ito, 2008, colours that people with colour blindness can tell apart.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#b8a900")
CLEAR = "rgba(0,0,0,0)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# Above the plot: below it, the axis title would be overprinted on a narrow screen.
LEGEND = {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 12}, "traceorder": "normal"}
# Fewer trials than this say nothing of what matters.
MIN_TRIALS = 4
MAX_TICKS = 6
# Without a domain, numbers that differ by this factor are on a logarithmic axis.
_LOG_RATIO = 50

Scale = Literal["linear", "log", "category"]


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


def category_axis(axis: str, *, size: int = 12) -> dict[str, Any]:
    """Return the layout of an axis (`xaxis` or `yaxis`) of names, without grid lines."""
    return {f"{axis}_type": "category", f"{axis}_gridcolor": CLEAR, f"{axis}_tickfont_size": size}


def level_line(value: float, color: str) -> dict[str, Any]:
    """Return a plotly shape: a horizontal line over the whole width."""
    ends = {"x0": 0, "x1": 1, "xref": "paper", "y0": value, "y1": value}
    return {"type": "line", **ends, "line": {"color": color, "dash": "dot", "width": 1.5}, "layer": "below"}


def level_text(value: float, text: str, color: str) -> dict[str, Any]:
    """Return a plotly annotation: a text at the left end of a horizontal line."""
    place = {"x": 0.01, "xref": "paper", "xanchor": "left", "y": value, "yanchor": "bottom"}
    return {**place, "showarrow": False, "text": text, "font": {"color": color, "size": 12}, "bgcolor": PAPER}


@dataclass(frozen=True)
class Parameter:
    """A searched name and its values.

    Attributes:
        name: The dotted name.
        scale: The scale of its axis; a choice of numbers is "category" too.
        values: One for each trial; None where the name does not apply.
        short: The name without the parts that no other name needs.
    """

    name: str
    scale: Scale
    values: tuple[Any, ...]
    short: str = ""

    @property
    def categories(self) -> list[str]:
        """The distinct values as text: numbers sorted, a dash for "does not apply" last."""
        given = {text_of(value): value for value in self.values if value is not None}
        if all(number(value) is not None for value in given.values()):
            texts = sorted(given, key=lambda text: float(given[text]))
        else:
            texts = sorted(given)
        return texts + [DASH] * (None in self.values)

    @property
    def is_varied(self) -> bool:
        """Whether there is more than one distinct value."""
        return len(self.categories) > 1

    def coordinates(self) -> np.ndarray:
        """Return positions on the axis, float64 [trials]; "does not apply" is below all others."""
        if self.scale == "category":
            places = {text: place for place, text in enumerate(self.categories)}
            return np.array([places[text_of(value)] for value in self.values], dtype=float)
        numbers = [None if value is None else self._place(value) for value in self.values]
        known = [value for value in numbers if value is not None]
        below = min(known) - 0.12 * ((max(known) - min(known)) or 1.0)
        return np.array([below if value is None else value for value in numbers])

    def ticks(self) -> tuple[list[float], list[str]]:
        """Return positions of tick marks on the axis, and their texts."""
        if self.scale == "category":
            return [float(place) for place in range(len(self.categories))], self.categories
        places = self.coordinates()
        known = sorted(
            {(float(at), float(value)) for at, value in zip(places, self.values, strict=True) if value is not None}
        )
        if len(known) > MAX_TICKS or _is_crowded([at for at, _ in known]):
            known = self._round_ticks(known[0][1], known[-1][1])
        ticks, texts = [at for at, _ in known], [_short(value) for _, value in known]
        if None in self.values:
            return [float(places.min()), *ticks], [DASH, *texts]
        return ticks, texts

    def _round_ticks(self, low: float, high: float) -> list[tuple[float, float]]:
        for mantissas in ((1, 2, 5), (1, 3), (1,)) if self.scale == "log" else ():
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            values = [mantissa * 10.0**power for power in powers for mantissa in mantissas]
            values = [value for value in values if low <= value <= high]
            if 2 <= len(values) <= MAX_TICKS:
                return [(self._place(value), value) for value in values]
        if self.scale == "log":
            return [(float(at), 10.0**at) for at in np.linspace(math.log10(low), math.log10(high), MAX_TICKS)]
        rough = (high - low) / (MAX_TICKS - 1)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough)
        first = math.ceil(low / step - 1e-9)
        values = [(first + count) * step for count in range(MAX_TICKS) if (first + count) * step <= high]
        return [(value, value) for value in values]

    def _place(self, value: Any) -> float:
        return math.log10(value) if self.scale == "log" else float(value)


def _is_crowded(places: Sequence[float]) -> bool:
    gaps = np.diff(places)
    return len(gaps) > 0 and bool(gaps.min() < 0.12 * (places[-1] - places[0]))


def varied_parameters(run: Run, trials: Sequence[Trial]) -> list[Parameter]:
    """Return the searched names that have several values in these trials, in the order of the search space."""
    found, short = [], short_names(run.searched)
    for name in run.searched:
        values = tuple(trial.params.get(name) for trial in trials)
        if any(value is not None for value in values):
            domain = None if run.sweep is None else run.sweep.space.domains.get(name)
            found.append(Parameter(name, scale_of(values, domain), values, short[name]))
    return [parameter for parameter in found if parameter.is_varied]


def scale_of(values: Sequence[Any], domain: Domain | None = None) -> Scale:
    """Return the scale of an axis of values: that of the domain, or without one what suits the values."""
    known = [found for value in values if (found := number(value)) is not None]
    if isinstance(domain, Choice) or not known or len(known) < sum(value is not None for value in values):
        return "category"
    is_log = min(known) > 0 and (max(known) / min(known) >= _LOG_RATIO if domain is None else domain.is_log)
    return "log" if is_log else "linear"


def _short(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


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
