"""Which models are members: what members cost, subsets on the front of score against cost, and greedy selection.

Subsets: members are added one by one on three paths: always the one that raises the score most, most per millisecond,
or most per byte. Every subset on these paths, and every single member, is scored by the base rule out of fold. A subset
is on the front of a cost if no other one scores higher for the same cost, or the same for less.

Greedy selection: members are added one by one, each time the one that lowers the NLL of the equally weighted
logarithmic pool most, in the mean over tasks. The choice within a fold reads only the fold's rows of its own task, so
cross-validated and test scores cover it.

Source: Caruana, Niculescu-Mizil, Crew and Ksikes, 2004.
Differs: a member is taken once, so that the number of members is the one asked for; the pool is logarithmic, as that of
the method that weights them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raysent.config import StrictModel
from raysent.ensembles.cross_fitting import Select, held_out
from raysent.ensembles.pools import LOG_ZERO, normalize, normalized_weights
from raysent.ensembles.predictions import MemberPredictions
from raysent.ensembles.task_ensemble import fold_predictions, validation_predictions
from raysent.errors import ConfigError
from raysent.evaluation.baselines import LEXICAL
from raysent.evaluation.costs import Costs, costs_of
from raysent.evaluation.members import Member
from raysent.evaluation.records import Record
from raysent.evaluation.targets import Float64, Int64, Targets
from raysent.models.schemes import find_scheme, split_path

# The method that scores subsets.
RULE = "validation"
# The costs of using an ensemble: attribute of `MemberCost` -> the option that limits it.
OPTIONS: Mapping[str, str] = {"encode_ms": "max_ms", "num_bytes": "max_bytes"}
_SMALLEST_COST = 1e-9
_SECONDS_PER_HOUR = 3600.0


class MemberCost(StrictModel):
    """The cost of a member, or of several together.

    Attributes:
        encode_ms: Milliseconds to encode 1,000 sentences, on the machine that evaluated it.
        num_bytes: Size of the model's files; of TF-IDF, of its words and their weights; 0 for random word vectors.
        training_s: Seconds of training and validation; None if unknown.
    """

    encode_ms: float
    num_bytes: int
    training_s: float | None


class MemberSubset(MemberCost):
    """Some of the members, which could be the ensemble, and their cost together.

    Attributes:
        members: Names, in the order in which they were added.
        score: Cross-validated score by the base rule, in percent, the mean over tasks.
        fronts: The costs on whose front it is, as attributes of `MemberCost`.
    """

    members: tuple[str, ...]
    score: float
    fronts: tuple[str, ...]


@dataclass(frozen=True)
class CostLimits:
    """The most that all members together may cost; None for no limit.

    Attributes:
        encode_ms: Milliseconds to encode 1,000 sentences.
        num_bytes: Size of the models' files.
    """

    encode_ms: float | None = None
    num_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse a negative limit.

        Raises:
            ConfigError: With the option that sets it.
        """
        for cost, limit in self.given.items():
            if not limit >= 0:
                raise ConfigError(f"{OPTIONS[cost]} {limit:g}: must be at least 0")

    @property
    def given(self) -> dict[str, float]:
        """The limits that are not None, by attribute of `MemberCost`."""
        return {cost: limit for cost in OPTIONS if (limit := getattr(self, cost)) is not None}


def member_cost(member: Member, records: Sequence[Record]) -> MemberCost:
    """Return a member's cost; the time to encode is the median over its records, which measured it."""
    per_thousand = []
    for record in records:
        num_sentences = len(record.labels) * (1 if record.kind == "sentence" else 2)
        seconds = record.about["seconds"]
        # Records of earlier versions timed the first use of a model.
        first_use = 1e6 * float(seconds["encode_s"]) / num_sentences
        per_thousand.append(float(seconds.get("encode_ms_per_1000", first_use)))
    encode_ms = float(np.median(per_thousand))
    found = find_scheme(member.path)
    if found is not None and hasattr(found[0], "num_bytes"):  # pretrained elsewhere, for an unknown time
        return MemberCost(encode_ms=encode_ms, num_bytes=found[0].num_bytes(found[1]), training_s=None)
    if member.path in LEXICAL:  # fitted on every task
        known = sum((Costs(**record.about["costs"]) for record in records), Costs(0, 0, 0.0))
    elif found is not None:
        place = split_path(member.path)[1]
        known = replace(Costs(num_bytes=0) if place is None else costs_of(Path(place)), training_hours=0.0)
    else:
        known = costs_of(Path(member.path))
    training_s = None if known.training_hours is None else known.training_hours * _SECONDS_PER_HOUR
    return MemberCost(encode_ms=encode_ms, num_bytes=known.num_bytes or 0, training_s=training_s)


def total_cost(costs: Sequence[MemberCost]) -> MemberCost:
    """Return the cost of members together; training is unknown if it is unknown for one of them."""
    training = [cost.training_s for cost in costs]
    known = [value for value in training if value is not None]
    return MemberCost(
        encode_ms=sum(cost.encode_ms for cost in costs),
        num_bytes=sum(cost.num_bytes for cost in costs),
        training_s=sum(known) if len(known) == len(training) else None,
    )


def find_subsets(
    tasks: Sequence[tuple[MemberPredictions, Targets]], costs: Mapping[str, MemberCost]
) -> tuple[MemberSubset, ...]:
    """Return the subsets on the three paths and the single members, by rising time to encode.

    Args:
        tasks: Per task the members' predictions and the targets, of rows that trained no member's probe.
        costs: Each member's name and cost, in the order of the predictions.
    """
    names, values = list(costs), list(costs.values())
    weights = [normalized_weights(predictions.member_scores(targets)) for predictions, targets in tasks]
    found: dict[tuple[int, ...], None] = {(member,): None for member in range(len(names))}
    for cost in (None, *OPTIONS):
        of_members = np.ones(len(names)) if cost is None else np.array([getattr(value, cost) for value in values])
        found.update(dict.fromkeys(_path(tasks, weights, np.maximum(of_members, _SMALLEST_COST))))
    distinct = {frozenset(members): members for members in reversed(found)}
    scored = [
        MemberSubset(
            **total_cost([values[member] for member in members]).model_dump(),
            members=tuple(names[member] for member in members),
            score=_score(tasks, members),
            fronts=(),
        )
        for members in distinct.values()
    ]
    scored.sort(key=lambda subset: (subset.encode_ms, subset.num_bytes, -subset.score))
    return tuple(subset.model_copy(update={"fronts": tuple(_fronts(subset, scored))}) for subset in scored)


def best_within(subsets: Sequence[MemberSubset], limits: CostLimits) -> MemberSubset:
    """Return the subset of the highest score within limits, the first of equals.

    Args:
        subsets: What `find_subsets` returned.
        limits: The most that the members together may cost.

    Raises:
        ConfigError: If not a single member is within the limits.
    """
    given = limits.given
    within = [one for one in subsets if all(getattr(one, cost) <= limit for cost, limit in given.items())]
    if within:
        return max(within, key=lambda subset: subset.score)
    options = " ".join(f"{OPTIONS[cost]} {limit:g}" for cost, limit in given.items())
    cheapest = "; ".join(_cheapest(subsets, cost) for cost in given)
    raise ConfigError(f"{options}: at least one member must be within it; {cheapest}; raise it")


def _cheapest(subsets: Sequence[MemberSubset], cost: str) -> str:
    one = min((subset for subset in subsets if len(subset.members) == 1), key=lambda subset: getattr(subset, cost))
    return f"'{one.members[0]}' has the least, {getattr(one, cost):,.6g}"


def _path(
    tasks: Sequence[tuple[MemberPredictions, Targets]], weights: Sequence[Float64], costs: Float64
) -> Iterator[tuple[int, ...]]:
    """Yield growing subsets: each adds the member whose gain in mean score is highest for its cost."""
    chosen: list[int] = []
    totals = [np.zeros(predictions.shape[1:]) for predictions, _ in tasks]
    score = 0.0
    while len(chosen) < len(costs):
        left = [member for member in range(len(costs)) if member not in chosen]
        scores = np.zeros(len(left))
        for (predictions, targets), total, weight in zip(tasks, totals, weights, strict=True):
            scores += [targets.score(normalize(total + part)) for part in _parts(predictions, left, weight)]
        gains = scores / len(tasks) - score
        # A loss multiplies by the cost: dividing would favour expensive members.
        worth = np.where(gains > 0, gains / costs[left], gains * costs[left])
        chosen.append(left[int(worth.argmax())])
        score += float(gains[worth.argmax()])
        for (predictions, _), total, weight in zip(tasks, totals, weights, strict=True):
            np.add(total, next(_parts(predictions, chosen[-1:], weight)), out=total)
        yield tuple(chosen)


def _parts(predictions: MemberPredictions, members: Sequence[int], weights: Float64) -> Iterator[Float64]:
    """Yield each member's term of the base rule's pool before it is normalised, [rows, classes]."""
    for member, part in zip(members, predictions.select(members).members(), strict=True):
        yield weights[member] * np.maximum(part, LOG_ZERO)


def _score(tasks: Sequence[tuple[MemberPredictions, Targets]], members: Sequence[int]) -> float:
    return 100 * float(
        np.mean(
            [
                targets.score(held_out(predictions.select(members), targets, method=RULE))
                for predictions, targets in tasks
            ]
        )
    )


def _fronts(one: MemberSubset, subsets: Sequence[MemberSubset]) -> Iterator[str]:
    for cost in OPTIONS:
        paid = getattr(one, cost)
        others = [(getattr(other, cost), other.score) for other in subsets]
        if not any(
            (other <= paid and score > one.score) or (other < paid and score >= one.score) for other, score in others
        ):
            yield cost


class GreedySelection:
    """The selection of some members on several tasks."""

    def __init__(self, records: Sequence[Sequence[Record]], *, size: int) -> None:
        """Prepare the selection.

        Args:
            records: The members' records [tasks][members], in the members' order.
            size: Members to select, at most all.
        """
        self._records = records
        self._size = min(size, len(records[0]))
        self._whole = [_Losses(*validation_predictions(of_task)) for of_task in records]
        self._of_folds: dict[tuple[int, int], _Losses] = {}

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The members that are selected on all rows with a validation prediction, in the order of selection."""
        return self._select([(losses, None) for losses in self._whole])

    def within(self, task: int, fold: int) -> Select:
        """Return the selection that reads only some validation rows of an outer fold of a task.

        Args:
            task: The task's place. All validation rows of the other tasks are read.
            fold: The outer fold's place.
        """
        if (task, fold) not in self._of_folds:
            self._of_folds[task, fold] = _Losses(*fold_predictions(self._records[task], fold))
        return partial(self._select_within, task, self._of_folds[task, fold])

    def _select_within(self, task: int, losses: _Losses, rows: Int64) -> tuple[int, ...]:
        others = [(one, None) for place, one in enumerate(self._whole) if place != task]
        return self._select([(losses, rows), *others])

    def _select(self, tasks: Sequence[tuple[_Losses, Int64 | None]]) -> tuple[int, ...]:
        chosen: tuple[int, ...] = ()
        while len(chosen) < self._size:
            left = [member for member in range(len(self._records[0])) if member not in chosen]
            means = [np.mean([losses.mean((*chosen, member), rows) for losses, rows in tasks]) for member in left]
            chosen = (*chosen, left[int(np.argmin(means))])
        return chosen


class _Losses:
    """The NLL of pools of some members on each row, computed once for each set of members."""

    def __init__(self, predictions: MemberPredictions, targets: Targets) -> None:
        self._predictions, self._labels = predictions, targets.labels
        self._known: dict[frozenset[int], npt.NDArray[np.float32]] = {}

    def mean(self, members: Sequence[int], rows: Int64 | None) -> float:
        """Return the mean NLL of the pool on rows; on all rows for None."""
        key = frozenset(members)
        if key not in self._known:
            self._known[key] = self._losses(sorted(key)).astype(np.float32)
        losses = self._known[key]
        return float((losses if rows is None else losses[rows]).mean(dtype=np.float64))

    def _losses(self, members: Sequence[int]) -> Float64:
        total = sum(np.maximum(part, LOG_ZERO) for part in self._predictions.select(members).members())
        pooled = normalize(np.asarray(total) / len(members))
        losses: Float64 = -pooled[np.arange(len(pooled)), self._labels]
        return losses
