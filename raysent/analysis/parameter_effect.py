"""A metric against one setting of runs that else are alike: size, bits, lambda_sp, deterministic or stochastic bits.

In: runs, or a sweep, and a dotted name. Out: per value of it the mean and the spread over runs, as over seeds.

Source: Logeswaran and Lee, 2018, table 9 (size, with hours); Shen et al., 2019, figures 2 and 3, table 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysent.analysis.efficiency import RunFacts, metric_mode, metric_of, runs_of
from raysent.analysis.files import Analysis
from raysent.config import StrictModel, get_dotted
from raysent.errors import ConfigError, did_you_mean
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import costs_of, expand

Value = bool | int | float | str | None


class Setting(StrictModel):
    """A run with its value of the name.

    Attributes:
        run: Its name.
        value: Of the name that is varied.
        series: Of the name that tells lines apart, as text; empty where there is none.
        score: The metric.
        num_parameters: Numbers in the model's file.
        training_hours: Wall clock; None where nobody wrote it down.
    """

    run: str
    value: Value
    series: str
    score: float
    num_parameters: int | None
    training_hours: float | None


class ParameterEffect(Analysis):
    """A metric against one setting.

    Attributes:
        parameter: The dotted name that is varied.
        by: The dotted name that tells lines apart; empty for a single line.
        metric: What is compared, as `downstream` or `test on MR, TREC (fast)`.
        mode: `max` or `min`.
        settings: The runs.
        also_varied: Further names whose values differ between the runs, but the seed's.
    """

    parameter: str
    by: str
    metric: str
    mode: str
    settings: tuple[Setting, ...]
    also_varied: tuple[str, ...]

    @property
    def name(self) -> str:
        """The names and the metric."""
        return " ".join(part for part in (self.parameter, self.by, self.metric) if part)


class Group(StrictModel):
    """The runs of one value.

    Attributes:
        value: The value.
        series: The line it is on.
        num_runs: How many.
        mean: Of their metric.
        spread: Standard deviation of one run; None of a single one.
        num_parameters: The mean of those known.
        training_hours: The mean of those known.
    """

    value: Value
    series: str
    num_runs: int
    mean: float
    spread: float | None
    num_parameters: float | None
    training_hours: float | None


def compare_values(
    names: Sequence[str | Path],
    parameter: str,
    *,
    by: str = "",
    metric: str | None = None,
    tasks: Sequence[str] = (),
    evaluator: Evaluator | None = None,
) -> ParameterEffect:
    """Return a metric against one setting.

    Args:
        names: Folders of runs, or of sweeps, which stand for their trained trials.
        parameter: The dotted name that is varied, as `encoder.hidden_size`.
        by: A second one, whose values are drawn as lines of their own.
        metric: A metric of validation; by default `downstream`, or else the first that all runs report.
        tasks: Where given, the mean test score over these tasks is compared instead.
        evaluator: Evaluates the tasks; needed for `tasks`.

    Raises:
        ConfigError: If no run has a setting of that name, or the runs have no such metric in common.
        ArtifactError: If a folder is no trained run.
    """
    runs = runs_of(names)
    values = [_value(run, parameter) for run in runs]
    _check_varied(runs, values, parameter)
    if tasks and evaluator is not None:
        scores, told, mode = _test_scores(runs, tasks, evaluator), _told(tasks, evaluator.protocol), "max"
    else:
        told = metric_of(runs, metric)
        scores, mode = [_last(run, told) for run in runs], metric_mode(told)
    costs = [costs_of(run.path) for run in runs]
    settings = [
        Setting(
            run=run.name,
            value=value,
            series=str(_value(run, by)) if by else "",
            score=score,
            num_parameters=cost.num_parameters,
            training_hours=cost.training_hours,
        )
        for run, value, score, cost in zip(runs, values, scores, costs, strict=True)
    ]
    return ParameterEffect(
        parameter=parameter,
        by=by,
        metric=told,
        mode=mode,
        settings=tuple(settings),
        also_varied=_also_varied(runs, known=(parameter, by, "seed")),
    )


def grouped(effect: ParameterEffect) -> list[Group]:
    """Return the runs by line and value, numbers in their order."""
    found: dict[tuple[str, Value], list[Setting]] = {}
    for setting in effect.settings:
        found.setdefault((setting.series, setting.value), []).append(setting)
    groups = [_group(series, value, settings) for (series, value), settings in found.items()]
    return sorted(groups, key=lambda group: (group.series, *_order(group.value)))


def _group(series: str, value: Value, settings: Sequence[Setting]) -> Group:
    scores = np.array([setting.score for setting in settings])
    return Group(
        value=value,
        series=series,
        num_runs=len(scores),
        mean=float(scores.mean()),
        spread=float(scores.std(ddof=1)) if len(scores) > 1 else None,
        num_parameters=_mean([setting.num_parameters for setting in settings]),
        training_hours=_mean([setting.training_hours for setting in settings]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _order(value: Value) -> tuple[bool, float, str]:
    """Return a place: numbers first and by size, then words."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not is_number, float(value) if is_number else 0.0, str(value))  # type: ignore[arg-type]


def _value(run: RunFacts, name: str) -> Value:
    """Return a run's setting; None where the name does not apply to it.

    Raises:
        ConfigError: If the name is that of a whole part.
    """
    value = get_dotted(run.config, name)
    if isinstance(value, dict | list):
        inside = f"; name one inside, as {name}.{next(iter(value))}" if isinstance(value, dict) and value else ""
        raise ConfigError(f"{name}: must be a single setting; given a whole part{inside}")
    return value  # type: ignore[no-any-return]


def _check_varied(runs: Sequence[RunFacts], values: Sequence[Value], name: str) -> None:
    if any(value is not None for value in values):
        return
    known = {place for run in runs for place in _flat(run.config)}
    raise ConfigError(f"{name}: none of the runs has such a setting{did_you_mean(name, known)}")


def _also_varied(runs: Sequence[RunFacts], *, known: Sequence[str]) -> tuple[str, ...]:
    """Return the dotted names, but the known, whose values differ between the runs that have them."""
    values: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in _flat(run.config).items():
            values.setdefault(name, []).append(value)
    names = sorted(set(values) - set(known))
    return tuple(name for name in names if any(value != values[name][0] for value in values[name]))


def _flat(values: dict[str, Any], at: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{at}{key}"
        found.update(_flat(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return found


def _last(run: RunFacts, metric: str) -> float:
    series = run.series(metric)
    if not series:
        raise ConfigError(f"--metric {metric}: {run.path} reports no number for it; name another metric or run")
    return series[-1][1]


def _told(tasks: Sequence[str], protocol: str) -> str:
    return f"test on {', '.join(tasks)} ({protocol})"


def _test_scores(runs: Sequence[RunFacts], tasks: Sequence[str], evaluator: Evaluator) -> list[float]:
    """Return the mean test score over tasks of each run."""
    found = evaluator.records(expand([run.path for run in runs]), tasks)
    return [float(np.mean([record.test for record in records])) for records in found.values()]
