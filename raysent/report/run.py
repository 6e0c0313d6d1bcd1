"""A run as the report shows it: one frozen view of a sweep, of a single training or of judged models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from raysent.analysis import Analysis
from raysent.analysis.neighbours import Comparison
from raysent.cost import Bill
from raysent.evaluation.members import Costs
from raysent.report.blocks import number
from raysent.report.ensemble_files import mapping
from raysent.report.score_files import Ensemble, Score
from raysent.sweeps.ranking import TrialResult, best_result, first_number, rank
from raysent.sweeps.trial import BROKEN

Found = TypeVar("Found", bound=Analysis)


@dataclass(frozen=True)
class Point:
    """One report of a training, after the share `index` / `num_reports` of it; `usd` is all it had cost by then."""

    index: int
    metrics: Mapping[str, float | None]
    seconds: float | None
    usd: float | None = None
    time: float | None = None


@dataclass(frozen=True)
class Trial:
    """One trial as the journal tells it.

    Attributes:
        name: The trial's id, which is its folder's name.
        status: finished, stopped (early), failed, nan, running, or waiting.
        params: Searched name -> value; a name that did not apply is absent.
        metrics: The last figures that are known.
        points: Its reports in order of training.
        seconds: Time spent training.
        usd: Dollars spent, where they are known.
        error: The error's line, for a trial that failed.
    """

    name: str
    status: str = "waiting"
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    seconds: float | None = None
    usd: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Run:
    """Everything that is known of a sweep, of a single training seen as a sweep of one trial, or of judged models."""

    folder: Path
    is_sweep: bool
    name: str
    metric: str
    mode: str
    num_reports: int
    settings: Mapping[str, Any]
    pool: Mapping[str, Any]
    domains: Mapping[str, Any]
    trials: tuple[Trial, ...]
    scores: tuple[Score, ...]
    ensemble: Ensemble | None
    seconds: float | None
    neighbours: Comparison | None = None
    analyses: tuple[Analysis, ...] = ()
    costs: Mapping[str, Costs] = field(default_factory=dict)
    bill: Bill | None = None
    estimate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the folder holds: a `sweep`, a `training`, or `judged models` that were trained elsewhere."""
        if self.is_sweep:
            return "sweep"
        return "training" if self.trials else "judged models"

    def analyses_of(self, kind: type[Found]) -> list[Found]:
        """Return the analyses of a kind, by name."""
        return [found for found in self.analyses if isinstance(found, kind)]

    def cost(self, name: str) -> Costs:
        """Return what a trial or an evaluated model costs, as far as its folder or its scores tell."""
        told = (score.costs for score in self.scores if score.model == name and score.costs != Costs())
        return self.costs.get(name) or next(told, Costs())

    @cached_property
    def searched(self) -> list[str]:
        """The searched names, in the order of the search space."""
        names = dict.fromkeys(self.domains)
        names.update(dict.fromkeys(name for trial in self.trials for name in trial.params))
        return list(names)

    @property
    def chance(self) -> float | None:
        """What scores that are all equal reach on the validation pool, where it is known."""
        return number(self.pool.get(self.metric.replace("context_", "chance_")))

    def against_chance(self, value: float | None) -> float | None:
        """Return how many times chance a value is; of a loss there is no such figure."""
        chance = self.chance if self.mode == "max" else None
        return value / chance if value is not None and chance else None

    @cached_property
    def highest(self) -> float | None:
        """The highest figure of a trial that did not break; what bars are measured by."""
        values = (self.value(trial) for trial in self.trials if trial.status not in BROKEN)
        return max((value for value in values if value is not None), default=None)

    def title(self, name: str) -> str:
        """Return a trial's name with the words it was searched by, as in `0003 bi`; any other name as it is."""
        params = next((trial.params for trial in self.trials if trial.name == name), {})
        return " ".join([name, *(value for value in params.values() if isinstance(value, str))])

    def value(self, trial: Trial) -> float | None:
        """Return the trial's metric, or None."""
        return number(trial.metrics.get(self.metric))

    @cached_property
    def ranked(self) -> list[Trial]:
        """The trials from best to worst."""
        by_name = {trial.name: trial for trial in self.trials}
        return [by_name[result.name] for result in rank(self._results, mode="min" if self.mode == "min" else "max")]

    @cached_property
    def best(self) -> Trial | None:
        """The best trial that has a value and did not break."""
        found = best_result(self._results, mode="min" if self.mode == "min" else "max")
        return next((trial for trial in self.trials if found is not None and trial.name == found.name), None)

    @cached_property
    def _results(self) -> list[TrialResult]:
        """What the ranking reads of the trials."""
        limits = mapping(mapping(self.settings.get("space")).get("limits"))
        num_seeds = int(number(limits.get("seeds")) or 1)
        return [
            TrialResult(
                trial.name,
                place,
                trial.status,
                trial.params,
                self.value(trial),
                first_number(place, num_seeds=num_seeds),
            )
            for place, trial in enumerate(self.trials)
        ]
