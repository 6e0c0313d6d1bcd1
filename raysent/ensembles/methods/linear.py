"""The arithmetic mean of members' probabilities, weighted by validation score: the base rule's rival.

Only the mean differs from the base rule, so the two together say what the geometric mean is worth.
"""

from __future__ import annotations

from raysent.ensembles.combination import LinearPool, in_shares
from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.predictions import Answers, Truth


def mean_of_probabilities(answers: Answers, truth: Truth) -> tuple[LinearPool, Diagnostics]:
    """Return the linear pool whose weights are the members' scores over their sum."""
    return LinearPool(in_shares(truth.member_scores(answers))), {}


METHODS = {"linear": mean_of_probabilities}
