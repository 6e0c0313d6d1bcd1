"""Score against training time for several runs, and how soon each run reaches the same score.

Source: Logeswaran and Lee, 2018, appendix C and figure 2 (one encoder, two objectives, scores after some hours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raysent.analysis.files import Analysis
from raysent.config import StrictModel
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.costs import costs_of
from raysent.evaluation.members import expand
from raysent.storage import address_of, read_json, read_json_lines
from raysent.storage.layout import REPORTS_FILE, RUN_FILE
from raysent.training.validation import METRICS

# The metric that runs of every objective can report.
DOWNSTREAM = "downstream"
_SECONDS_PER_HOUR = 3600.0


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
    def reports(self) -> list[dict[str, Any]]:
        """The run's reports, in order.

        Raises:
            ArtifactError: If the folder holds none.
        """
        path = self.path / REPORTS_FILE
        found = [report for report in read_json_lines(path) if isinstance(report, dict)] if path.is_file() else []
        if not found:
            raise ArtifactError(
                f"{address_of(path)}: must hold a run's reports; given none; name folders of trained runs"
            )
        return found

    def series(self, metric: str) -> list[tuple[float, float]]:
        """Return the seconds and the metric of every report that has it, at least one.

        Raises:
            ConfigError: If no report has it as a number.
        """
        found = [(report.get("seconds"), report.get("metrics", {}).get(metric)) for report in self.reports]
        series = [(s, value) for s, value in found if isinstance(s, int | float) and isinstance(value, int | float)]
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
    reported = [{name for report in run.reports for name in report.get("metrics", {})} for run in runs]
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

    metric: str
    mode: str
    target: float
    curves: tuple[Curve, ...]

    @property
    def name(self) -> str:
        """The metric and the runs."""
        return " ".join([self.metric, *(curve.run for curve in self.curves[:6])])

    @property
    def slowest(self) -> float | None:
        """Hours of the run that reached the target last; None if none reached it."""
        return max((c.hours_to_target for c in self.curves if c.hours_to_target is not None), default=None)

    def speed_up(self, curve: Curve) -> float | None:
        """Return how many times faster than the slowest run a run reached the target; None if it did not."""
        if curve.hours_to_target is None or self.slowest is None or curve.hours_to_target <= 0:
            return None
        return self.slowest / curve.hours_to_target


def compare_efficiency(
    names: Sequence[str | Path], *, metric: str | None = None, target: float | None = None
) -> Efficiency:
    """Return runs' scores against hours.

    Args:
        names: Folders of runs, or of sweeps, which stand for their trained trials.
        metric: The metric to compare; by default `downstream`, or else the first that all runs report.
        target: The score to reach; by default the best one that every run reached.

    Raises:
        ConfigError: If the runs do not have the metric in common.
        ArtifactError: If a folder holds no trained run.
    """
    runs = trained_runs(names)
    chosen = choose_metric(runs, metric)
    mode = metric_mode(chosen)
    if target is None:
        best, worst_of = (max, min) if mode == "max" else (min, max)
        target = worst_of(best(value for _, value in run.series(chosen)) for run in runs)
    return Efficiency(
        metric=chosen, mode=mode, target=target, curves=tuple(_curve(run, chosen, mode, target) for run in runs)
    )


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
