"""The page of rooms: a picture of raysent's packages and what each imports, made from the test that holds them.

In: `tests/test_layers.py`, its rows and its reading of all imports. Out: Markdown with an SVG, and a table.
"""

from __future__ import annotations

import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from test_layers import HEIGHT, ROWS, WINGS, own_imports, package_of, sources, wing_of  # noqa: E402

PAGE = """# Rooms

Each box is a module or a folder directly below `raysent/`, with its number of files. A room imports only from rooms
below it; a line is drawn where it does, unless another line's way says so already. Wings stand on top, with dashed
lines: nothing below imports one, and none imports another. They are found by the entry points of `pyproject.toml`, and
each may be left out. `{inner}` is a wing inside a room.

```{{raw}} html
{picture}
```

This page is generated from `tests/test_layers.py`, which refuses any other import.

| room | files | imports |
|---|---|---|
{rows}
"""
_WIDTH, _HEIGHT, _GAP, _FLOOR = 112, 34, 12, 66


def rooms_page() -> str:
    """Return the page."""
    needs = _needs()
    files = _num_files()
    rows = [
        f"| `{room}` | {files[room]} | {', '.join(f'`{other}`' for other in sorted(needs[room])) or '–'} |"
        for row in reversed(ROWS)
        for room in row
    ]
    inner = next(wing for wing in WINGS if wing.count(".") > 1)
    return PAGE.format(picture=_picture(needs, files), rows="\n".join(rows), inner=inner)


def _needs() -> dict[str, set[str]]:
    """Return the rooms that each room imports; what type checkers alone read of another wing does not count."""
    needs: dict[str, set[str]] = {room: set() for room in HEIGHT}
    for found in own_imports():
        room, other = package_of(found.module), package_of(found.target)
        is_between_wings = wing_of(found.module) and wing_of(found.target)
        if room and other and room != other and not is_between_wings:
            needs[room].add(other)
    return needs


def _num_files() -> dict[str, int]:
    files = dict.fromkeys(HEIGHT, 0)
    for module in sources():
        if package_of(module):
            files[package_of(module)] += 1
    return files


def _drawn(needs: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that no longer way of others implies."""
    reached: dict[str, set[str]] = {}
    for room in TopologicalSorter(needs).static_order():
        reached[room] = set(needs[room]).union(*(reached[other] for other in needs[room]))
    return [
        (room, other)
        for room, others in needs.items()
        for other in sorted(others)
        if not any(other in reached[between] for between in others - {other})
    ]


def _picture(needs: dict[str, set[str]], files: dict[str, int]) -> str:
    """Return the SVG: a floor for each row, the first one at the bottom."""
    width = max(len(row) for row in ROWS) * (_WIDTH + _GAP) + _GAP
    height = len(ROWS) * _FLOOR + _GAP
    corner = {}
    for floor, row in enumerate(ROWS):
        left = (width - len(row) * (_WIDTH + _GAP) + _GAP) / 2
        for place, room in enumerate(row):
            top = height - (floor + 1) * _FLOOR
            corner[room] = (left + place * (_WIDTH + _GAP), top)
    wings = set(ROWS[-1])
    lines = [
        f'<line x1="{corner[room][0] + _WIDTH / 2:.0f}" y1="{corner[room][1] + _HEIGHT}" '
        f'x2="{corner[other][0] + _WIDTH / 2:.0f}" y2="{corner[other][1]}" '
        f'stroke="currentColor" stroke-opacity="0.45"{_dashes(room in wings)}/>'
        for room, other in _drawn(needs)
    ]
    boxes = [
        f"<g><title>{room}: imports {', '.join(sorted(needs[room])) or 'nothing'}</title>"
        f'<rect x="{left:.0f}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" '
        f'fill="var(--color-background-primary, white)" stroke="currentColor"{_dashes(room in wings)}/>'
        f'<text x="{left + _WIDTH / 2:.0f}" y="{top + 15}" text-anchor="middle" font-size="13" '
        f'fill="currentColor">{room}</text>'
        f'<text x="{left + _WIDTH / 2:.0f}" y="{top + 28}" text-anchor="middle" font-size="10" '
        f'fill="currentColor">{files[room]} file{"" if files[room] == 1 else "s"}</text></g>'
        for room, (left, top) in corner.items()
    ]
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="The rooms of raysent" '
        f'style="width: 100%; height: auto" xmlns="http://www.w3.org/2000/svg">\n'
        + "\n".join([*lines, *boxes])
        + "\n</svg>"
    )


def _dashes(is_wing: bool) -> str:
    return ' stroke-dasharray="4 3"' if is_wing else ""
