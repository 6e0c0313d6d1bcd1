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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.evaluation import TASKS
from benchmarks.search.metrics import LESS_IS_BETTER
from benchmarks.search.trials import NUM_REPORTS, table_space
from raysent.storage import load_arrays
from raysent.sweeps.controller import SweepController
from raysent.sweeps.named_classes import NamedClass
from raysent.sweeps.random_draws import RandomSampler
from raysent.sweeps.samplers import Sampler
from raysent.sweeps.samplers.optuna_samplers import AnyOptunaSampler
from raysent.sweeps.space import Choice, Domain, EvaluationConfig, Limits, Params, SearchSpace
from raysent.sweeps.trial import Status

# Another family is farther than anything within one.
OTHER_FAMILY = 100.0
# The least probability that a row's label may have, so that one row cannot decide a selection.
FLOOR = 1e-6


@dataclass(frozen=True, eq=False)
class TableTrial:
    """A trial of the table.

    Attributes:
        number: Of its configuration.
        params: Searched name -> what was drawn.
        seconds: Processor seconds of training up to each of eight reports, [8].
        values: Metric -> its value at each report, more is better, [8]; NaN before the first.
        valid: Task -> log-probabilities of the validation rows at the end, [rows, classes].
        test: Task -> those of the test rows.
        early: Report -> task -> log-probabilities of validation rows then.
    """

    number: int
    params: Params
    seconds: np.ndarray
    values: Mapping[str, np.ndarray]
    valid: Mapping[str, np.ndarray] = field(default_factory=dict)
    test: Mapping[str, np.ndarray] = field(default_factory=dict)
    early: Mapping[int, Mapping[str, np.ndarray]] = field(default_factory=dict)


def trial_of(record: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> TableTrial:
    """Return a trial from its record and its log-probabilities."""
    known = [(report["report"], report) for report in record["reports"]]
    names = {name for _, report in known for name in report["metrics"]}
    places = np.arange(1, NUM_REPORTS + 1)
    seconds = np.interp(places, [0, *(index for index, _ in known)], [0.0, *(one["seconds"] for _, one in known)])
    values = {}
    for name in names:
        value, last = np.full(NUM_REPORTS, np.nan), math.nan
        reports = dict(known)
        for place in places.tolist():
            if name in reports.get(place, {"metrics": {}})["metrics"]:
                last = reports[place]["metrics"][name]
            value[place - 1] = last
        values[name] = -value if name.startswith(LESS_IS_BETTER) else value
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, array in (arrays or {}).items():
        index, _, rest = name.partition(".")
        if rest:
            found.setdefault(f"{index}.{rest.partition('_')[0]}", {})[rest.partition("_")[2]] = array.astype(np.float32)
    early = {index: found.get(f"{index}.valid", {}) for index, _ in known[:-1]}
    last = NUM_REPORTS
    return TableTrial(
        number=record["config"],
        params=record["params"],
        seconds=seconds,
        values=values,
        valid=found.get(f"{last}.valid", {}),
        test=found.get(f"{last}.test", {}),
        early=early,
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


def drawn_table(trials: Sequence[TableTrial], *, order: int) -> list[int]:
    """Return the places of one trial of each configuration, of a seed that is drawn for it."""
    generator = random.Random(order)
    by_configuration: dict[int, list[int]] = {}
    for place, trial in enumerate(trials):
        by_configuration.setdefault(trial.number, []).append(place)
    return [generator.choice(places) for _, places in sorted(by_configuration.items())]


def labels_of(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the classes of the validation and test rows of each task: `valid` and `test` -> task -> [rows]."""
    arrays = load_arrays(folder / "labels.npz")
    return {part: {task: arrays[f"{part}_{task}"] for task in TASKS} for part in ("valid", "test")}


# -- policies ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """How a sweep searches.

    Attributes:
        name: In tables.
        metric: What it ranks by, a name of the table.
        limits: Sampler and scheduler, as in a search space; the rest are the space's.
        stratified: Whether each family comes once before any comes twice.
        sampler: Makes the sampler; None for the space's own.
    """

    name: str
    metric: str
    limits: Mapping[str, Any]
    stratified: bool = True
    sampler: Callable[[SearchSpace, int], Sampler] | None = None


class PlainOptuna(AnyOptunaSampler):
    """Optuna's TPE with its own defaults, that learns of stopped trials as in Ray Tune's `OptunaSearch`."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        super().__init__(space, NamedClass(name="TPESampler"), seed=seed)

    def complete(self, number: int, *, status: str, score: float | None) -> None:
        """Pass the last score to Optuna, also of a trial that was stopped."""
        super().complete(number, status="finished" if status == "stopped" else status, score=score)


class InTurn(RandomSampler):
    """Random draws, the families in turn."""

    def __init__(self, space: SearchSpace, *, seed: int) -> None:
        super().__init__(space, seed=seed)
        domain = space.domains["family"]
        assert isinstance(domain, Choice)
        self._families = list(domain.options)

    def ask(self, number: int) -> tuple[Params, int] | None:
        """Return the first draw of the family whose turn it is."""
        family = self._families[number % len(self._families)]
        for attempt in range(1000):
            drawn = super().ask(number + 10_000 * (attempt + 1))
            if drawn is not None and drawn[0]["family"] == family:
                return drawn
        return None


def space_of(policy: Policy, *, trials: int) -> SearchSpace:
    """Return the table's space with the limits of a policy."""
    limits = Limits.model_validate({**policy.limits, "trials": trials})
    evaluation = EvaluationConfig(stratify_by="family" if policy.stratified else None)
    return replace(table_space(), limits=limits, evaluation=evaluation)


def shuffled(space: SearchSpace, *, seed: int) -> SearchSpace:
    """Return a space with its families in another order, which is that of the first trials of a stratified search."""
    domain = space.domains["family"]
    assert isinstance(domain, Choice)
    names = list(domain.options)
    random.Random(seed).shuffle(names)
    return replace(space, domains={**space.domains, "family": Choice({name: domain.options[name] for name in names})})


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
    scheduler: Any = None,
) -> Replayed:
    """Search the table with a policy until every trial is seen.

    Args:
        trials: Those of one corpus.
        policy: How to search.
        order: Seed of everything random.
        places: Those that are in the table; by default all.
        scheduler: Takes the place of the space's scheduler; `place(name, trial)` passes on what a name stands for.
    """
    unseen = list(range(len(trials)) if places is None else places)
    space = shuffled(space_of(policy, trials=len(unseen)), seed=order)
    sampler = None if policy.sampler is None else policy.sampler(space, order)
    controller = SweepController(space, seed=order, write=lambda *_, **__: None, sampler=sampler)
    if scheduler is not None:
        controller._scheduler = scheduler
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
        known, status = trials[place], "finished"
        if scheduler is not None:
            scheduler.place(trial.name, known)
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
        controller.end(trial.name, status=_status(status))
    return Replayed(finished, spent, begun)


def _status(name: str) -> Status:
    return "finished" if name == "finished" else "stopped"


def nearest(params: Params, unseen: Sequence[int], trials: Sequence[TableTrial], domains: Mapping[str, Domain]) -> int:
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
        if all(isinstance(option, int | float) and not isinstance(option, bool) for option in options):
            return abs(options.index(one) - options.index(other)) / max(1, len(options) - 1)
        return float(one != other)
    if domain.is_log:
        return abs(math.log(one / other)) / math.log(domain.high / domain.low)
    return abs(one - other) / (domain.high - domain.low)


# -- ensembles --------------------------------------------------------------------------------------------------


class Pools:
    """Scores of ensembles of a table's trials; every set of members is computed once."""

    def __init__(self, trials: Sequence[TableTrial], labels: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        self.trials, self._labels = trials, labels
        self._known: dict[tuple[tuple[int, ...], str], float] = {}
        self._chosen: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def test(self, members: Sequence[int], *, weights: str = "equal") -> float:
        """Return the mean test accuracy over tasks, in percent, of a logarithmic pool.

        Args:
            members: Places of trials; one that occurs twice counts twice.
            weights: `equal`, or `validation` for weights in proportion to validation accuracy on each task.
        """
        key = (tuple(sorted(members)), weights)
        if key not in self._known:
            self._known[key] = float(np.mean([self._task(task, key[0], weights) for task in self._labels["test"]]))
        return self._known[key]

    def _task(self, task: str, members: Sequence[int], weights: str) -> float:
        shares = np.ones(len(members))
        if weights == "validation":
            labels = self._labels["valid"][task]
            shares = np.array([(self.trials[one].valid[task].argmax(axis=1) == labels).mean() for one in members])
        pooled = sum(share * self.trials[one].test[task] for share, one in zip(shares, members, strict=True))
        return 100 * float((np.asarray(pooled).argmax(axis=1) == self._labels["test"][task]).mean())

    def greedy(self, candidates: Sequence[int], size: int) -> tuple[int, ...]:
        """Return different members by forward selection on the validation rows of all tasks, see `greedy_members`."""
        key = (tuple(sorted(candidates)), size)
        if key not in self._chosen:
            predictions = [
                [(self.trials[one].valid[task], labels) for task, labels in self._labels["valid"].items()]
                for one in key[0]
            ]
            self._chosen[key] = tuple(key[0][place] for place in greedy_members(predictions, size=size, repeats=False))
        return self._chosen[key]


def greedy_members(
    predictions: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]], *, size: int, repeats: bool = True
) -> list[int]:
    """Return the places of members that forward selection takes, each time the one that lowers the pool's NLL most.

    Args:
        predictions: For each candidate and task: log-probabilities [rows, classes] and labels [rows].
        size: Members to take; one may be taken again.
        repeats: Whether a member may be taken twice.

    Source: Caruana et al., 2004, section 2.1, with equal logarithmic pools and the mean of the tasks' NLLs.
    """
    tasks = range(len(predictions[0]))
    stacked = [np.stack([np.maximum(one[task][0], math.log(FLOOR)) for one in predictions]) for task in tasks]
    labels = [predictions[0][task][1] for task in tasks]
    totals: list[Any] = [0.0 for _ in tasks]
    members: list[int] = []
    for _ in range(size if repeats else min(size, len(predictions))):
        nll = np.zeros(len(predictions))
        for task in tasks:
            pooled = (totals[task] + stacked[task]) / (len(members) + 1)
            right = np.take_along_axis(pooled, labels[task][None, :, None], axis=2)[..., 0]
            top = pooled.max(axis=2)
            nll += (top + np.log(np.exp(pooled - top[..., None]).sum(axis=2)) - right).mean(axis=1)
        if not repeats:
            nll[members] = np.inf
        members.append(int(nll.argmin()))
        totals = [total + one[members[-1]] for total, one in zip(totals, stacked, strict=True)]
    return members


def top_members(trials: Sequence[TableTrial], candidates: Sequence[int], metric: str, size: int) -> tuple[int, ...]:
    """Return the candidates whose last value of a metric is best."""
    return tuple(sorted(candidates, key=lambda place: (-trials[place].values[metric][-1], place))[:size])
