"""What work costs: prices, the ledger of what is owed, and the budget that admits work. No clock, no Ray, no network.

prices.py   what a machine costs an hour, and how its seconds are billed
ledger.py   the append-only record of every machine's time and every trial's share
bill.py     what a ledger comes to: spent, lost, and the same on demand
budget.py   whether there is money and time for more work
config.py   the section `cost` of a search space
machines.py what each node of a cluster costs, from its labels
"""

from raysent.cost.budget import Budget, Funds
from raysent.cost.config import CostConfig, Duration, parse_duration, parse_money
from raysent.cost.ledger import Bill, Entry, Ledger, Share, bill_of, verdict
from raysent.cost.prices import (
    MACHINES,
    MARKET_LABEL,
    TYPE_LABEL,
    Price,
    Prices,
    Snapshot,
    SpotUsd,
    num_affordable,
    on_demand_price,
    own_price,
    snapshot,
    spot_price,
)

__all__ = [
    "MACHINES",
    "MARKET_LABEL",
    "TYPE_LABEL",
    "Bill",
    "Budget",
    "CostConfig",
    "Duration",
    "Entry",
    "Funds",
    "Ledger",
    "Price",
    "Prices",
    "Share",
    "Snapshot",
    "SpotUsd",
    "bill_of",
    "num_affordable",
    "on_demand_price",
    "own_price",
    "parse_duration",
    "parse_money",
    "snapshot",
    "spot_price",
    "verdict",
]
