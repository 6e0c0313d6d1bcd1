"""Schedulers: the contract of every one that is found, and ASHA."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from raysent.config import parse_yaml
from raysent.errors import ConfigError
from raysent.sweeps.schedulers import SCHEDULERS, make_scheduler
from raysent.sweeps.schedulers.asha import Rung
from raysent.sweeps.space import SearchSpace, parse_space
from raysent.sweeps.space.limits import ComponentChoice
from raysent.sweeps.trial import Trial

TEXT = """
metric: %s
base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}
search: {training.learning_rate: {loguniform: [1e-4, 1e-2]}}
limits: {scheduler: %s}
cost: {usd_per_hour: 1.0}
"""
CHOICES = list(SCHEDULERS)
NUM_REPORTS = 9


def _space(scheduler: str, *, metric: str = "context_accuracy") -> SearchSpace:
    return parse_space(parse_yaml(TEXT % (metric, scheduler), source="s.yaml"), name="toy")


def _report(scheduler, trial: Trial, score: float) -> bool:
    """Give a trial its next report; returns whether it continues."""
    trial.index, trial.num_reports, trial.status = trial.index + 1, NUM_REPORTS, "running"
    trial.metrics, trial.seconds = (
        {"context_accuracy": score, "context_nll": score},
        10.0 * trial.index,
    )
    return scheduler.on_report(trial, score=score).should_continue


def _trial(number: int) -> Trial:
    return Trial(f"{number:04d}", number, {"training.learning_rate": 0.001 * (number + 1)}, 0)


def _trained(scheduler, *, num: int = 12, sign: float = 1.0) -> dict[str, int]:
    """Train trials of a fixed quality, three at a time; returns how far each came."""
    waiting, running = [_trial(number) for number in range(num)], []
    reached = {}
    while waiting or running:
        while waiting and len(running) < 3:
            running.append(waiting.pop(0))
        for trial in list(running):
            quality = random.Random(trial.number).gauss(0, 1)
            should_continue = _report(scheduler, trial, sign * (quality - 1 / (trial.index + 1)))
            if not should_continue or trial.index == NUM_REPORTS:
                trial.status = "finished" if trial.index == NUM_REPORTS else "stopped"
                scheduler.complete(trial)
                reached[trial.name] = trial.index
                running.remove(trial)
    return reached


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("metric", ["context_accuracy", "context_nll"])
def test_scheduler_keeps_good_trials_and_stops_some(choice, metric):
    """The best trial comes to its end, and it is the same one where less is better."""
    sign = 1.0 if metric == "context_accuracy" else -1.0
    reached = _trained(make_scheduler(_space(choice, metric=metric), seed=1), sign=sign)
    best = max(range(12), key=lambda number: random.Random(number).gauss(0, 1))
    assert reached[f"{best:04d}"] == NUM_REPORTS
    assert (min(reached.values()) < NUM_REPORTS) == (choice != "none")


@pytest.mark.parametrize("choice", CHOICES)
def test_scheduler_is_a_function_of_its_seed_and_the_reports(choice):
    """The same reports give the same decisions whatever the global generators do, which are left alone."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what some schedulers draw from
    space = _space(choice)
    first = _trained(make_scheduler(space, seed=1))
    after = random.random(), np.random.random()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert (random.random(), np.random.random()) == after  # noqa: NPY002
    assert _trained(make_scheduler(space, seed=1)) == first


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice != "none"])
def test_scheduler_stops_a_trial_whose_score_is_not_a_number(choice):
    """Before its end; after the last report there is nothing to stop."""
    scheduler = make_scheduler(_space(choice), seed=1)
    trial = _trial(0)
    assert not _report(scheduler, trial, math.nan)
    last = _trial(1)
    last.index = NUM_REPORTS - 1
    assert _report(scheduler, last, math.nan)


@pytest.mark.parametrize("choice", CHOICES)
def test_scheduler_takes_the_end_of_a_trial_that_never_reported(choice):
    """A trial that failed before its first report changes nothing."""
    scheduler = make_scheduler(_space(choice), seed=1)
    failed = _trial(0)
    failed.status, failed.num_reports = "failed", NUM_REPORTS
    scheduler.complete(failed)
    broken = _trial(1)
    assert _report(scheduler, broken, 0.1) in (True, False)
    broken.status = "failed"
    scheduler.complete(broken)
    assert _report(scheduler, _trial(2), 0.2) in (True, False)


def test_make_scheduler_names_the_setting_that_is_wrong():
    """Also for a space that was changed after it was read."""
    space = _space("asha")
    limits = space.limits.model_copy(update={"scheduler": ComponentChoice(type="ashaa")})
    space = space.model_copy(update={"limits": limits})
    with pytest.raises(
        ConfigError, match=r"^s.yaml:5: limits.scheduler: unknown scheduler; did you mean 'asha'\?$"
    ):
        make_scheduler(space, seed=0)


def test_rungs_are_those_of_the_scheduler():
    """Powers of ASHA's factor; none where nothing is stopped."""
    asha = make_scheduler(_space("{type: asha, reduction_factor: 2, grace_reports: 3}"), seed=0)
    assert [asha.next_rung(index) for index in (0, 3, 5, 6)] == [3, 6, 6, 12]
    assert make_scheduler(_space("none"), seed=0).next_rung(0) is None


def test_asha_keeps_the_best_third_at_rungs():
    """At a rung one in three continues; between rungs everybody does."""
    asha = make_scheduler(_space("asha"), seed=0)
    trials = [_trial(number) for number in range(4)]
    assert [
        _report(asha, trial, score) for trial, score in zip(trials, [5, 4, 6, 1], strict=True)
    ] == [
        True,
        False,
        True,
        False,
    ]
    assert _report(asha, trials[1], -9.0)


def test_asha_says_the_place_of_a_stopped_trial():
    """The reason has the place, how many came, and how many continue."""
    asha = make_scheduler(_space("asha"), seed=0)
    for number in range(3):
        _report(asha, _trial(number), 1.0)
    last = _trial(3)
    last.index, last.num_reports = 1, NUM_REPORTS
    decision = asha.on_report(last, score=0.5)
    assert decision == (False, "place 4 of 4 after report 1; the best 2 continue")


def test_asha_compares_at_each_of_two_rungs_in_succession():
    """With factor 2 the first two reports are rungs; the third is none."""
    asha = make_scheduler(_space("{type: asha, reduction_factor: 2}"), seed=0)
    assert [asha.next_rung(index) for index in range(5)] == [1, 2, 4, 4, 8]
    best, worst = _trial(0), _trial(1)
    assert _report(asha, worst, 0.5)
    assert _report(asha, best, 0.6)
    assert _report(asha, best, 0.6)
    assert not _report(asha, worst, 0.5)
    assert _report(asha, worst, 0.1)


def test_asha_stops_no_trial_after_its_last_report():
    """It has nothing left to train, although the last report is at a rung."""
    asha = make_scheduler(_space("asha"), seed=0)
    for number, score in enumerate([0.9, 0.1]):
        trial = _trial(number)
        trial.index = NUM_REPORTS - 1
        assert _report(asha, trial, score)


def test_asha_gives_a_reason_for_a_score_that_is_not_a_number():
    """Even to the first trial, and between rungs."""
    asha = make_scheduler(_space("asha"), seed=0)
    for index in (1, 2):
        trial = _trial(0)
        trial.index, trial.num_reports = index, NUM_REPORTS
        assert asha.on_report(trial, score=math.nan) == (False, "its score is not a number")


def test_asha_minimises_the_metric_of_a_loss():
    """The smallest score is the best."""
    asha = make_scheduler(_space("{type: asha, reduction_factor: 2}", metric="context_nll"), seed=0)
    assert [
        _report(asha, _trial(number), score) for number, score in enumerate([2.0, 3.0, 1.0])
    ] == [True, False, True]


def test_rung_keeps_scores_in_order():
    """Ties are not better; a score given again replaces the trial's own, not an equal one's."""
    rung = Rung()
    for name, score in (("a", 1.0), ("b", 3.0), ("c", 1.0)):
        rung.place(name, score)
    assert ([rung.better(name) for name in "abc"], len(rung)) == ([1, 0, 1], 3)
    rung.place("c", 5.0)
    assert ([rung.better(name) for name in "abc"], len(rung)) == ([2, 1, 0], 3)
    rung.place("b", 0.5)
    assert [rung.better(name) for name in "abc"] == [1, 2, 0]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("ashaa", r"^s.yaml:5: limits.scheduler: unknown scheduler; did you mean 'asha'\?$"),
        ("{type: asha, reduction_factor: 1}", r"limits.scheduler.reduction_factor: must be greater than or equal to 2; given 1"),
    ],
)  # fmt: skip
def test_a_wrong_scheduler_is_one_line_before_anything_starts(choice, message):
    """File, line, the setting and what it should be, when the space is read."""
    with pytest.raises(ConfigError, match=message):
        _space(choice)
