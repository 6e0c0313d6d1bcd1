"""Score against training time for several runs, and how soon each run reaches the same score.

Source: Logeswaran and Lee, 2018, appendix C and figure 2 (one encoder, two objectives, scores after some hours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import plotly.graph_objects as go

from raysent.config import StrictModel
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.costs import costs_of
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.report.analyses import Analysis, Request
from raysent.report.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Section,
    Table,
    fixed,
    hours_cell,
    label,
    significant,
    text_of,
    whole,
)
from raysent.report.figures import PALETTE, QUIET, RULE, figure, level_line
from raysent.storage import address_of, read_json
from raysent.storage.layout import REPORTS_FILE, RUN_FILE
from raysent.training.outcome import Report, load_reports
from raysent.training.validation import METRICS

# The metric that runs of every objective can report.
DOWNSTREAM = "downstream"
_SECONDS_PER_HOUR = 3600.0
_MINUTES_PER_HOUR = 60.0
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class TrainedRun:
    """The folder of a training.

    Attributes:
        name: Short and unique among the runs compared.
        path: The folder.
    """

    name: str
    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's configuration.

        Raises:
            ArtifactError: If the folder does not hold it.
        """
        path = self.path / RUN_FILE
        values = read_json(path)
        if not isinstance(values, dict) or not isinstance(values.get("config"), dict):
            raise ArtifactError(f"{address_of(path)}: not the record of a run; name folders of trained runs")
        config: dict[str, Any] = values["config"]
        return config

    @cached_property
    def reports(self) -> list[Report]:
        """The run's reports, in order.

        Raises:
            ArtifactError: If the folder holds none.
        """
        found = load_reports(self.path)
        if not found:
            place = address_of(self.path / REPORTS_FILE)
            raise ArtifactError(f"{place}: must hold a run's reports; given none; name folders of trained runs")
        return found

    def series(self, metric: str) -> list[tuple[float, float]]:
        """Return the seconds and the metric of every report that has it, at least one.

        Raises:
            ConfigError: If no report has it as a number.
        """
        values = [(report.seconds, report.metrics.get(metric)) for report in self.reports]
        series = [(seconds, value) for seconds, value in values if isinstance(value, int | float)]
        if not series:
            raise ConfigError(
                f"metric {metric}: {address_of(self.path)} reports no number for it; name another metric or run"
            )
        return series

    @property
    def objective(self) -> str:
        """The objective's name."""
        return str(self.config.get("objective", {}).get("type", ""))


def trained_runs(names: Sequence[str | Path]) -> list[TrainedRun]:
    """Return the runs of folders; a sweep's folder stands for its trained trials."""
    return [TrainedRun(member.name, Path(member.path)) for member in expand(names)]


def choose_metric(runs: Sequence[TrainedRun], metric: str | None = None) -> str:
    """Return the metric to compare runs by: the one given, else `downstream`, else the first that all report.

    Raises:
        ConfigError: If a run does not report the metric given, or the runs have none in common.
    """
    reported = [{name for report in run.reports for name in report.metrics} for run in runs]
    shared = [name for name in METRICS if all(name in names for names in reported)]
    if metric is None:
        if not shared:
            raise ConfigError(
                "metric: the runs have none in common; train them with --set validation.downstream.data=DIR, "
                f"then all report '{DOWNSTREAM}'"
            )
        return DOWNSTREAM if DOWNSTREAM in shared else shared[0]
    without = next((run for run, names in zip(runs, reported, strict=True) if metric not in names), None)
    if without is not None:
        known = f"all runs report {', '.join(shared)}" if shared else "the runs report none in common"
        raise ConfigError(f"metric {metric}: {address_of(without.path)} does not report it; {known}")
    return metric


def metric_mode(metric: str) -> str:
    """Return `max` or `min`, the direction of better values; `min` for losses."""
    return METRICS.get(metric, "min")


class Curve(StrictModel):
    """A run's score against time.

    Attributes:
        run: Its name.
        objective: The objective's name.
        hours: Wall clock of training and validation at each report [reports].
        values: The metric at each report [reports].
        num_parameters: Size of the model; None without its file.
        hours_to_target: At the first report that reached the target; None if none did.
    """

    run: str
    objective: str
    hours: tuple[float, ...]
    values: tuple[float, ...]
    num_parameters: int | None
    hours_to_target: float | None


class Efficiency(Analysis):
    """Runs' scores against hours.

    Attributes:
        metric: The metric compared.
        mode: `max` or `min`, the direction of better values.
        target: The score to reach.
        curves: One per run.
    """

    SECTION: ClassVar = Section(
        "efficiency",
        "Score against training time",
        "Score against the wall-clock time of training and validation. The time to a score is that of the first report "
        "that reached it. Compare only runs on the same machine.",
    )
    metric: str
    mode: str
    target: float
    curves: tuple[Curve, ...]

    @property
    def name(self) -> str:
        """The metric and the runs."""
        return " ".join([self.metric, *(curve.run for curve in self.curves[:6])])

    def speed_up(self, curve: Curve) -> float | None:
        """Return how many times faster than the slowest run a run reached the target; None if it did not."""
        slowest = max((one.hours_to_target for one in self.curves if one.hours_to_target is not None), default=0.0)
        return slowest / curve.hours_to_target if curve.hours_to_target else None

    def blocks(self) -> list[Block]:
        """Return the curves, and the time in which each run reached the target."""
        return [self._figure(), self._times()]

    def _figure(self) -> Figure:
        longest = max(curve.hours[-1] for curve in self.curves)
        scale, unit = (1.0, "hours") if longest >= 1 else (_MINUTES_PER_HOUR, "minutes")
        objectives = list(dict.fromkeys(curve.objective for curve in self.curves))
        of_objective = dict.fromkeys(objectives, 0)
        traces = []
        for curve in self.curves:
            color, dash = objectives.index(curve.objective), of_objective[curve.objective]
            traces.append(_trace(curve, PALETTE[color % len(PALETTE)], _DASHES[dash % len(_DASHES)], scale))
            of_objective[curve.objective] += 1
        return figure(
            traces,
            height=420,
            label=f"{self.metric} against {unit} of training, one line for each of {len(self.curves)} runs.",
            caption="One colour per objective. The horizontal line is the score whose times are compared below.",
            showlegend=True,
            xaxis_title_text=f"{unit} of training",
            xaxis_rangemode="tozero",
            yaxis_title_text=label(self.metric),
            shapes=[level_line(self.target, RULE, dash="solid", width=2)],
        )

    def _times(self) -> Table:
        columns = [
            Column("run"),
            Column("objective"),
            Column("parameters", "number", "numbers in the model's file, word vectors included"),
            Column(f"last {self.metric}", "number"),
            Column("trained", "number"),
            Column(f"time to {text_of(self.target)}", "number", "at the first report that reached it"),
            Column("speed-up", "number", "relative to the run that reached it last"),
        ]
        fastest = max((self.speed_up(curve) or 0.0 for curve in self.curves), default=0.0)
        rows = []
        for curve in self.curves:
            ratio = self.speed_up(curve)
            row = [
                Cell(curve.run),
                Cell(curve.objective),
                Cell(whole(curve.num_parameters), curve.num_parameters),
                Cell(significant(curve.values[-1]), curve.values[-1]),
                hours_cell(curve.hours[-1]),
                hours_cell(curve.hours_to_target, mark="best" if ratio == fastest else ""),
                Cell(f"{fixed(ratio, 1)} ×" if ratio is not None else fixed(None), ratio),
            ]
            rows.append(row)
        return Table(columns, sorted(rows, key=lambda row: (row[5].order is None, row[5].order)))


def _trace(curve: Curve, color: str, dash: str, scale: float) -> Any:
    name = f"{curve.run} ({curve.objective})" if curve.objective else curve.run
    return go.Scatter(
        x=[hours * scale for hours in curve.hours],
        y=list(curve.values),
        name=label(name),
        mode="lines+markers",
        line={"color": color, "width": 2, "dash": dash},
        marker={"size": 5, "line": {"width": 0, "color": QUIET}},
        hovertemplate="%{y:.4g} at %{x:.3g}<extra>%{fullData.name}</extra>",
    )


class EfficiencyRequest(Request):
    """Scores of runs against hours of training.

    Attributes:
        metric: The metric to compare; by default `downstream`, or else the first that all runs report.
        target: The score to reach; by default the best one that every run reached.
    """

    RESULT: ClassVar = Efficiency
    metric: str | None = None
    target: float | None = None

    def compute(
        self,
        models: Sequence[str | Path],
        tasks: Sequence[str] | None,  # noqa: ARG002 - the form of an analysis
        evaluator: Evaluator,  # noqa: ARG002 - as above
    ) -> list[Efficiency]:
        """Return the scores of runs, or of the trained trials of sweeps, against hours."""
        runs = trained_runs(models)
        metric = choose_metric(runs, self.metric)
        mode, target = metric_mode(metric), self.target
        if target is None:
            best, worst_of = (max, min) if mode == "max" else (min, max)
            target = worst_of(best(value for _, value in run.series(metric)) for run in runs)
        curves = tuple(_curve(run, metric, mode, target) for run in runs)
        return [Efficiency(metric=metric, mode=mode, target=target, curves=curves)]


def _curve(run: TrainedRun, metric: str, mode: str, target: float) -> Curve:
    series = [(seconds / _SECONDS_PER_HOUR, value) for seconds, value in run.series(metric)]
    reached = (hours for hours, value in series if (value >= target if mode == "max" else value <= target))
    return Curve(
        run=run.name,
        objective=run.objective,
        hours=tuple(round(hours, 6) for hours, _ in series),
        values=tuple(value for _, value in series),
        num_parameters=costs_of(run.path).num_parameters,
        hours_to_target=next(reached, None),
    )


REQUESTS = {"efficiency": EfficiencyRequest}
