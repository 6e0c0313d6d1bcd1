"""What log-probabilities are worth beside the score: NLL, Brier score and calibration error, each with its draws.

Source: Brier, 1950; Nguyen and O'Connor, 2015 (calibration error over bins of equal mass).

How members differ: ambiguity, which needs no labels; whose errors go together; what each member adds.

Source: Heskes, 1998, equation 6: a logarithmic pool's NLL is the weighted mean of its members' less the ambiguity,
which is the weighted mean of the members' divergences KL(pool || member).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raysent.ensembles.combination import LOG_OF_NOUGHT, checked_weights, pool
from raysent.ensembles.cross_fitting import Draws, Figure, held_out
from raysent.ensembles.methods import fit
from raysent.ensembles.predictions import Answers, Float64, Int64, Truth

NUM_BINS = 15


@dataclass(frozen=True)
class Bin:
    """Rows of neighbouring confidence.

    Attributes:
        confidence: Mean probability of the likeliest class.
        accuracy: Share of rows that were right.
        num_rows: How many they are.
    """

    confidence: float
    accuracy: float
    num_rows: int


@dataclass(frozen=True)
class Measures:
    """Figures of one way to answer, by their names on the page, and the bins of the calibration error.

    Attributes:
        figures: `accuracy` in percent; `nll` in nats per row, where a right class that was ruled out counts as the
            logarithm of the smallest number; `brier`, the mean over rows of the sum over classes of squared errors,
            from 0 to 2; `ece` in points of percent, the mean distance of confidence and accuracy over bins.
        reliability: The bins, by rising confidence.
    """

    figures: Mapping[str, Figure]
    reliability: tuple[Bin, ...]


def measure(log_probabilities: Float64, labels: np.ndarray, *, rows: Int64, draws: Draws) -> Measures:
    """Return all figures of answers.

    Args:
        log_probabilities: [rows, classes].
        labels: The rows' classes, [rows].
        rows: Which of the task's rows they are, [rows].
        draws: The task's.
    """
    probabilities, places = np.exp(log_probabilities), np.arange(len(labels))
    likeliest = log_probabilities.argmax(axis=1)
    right, confidence = (likeliest == labels).astype(np.float64), probabilities[places, likeliest]
    nll = -np.maximum(log_probabilities[places, labels], LOG_OF_NOUGHT)
    brier = (probabilities**2).sum(axis=1) + 1 - 2 * probabilities[places, labels]
    bins = equal_mass_bins(confidence)
    columns = np.column_stack([100 * right, nll, brier, 100 * (right - confidence)[:, None] * bins])
    values, (drawn,) = columns.mean(axis=0), draws.means([(rows, columns)])
    figures = {name: Figure(float(values[n]), drawn[:, n]) for n, name in enumerate(("accuracy", "nll", "brier"))}
    figures["ece"] = Figure(float(np.abs(values[3:]).sum()), np.abs(drawn[:, 3:]).sum(axis=1))
    return Measures(figures, _reliability(right, confidence, bins))


def equal_mass_bins(confidence: Float64) -> Float64:
    """Return which bin each row is in, a column a bin, float64 [rows, bins]; rows of equal confidence stay in order."""
    order = np.argsort(confidence, kind="stable")
    bins = np.zeros((len(confidence), min(NUM_BINS, len(confidence))))
    for number, rows in enumerate(np.array_split(order, bins.shape[1])):
        bins[rows, number] = 1
    return bins


def _reliability(right: Float64, confidence: Float64, bins: Float64) -> tuple[Bin, ...]:
    sizes = bins.sum(axis=0)
    found = zip(confidence @ bins / sizes, right @ bins / sizes, sizes, strict=True)
    return tuple(Bin(float(mean), float(share), int(size)) for mean, share, size in found)


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
