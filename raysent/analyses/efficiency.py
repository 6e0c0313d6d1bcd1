"""What training costs: scores against hours for several runs, and how soon each reaches the same score.

Source: Logeswaran and Lee, 2018, appendix C and figure 2 (one encoder, two objectives, score after x hours).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysent.analyses.files import Analysis
from raysent.analyses.run_facts import RunFacts, metric_mode, metric_of, runs_of
from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.evaluate.costs import costs_of

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
