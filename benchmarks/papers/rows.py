"""`rows.yaml` -> rows: how each model is made, and what its paper reports."""

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
        title: Its name in the paper.
        family: The paper.
        run: Values of a `RunConfig` for a trained model; empty for a model that is made from others.
        make: Arguments of a `raysent` command that makes the model from others.
        reported: The figures of the paper by column.
        view: Another row and the number of the block of its vectors to evaluate (None for all of them); such a row
            trains
            nothing.
        num_steps: Number of steps for methods with a fixed length; None to use the allowed time.
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
    """Return the rows in order; `{data}` and `{models}` are replaced by the two folders."""
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
    """Return the base updated with the changes; a value of another `type` is replaced as a whole."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    if "type" in changes and changes["type"] != base.get("type"):
        return changes
    both = {key: merged(base[key], changes[key]) for key in base.keys() & changes.keys()}
    return {**base, **changes, **both}


def _filled(value: Any, places: dict[str, str]) -> Any:
    """Return the value with the folders in place of their placeholders."""
    if isinstance(value, dict):
        return {key: _filled(part, places) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, places) for part in value]
    if isinstance(value, str):
        for name, folder in places.items():
            value = value.replace(name, folder)
    return value
