"""Sweeps on simulated machines: the real controller, scheduler, budget and ledger on an event queue.

machines.py   a simulated spot market, and machines that boot, stop and are interrupted
workload.py   the scenario of a sweep, and how long simulated trials take and what they score
simulator.py  `Simulator`: one sweep, event by event
estimate.py   many sweeps: expected cost and time, and a check of the budget
curves.py     learning curves of new trials, from pilots
forecast.py   many sweeps of such trials: the expected score within budgets and deadlines

The bill is computed from the events, independently of the ledger, so that a simulation tests the ledger too. Machines
take time to start and to stop and are interrupted with and without notice. The driver may be killed; it then resumes
from its journal and its ledger alone.
"""

from __future__ import annotations

from raysent.simulation.estimate import (
    CapCheck,
    Estimate,
    budget_of,
    check_cap,
    compare_estimate,
    estimate,
    estimate_locally,
)
from raysent.simulation.forecast import Band, Forecast, ForecastCell, ScoredBand
from raysent.simulation.simulator import SimulatedSweep, Simulator
from raysent.simulation.workload import MARKETS, Scenario, scenario_for

__all__ = [
    "MARKETS",
    "Band",
    "CapCheck",
    "Estimate",
    "Forecast",
    "ForecastCell",
    "Scenario",
    "ScoredBand",
    "SimulatedSweep",
    "Simulator",
    "budget_of",
    "check_cap",
    "compare_estimate",
    "estimate",
    "estimate_locally",
    "scenario_for",
]
