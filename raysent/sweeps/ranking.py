"""Which trial of a sweep is best, answered once: for tables, the live view, the report, the ensemble and the simulator.

Trials with the same parameters and different seeds are one configuration, worth the median of its trials. From best to
worst:

1. configurations with a value of which no trial was outranked or broke,
2. other configurations with a value,
3. trials that failed or diverged,
4. trials without a value.

A trial is outranked where the scheduler stopped it: others were better at the same report. A clock or a budget says
nothing of a trial, which counts with the value of the model that it has left; so does one that still runs.

Within a group the better median comes first, of equal ones the lower trial number. Within a configuration trials that
were not outranked come first, and of those the nearest to the median: it represents the configuration, not the luckiest
seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from raysent.sweeps.space import SearchSpace
from raysent.sweeps.trial import BROKEN, Trial

Mode = Literal["max", "min"]


@dataclass(frozen=True)
class TrialResult:
    """What the ranking reads of a trial.

    Attributes:
        name: The trial's name.
        number: Its number, from 0.
        status: Its status, as in the journal.
        value: The metric's last value; None or NaN where there is none.
        first: The number of the first trial with the same parameters; the trial's own where each has one seed.
        is_outranked: Whether the scheduler stopped it.
    """

    name: str
    number: int
    status: str
    value: float | None
    first: int
    is_outranked: bool = False

    @property
    def has_value(self) -> bool:
        """Whether the value is a number."""
        return self.value is not None and math.isfinite(self.value)


def rank(results: Iterable[TrialResult], *, mode: Mode) -> list[TrialResult]:
    """Return the trials from best to worst.

    Args:
        results: The trials, in any order.
        mode: Whether a greater (`max`) or a smaller (`min`) value is better.
    """
    sign = -1.0 if mode == "max" else 1.0
    places = [
        place
        for configuration in _configurations(results)
        for place in _places(configuration, sign=sign)
    ]
    return [result for _, result in sorted(places, key=lambda one: one[0])]


def median_value(configuration: Iterable[TrialResult]) -> float | None:
    """Return the median value of the trials of one configuration; None where none counts."""
    values = [
        result.value for result in configuration if _counts(result) and result.value is not None
    ]
    return median(values) if values else None


def result_of(space: SearchSpace, trial: Trial) -> TrialResult:
    """Return what the ranking reads of a trial of a space."""
    first = first_number(trial.number, num_seeds=space.limits.seeds)
    value = trial.metrics.get(space.metric)
    return TrialResult(trial.name, trial.number, trial.status, value, first, trial.is_outranked)


def median_values(space: SearchSpace, trials: Iterable[Trial]) -> dict[str, float | None]:
    """Return the median value of each trial's configuration by the trial's name; None where none counts."""
    found: dict[str, float | None] = {}
    for configuration in _configurations(result_of(space, trial) for trial in trials):
        found.update(
            dict.fromkeys((result.name for result in configuration), median_value(configuration))
        )
    return found


def rank_trials(space: SearchSpace, trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials of a space from best to worst."""
    by_name = {trial.name: trial for trial in trials}
    ranked = rank((result_of(space, trial) for trial in by_name.values()), mode=space.mode)
    return [by_name[result.name] for result in ranked]


def best_trial(space: SearchSpace, trials: Iterable[Trial]) -> Trial | None:
    """Return the best trial of a space that has a value and neither failed nor diverged, or None."""
    first = next(iter(rank_trials(space, trials)), None)
    return first if first is not None and _counts(result_of(space, first)) else None


def first_number(number: int, *, num_seeds: int) -> int:
    """Return the number of the first trial with the parameters of trial `number`."""
    return number - number % num_seeds


def select_members(
    space: SearchSpace, trials: Sequence[Trial], *, num_members: int | None = None
) -> list[Trial]:
    """Return the trials that may join an ensemble, best first: one of each configuration.

    The best trial of each value of the parameter `evaluation.stratify_by` is taken first, so that every kind of
    encoder is a member; then the next best of all. Where the space has kinds of which one each is kept, that is the
    best that finished, if one did.

    Args:
        space: Gives the metric and `evaluation`.
        trials: The sweep's trials.
        num_members: How many; None for `evaluation.members`; at least one for each value of that parameter.
    """
    by_configuration: dict[int, Trial] = {}
    for trial in rank_trials(space, trials):
        # One that diverged has left its best model.
        if (
            trial.status in ("finished", "stopped", "nan")
            and (result := result_of(space, trial)).has_value
        ):
            by_configuration.setdefault(result.first, trial)
    candidates = list(by_configuration.values())
    by_stratum: dict[str, Trial] = {}
    if space.evaluation.stratify_by is not None:
        for trial in _by_end(candidates) if space.kinds else candidates:
            by_stratum.setdefault(repr(trial.params.get(space.evaluation.stratify_by)), trial)
    chosen = {trial.number for trial in by_stratum.values()}
    wanted = max(space.evaluation.members if num_members is None else num_members, len(chosen))
    others = [trial.number for trial in candidates if trial.number not in chosen]
    chosen.update(others[: wanted - len(chosen)])
    return [trial for trial in candidates if trial.number in chosen]


def members_of_kinds(space: SearchSpace, members: Iterable[Trial]) -> dict[Any, Trial]:
    """Return the trial of each kind of encoder that is kept, by kind, in the space's order; see `SearchSpace.kinds`.

    Args:
        space: Gives the kinds.
        members: What `select_members` returned, best first.
    """
    ordered = _by_end(members)
    kept = {
        kind: next((trial for trial in ordered if space.kind_of(trial.params) == kind), None)
        for kind in space.kinds
    }
    return {kind: trial for kind, trial in kept.items() if trial is not None}


def _by_end(trials: Iterable[Trial]) -> list[Trial]:
    """Return trials, those that came to their end before the others, in their order otherwise."""
    return sorted(trials, key=lambda trial: trial.status != "finished")


def _configurations(results: Iterable[TrialResult]) -> list[list[TrialResult]]:
    found: dict[int, list[TrialResult]] = {}
    for result in results:
        found.setdefault(result.first, []).append(result)
    return list(found.values())


def _places(
    configuration: Sequence[TrialResult], *, sign: float
) -> Iterator[tuple[tuple[float, ...], TrialResult]]:
    """Yield the trials of a configuration, each with what the ranking sorts by; `sign` makes a smaller value better."""
    middle = median_value(configuration)
    is_sound = not any(result.is_outranked or result.status in BROKEN for result in configuration)
    values = sorted(
        sign * result.value
        for result in configuration
        if _counts(result) and result.value is not None
    )
    for result in configuration:
        value = sign * (result.value or 0.0)
        if not result.has_value:
            yield (3, result.number), result
        elif middle is None or not _counts(result):
            yield (2, value, result.number), result
        else:
            # Positions instead of differences: of two seeds neither is nearer the median, whatever rounding says.
            distance = abs(2 * values.index(value) - (len(values) - 1))
            place = (
                0 if is_sound else 1,
                sign * middle,
                result.first,
                result.is_outranked,
                distance,
                result.number,
            )
            yield place, result


def _counts(result: TrialResult) -> bool:
    return result.has_value and result.status not in BROKEN
