"""How a simulated sweep went."""

from __future__ import annotations

from dataclasses import dataclass, field

from raysent.cost import Entry
from raysent.sweep import Event, Trial


@dataclass(frozen=True)
class SimulatedSweep:
    """How a simulated sweep went.

    Attributes:
        billed_usd: What its machines were billed, by what happened.
        ledger_usd: The same by the ledger.
        seconds: From its beginning to its end.
        best: The best score of a trial that was not cut off; None where there is none.
        num_interruptions: Machines that were taken back.
        lost_s: Training that had to be done again.
        rungs: Report index -> trials that came to it.
        trials: Every trial.
        events: The journal.
        lines: The ledger.
        scores: Time and dollars at every report, with the best score so far.
    """

    billed_usd: float
    ledger_usd: float
    seconds: float
    best: float | None
    num_interruptions: int
    lost_s: float
    rungs: dict[int, int]
    trials: list[Trial]
    events: list[Event] = field(repr=False)
    lines: list[Entry] = field(repr=False)
    scores: list[tuple[float, float, float]] = field(repr=False)
