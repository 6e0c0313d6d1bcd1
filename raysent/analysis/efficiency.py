"""What runs' folders say of themselves, for comparing runs: configurations, reports, and a metric that all have.

What training costs: scores against hours for several runs, and how soon each reaches the same score.

Source: Logeswaran and Lee, 2018, appendix C and figure 2 (one encoder, two objectives, score after x hours).
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
from raysent.evaluation.members import costs_of, expand
from raysent.storage import read_json, read_json_lines
from raysent.storage.layout import REPORTS_FILE, RUN_FILE
from raysent.training.validation import METRICS

# The one figure that encoders of every family share, asked of tasks.
DOWNSTREAM = "downstream"


@dataclass(frozen=True)
class RunFacts:
    """A run's folder.

    Attributes:
        name: Short and unique among its fellows.
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
        values = read_json(self.path / RUN_FILE)
        if not isinstance(values, dict) or not isinstance(values.get("config"), dict):
            raise ArtifactError(f"{self.path / RUN_FILE}: not the record of a run; name folders of trained runs")
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
            raise ArtifactError(f"{path}: must hold a run's reports; given none; name folders of trained runs")
        return found

    def series(self, metric: str) -> list[tuple[float, float]]:
        """Return the seconds and the metric of every report that has it."""
        found = [(report.get("seconds"), report.get("metrics", {}).get(metric)) for report in self.reports]
        return [(s, value) for s, value in found if isinstance(s, int | float) and isinstance(value, int | float)]

    @property
    def objective(self) -> str:
        """The objective's name."""
        return str(self.config.get("objective", {}).get("type", ""))


def runs_of(names: Sequence[str | Path]) -> list[RunFacts]:
    """Return the runs behind names: folders of runs, or a sweep's, which stands for its trained trials."""
    return [RunFacts(member.name, Path(member.path)) for member in expand(names)]


def metric_of(runs: Sequence[RunFacts], wanted: str | None = None) -> str:
    """Return the metric to compare runs by: the wanted one, else `downstream`, else the first that all report.

    Raises:
        ConfigError: If a run does not report it, or nothing is reported by all.
    """
    reported = [{name for report in run.reports for name in report.get("metrics", {})} for run in runs]
    shared = [name for name in METRICS if all(name in names for names in reported)]
    if wanted is None:
        if not shared:
            raise ConfigError(
                "--metric: the runs have none in common; train them with --set validation.downstream.data=DIR, "
                f"then all report '{DOWNSTREAM}'"
            )
        return DOWNSTREAM if DOWNSTREAM in shared else shared[0]
    without = next((run for run, names in zip(runs, reported, strict=True) if wanted not in names), None)
    if without is not None:
        told = f"all runs report {', '.join(shared)}" if shared else "the runs report none in common"
        raise ConfigError(f"--metric {wanted}: {without.path} does not report it; {told}")
    return wanted


def metric_mode(metric: str) -> str:
    """Return `max` or `min`: which values of a metric are better; a loss is better smaller."""
    return METRICS.get(metric, "min")


_SECONDS_PER_HOUR = 3600.0


class Curve(StrictModel):
    """A run's score against time.

    Attributes:
        run: Its name.
        objective: What it minimised.
        hours: Wall clock of training and validation at each report [reports].
        values: The metric then [reports].
        num_parameters: Numbers in the model's file; None where there is no file.
        hours_to_target: At the first report that reached the target; None where none did.
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
        metric: What is compared.
        mode: `max` or `min`.
        target: The score whose time is compared.
        curves: One for each run.
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
        """Hours of the run that reached the target last; None where none reached it."""
        return max((c.hours_to_target for c in self.curves if c.hours_to_target is not None), default=None)

    def speed_up(self, curve: Curve) -> float | None:
        """Return how many times sooner than the slowest a run reached the target."""
        if curve.hours_to_target is None or self.slowest is None or curve.hours_to_target <= 0:
            return None
        return self.slowest / curve.hours_to_target


def compare_efficiency(
    names: Sequence[str | Path], *, metric: str | None = None, target: float | None = None
) -> Efficiency:
    """Return runs' scores against hours.

    Args:
        names: Folders of runs, or of sweeps, which stand for their trained trials.
        metric: What is compared; by default `downstream`, or else the first metric that all runs report.
        target: The score whose time is compared; by default the best that every run reached.

    Raises:
        ConfigError: If the runs have no such metric in common.
        ArtifactError: If a folder is no trained run.
    """
    runs = runs_of(names)
    chosen = metric_of(runs, metric)
    mode = metric_mode(chosen)
    best = [_best([value for _, value in run.series(chosen)], mode, run, chosen) for run in runs]
    wanted = target if target is not None else (min(best) if mode == "max" else max(best))
    return Efficiency(
        metric=chosen, mode=mode, target=wanted, curves=tuple(_curve(run, chosen, mode, wanted) for run in runs)
    )


def _best(values: Sequence[float], mode: str, run: RunFacts, metric: str) -> float:
    if not values:
        raise ConfigError(f"--metric {metric}: {run.path} reports no number for it; name another metric or run")
    return max(values) if mode == "max" else min(values)


def _curve(run: RunFacts, metric: str, mode: str, target: float) -> Curve:
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
