"""A metric against one setting of runs that are otherwise alike, such as a size or a number of bits.

For each value of the setting: mean and standard deviation of the metric over its runs, e.g. over seeds.

Source: Logeswaran and Lee, 2018, table 9 (size, with hours); Shen et al., 2019, figures 2 and 3, table 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysent.analysis.efficiency import TrainedRun, choose_metric, metric_mode, trained_runs
from raysent.analysis.files import Analysis
from raysent.config import StrictModel, get_dotted
from raysent.errors import ConfigError, did_you_mean
from raysent.evaluation.costs import costs_of
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.tasks import find_task

Value = bool | int | float | str | None


class Setting(StrictModel):
    """A run with its value of the setting.

    Attributes:
        run: The run's name.
        value: Of the setting that is varied.
        series: Of the setting that separates lines, as text; empty if there is none.
        score: The metric.
        num_parameters: Size of the model; None if unknown.
        training_hours: Wall clock; None if unknown.
    """

    run: str
    value: Value
    series: str
    score: float
    num_parameters: int | None
    training_hours: float | None


class SettingGroup(StrictModel):
    """The runs with one value.

    Attributes:
        value: The value.
        series: The line that it is on.
        num_runs: The number of runs.
        mean: Of their metric.
        spread: Standard deviation of the metric; None for a single run.
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


class ParameterEffect(Analysis):
    """A metric against one setting.

    Attributes:
        parameter: The dotted name of the setting that is varied.
        by: The dotted name of the setting that separates lines; empty for a single line.
        metric: The metric compared, such as `downstream` or `test on MR, TREC (fast)`.
        mode: `max` or `min`, the direction of better values.
        settings: The runs.
        also_varied: Other settings, except the seed, whose values differ between the runs.
    """

    parameter: str
    by: str
    metric: str
    mode: str
    settings: tuple[Setting, ...]
    also_varied: tuple[str, ...]

    @property
    def name(self) -> str:
        """The settings' names and the metric."""
        return " ".join(part for part in (self.parameter, self.by, self.metric) if part)

    def groups(self) -> list[SettingGroup]:
        """Return the runs by line and value, with numbers in ascending order."""
        found: dict[tuple[str, Value], list[Setting]] = {}
        for setting in self.settings:
            found.setdefault((setting.series, setting.value), []).append(setting)
        groups = [_group(series, value, settings) for (series, value), settings in found.items()]
        return sorted(groups, key=lambda group: (group.series, *_sort_key(group.value)))


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
        parameter: The dotted name of the setting that is varied, such as `encoder.hidden_size`.
        by: A second setting, each value of which is a line of its own.
        metric: A validation metric; by default `downstream`, or else the first that all runs report.
        tasks: If given, compares the mean test score over these tasks instead.
        evaluator: Evaluates the tasks; required with `tasks`.

    Raises:
        ConfigError: If no run has such a setting, or the runs do not have the metric in common.
        ArtifactError: If a folder holds no trained run.
    """
    runs = trained_runs(names)
    values = [_value(run, parameter) for run in runs]
    _check_varied(runs, values, parameter)
    if tasks and evaluator is not None:
        scores, mode = _test_scores(runs, tasks, evaluator), "max"
        chosen = f"test on {', '.join(find_task(task).name for task in tasks)} ({evaluator.protocol})"
    else:
        chosen = choose_metric(runs, metric)
        scores, mode = [run.series(chosen)[-1][1] for run in runs], metric_mode(chosen)
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
        metric=chosen,
        mode=mode,
        settings=tuple(settings),
        also_varied=_also_varied(runs, known=(parameter, by, "seed")),
    )


def _test_scores(runs: Sequence[TrainedRun], tasks: Sequence[str], evaluator: Evaluator) -> list[float]:
    """Return the mean test score over tasks of each run."""
    found = evaluator.records(expand([run.path for run in runs]), tasks)
    return [float(np.mean([record.test for record in records])) for records in found.values()]


def _value(run: TrainedRun, name: str) -> Value:
    """Return a run's value of a setting; None if the run has no such setting.

    Raises:
        ConfigError: If the name is that of a section.
    """
    value = get_dotted(run.config, name)
    if isinstance(value, dict | list):
        inside = f"; name one inside, as {name}.{next(iter(value))}" if isinstance(value, dict) and value else ""
        raise ConfigError(f"{name}: must be a single setting; given a section{inside}")
    return value  # type: ignore[no-any-return]


def _check_varied(runs: Sequence[TrainedRun], values: Sequence[Value], name: str) -> None:
    if any(value is not None for value in values):
        return
    known = {dotted for run in runs for dotted in _flat(run.config)}
    raise ConfigError(f"{name}: none of the runs has such a setting{did_you_mean(name, known)}")


def _also_varied(runs: Sequence[TrainedRun], *, known: Sequence[str]) -> tuple[str, ...]:
    """Return the dotted names, except the known ones, whose values differ between the runs that have them."""
    values: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in _flat(run.config).items():
            values.setdefault(name, []).append(value)
    names = sorted(set(values) - set(known))
    return tuple(name for name in names if any(value != values[name][0] for value in values[name]))


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found.update(_flat(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return found


def _group(series: str, value: Value, settings: Sequence[Setting]) -> SettingGroup:
    scores = np.array([setting.score for setting in settings])
    return SettingGroup(
        value=value,
        series=series,
        num_runs=len(scores),
        mean=float(scores.mean()),
        spread=float(scores.std(ddof=1)) if len(scores) > 1 else None,
        num_parameters=_mean_known([setting.num_parameters for setting in settings]),
        training_hours=_mean_known([setting.training_hours for setting in settings]),
    )


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sort_key(value: Value) -> tuple[bool, float, str]:
    """Return a key that sorts numbers first and by size, then text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not is_number, float(value) if is_number else 0.0, str(value))  # type: ignore[arg-type]
