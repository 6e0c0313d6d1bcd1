"""An ensemble and what it is worth, and all of it as plain values for `ensemble.json` and `--json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from raysent.ensembles.cost import Choice, Cost
from raysent.ensembles.cross_fitting import Figure, mean_figure
from raysent.ensembles.measures import Bin, Diversity
from raysent.ensembles.outcomes import Outcome, TaskOutcome
from raysent.evaluation.members import Member

# The name under which the method that makes the ensemble stands beside the others.
ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class EnsembleResult:
    """An ensemble and what it is worth.

    Attributes:
        members: Its members, the best by mean validation score first.
        method: The method that makes it.
        protocol: How members were judged.
        tasks: The outcome on each task.
        costs: What each member costs.
        choices: Sets of members that might have been the ensemble, with their costs and scores.
        difference: Mean over tasks of the ensemble's test score minus the best member's, in points of percent; paired.
        path: The file that was written.
        representations: Outcomes on each task of probes on members' vectors together, by name.
    """

    members: tuple[Member, ...]
    method: str
    protocol: str
    tasks: tuple[TaskOutcome, ...]
    costs: tuple[Cost, ...]
    choices: tuple[Choice, ...]
    difference: Figure
    path: Path
    representations: Mapping[str, Sequence[Outcome]] = field(default_factory=dict)

    @property
    def best_member(self) -> int:
        """Return the place of the member whose mean validation score over tasks is highest."""
        return 0

    @property
    def names(self) -> list[str]:
        """Return the members' names."""
        return [member.name for member in self.members]

    @property
    def replaced(self) -> list[str]:
        """Return the tasks on which the best member stands in, the method having done worse under cross-fitting."""
        return [task.task for task in self.tasks if task.is_replaced]

    def outcomes(self) -> dict[str, list[Outcome]]:
        """Return every outcome on every task by name: the ensemble, other methods, vectors together, members."""
        others = [method for method in self.tasks[0].outcomes if method != self.method]
        return {
            ENSEMBLE: [task.ensemble for task in self.tasks],
            **{method: [task.outcomes[method] for task in self.tasks] for method in others},
            **{name: list(outcomes) for name, outcomes in self.representations.items()},
            **{name: [task.members[place] for task in self.tasks] for place, name in enumerate(self.names)},
        }

    def plain(self) -> dict[str, Any]:
        """Return what it is worth as plain values."""
        outcomes = self.outcomes()
        return {
            "method": self.method,
            "protocol": self.protocol,
            "members": self.names,
            "best_member": self.names[self.best_member],
            "replaced": self.replaced,
            "costs": {name: asdict(cost) for name, cost in zip(self.names, self.costs, strict=True)},
            "choices": [
                {
                    "members": [self.names[place] for place in choice.members],
                    **asdict(choice.cost),
                    "score": choice.score,
                    "fronts": list(choice.fronts),
                }
                for choice in self.choices
            ],
            "tasks": {
                task.task: {
                    **_plain_task(task, self.names),
                    "scores": {name: plain_outcome(found[place]) for name, found in outcomes.items()},
                }
                for place, task in enumerate(self.tasks)
            },
            "mean": {
                "scores": {name: plain_means(found) for name, found in outcomes.items()},
                "difference": plain_figure(self.difference),
            },
        }


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return one way to answer one task as plain values."""
    return {
        **plain_means([outcome]),
        "num_replaced": outcome.num_replaced,
        "reliability": [_plain_bin(one) for one in outcome.measures.reliability],
    }


def plain_means(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the mean figures of one way to answer over tasks, with intervals."""
    test = mean_figure([outcome.test for outcome in outcomes])
    names = outcomes[0].measures.figures
    return {
        "validation": float(np.mean([outcome.validation for outcome in outcomes])),
        "cross_fitted": plain_figure(mean_figure([outcome.cross_fitted for outcome in outcomes])),
        "optimism": float(np.mean([outcome.optimism for outcome in outcomes])),
        "test": test.value,
        "interval": list(test.interval),
        "measures": {
            name: plain_figure(mean_figure([outcome.measures.figures[name] for outcome in outcomes])) for name in names
        },
    }


def plain_figure(figure: Figure) -> dict[str, Any]:
    """Return a figure with its interval."""
    return {"value": figure.value, "interval": list(figure.interval)}


def _plain_task(task: TaskOutcome, names: Sequence[str]) -> dict[str, Any]:
    return {
        "weights": dict(zip(names, task.weights.tolist(), strict=True)),
        "fold_weights": task.fold_weights.tolist(),
        "is_replaced": task.is_replaced,
        "diagnostics": dict(task.final.diagnostics),
        "diversity": _plain_diversity(task.diversity, names),
    }


def _plain_diversity(diversity: Diversity, names: Sequence[str]) -> dict[str, Any]:
    return {
        "ambiguity": _known(diversity.ambiguity),
        "error_correlations": [[_known(value) for value in row] for row in diversity.error_correlations],
        "contributions": dict(zip(names, diversity.contributions.tolist(), strict=False)),
    }


def _plain_bin(one: Bin) -> list[float]:
    return [one.confidence, one.accuracy, one.num_rows]


def _known(value: float) -> float | None:
    """Return a number, or None for what is not one."""
    return float(value) if math.isfinite(value) else None
