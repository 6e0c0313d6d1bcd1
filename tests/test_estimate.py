"""What a sweep should take: percentiles over sweeps that the space's own scheduler and budget decide."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from command import CommandLine, stand_in

from raysent.config import parse_yaml
from raysent.sweeps.estimate import estimate, percentiles
from raysent.sweeps.layout import Machines
from raysent.sweeps.space import SearchSpace, parse_space
from raysent.sweeps.speed import TrialTime

TOY = """
base: {encoder: {type: gru}, objective: {type: context_prediction}, training: {num_reports: 9}}
search: {training.learning_rate: {loguniform: [1.0e-4, 1.0e-2]}}
limits: {trials: 12, scheduler: {type: asha, reduction_factor: 3}}
"""
SURE = TrialTime(600.0, "cost.trial", 0.1)


def space_of(more: str = "") -> SearchSpace:
    """Return the toy space with other sections."""
    return parse_space(parse_yaml(TOY + more), name="toy")


def test_estimate_grows_with_the_time_of_a_trial():
    """The quantiles are in order, each later report is made by fewer trials and later, and the source is named."""
    space = space_of("cost: {usd_per_hour: 3.0}\n")
    short, long = (
        estimate(space, replace(SURE, seconds=seconds), Machines(2), num_sweeps=40)
        for seconds in (600.0, 6000.0)
    )
    assert short.usd[0] < short.usd[1] < short.usd[2] < long.usd[2]
    assert long.hours[1] == pytest.approx(10 * short.hours[1], rel=0.1)
    assert "(cost.trial)" in short.assumptions[0]
    counts, hours = zip(*short.reports.values(), strict=True)
    assert (counts[0], list(short.reports)) == (12, list(range(1, 10)))
    assert list(counts) == sorted(counts, reverse=True)
    assert counts[-1] < 12
    assert 0 < hours[-1] <= short.hours[1] * 1.2


def test_machines_are_paid_for_the_whole_sweep():
    """Two trials at a time take half as long, for half the dollars of one machine; two machines cost twice as much."""
    space = space_of("cost: {usd_per_hour: 3.0}\n")
    machines = (Machines(1), Machines(2), Machines(2, shapes=((1, 0.0), (1, 0.0))))
    one, two, both = (estimate(space, SURE, there, num_sweeps=60) for there in machines)
    assert two.hours[1] == pytest.approx(one.hours[1] / 2, rel=0.3)
    assert two.usd[1] == pytest.approx(3 * two.hours[1])
    assert both.usd[1] == pytest.approx(2 * two.usd[1])


@pytest.mark.parametrize(
    ("limits", "hours"),
    [
        ("cost: {usd_per_hour: 3.0, budget: 1usd, reserve: 0.1}\n", (0.9 - 135 / 3600 * 3) / 3),
        ("cost: {usd_per_hour: 3.0, deadline: 20m}\n", 20 / 60 - 135 / 3600),
    ],
)
def test_budget_and_deadline_end_the_sweep(limits, hours):
    """When what is spent and what stopping costs fill the budget, and at the deadline less the time of stopping."""
    ended = estimate(space_of(limits), replace(SURE, seconds=36000.0), Machines(1), num_sweeps=20)
    assert ended.hours == pytest.approx((hours, hours, hours))


def test_a_limit_on_time_ends_the_sweep_when_it_is_over():
    """Unlike a deadline, nothing has to have stopped by then; a trial that never reports is in no row."""
    space = parse_space(parse_yaml(TOY.replace("trials: 12", "trials: 12, time: 20m")), name="toy")
    ended = estimate(space, replace(SURE, seconds=36000.0), Machines(1), num_sweeps=20)
    assert (ended.hours[1], ended.usd, ended.reports) == (pytest.approx(1 / 3), (0.0, 0.0, 0.0), {})


def test_most_of_what_is_to_come_is_below_the_90th_percentile():
    """A sample's own percentile is too low in every second sample; the estimate's is in one of a hundred."""
    draw = random.Random(0)
    samples = [[draw.random() for _ in range(100)] for _ in range(1000)]
    plain = sum(sorted(one)[89] < 0.9 for one in samples) / 1000
    mended = sum(percentiles(one)[2] < 0.9 for one in samples) / 1000
    assert mended < 0.03
    assert plain > 0.4
    assert all(percentiles(one)[2] <= sorted(one)[97] for one in samples)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def raysent(monkeypatch, capsys, tmp_path) -> CommandLine:
    """The command line beside a search space, its text and a task; speed is measured by the fewest steps."""
    stand_in(tmp_path, monkeypatch)
    monkeypatch.setattr("raysent.training.loop._TIMED_S", 0.0)
    monkeypatch.setattr("raysent.sweeps.estimate.NUM_SWEEPS", 20)
    return CommandLine(monkeypatch, capsys)


def test_plan_measures_the_time_of_a_trial(raysent):
    """Hours and reports also where the machine is free; nothing is written."""
    ran = raysent(
        "sweep",
        "space.yaml",
        "--dry-run",
        "--data",
        "data",
        "--tasks",
        "MR",
        "--run",
        "out",
        "--json",
    )
    assert ran.code == 0
    found = json.loads(ran.out)["estimate"]
    assert 0 < found["hours"]["p10"] <= found["hours"]["p90"] < 1
    assert found["usd"]["p90"] == 0
    assert found["reports"]["1"]["trials"] == 4
    assert "measured by its first steps" in found["assumptions"][0]


def test_plan_prints_when_each_report_is_known(raysent):
    """The time of a trial may also be given; options hold beside a section that is set as a whole."""
    ran = raysent(
        "sweep", "space.yaml", "--dry-run", "--data", "data", "--tasks", "MR", "--budget", "5usd",
        "--set", "cost={usd_per_hour: 2.0, trial: 10m}",
    )  # fmt: skip
    assert ran.code == 0
    assert "trials: 4 make report 1 by" in ran.out
    assert "- a whole trial takes 10m00s (cost.trial), within a factor of 1.4" in ran.out
    assert "- budget: of 5.00 usd, 4.75 are for training" in ran.out
