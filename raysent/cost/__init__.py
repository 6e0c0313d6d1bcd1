"""Prices, the ledger of spending, and the budget. Plain values; no clock, Ray or network access.

admission.py  which machines may be launched under the budget
prices.py     the price of a machine, and the prices of a cluster's nodes by their labels
ledger.py     the append-only record of machine time and of each trial's cost, and its sums
budget.py     whether the budget admits more work
estimates.py  what a sweep was expected to cost, beside its bill
config.py     the section `cost` of a search space
lifetimes.py  how long a machine lives after whatever ends it has died
"""

from raysent.cost.admission import Admission, MachineType, Plan
from raysent.cost.budget import Budget, Funds
from raysent.cost.config import CostConfig, Duration, parse_duration, parse_money
from raysent.cost.estimates import compare_estimate, expected_usd, verdict
from raysent.cost.ledger import (
    Bill,
    Entry,
    Ledger,
    MachineTime,
    TrialCost,
    bad_entry,
    bill_of,
    bill_values,
)
from raysent.cost.prices import (
    MACHINES,
    MARKET_LABEL,
    NOT_COUNTED,
    TYPE_LABEL,
    Price,
    PriceList,
    Prices,
    SpotUsd,
    num_affordable,
    on_demand_price,
    own_price,
    price_list,
    spot_price,
    with_attached,
)

__all__ = [
    "MACHINES",
    "MARKET_LABEL",
    "NOT_COUNTED",
    "TYPE_LABEL",
    "Admission",
    "Bill",
    "Budget",
    "CostConfig",
    "Duration",
    "Entry",
    "Funds",
    "Ledger",
    "MachineTime",
    "MachineType",
    "Plan",
    "Price",
    "PriceList",
    "Prices",
    "SpotUsd",
    "TrialCost",
    "bad_entry",
    "bill_of",
    "bill_values",
    "compare_estimate",
    "expected_usd",
    "num_affordable",
    "on_demand_price",
    "own_price",
    "parse_duration",
    "parse_money",
    "price_list",
    "spot_price",
    "verdict",
    "with_attached",
]
