"""Sweeps on simulated machines: the real controller, scheduler, budget and ledger on an event queue.

machines.py   a simulated spot market, and machines that boot, stop and are interrupted
workload.py   the scenario of a sweep, and how long simulated trials take and what they score
simulator.py  `Simulator`: one sweep, event by event
check.py      many sweeps under a budget: how often their bills exceed it
replay.py     every decision of a sweep derived again from its journal, simulated or real

The bill is computed from the events, independently of the ledger, so that a simulation tests the ledger too. Machines
take time to start and to stop and are interrupted with and without notice. The driver may be killed; it then resumes
from its journal and its ledger alone.
"""

from benchmarks.simulation.check import CapCheck, check_cap
from benchmarks.simulation.replay import Replayed, replay
from benchmarks.simulation.simulator import SimulatedSweep, Simulator
from benchmarks.simulation.workload import Scenario, SimulatedTrial, scenario_for

__all__ = [
    "CapCheck",
    "Replayed",
    "Scenario",
    "SimulatedSweep",
    "SimulatedTrial",
    "Simulator",
    "check_cap",
    "replay",
    "scenario_for",
]
