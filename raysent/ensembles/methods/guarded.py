"""The base rule, unless it scores lower than the best single member.

Both are cross-fitted on the rows given; where the base rule's out-of-fold score is lower, the best member has all
weight. The diagnostic `is_replaced` is then 1, else 0.
"""

from __future__ import annotations

from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.methods import Diagnostics, fit
from raysent.ensembles.pools import Combination
from raysent.ensembles.predictions import MemberPredictions
from raysent.evaluation.targets import Targets

RULE, MEMBER = "validation", "best"


def guard(predictions: MemberPredictions, targets: Targets) -> tuple[Combination, Diagnostics]:
    """Return the base rule's pool, or the best member where that has a higher out-of-fold score."""
    rule, member = (targets.score(held_out(predictions, targets, method=method)) for method in (RULE, MEMBER))
    is_replaced = rule < member
    fitted = fit(predictions, targets, method=MEMBER if is_replaced else RULE)
    return fitted.combination, {"is_replaced": float(is_replaced)}


METHODS = {"guarded": guard}
