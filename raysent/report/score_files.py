"""`evaluation/` and `ensemble.json` -> scores on tasks, weights of members, and what pooling adds.

A figure that is missing or NaN is None. A folder that was never evaluated gives no scores; nothing pooled, None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysent.evaluation.members import Costs
from raysent.report.blocks import number
from raysent.report.ensemble_files import Details, details_of, interval, mapping
from raysent.storage import read_json

MEAN = "mean"
"""The name under which the scores over all tasks stand beside the tasks."""

SIMILARITY = "similarity"
"""The protocol of a model's own similarity, for which nothing is trained."""

PEARSON = "pearson"


@dataclass(frozen=True)
class Score:
    """What a model scores on a task, in percent; its 95 % interval, F1 and the model's costs where they are known."""

    model: str
    task: str
    protocol: str
    validation: float | None
    test: float | None
    interval: tuple[float, float] | None = None
    costs: Costs = field(default_factory=Costs)
    f1: float | None = None


@dataclass(frozen=True)
class Ensemble:
    """What pooling the members gives.

    Attributes:
        members: The members' names.
        method: The rule that sets the weights.
        weights: Task -> member -> weight.
        scores: One for each of the ensemble, its rivals and its members on each task, and on "mean" over tasks.
        gain: The ensemble's mean over tasks minus the rival's.
        gain_interval: Its paired 95 % interval.
        rival: The best single member, chosen by validation.
        details: Calibration, diversity and costs.
    """

    members: tuple[str, ...]
    method: str
    weights: Mapping[str, Mapping[str, float | None]]
    scores: tuple[Score, ...]
    details: Details
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    rival: str = ""


def read_scores(folder: Path) -> list[Score]:
    """Read the scores of every model on every task; none where nothing was evaluated."""
    # Protocols but the default have a folder of their own below the model's.
    paths = sorted([*folder.glob("*/*.json"), *folder.glob("*/*/*.json")])
    return [_score(mapping(read_json(path)), path) for path in paths]


def _score(values: Mapping[str, Any], path: Path) -> Score:
    return Score(
        model=str(values.get("model") or path.parent.name),
        task=str(values.get("task") or path.stem),
        protocol=str(values.get("protocol") or (SIMILARITY if PEARSON in values else "")),
        validation=number(values.get("validation")),
        test=number(values.get("test", values.get(PEARSON))),
        interval=interval(values.get("interval")),
        costs=_costs(mapping(values.get("costs"))),
        f1=number(mapping(values.get("measures")).get("f1")),
    )


def _costs(values: Mapping[str, Any]) -> Costs:
    size = number(values.get("num_parameters"))
    hours = number(values.get("training_hours"))
    return Costs(num_parameters=None if size is None else int(size), training_hours=hours)


def read_ensemble(path: Path) -> Ensemble | None:
    """Read `ensemble.json`; None where nothing was pooled yet."""
    if not path.is_file():
        return None
    values = mapping(read_json(path))
    tasks = mapping(values.get("tasks"))
    scores = [score for task, found in tasks.items() for score in _scores_of(task, mapping(found), values)]
    mean = mapping(values.get("mean"))
    scores += _scores_of(MEAN, mean, values)
    gain = mapping(mean.get("difference"))
    return Ensemble(
        members=tuple(map(str, values.get("members", []))),
        method=str(values.get("method") or ""),
        weights={task: _weights(mapping(found).get("weights")) for task, found in tasks.items()},
        scores=tuple(scores),
        details=details_of(values),
        gain=number(gain.get("value")),
        gain_interval=interval(gain.get("interval")),
        rival=str(values.get("best_member") or ""),
    )


def _scores_of(task: str, found: Mapping[str, Any], values: Mapping[str, Any]) -> list[Score]:
    protocol = str(values.get("protocol") or "")
    return [
        Score(
            str(name),
            task,
            protocol,
            None,
            number(mapping(score).get("test")),
            interval(mapping(score).get("interval")),
        )
        for name, score in mapping(found.get("scores")).items()
    ]


def _weights(found: Any) -> dict[str, float | None]:
    return {str(member): number(weight) for member, weight in mapping(found).items()}
