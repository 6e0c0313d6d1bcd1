"""A metric against one setting of runs that are otherwise alike, such as a size or a number of bits.

For each value of the setting: mean and standard deviation of the metric over its runs, e.g. over seeds.

Source: Logeswaran and Lee, 2018, table 9 (size, with hours); Shen et al., 2019, figures 2 and 3, table 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from raysent.config import StrictModel, dotted_values, get_dotted
from raysent.errors import ConfigError, did_you_mean
from raysent.evaluation.costs import costs_of
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.protocols import protocol_name
from raysent.evaluation.task import PROBED
from raysent.evaluation.tasks import resolve_tasks
from raysent.report.analyses import Analysis, Request
from raysent.report.analyses.efficiency import TrainedRun, choose_metric, metric_mode, trained_runs
from raysent.report.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Note,
    Section,
    Table,
    column_kind,
    hours_cell,
    label,
    number,
    significant,
    text_of,
    whole,
)
from raysent.report.figures import PALETTE, figure
from raysent.report.parameters import Parameter, scale_of

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


@dataclass(frozen=True)
class SettingGroup:
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

    SECTION: ClassVar = Section(
        "settings",
        "Effect of a setting",
        "Points are runs, lines join the means of each value. Whiskers are the standard deviation over the runs of a "
        "value, for example over seeds.",
    )
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

    def blocks(self) -> list[Block]:
        """Return the runs and the means of each value."""
        groups = self.groups()
        blocks: list[Block] = [self._figure(groups), self._table(groups)]
        if self.also_varied:
            blocks.append(Note(f"The runs also differ in {', '.join(self.also_varied)}, which affects the means."))
        return blocks

    def _figure(self, groups: Sequence[SettingGroup]) -> Figure:
        values = tuple(setting.value for setting in self.settings)
        axis = Parameter(self.parameter, scale_of(values), values)
        at = dict(zip(map(text_of, values), axis.coordinates().tolist(), strict=True))
        ticks, texts = axis.ticks()
        traces = []
        for place, series in enumerate(dict.fromkeys(group.series for group in groups)):
            color = PALETTE[place % len(PALETTE)]
            runs = [setting for setting in self.settings if setting.series == series]
            means = [group for group in groups if group.series == series]
            traces += [_runs(runs, at, color), _means(means, at, color, is_ordered=axis.scale != "category")]
        return figure(
            traces,
            height=380,
            label=f"{self.metric} against {self.parameter} over {len(self.settings)} runs.",
            title=f"{self.metric} against {self.parameter}",
            caption=f"One line per {self.by}." if self.by else "",
            showlegend=bool(self.by),
            xaxis_title_text=label(self.parameter),
            xaxis_tickvals=ticks,
            xaxis_ticktext=[label(text) for text in texts],
            yaxis_title_text=label(self.metric),
        )

    def _table(self, groups: Sequence[SettingGroup]) -> Table:
        best = (max if self.mode == "max" else min)(group.mean for group in groups)
        has_hours = any(group.training_hours is not None for group in groups)
        columns = [
            *([Column(self.by)] if self.by else []),
            Column(self.parameter, column_kind([group.value for group in groups])),
            Column("runs", "number"),
            Column("mean", "number", self.metric),
            Column("std", "number", "standard deviation over runs"),
            Column("parameters", "number", "numbers in the model's file, word vectors included"),
            *([Column("trained", "number")] if has_hours else []),
        ]
        rows = [
            [
                *([Cell(group.series)] if self.by else []),
                Cell(text_of(group.value), number(group.value)),
                Cell(str(group.num_runs), group.num_runs),
                Cell(significant(group.mean), group.mean, mark="best" if group.mean == best else ""),
                Cell(significant(group.spread, 2), group.spread),
                Cell(whole(group.num_parameters), group.num_parameters),
                *([hours_cell(group.training_hours)] if has_hours else []),
            ]
            for group in groups
        ]
        return Table(columns, rows)


def _runs(settings: Sequence[Setting], at: Mapping[str, float], color: str) -> Any:
    return go.Scatter(
        x=[at[text_of(setting.value)] for setting in settings],
        y=[setting.score for setting in settings],
        text=[label(setting.run) for setting in settings],
        mode="markers",
        marker={"size": 6, "color": color, "opacity": 0.45},
        showlegend=False,
        hovertemplate="%{text}: %{y:.4g}<extra></extra>",
    )


def _means(groups: Sequence[SettingGroup], at: Mapping[str, float], color: str, *, is_ordered: bool) -> Any:
    """Return the means of a series; a line joins them if the values have an order."""
    return go.Scatter(
        x=[at[text_of(group.value)] for group in groups],
        y=[group.mean for group in groups],
        name=label(groups[0].series),
        mode="lines+markers" if is_ordered else "markers",
        marker={"size": 11, "color": color, "symbol": "line-ew-open", "line": {"width": 2}},
        line={"color": color, "width": 2},
        error_y={"type": "data", "array": [group.spread or 0.0 for group in groups], "color": color, "width": 5},
        customdata=[group.num_runs for group in groups],
        hovertemplate="mean %{y:.4g} of %{customdata}<extra></extra>",
    )


class ParameterRequest(Request):
    """A metric of runs between the values of one setting.

    Attributes:
        setting: The dotted name of the setting, such as `encoder.hidden_size`.
        by: A second setting; each of its values gets a line.
        metric: A validation metric; by default `downstream`, or else the first that all runs report. With tasks, the
            mean test score over these is compared instead.
        protocol: The evaluation protocol of the tasks.
    """

    RESULT: ClassVar = ParameterEffect
    setting: str
    by: str = ""
    metric: str | None = None
    protocol: str = "fast"

    def compute(
        self, models: Sequence[str | Path], tasks: Sequence[str] | None, evaluator: Evaluator
    ) -> list[ParameterEffect]:
        """Return the metric of runs, or of the trained trials of sweeps, against the setting."""
        runs = trained_runs(models)
        values = [_value(run, self.setting) for run in runs]
        _check_varied(runs, values, self.setting)
        if tasks is not None:
            evaluator = replace(evaluator, protocol=protocol_name(self.protocol))
            chosen = resolve_tasks(tasks, evaluator.data_dir, scorings=PROBED)
            records = evaluator.records(expand([run.path for run in runs]), chosen)
            scores = [float(np.mean([record.test for record in found])) for found in records.values()]
            metric = f"test on {', '.join(task.name for task in chosen)} ({evaluator.protocol})"
            mode = "max"
        else:
            metric = choose_metric(runs, self.metric)
            scores, mode = [run.series(metric)[-1][1] for run in runs], metric_mode(metric)
        costs = [costs_of(run.path) for run in runs]
        settings = tuple(
            Setting(
                run=run.name,
                value=value,
                series=str(_value(run, self.by)) if self.by else "",
                score=score,
                num_parameters=cost.num_parameters,
                training_hours=cost.training_hours,
            )
            for run, value, score, cost in zip(runs, values, scores, costs, strict=True)
        )
        also_varied = _also_varied(runs, known=(self.setting, self.by, "seed"))
        return [
            ParameterEffect(
                parameter=self.setting,
                by=self.by,
                metric=metric,
                mode=mode,
                settings=settings,
                also_varied=also_varied,
            )
        ]


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
    known = {dotted for run in runs for dotted, _ in dotted_values(run.config)}
    raise ConfigError(f"{name}: none of the runs has such a setting{did_you_mean(name, known)}")


def _also_varied(runs: Sequence[TrainedRun], *, known: Sequence[str]) -> tuple[str, ...]:
    """Return the dotted names, except the known ones, whose values differ between the runs that have them."""
    values: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in dotted_values(run.config):
            values.setdefault(name, []).append(value)
    names = sorted(set(values) - set(known))
    return tuple(name for name in names if any(value != values[name][0] for value in values[name]))


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


REQUESTS = {"parameter": ParameterRequest}
