"""What members cost, and which sets of them no cheaper set equals: the front of score against cost, in one pass.

Members join one by one: once the one that helps most, once the one that helps most per millisecond, once per byte.
Every set on these three paths, and every member alone, is scored by the base rule, cross-fitted; the front is those
that no other set beats at the same price or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysent.ensembles.combination import LOG_OF_NOUGHT, in_shares, normalize
from raysent.ensembles.cross_fitting import held_out
from raysent.ensembles.predictions import Answers, Float64, Truth
from raysent.errors import ConfigError
from raysent.evaluation.members import REFERENCE, Member, costs_of
from raysent.evaluation.records import Record

SMALLEST_COST = 1e-9
_SECONDS_PER_HOUR = 3600.0
RULE = "validation"


@dataclass(frozen=True)
class Cost:
    """What a member, or several together, cost.

    Attributes:
        encode_ms: Milliseconds to encode 1,000 sentences, on the machine that judged it.
        num_bytes: Size of the model's files; 0 for the built-in reference.
        training_s: Seconds of training and validation; None where it is not known.
    """

    encode_ms: float
    num_bytes: int
    training_s: float | None


# The two that an ensemble in use is charged with, by the option that bounds each.
PRICES: Mapping[str, str] = {"--max-ms": "encode_ms", "--max-bytes": "num_bytes"}


@dataclass(frozen=True)
class Choice:
    """A set of members that might be the ensemble.

    Attributes:
        members: Their places, in the order in which they joined.
        cost: Of all of them together.
        score: Validation score by the base rule, cross-fitted, in percent, the mean over tasks.
        fronts: The prices at which no other set is both as cheap and as good, names of `Cost`'s attributes.
    """

    members: tuple[int, ...]
    cost: Cost
    score: float
    fronts: tuple[str, ...] = ()


def member_cost(member: Member, of_member: Sequence[Record]) -> Cost:
    """Return what a member cost when its records were made: the median over tasks of the time to encode."""
    per_thousand = []
    for record in of_member:
        num_sentences = len(record.labels) * (1 if record.kind == "sentence" else 2)
        per_thousand.append(1e6 * float(record.about["seconds"]["encode_s"]) / num_sentences)
    encode_ms = float(np.median(per_thousand))
    if member.path.startswith(REFERENCE):
        return Cost(encode_ms, 0, 0.0)
    known = costs_of(Path(member.path))
    training_s = None if known.training_hours is None else known.training_hours * _SECONDS_PER_HOUR
    return Cost(encode_ms, known.num_bytes or 0, training_s)


def total_cost(costs: Sequence[Cost]) -> Cost:
    """Return what members cost together; training is unknown where one of them is."""
    training = [cost.training_s for cost in costs]
    known = [value for value in training if value is not None]
    return Cost(
        sum(cost.encode_ms for cost in costs),
        sum(cost.num_bytes for cost in costs),
        sum(known) if len(known) == len(training) else None,
    )


def choices(tasks: Sequence[tuple[Answers, Truth]], costs: Sequence[Cost]) -> tuple[Choice, ...]:
    """Return the sets of members worth thinking of, by rising time to encode, with the fronts they are on.

    Args:
        tasks: Per task the members' answers and what is known of the rows; no member's probe trained on these rows.
        costs: The members' costs, [members].
    """
    shares = [in_shares(truth.member_scores(answers)) for answers, truth in tasks]
    found: dict[tuple[int, ...], None] = {(member,): None for member in range(len(costs))}
    for price in (None, *PRICES.values()):
        prices = np.ones(len(costs)) if price is None else np.array([getattr(cost, price) for cost in costs])
        found.update(dict.fromkeys(_path(tasks, shares, np.maximum(prices, SMALLEST_COST))))
    distinct = {frozenset(members): members for members in reversed(found)}
    scored = [
        Choice(members, total_cost([costs[member] for member in members]), _score(tasks, members))
        for members in distinct.values()
    ]
    scored.sort(key=lambda choice: (choice.cost.encode_ms, choice.cost.num_bytes, -choice.score))
    return tuple(Choice(one.members, one.cost, one.score, tuple(_fronts(one, scored))) for one in scored)


def best_within(options: Sequence[Choice], names: Sequence[str], limits: Mapping[str, float | None]) -> Choice:
    """Return the best set within limits, the first of equals.

    Args:
        options: What `choices` found.
        names: The members' names.
        limits: Option of `PRICES` -> the most that may be paid; None for no limit.

    Raises:
        ConfigError: If not even one member is within the limits.
    """
    bounds = {option: limit for option, limit in limits.items() if limit is not None}
    within = [
        one for one in options if all(getattr(one.cost, PRICES[option]) <= limit for option, limit in bounds.items())
    ]
    if within:
        return max(within, key=lambda choice: choice.score)
    asked = " ".join(f"{option} {limit:g}" for option, limit in bounds.items())
    told = "; ".join(_cheapest(options, names, PRICES[option]) for option in bounds)
    raise ConfigError(f"{asked}: at least one member must be within it; {told}; raise it")


def _cheapest(options: Sequence[Choice], names: Sequence[str], price: str) -> str:
    paid, place = min((getattr(one.cost, price), one.members[0]) for one in options if len(one.members) == 1)
    return f"'{names[place]}' has the least, {paid:,.6g}"


def _path(
    tasks: Sequence[tuple[Answers, Truth]], shares: Sequence[Float64], prices: Float64
) -> Iterator[tuple[int, ...]]:
    """Yield growing sets: each time the member joins whose gain in mean score is highest for its price."""
    chosen: list[int] = []
    totals = [np.zeros(answers.shape[1:]) for answers, _ in tasks]
    now = 0.0
    while len(chosen) < len(prices):
        left = [member for member in range(len(prices)) if member not in chosen]
        scores = np.zeros(len(left))
        for (answers, truth), total, share in zip(tasks, totals, shares, strict=True):
            scores += [truth.score(normalize(total + part)) for part in _parts(answers, left, share)]
        gains = scores / len(tasks) - now
        # A loss is no better for being dear.
        worth = np.where(gains > 0, gains / prices[left], gains * prices[left])
        chosen.append(left[int(worth.argmax())])
        now += float(gains[worth.argmax()])
        for (answers, _), total, share in zip(tasks, totals, shares, strict=True):
            np.add(total, next(_parts(answers, chosen[-1:], share)), out=total)
        yield tuple(chosen)


def _parts(answers: Answers, members: Sequence[int], share: Float64) -> Iterator[Float64]:
    """Yield what members add to the base rule's pool before it is normalised, each [rows, classes]."""
    for member, part in zip(members, answers.select(members).members(), strict=True):
        yield share[member] * np.maximum(part, LOG_OF_NOUGHT)


def _score(tasks: Sequence[tuple[Answers, Truth]], members: Sequence[int]) -> float:
    return 100 * float(
        np.mean([truth.score(held_out(answers.select(members), truth, method=RULE)) for answers, truth in tasks])
    )


def _fronts(one: Choice, scored: Sequence[Choice]) -> Iterator[str]:
    for price in PRICES.values():
        paid = getattr(one.cost, price)
        others = [(getattr(other.cost, price), other.score) for other in scored]
        if not any(
            (cost <= paid and score > one.score) or (cost < paid and score >= one.score) for cost, score in others
        ):
            yield price
