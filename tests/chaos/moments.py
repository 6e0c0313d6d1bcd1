"""When a fault strikes: found in what the driver writes, while it waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REDUCTION_FACTOR, NUM_REPORTS = 2, 4
RUNGS = (1, 2, 4)


@dataclass(frozen=True)
class Sight:
    """Something that a driver's process does.

    Attributes:
        kind: `line`: it wrote one of the journal; `file`: it is about to give a file its name; `look`: a trial in
            the middle of a share looks out for notices.
        path: The file.
        value: The line, or the trial's progress.
    """

    kind: str
    path: Path
    value: dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """A stage of a sweep at which faults strike.

    Attributes:
        name: In the table.
        has_come: Whether a sight belongs to it.
        num_sights: How many there are at least in every sweep; the seed chooses one of them.
    """

    name: str
    has_come: Callable[[Sight], bool]
    num_sights: int


def _line(sight: Sight, event: str) -> bool:
    return sight.kind == "line" and sight.value.get("event") == event


MOMENTS = {
    moment.name: moment
    for moment in (
        Moment("start", lambda sight: _line(sight, "started"), num_sights=2),
        Moment("training", lambda sight: sight.kind == "look", num_sights=12),
        Moment(
            "rung",
            lambda sight: _line(sight, "report") and sight.value["index"] in RUNGS,
            num_sights=4,
        ),
        Moment(
            "evaluation",
            lambda sight: sight.kind == "file" and "evaluation" in sight.path.parts,
            num_sights=4,
        ),
        Moment(
            "ensemble",
            lambda sight: sight.kind == "file" and sight.path.name == "ensemble.json",
            num_sights=1,
        ),
    )
}
