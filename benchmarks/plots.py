"""Small SVG plots without a library: points with labels and intervals, and lines with bands; one panel a corpus."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 320, 52, 14, 30, 44
COLOURS = ("#1f6feb", "#d1242f", "#2da44e", "#bf8700", "#8250df", "#57606a", "#1b7c83")


@dataclass(frozen=True)
class Mark:
    """A labelled point with a vertical interval."""

    label: str
    x: float
    y: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line with a band: places, values and intervals, all [points]."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    intervals: Sequence[tuple[float, float]]


def scatter(panels: Sequence[tuple[str, Sequence[Mark]]], *, x: str, y: str) -> str:
    """Return labelled points over a logarithmic axis."""
    every = [mark.x for _, marks in panels for mark in marks]
    low, high = math.log(min(every) / 1.5), math.log(max(every) * 3)

    def place(value: float) -> float:
        return (math.log(value) - low) / (high - low)

    drawn = []
    for name, marks in panels:
        bottom = min(0.0, *(mark.interval[0] for mark in marks))
        up = _scale(bottom, 1.0)
        parts = [_frame(name, x, y, _ticks(bottom, 1.0), up)]
        parts += [
            _text(_across(place(tick)), HEIGHT - BOTTOM + 14, f"{tick:g}", anchor="middle")
            for tick in (0.01, 0.03, 0.1, 0.3, 1, 3)
            if low < math.log(tick) < high
        ]
        taken: list[tuple[float, float]] = []
        for number, mark in enumerate(sorted(marks, key=lambda one: -one.y)):
            at, colour = _across(place(mark.x)), COLOURS[number % len(COLOURS)]
            parts.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{up(mark.interval[0]):.1f}" y2="{up(mark.interval[1]):.1f}" '
                f'stroke="{colour}" opacity="0.35" stroke-width="2"/>'
                f'<circle cx="{at:.1f}" cy="{up(mark.y):.1f}" r="4" fill="{colour}"/>'
            )
            height = up(mark.y) + 4
            while any(abs(height - other) < 11 and abs(at - near) < 120 for near, other in taken):
                height += 3
            taken.append((at, height))
            parts.append(_text(at + 7, height, mark.label, colour=colour))
        drawn.append("".join(parts))
    return _document(drawn)


def curves(
    panels: Sequence[tuple[str, Sequence[Line]]], *, x: str, y: str, ticks: Mapping[float, str] | None = None
) -> str:
    """Return lines with bands, and a legend in each panel; `ticks` are places with texts, by default the points."""
    drawn = []
    for name, lines in panels:
        lows = [low for line in lines for low, _ in line.intervals]
        highs = [high for line in lines for _, high in line.intervals]
        first, last = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
        up = _scale(min(lows), max(highs))

        def across(value: float, first: float = first, last: float = last) -> float:
            return _across((value - first) / (last - first))

        parts = [_frame(name, x, y, _ticks(min(lows), max(highs)), up)]
        texts = ticks or {tick: f"{tick:g}" for tick in sorted(set(lines[0].x))}
        parts += [_text(across(at), HEIGHT - BOTTOM + 14, text, anchor="middle") for at, text in texts.items()]
        for number, line in enumerate(lines):
            colour = COLOURS[number % len(COLOURS)]
            upper = [f"{across(at):.1f},{up(one[1]):.1f}" for at, one in zip(line.x, line.intervals, strict=True)]
            lower = [f"{across(at):.1f},{up(one[0]):.1f}" for at, one in zip(line.x, line.intervals, strict=True)]
            points = " ".join(f"{across(at):.1f},{up(one):.1f}" for at, one in zip(line.x, line.y, strict=True))
            parts.append(
                f'<polygon points="{" ".join([*upper, *reversed(lower)])}" fill="{colour}" opacity="0.12"/>'
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
                + _text(WIDTH - RIGHT - 4, HEIGHT - BOTTOM - 8 - 13 * number, line.label, anchor="end", colour=colour)
            )
        drawn.append("".join(parts))
    return _document(drawn)


def _across(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _scale(low: float, high: float) -> Callable[[float], float]:
    """Return a function from values to places in a panel."""
    return lambda value: HEIGHT - BOTTOM - (value - low) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)


def _ticks(low: float, high: float) -> Mapping[float, str]:
    """Return about five round values between two."""
    step = 10 ** math.floor(math.log10((high - low) / 4 or 1.0))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    first = math.ceil(low / step - 1e-9)
    return {place * step: f"{place * step:g}" for place in range(first, math.floor(high / step + 1e-9) + 1)}


def _frame(name: str, x: str, y: str, ticks: Mapping[float, str], up: Callable[[float], float]) -> str:
    """Return a panel's title, axes and their names."""
    lines = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(value):.1f}" y2="{up(value):.1f}" stroke="#ddd"/>'
        + _text(LEFT - 5, up(value) + 4, f"{float(label):g}", anchor="end")
        for value, label in ticks.items()
    ]
    return (
        "".join(lines)
        + _text(LEFT, 16, name, weight="bold")
        + _text((LEFT + WIDTH) / 2, HEIGHT - 10, x, anchor="middle")
        + f'<text transform="translate(13,{HEIGHT / 2}) rotate(-90)" text-anchor="middle">{y}</text>'
        + f'<path d="M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#333", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-weight="{weight}">{text}</text>'


def _document(panels: Sequence[str]) -> str:
    """Return panels side by side as one SVG."""
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    view = f'viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}"'
    moved = "".join(f'<g transform="translate({WIDTH * place},0)">{one}</g>' for place, one in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} font-family="sans-serif" font-size="11" fill="#333">'
        f'<rect {size} fill="white"/>{moved}</svg>\n'
    )
