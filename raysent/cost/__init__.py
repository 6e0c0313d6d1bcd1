"""Prices, the ledger of spending, and the budget. Plain values; no clock, Ray or network access.

admission.py  which machines may be launched under the budget
refusals.py   why a cloud refuses to launch a machine, in three classes
prices.py     the price of a machine, and the prices of a cluster's nodes by their labels
ledger.py     the append-only record of machine time and of each trial's cost, and its sums
merging.py    entries of a ledger that charge many machines at once
budget.py     whether the budget admits more work, and how long machines live after what ends them has died
config.py     the section `cost` of a search space
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
