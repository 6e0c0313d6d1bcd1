"""`ensemble.json` beyond the scores: every method's honest figures, calibration, diversity, costs.

Whatever is missing is empty, so that a file of an earlier version still gives the rest of the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysent.report.blocks import number

Interval = tuple[float, float]
# Mean confidence, share of right rows, number of rows.
Bin = tuple[float, float, int]


@dataclass(frozen=True)
class Honest:
    """Figures of one way to answer, the means over tasks.

    Attributes:
        cross_fitted: The score of rows answered by fits on others, in percent, with its interval.
        optimism: Points by which the rows fitted on flatter it.
        measures: NLL and the like by name, with intervals.
    """

    cross_fitted: float | None
    interval: Interval | None
    optimism: float | None
    measures: Mapping[str, tuple[float | None, Interval | None]]


@dataclass(frozen=True)
class Choice:
    """A set of members that might have been the ensemble, what it costs and what it scores."""

    members: tuple[str, ...]
    encode_ms: float | None
    num_bytes: float | None
    score: float | None
    fronts: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """What one member costs and adds.

    Attributes:
        encode_ms: Milliseconds per 1,000 sentences.
        num_bytes: Size of its files.
        training_s: Seconds of its training.
        contribution: Points of cross-fitted score that are lost without it, the mean over tasks.
    """

    encode_ms: float | None
    num_bytes: float | None
    training_s: float | None
    contribution: float | None


@dataclass(frozen=True)
class Details:
    """What `ensemble.json` tells beyond the scores.

    Attributes:
        honest: Way to answer -> its figures.
        reliability: Task -> way to answer -> bins by rising confidence.
        members: Member -> what it costs and adds.
        correlations: Task -> correlations of members' errors, [members][members].
        ambiguity: Task -> nats by which the pool is better than its members' mean.
        choices: Sets of members, by rising time to encode.
    """

    honest: Mapping[str, Honest]
    reliability: Mapping[str, Mapping[str, tuple[Bin, ...]]]
    members: Mapping[str, Member]
    correlations: Mapping[str, tuple[tuple[float | None, ...], ...]]
    ambiguity: Mapping[str, float | None]
    choices: tuple[Choice, ...]


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def interval(value: Any) -> Interval | None:
    """Return the two ends of an interval, or None."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else (low, high)


def details_of(values: Mapping[str, Any]) -> Details:
    """Return the details of the values of `ensemble.json`."""
    tasks = {task: mapping(found) for task, found in mapping(values.get("tasks")).items()}
    scores = mapping(mapping(values.get("mean")).get("scores"))
    diversity = {task: mapping(found.get("diversity")) for task, found in tasks.items()}
    names = [str(name) for name in values.get("members", [])]
    return Details(
        honest={name: _honest(mapping(found)) for name, found in scores.items() if "cross_fitted" in mapping(found)},
        reliability={task: _reliability(mapping(found.get("scores"))) for task, found in tasks.items()},
        members={name: _member(name, values, diversity) for name in names},
        correlations={task: _table(found.get("error_correlations")) for task, found in diversity.items()},
        ambiguity={task: number(found.get("ambiguity")) for task, found in diversity.items()},
        choices=tuple(_choice(mapping(found)) for found in values.get("choices", [])),
    )


def _honest(found: Mapping[str, Any]) -> Honest:
    cross_fitted = mapping(found.get("cross_fitted"))
    measures = {name: mapping(value) for name, value in mapping(found.get("measures")).items()}
    return Honest(
        number(cross_fitted.get("value")),
        interval(cross_fitted.get("interval")),
        number(found.get("optimism")),
        {name: (number(value.get("value")), interval(value.get("interval"))) for name, value in measures.items()},
    )


def _reliability(scores: Mapping[str, Any]) -> dict[str, tuple[Bin, ...]]:
    found = {}
    for name, score in scores.items():
        rows = mapping(score).get("reliability") or []
        found[name] = tuple((float(mean), float(share), int(rows)) for mean, share, rows in rows)
    return found


def _member(name: str, values: Mapping[str, Any], diversity: Mapping[str, Mapping[str, Any]]) -> Member:
    cost = mapping(mapping(values.get("costs")).get(name))
    lost = [number(mapping(found.get("contributions")).get(name)) for found in diversity.values()]
    known = [value for value in lost if value is not None]
    return Member(
        number(cost.get("encode_ms")),
        number(cost.get("num_bytes")),
        number(cost.get("training_s")),
        sum(known) / len(known) if known and len(known) == len(lost) else None,
    )


def _table(rows: Any) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(number(value) for value in row) for row in rows or [])


def _choice(found: Mapping[str, Any]) -> Choice:
    return Choice(
        tuple(map(str, found.get("members", []))),
        number(found.get("encode_ms")),
        number(found.get("num_bytes")),
        number(found.get("score")),
        tuple(map(str, found.get("fronts", []))),
    )
