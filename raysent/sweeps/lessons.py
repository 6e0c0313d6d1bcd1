"""What earlier sweeps teach the next one: the settings that its first trials have.

In: folders of sweeps on other texts, or files of their lessons. Out: settings in the order in which to try them, each
searched name -> value. A sweep leaves its lessons as `lessons.json`: figures alone, no text and no weights, so that the
file can be handed on; the user's cache keeps a copy of each, under `lessons`.

A configuration has a place among the finished trials of its own sweep, by score and by time: from 0 for the best, or
the cheapest, to 1, or the mean over the sweeps that have it, drawn to a half by one sweep that says nothing. What is in
the better two thirds by score is tried, the cheapest first: an ensemble gains more from several cheap members than from
a good one in their time. What that is worth on a text of which the sweeps knew nothing is in
benchmarks/results/search.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pydantic

from raysent.config import Override, StrictModel
from raysent.errors import ArtifactError, ConfigError
from raysent.storage import address_of, cache_folder, open_folder, read_json, write_json
from raysent.storage.layout import LESSONS_FILE, SWEEP_FILE
from raysent.sweeps.ranking import median_values
from raysent.sweeps.record import RecordedSweep, read_sweep
from raysent.sweeps.space import Params, SearchSpace
from raysent.training.validation import METRICS

_FOLDER = "lessons"
# Of the configurations of other texts, the best by score are tried; chosen on novels (benchmarks/results/search.md).
BEST_SHARE = 2 / 3
_Number = Annotated[float, pydantic.Field(allow_inf_nan=False)]


class TaughtTrial(StrictModel):
    """A finished trial.

    Attributes:
        params: Searched name -> value, or the label of a choice.
        score: The metric of its model, the median over its seeds.
        curve: Its reports: the part of the run that was trained, seconds up to there, and the metric.
        seconds: Of its training.
        usd: What that cost.
    """

    params: dict[str, str | int | float | bool | None]
    score: _Number
    curve: list[tuple[_Number, _Number, _Number | None]]
    seconds: _Number
    usd: _Number = 0.0


class Lessons(StrictModel):
    """What one sweep found.

    Attributes:
        kind: What the file is.
        space: The name of its search space.
        metric: What it ranked by.
        sentences: Sentences, or pairs, of the text that it trained on.
        trials: Those that finished.
    """

    kind: Literal["lessons"] = "lessons"
    space: str
    metric: str
    sentences: int = 0
    trials: list[TaughtTrial]


def lessons_of(sweep: RecordedSweep) -> Lessons:
    """Return what a sweep teaches, one trial of each configuration that has finished."""
    scores, metric, trials = median_values(sweep.space, sweep.trials), sweep.space.metric, []
    for trial in sweep.trials:
        score = scores[trial.name]
        if trial.number % sweep.space.limits.seeds or trial.status != "finished" or score is None:
            continue
        curve = [
            (one.index / trial.num_reports, one.seconds, one.metrics.get(metric))
            for one in trial.reports
        ]
        taught = {
            "params": trial.params,
            "score": score,
            "curve": curve,
            "seconds": trial.seconds,
            "usd": trial.usd,
        }
        trials.append(TaughtTrial.model_validate(taught, strict=False))
    sentences = sweep.record.facts.get("corpus", {}).get("num_sentences", 0)
    return Lessons(space=sweep.space.name, metric=metric, sentences=sentences, trials=trials)


def keep_lessons(sweep: RecordedSweep) -> None:
    """Write what a sweep teaches into its folder and the user's cache; nothing where no trial finished."""
    lessons = lessons_of(sweep)
    if lessons.trials:
        values = lessons.model_dump(mode="json")
        write_json(sweep.folder / LESSONS_FILE, values)
        name = hashlib.sha256(lessons.model_dump_json().encode()).hexdigest()[:16]
        with contextlib.suppress(ArtifactError, OSError):  # a cache; the run's own file is written
            write_json(cache_folder() / _FOLDER / f"{name}.json", values)


def read_lessons(name: str) -> list[Lessons]:
    """Return the lessons of the folder of a sweep, of a file, of each file of a folder, or, by `cache`, of the user's.

    Raises:
        ConfigError: If there are none.
        ArtifactError: If a file is damaged, or another program's.
    """
    path = (
        cache_folder() / _FOLDER
        if name == "cache"
        else open_folder(name)
        if name.startswith("s3:")
        else Path(name)
    )
    if (path / SWEEP_FILE).is_file():
        return [lessons_of(read_sweep(path))]
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    if not files:
        raise ConfigError(
            f"limits.learn_from: no sweep and no {LESSONS_FILE} at {name}; name the folder of a sweep"
        )
    return [_read(file) for file in files]


def _read(file: Path) -> Lessons:
    try:
        return Lessons.model_validate(read_json(file), strict=False)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"{address_of(file)}: not the {LESSONS_FILE} of a sweep ({where}: {first['msg']}); leave it out"
        ) from None


def first_trials(lessons: Sequence[Lessons]) -> list[Params]:
    """Return the settings of the better two thirds of all configurations, the cheapest first.

    Args:
        lessons: What the sweeps found.
    """
    found: dict[str, Params] = {}
    ranks: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    for one in lessons:
        sign = 1 if METRICS.get(one.metric) == "min" else -1
        by_score = _places([sign * trial.score for trial in one.trials])
        by_time = _places([trial.seconds for trial in one.trials])
        for trial, rank, cost in zip(one.trials, by_score, by_time, strict=True):
            name = repr(sorted(trial.params.items()))
            found.setdefault(name, dict(trial.params))
            ranks.setdefault(name, [0.5]).append(rank)
            costs.setdefault(name, [0.5]).append(cost)
    best = sorted(found, key=lambda name: float(np.mean(ranks[name])))[
        : math.ceil(BEST_SHARE * len(found))
    ]
    return [found[name] for name in sorted(best, key=lambda name: float(np.mean(costs[name])))]


def _places(values: Sequence[float]) -> list[float]:
    """Return the places of values, from 0 for the lowest to 1; equal values share the middle of theirs."""
    ordered = np.sort(values)
    twice = np.searchsorted(ordered, values) + np.searchsorted(ordered, values, side="right") - 1
    places: list[float] = (twice / (2 * max(1, len(values) - 1))).tolist()
    return places


def lesson_overrides(space: SearchSpace) -> list[Override]:
    """Return what `limits.learn_from` sets in a space: its `first` trials, and why; nothing where it names no sweep.

    Raises:
        RaysentError: As `read_lessons`; if those sweeps searched nothing that the space searches.
    """
    names = space.limits.learn_from
    if not names:
        return []
    lessons = [one for name in names for one in read_lessons(name)]
    first = [params for params in first_trials(lessons) if space.restricted(params)]
    if not first:
        raise ConfigError(
            f"limits.learn_from: {', '.join(names)} searched nothing that {space.name} searches"
        )
    spaces = ", ".join(dict.fromkeys(one.space for one in lessons))
    why = f"the better of {sum(len(one.trials) for one in lessons)} trials of {spaces} come first, the cheapest before"
    values = {"first": first, "fitted": {**space.fitted, "first": why}, "limits.learn_from": []}
    return [Override(name, value, "limits.learn_from") for name, value in values.items()]
