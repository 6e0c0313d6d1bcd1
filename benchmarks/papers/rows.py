"""`rows.yaml` -> rows: how each model comes about, and what its paper reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysent.config import parse_yaml

ROWS_FILE = Path(__file__).with_name("rows.yaml")


@dataclass(frozen=True)
class Row:
    """A model of the table.

    Attributes:
        name: Short and unique; also its folder.
        title: What the paper calls it.
        family: The paper.
        run: Values of a `RunConfig`, for a model that is trained; empty for one that is made.
        make: Arguments of a `raysent` command that makes the model from others.
        reported: The paper's own figures by column.
        view: Another row and the number of its vectors' block that is judged by itself (None for all of it); such a
            row trains nothing.
        num_steps: Steps where they are fixed, for methods that end by themselves; None for the allowance.
    """

    name: str
    title: str
    family: str
    run: dict[str, Any] = field(default_factory=dict)
    make: tuple[str, ...] = ()
    reported: dict[str, float] = field(default_factory=dict)
    view: tuple[str, int | None] | None = None
    num_steps: int | None = None


def read_rows(*, data: Path, models: Path) -> list[Row]:
    """Return the rows in their order; `{data}` and `{models}` stand for the two folders."""
    places = {"{data}": str(data), "{models}": str(models)}
    values = _filled(parse_yaml(ROWS_FILE.read_text(encoding="utf-8"), source=str(ROWS_FILE)).values, places)
    bases = values["bases"]
    rows = []
    for entry in values["rows"]:
        base = bases[entry["from"]] if "from" in entry else {}
        run = merged(base, entry["run"]) if "run" in entry else {}
        rows.append(
            Row(
                name=entry["name"],
                title=entry["title"],
                family=entry["family"],
                run=run,
                make=tuple(entry.get("make", ())),
                reported=entry.get("reported", {}),
                view=tuple(entry["view"]) if "view" in entry else None,
                num_steps=entry.get("num_steps"),
            )
        )
    return rows


def merged(base: Any, changes: Any) -> Any:
    """Return the base with the changes laid over it; what names another `type` is replaced whole."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    if "type" in changes and changes["type"] != base.get("type"):
        return changes
    both = {key: merged(base[key], changes[key]) for key in base.keys() & changes.keys()}
    return {**base, **changes, **both}


def _filled(value: Any, places: dict[str, str]) -> Any:
    """Return the value with the folders in place of their names."""
    if isinstance(value, dict):
        return {key: _filled(part, places) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, places) for part in value]
    if isinstance(value, str):
        for name, folder in places.items():
            value = value.replace(name, folder)
    return value
