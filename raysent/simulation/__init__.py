"""A whole sweep on an event clock: the real conductor, halving, budget and ledger under made-up machines.

What is billed is counted apart from the ledger, from what happened: so the ledger is tested too. Machines are slow to
come and to go, are taken back with and without notice, and the driver may be killed and taken up again from nothing
but its journal's events and its ledger's lines.

- `clock`: what happens, in order of time
- `machines`: where machines come from, how long they take to go, and what they are billed
- `training`: how far made-up trials are, and what an interruption takes from them
- `outcome`: how it went
- `sweep`: `Simulator`, the driver between them
"""

from __future__ import annotations

from raysent.simulation.machines import SimulatedSweep
from raysent.simulation.sweep import Simulator

__all__ = ["SimulatedSweep", "Simulator"]
