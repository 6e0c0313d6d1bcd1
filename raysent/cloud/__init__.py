"""Clouds: what AWS charges, and sweeps played through on made-up machines.

cluster/       a Ray cluster on AWS, from a file to machines and back
aws_prices.py  what AWS asks, on demand and on the spot market
market.py      a made-up spot market
workload.py    what made-up trials take and score
simulator/     one sweep on an event clock, with the real conductor, budget and ledger
estimate.py    many of them: what a sweep will cost, and whether the cap holds
"""

from raysent.cloud.aws_prices import LiveSpot, Quote, quote
from raysent.cloud.estimate import CapTest, Estimate, estimate, try_cap
from raysent.cloud.simulator import SimulatedSweep, Simulator
from raysent.cloud.workload import MarketChoice, TrialModel, World, make_workload, world_of

__all__ = [
    "CapTest",
    "Estimate",
    "LiveSpot",
    "MarketChoice",
    "Quote",
    "SimulatedSweep",
    "Simulator",
    "TrialModel",
    "World",
    "estimate",
    "make_workload",
    "quote",
    "try_cap",
    "world_of",
]
