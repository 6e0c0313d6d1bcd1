"""How members differ: ambiguity, which needs no labels; whose errors go together; what each member adds.

Source: Heskes, 1998, equation 6: a logarithmic pool's NLL is the weighted mean of its members' less the ambiguity,
which is the weighted mean of the members' divergences KL(pool || member).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raysent.ensemble.answers import Answers, Float64
from raysent.ensemble.cross_fitting import held_out
from raysent.ensemble.methods import fit
from raysent.ensemble.pooling import checked_weights, pool
from raysent.ensemble.truth import Truth


@dataclass(frozen=True)
class Diversity:
    """How the members of a pool differ on a task.

    Attributes:
        ambiguity: Nats per row, at least 0; infinite where a member rules out what the pool does not.
        error_correlations: Between members' errors, float64 [members, members]; NaN beside a member without errors,
            or without anything else.
        contributions: Points of the cross-fitted score that are lost without a member, float64 [members]; empty for
            a single member.
    """

    ambiguity: float
    error_correlations: Float64
    contributions: Float64


def ambiguity(answers: Answers, shares: Float64) -> float:
    """Return the mean over rows of sum over members of w_m KL(pool || member).

    Args:
        answers: Members' log-probabilities, of rows that need no labels.
        shares: Weights [members] that sum to one.
    """
    weights = checked_weights(shares, answers)
    pooled = pool(answers, weights)
    probabilities = np.exp(pooled)
    total = 0.0
    for member, weight in zip(answers.members(), weights, strict=True):
        if weight > 0:
            # What the pool rules out adds nothing, whatever the member says.
            gap = np.subtract(pooled, member, out=np.zeros_like(pooled), where=probabilities > 0)
            total += weight * float((probabilities * gap).sum(axis=1).mean())
    return total


def error_correlations(answers: Answers, truth: Truth) -> Float64:
    """Return the correlations between members' errors on labelled rows, float64 [members, members]."""
    wrong = np.stack([member.argmax(axis=1) != truth.labels for member in answers.members()]).astype(np.float64)
    centred = wrong - wrong.mean(axis=1, keepdims=True)
    lengths = np.sqrt((centred**2).sum(axis=1))
    products = np.outer(lengths, lengths)
    unknown = np.full_like(products, np.nan)
    correlations: Float64 = np.divide(centred @ centred.T, products, out=unknown, where=products > 0)
    return correlations


def contributions(answers: Answers, truth: Truth, *, method: str) -> Float64:
    """Return the points of the cross-fitted score, in percent, that the method loses without each member [members]."""
    members = range(answers.shape[0])
    if len(members) == 1:
        return np.empty(0)
    whole = truth.score(held_out(answers, truth, method=method))
    without = [
        truth.score(held_out(answers.select([m for m in members if m != left_out]), truth, method=method))
        for left_out in members
    ]
    return 100 * (whole - np.array(without))


def diversity(seen: Answers, truth: Truth, *, method: str) -> Diversity:
    """Return how members differ on labelled rows that trained no probe of theirs."""
    shares = fit(seen, truth, method=method).shares
    return Diversity(
        ambiguity(seen, shares), error_correlations(seen, truth), contributions(seen, truth, method=method)
    )
