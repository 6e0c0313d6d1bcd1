"""What earlier sweeps teach the next one: the settings that its first trials have.

In: folders of sweeps on other texts, or files of their lessons. Out: settings in the order in which to try them, each
searched name -> value. A sweep leaves its lessons as `lessons.json`: figures alone, no text and no weights, so that the
file can be handed on; the user's cache keeps a copy of each, under `lessons`.

A configuration is worth its place among the finished trials of its own sweep, from 1 for the best to 0, or the mean
over the sweeps that have it, drawn to a half by one sweep that says nothing: what was good on two texts comes before
what was best on one. The best of each family comes before the second best of any. What that is worth on a text of which
the sweeps knew nothing is in benchmarks/results/search.md.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

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
        curve = [(one.index / trial.num_reports, one.seconds, one.metrics.get(metric)) for one in trial.reports]
        taught = {"params": trial.params, "score": score, "curve": curve, "seconds": trial.seconds, "usd": trial.usd}
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
    path = cache_folder() / _FOLDER if name == "cache" else open_folder(name) if name.startswith("s3:") else Path(name)
    if (path / SWEEP_FILE).is_file():
        return [lessons_of(read_sweep(path))]
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    if not files:
        raise ConfigError(f"limits.learn_from: no sweep and no {LESSONS_FILE} at {name}; name the folder of a sweep")
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


def first_trials(lessons: Sequence[Lessons], *, stratum: str | None = None) -> list[Params]:
    """Return the settings of all configurations in the order in which to try them.

    Args:
        lessons: What the sweeps found.
        stratum: A searched name: the best configuration of each of its values comes first, then the second best of
            each, as an ensemble wants members that differ.
    """
    found: dict[str, tuple[Params, list[float]]] = {}
    for one in lessons:
        sign = 1 if METRICS.get(one.metric) == "min" else -1
        ranked = sorted(one.trials, key=lambda trial: sign * trial.score)
        for place, trial in enumerate(ranked):
            params = dict(trial.params)
            worth = 1 - place / max(1, len(ranked) - 1)
            found.setdefault(repr(sorted(params.items())), (params, []))[1].append(worth)
    order = [params for params, _ in sorted(found.values(), key=lambda one: -_worth(one[1]))]
    if stratum is None:
        return order
    tried: Counter[str] = Counter()
    rounds: dict[int, list[Params]] = {}
    for params in order:
        value = repr(params.get(stratum))
        rounds.setdefault(tried[value], []).append(params)
        tried[value] += 1
    return [params for number in sorted(rounds) for params in rounds[number]]


def _worth(places: Iterable[float]) -> float:
    """Return the mean of a configuration's places and of one in the middle."""
    known = [*places, 0.5]
    return sum(known) / len(known)


def lesson_overrides(space: SearchSpace) -> list[Override]:
    """Return what `limits.learn_from` sets in a space: its `first` trials, and why; nothing where it names no sweep.

    Raises:
        RaysentError: As `read_lessons`; if those sweeps searched nothing that the space searches.
    """
    names = space.limits.learn_from
    if not names:
        return []
    lessons = [one for name in names for one in read_lessons(name)]
    first = [
        params for params in first_trials(lessons, stratum=space.evaluation.stratify_by) if space.restricted(params)
    ]
    if not first:
        raise ConfigError(f"limits.learn_from: {', '.join(names)} searched nothing that {space.name} searches")
    spaces = ", ".join(dict.fromkeys(one.space for one in lessons))
    why = f"the best of {sum(len(one.trials) for one in lessons)} trials of {spaces} come first"
    values = {"first": first, "fitted": {**space.fitted, "first": why}, "limits.learn_from": []}
    return [Override(name, value, "limits.learn_from") for name, value in values.items()]
