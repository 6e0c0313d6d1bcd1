"""What runs' folders say of themselves, for comparing runs: configurations, reports, and a metric that all have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raysent.artifacts import read_json, read_json_lines
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluate.members import expand
from raysent.run import REPORTS_FILE, RUN_FILE
from raysent.validation import METRICS

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
