"""Replay of a sweep on the table: the project's controller proposes, reports and stops; nothing is trained.

A proposal maps to the nearest configuration of the table that was not seen yet, of the same family while there is one;
the mapping is the same for every policy, and so is the order of the families, which each replay draws anew. A replay is
on the configurations of one corpus, of each the trial of a seed that is drawn for it, one trial at a time. It is
charged the processor seconds of training up to where each trial stopped; metrics are not charged. Eight reports of a
trial are made of the four of the table: a report without a value has the one before it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.search.table import LABELS, NUM_REPORTS, TASKS, read_table, table_space
from raysent.storage import load_arrays
from raysent.sweeps.controller import SweepController
from raysent.sweeps.lessons import Lessons, first_trials
from raysent.sweeps.samplers import Sampler
from raysent.sweeps.samplers.optuna_samplers import OptunaSampler, direction_of
from raysent.sweeps.space import Choice, Domain, EvaluationConfig, Limits, Params, SearchSpace
from raysent.sweeps.trial import Status

# Prefixes of metrics of which less is better.
LESS_IS_BETTER = ("context_nll", "nll", "loss")
# Another family is farther than anything within one.
OTHER_FAMILY = 100.0
# Of an answer, repeats counted.
MOST_MEMBERS = 8


@dataclass(frozen=True, eq=False)
class TableTrial:
    """A trial of the table.

    Attributes:
        number: Of its configuration.
        params: Searched name -> what was drawn.
        seconds: Processor seconds of training up to each of eight reports, [8].
        values: Metric -> its value at each report, more is better, [8]; NaN before the first.
        test: Task -> log-probabilities of the test rows at the end, [rows, classes].
        valid: Task -> those of the validation rows.
        score: Its own test accuracy at the end, the mean over tasks, in percent.
    """

    number: int
    params: Params
    seconds: np.ndarray
    values: Mapping[str, np.ndarray]
    test: Mapping[str, np.ndarray] = field(default_factory=dict)
    valid: Mapping[str, np.ndarray] = field(default_factory=dict)
    score: float = math.nan


def trial_of(
    record: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
) -> TableTrial:
    """Return a trial from its record and its log-probabilities."""
    known = [(report["report"], report) for report in record["reports"]]
    names = {name for _, report in known for name in report["metrics"]}
    places = np.arange(1, NUM_REPORTS + 1)
    seconds = np.interp(
        places, [0, *(index for index, _ in known)], [0.0, *(one["seconds"] for _, one in known)]
    )
    values = {}
    for name in names:
        value, last = np.full(NUM_REPORTS, np.nan), math.nan
        reports = dict(known)
        for place in places.tolist():
            if name in reports.get(place, {"metrics": {}})["metrics"]:
                last = reports[place]["metrics"][name]
            value[place - 1] = last
        values[name] = -value if name.startswith(LESS_IS_BETTER) else value
    rows: dict[str, dict[str, np.ndarray]] = {"test": {}, "valid": {}}
    for name, array in (arrays or {}).items():
        report, _, rest = name.partition(".")
        part, _, task = rest.partition("_")
        if report == str(NUM_REPORTS) and part in rows:
            rows[part][task] = array.astype(np.float32)
    tests = [value for name, value in known[-1][1]["metrics"].items() if name.startswith("test_")]
    return TableTrial(
        number=record["config"],
        params=record["params"],
        seconds=seconds,
        values=values,
        test=rows["test"],
        valid=rows["valid"],
        score=float(np.mean(tests)) if tests else math.nan,
    )


def read_replayed(folder: Path, corpus: str) -> list[TableTrial]:
    """Return the finished trials of a corpus."""
    trials = []
    for path in sorted((folder / "trials").glob(f"{corpus}-*.npz")):
        arrays = load_arrays(path)
        record = json.loads(str(arrays.pop("record")))
        if record["status"] == "finished":
            trials.append(trial_of(record, arrays))
    return trials


def read_scalars(corpus: str) -> list[TableTrial]:
    """Return the finished trials of a corpus from the repository's scalars, without log-probabilities."""
    table = read_table()
    found = []
    for _, rows in table[(table["corpus"] == corpus) & (table["status"] == "finished")].groupby(
        ["config", "seed"]
    ):
        metrics = rows[[name for name in rows if name.startswith("m.")]].rename(
            columns=lambda name: name[2:]
        )
        reports = [
            {
                "report": row["report"],
                "seconds": row["seconds"],
                "metrics": of_report.dropna().to_dict(),
            }
            for (_, row), (_, of_report) in zip(rows.iterrows(), metrics.iterrows(), strict=True)
        ]
        found.append(
            trial_of(
                {
                    "config": int(rows["config"].iloc[0]),
                    "params": rows["params"].iloc[0],
                    "reports": reports,
                }
            )
        )
    return found


def drawn_table(trials: Sequence[TableTrial], *, order: int) -> list[int]:
    """Return the places of one trial of each configuration, of a seed that is drawn for it."""
    generator = random.Random(order)
    by_configuration: dict[int, list[int]] = {}
    for place, trial in enumerate(trials):
        by_configuration.setdefault(trial.number, []).append(place)
    return [generator.choice(places) for _, places in sorted(by_configuration.items())]


def labels_of(folder: Path, part: str = "test") -> dict[str, np.ndarray]:
    """Return the classes of the `test` or `valid` rows of each task [rows]."""
    arrays = load_arrays(folder / LABELS)
    return {task: arrays[f"{part}_{task}"] for task in TASKS}


def taught_by(texts: Sequence[Sequence[TableTrial]], metric: str) -> list[Params]:
    """Return what sweeps over the whole table of other texts teach: by their validation, no test row."""
    lessons = [
        Lessons.model_validate(
            {
                "space": "table",
                "metric": "downstream",
                "trials": [
                    {
                        "params": one.params,
                        "score": one.values[metric][-1],
                        "curve": [],
                        "seconds": one.seconds[-1],
                    }
                    for one in trials
                ],
            }
        )
        for trials in texts
    ]
    return first_trials(lessons)


# -- policies ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """How a sweep searches.

    Attributes:
        name: In tables.
        metric: What it ranks by, a name of the table.
        limits: Sampler and scheduler, as in a search space; the rest are the space's.
        stratified: Whether each family comes once before any comes twice.
        is_taught: Whether it begins with what the other texts taught.
        sampler: Makes the sampler; None for the space's own.
    """

    name: str
    metric: str
    limits: Mapping[str, Any]
    stratified: bool = True
    is_taught: bool = False
    sampler: Callable[[SearchSpace, int], Sampler] | None = None


class PlainOptuna(OptunaSampler):
    """Optuna's TPE with its own defaults, that learns of stopped trials as in Ray Tune's `OptunaSearch`."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__(space, None, seed=seed)
        self._study = optuna.create_study(direction=direction_of(space))
        self._sampler = optuna.samplers.TPESampler(seed=seed)

    def optuna_sampler(self, seed: int) -> optuna.samplers.BaseSampler:  # noqa: ARG002 - it has a seed of its own
        """Return the one sampler of the search."""
        return self._sampler

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Pass the last score to Optuna, also of a trial that was stopped."""
        super().complete(number, status="finished" if status == "stopped" else status, score=score)


def space_of(policy: Policy, *, trials: int) -> SearchSpace:
    """Return the table's space with the limits of a policy."""
    limits = Limits.model_validate({**policy.limits, "trials": trials})
    evaluation = EvaluationConfig(stratify_by="family" if policy.stratified else None)
    return table_space().model_copy(update={"limits": limits, "evaluation": evaluation})


def shuffled(space: SearchSpace, *, seed: int) -> SearchSpace:
    """Return a space with its families in another order, which is that of the first trials of a stratified search."""
    domain = space.domains["family"]
    assert isinstance(domain, Choice)
    names = list(domain.options)
    random.Random(seed).shuffle(names)
    family = Choice({name: domain.options[name] for name in names})
    return space.model_copy(update={"domains": {**space.domains, "family": family}})


# -- the replay -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """What a replay did.

    Attributes:
        finished: Processor seconds spent, and the place of the trial in the table, at each trial that finished.
        seconds: Processor seconds of the whole replay.
        num_trials: Trials that it began.
    """

    finished: Sequence[tuple[float, int]]
    seconds: float
    num_trials: int


def replay(
    trials: Sequence[TableTrial],
    policy: Policy,
    *,
    order: int,
    places: Sequence[int] | None = None,
    taught: Sequence[Params] = (),
) -> Replayed:
    """Search the table with a policy until every trial is seen.

    Args:
        trials: Those of one corpus.
        policy: How to search.
        order: Seed of everything random.
        places: Those that are in the table; by default all.
        taught: What the other texts taught, for a policy that is taught.
    """
    unseen = list(range(len(trials)) if places is None else places)
    space = shuffled(space_of(policy, trials=len(unseen)), seed=order)
    space = space.model_copy(update={"first": list(taught) if policy.is_taught else []})
    sampler = None if policy.sampler is None else policy.sampler(space, order)
    controller = SweepController(space, seed=order, write=lambda *_, **__: None, sampler=sampler)
    ties = random.Random(order)
    ties.shuffle(unseen)
    finished, spent, begun = [], 0.0, 0
    while unseen:
        trial = controller.suggest()
        if trial is None:
            break
        place = nearest(trial.params, unseen, trials, space.domains)
        unseen.remove(place)
        begun += 1
        known = trials[place]
        status: Status = "finished"
        for index in range(1, NUM_REPORTS + 1):
            before = known.seconds[index - 2] if index > 1 else 0.0
            spent += float(known.seconds[index - 1] - before)
            value = float(known.values[policy.metric][index - 1])
            report = {"index": index, "num_reports": NUM_REPORTS, "metrics": {space.metric: value}}
            seconds = float(known.seconds[index - 1])
            if not controller.report(trial.name, **report, seconds=seconds, usd=seconds / 3600):
                status = "stopped"
                break
        if status == "finished":
            finished.append((spent, place))
        controller.end(trial.name, status=status)
    return Replayed(finished, spent, begun)


def nearest(
    params: Params,
    unseen: Sequence[int],
    trials: Sequence[TableTrial],
    domains: Mapping[str, Domain],
) -> int:
    """Return the place of the nearest unseen trial; the first of equals."""
    return min(unseen, key=lambda place: distance(params, trials[place].params, domains))


def distance(one: Params, other: Params, domains: Mapping[str, Domain]) -> float:
    """Return the distance of two sets of parameters: the sum over names of a difference from 0 to 1.

    Numbers differ by their share of the range, of its logarithm where they are drawn so; choices of numbers by their
    places in the list; other choices by 0 or 1, families by more than all names together.
    """
    total = 0.0
    for name in one.keys() | other.keys():
        if name == "family":
            total += OTHER_FAMILY * (one[name] != other[name])
        elif name not in one or name not in other:
            total += 1.0
        else:
            total += _difference(one[name], other[name], domains[name])
    return total


def _difference(one: Any, other: Any, domain: Domain) -> float:
    if isinstance(domain, Choice):
        options = list(domain.options)
        if all(
            isinstance(option, int | float) and not isinstance(option, bool) for option in options
        ):
            return abs(options.index(one) - options.index(other)) / max(1, len(options) - 1)
        return float(one != other)
    if domain.is_log:
        return abs(math.log(one / other)) / math.log(domain.high / domain.low)
    return abs(one - other) / (domain.high - domain.low)


# -- ensembles --------------------------------------------------------------------------------------------------


class Pools:
    """Scores of ensembles of a table's trials; every set of members is computed once.

    Without labels, for trials without log-probabilities, an ensemble is worth the mean of its members' own scores.
    """

    def __init__(
        self, trials: Sequence[TableTrial], labels: Mapping[str, np.ndarray] | None
    ) -> None:
        self.trials, self._labels = trials, labels
        self._known: dict[tuple[int, ...], float] = {}

    def test(self, members: Sequence[int]) -> float:
        """Return the mean test accuracy over tasks, in percent, of an equal logarithmic pool of trials at places."""
        key = tuple(sorted(members))
        if self._labels is None:
            return float(np.mean([self.trials[one].score for one in key]))
        if key not in self._known:
            scores = []
            for task, labels in self._labels.items():
                pooled = np.sum([self.trials[one].test[task] for one in key], axis=0)
                scores.append(100 * float((pooled.argmax(axis=1) == labels).mean()))
            self._known[key] = float(np.mean(scores))
        return self._known[key]


class Answers(Pools):
    """The answer: of each task the pool that validation rows choose greedily, with repeats, scored on its test rows.

    Args:
        trials: Those of one corpus.
        folder: Of the trials.
        baseline: What can be chosen besides trials, before the first of them too; None for trials alone.
    """

    def __init__(
        self, trials: Sequence[TableTrial], folder: Path, *, baseline: TableTrial | None = None
    ) -> None:
        super().__init__(trials, labels_of(folder))
        self._baseline = [] if baseline is None else [len(trials)]
        every = [*trials, *([] if baseline is None else [baseline])]
        self._right = {
            task: np.exp([one.valid[task][np.arange(len(rows)), rows] for one in every])
            for task, rows in labels_of(folder, "valid").items()
        }
        self._test = {task: np.exp([one.test[task] for one in every]) for task in self._right}
        # Few pools are asked for again and again, by all orders.
        self._nll, self._accuracy = (
            lru_cache(None)(self._nll_of),
            lru_cache(None)(self._accuracy_of),
        )

    def test(self, members: Sequence[int]) -> float:
        """Return the mean test accuracy over tasks, in percent, of the pools that are chosen from trials at places."""
        key = tuple(sorted(members))
        if key not in self._known:
            places = np.array([*key, *self._baseline])
            self._known[key] = float(
                np.mean([self._accuracy(task, self._chosen(task, places)) for task in self._test])
            )
        return self._known[key]

    def _chosen(self, task: str, places: np.ndarray) -> tuple[int, ...]:
        """Return places, each added because it lowers the NLL of the mean probability most, until none does."""
        chosen, best = (), math.inf
        while len(chosen) < MOST_MEMBERS:
            nll = self._nll(task, chosen)[places]
            if nll.min() >= best:
                break
            best, chosen = float(nll.min()), (*chosen, int(places[nll.argmin()]))
        return chosen

    def _nll_of(self, task: str, chosen: tuple[int, ...]) -> np.ndarray:
        """Return the validation NLL of a pool with each trial in addition [trials]."""
        right = self._right[task]
        return -np.log((right[list(chosen)].sum(axis=0) + right) / (len(chosen) + 1)).mean(axis=1)

    def _accuracy_of(self, task: str, chosen: tuple[int, ...]) -> float:
        assert self._labels is not None
        pooled = self._test[task][list(chosen)].sum(axis=0)
        return 100 * float((pooled.argmax(axis=1) == self._labels[task]).mean())


def top_members(
    trials: Sequence[TableTrial], candidates: Sequence[int], metric: str, size: int
) -> tuple[int, ...]:
    """Return the candidates whose last value of a metric is best."""
    return tuple(
        sorted(candidates, key=lambda place: (-trials[place].values[metric][-1], place))[:size]
    )
