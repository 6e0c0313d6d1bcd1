"""Weights from members' validation scores alone: the base rule, equal shares, the best member.

Source: Logeswaran and Lee, 2018, Table 3 (the base rule).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raysent.ensembles.combination import LogarithmicPool, in_shares
from raysent.ensembles.methods import Diagnostics, Rule
from raysent.ensembles.predictions import Answers, Float64, Truth


def share_by_score(scores: Float64) -> Float64:
    """Return weights in proportion to the scores, w_m = s_m / sum of s; equal ones where all scores are nought."""
    return in_shares(scores)


def share_equally(scores: Float64) -> Float64:
    """Return equal weights."""
    return np.full(len(scores), 1 / len(scores))


def take_best(scores: Float64) -> Float64:
    """Return all weight to the best score, the first of equals."""
    weights = np.zeros(len(scores))
    weights[scores.argmax()] = 1.0
    return weights


def _rule(shares: Callable[[Float64], Float64]) -> Rule:
    def rule(answers: Answers, truth: Truth) -> tuple[LogarithmicPool, Diagnostics]:
        return LogarithmicPool(shares(truth.member_scores(answers))), {}

    return rule


METHODS = {"validation": _rule(share_by_score), "uniform": _rule(share_equally), "best": _rule(take_best)}
