"""One trial of a sweep, as far as the conductor knows it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from raysent.sweeps.space import Params

Status = Literal["waiting", "running", "finished", "stopped", "failed", "nan"]
ENDED: tuple[Status, ...] = ("finished", "stopped", "failed", "nan")
BROKEN: tuple[Status, ...] = ("failed", "nan")


@dataclass
class Trial:
    """One trial as far as it is known.

    Attributes:
        name: Four digits, the trial's folder.
        number: Counted from 0.
        params: What was drawn.
        seed: Seed of its run.
        status: Where it stands.
        index: Its last report, 0 for none.
        num_reports: Reports of a whole run, 0 while unknown.
        metrics: Those of the last report.
        seconds: Time spent training, over all resumes.
        usd: What that time cost.
        decisions: Report index -> whether it went on.
        error: One line, where it failed.
    """

    name: str
    number: int
    params: Params
    seed: int
    status: Status = "waiting"
    index: int = 0
    num_reports: int = 0
    metrics: dict[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    usd: float = 0.0
    decisions: dict[int, bool] = field(default_factory=dict)
    error: str | None = None


def trial_name(number: int) -> str:
    """Return the name of the trial with this number."""
    return f"{number:04d}"


def derived_seed(*parts: int | str) -> int:
    """Return a seed of 31 bits that depends on every part and on nothing else."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF
