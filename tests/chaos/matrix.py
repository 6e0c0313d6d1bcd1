"""Which cells there are, where each runs, and why some make no sense."""

from __future__ import annotations

import os
import random
import zlib
from dataclasses import dataclass

from chaos.faults import FAULTS
from chaos.moments import MOMENTS

SEED = int(os.environ.get("CHAOS_SEED", "0"))

_EVALUATING = "the driver evaluates alone: no node of the cluster takes part"
_NODE_FAULTS = (
    "worker process",
    "node",
    "IMDS flapping",
    "notice without kill",
    "kill without notice",
    "double notice",
)
_CLOUD_FAULTS = ("never joins", "launch refused", "head killed", "head's clock off", "cloud slow")
# Fault and moment -> why there is nothing to try.
SENSELESS: dict[tuple[str, str], str] = {
    (fault, moment): _EVALUATING
    for fault in (*_NODE_FAULTS, *_CLOUD_FAULTS)
    for moment in ("evaluation", "ensemble")
}


@dataclass(frozen=True)
class Cell:
    """A fault at a moment.

    Attributes:
        fault: Its name.
        moment: Its name.
    """

    fault: str
    moment: str

    @property
    def name(self) -> str:
        """In messages."""
        return f"{self.fault} at {self.moment}"

    @property
    def chance(self) -> random.Random:
        """What decides everything that is left open, the same for the same seed."""
        return random.Random(zlib.crc32(f"{SEED} {self.name}".encode()))


CELLS = [
    Cell(fault, moment)
    for fault in FAULTS
    for moment in MOMENTS
    # Without Ray, trials have no process of their own.
    if (fault, moment) not in SENSELESS and fault != "worker process"
]
# The cells that hang on Ray: what it notices, restarts and places, and what its own code makes of our errors.
RAY_CELLS = [
    Cell(fault, moment)
    for fault in ("driver", *_NODE_FAULTS, "storage errors", "storage gone")
    for moment in ("start", "training", "rung")
]
# The cells that run with every test: one of each kind that no other test has, and that needs no Ray.
QUICK = {
    ("driver", "training"),
    ("node", "training"),
    ("storage errors", "rung"),
    ("disk full", "rung"),
}
