"""The study of search on a table of trials: formulas with known answers, and replays on a small simulated table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.search import compare
from benchmarks.search.replay import (
    Answers,
    Policy,
    Pools,
    TableTrial,
    distance,
    drawn_table,
    nearest,
    read_scalars,
    replay,
    shuffled,
    taught_by,
    top_members,
    trial_of,
)
from benchmarks.search.table import TASKS, read_table, table_space
from raysent.storage import save_arrays

METRIC = compare.METRIC
LABELS = {task: np.array([0, 1] * 30) for task in ("MR", "SUBJ")}
# What the table's configurations are, by number.
PARAMS = {trial.number: trial.params for trial in read_scalars("novels")}


def predictions(strength: float, seed: int) -> dict[str, np.ndarray]:
    """Return log-probabilities [60, 2] of both tasks; more strength, more rows right."""
    random = np.random.default_rng(seed)
    found = {}
    for task, labels in LABELS.items():
        margins = np.where(labels == 1, 1, -1) * strength + random.normal(size=len(labels))
        found[task] = np.stack([-np.logaddexp(0, margins), -np.logaddexp(0, -margins)], axis=1)
    return found


def simulated(number: int, strength: float) -> TableTrial:
    """Return a trial of a second at each report, whose metric is its strength."""
    value = np.full(8, strength)
    return TableTrial(
        number=number,
        params=PARAMS[number],
        seconds=np.arange(1.0, 9.0),
        values={METRIC: value},
        test=predictions(strength, 100 + number),
        valid=predictions(strength, 200 + number),
    )


@pytest.fixture(scope="module")
def table() -> list[TableTrial]:
    """Return eighteen trials, each stronger than the one before."""
    return [
        simulated(number, strength) for number, strength in enumerate(np.linspace(0.0, 2.0, 18))
    ]


def test_distance_counts_family_first_then_parts_of_ranges() -> None:
    """Differences are shares of ranges."""
    domains = table_space().domains
    one = {"family": "bag", "training.batch_size": 50, "training.learning_rate": 5e-4}
    near = {**one, "training.batch_size": 100}
    far = {**one, "training.learning_rate": 1e-2}
    assert distance(one, near, domains) == pytest.approx(0.5)
    assert distance(one, far, domains) == pytest.approx(1.0)
    assert distance(one, {**one, "family": "uni"}, domains) == pytest.approx(100.0)
    assert distance(one, {**one, "encoder.embedding.dim": 100}, domains) == pytest.approx(1.0)


def test_nearest_is_of_the_same_family_while_there_is_one(table: list[TableTrial]) -> None:
    """Another family is taken only when there is no other trial left."""
    domains = table_space().domains
    assert nearest(table[12].params, [0, 1, 2], table, domains) == 0
    assert nearest(table[12].params, [1, 2, 12], table, domains) == 12
    assert nearest(table[12].params, [1, 2], table, domains) in (1, 2)


def test_pools_score_members_together(table: list[TableTrial]) -> None:
    """A member twice is the member alone, and more of the strongest are better than the weakest alone."""
    pools = Pools(table, LABELS)
    best = len(table) - 1
    alone = np.mean(
        [
            100 * (table[best].test[task].argmax(axis=1) == labels).mean()
            for task, labels in LABELS.items()
        ]
    )
    assert pools.test([best]) == pytest.approx(alone)
    assert pools.test([best, best]) == pytest.approx(alone)
    assert pools.test([best, best - 1, best - 2]) > pools.test([0])
    assert top_members(table, range(len(table)), METRIC, 2) == (best, best - 1)


def test_replay_without_stopping_trains_everything_once(table: list[TableTrial]) -> None:
    """All trials finish, at the whole cost, the same each time."""
    policy = compare.POLICIES[0]
    found = replay(table, policy, order=3)
    assert sorted(place for _, place in found.finished) == list(range(len(table)))
    assert found.seconds == pytest.approx(8.0 * len(table))
    assert replay(table, policy, order=3) == found


def test_replay_with_halving_spends_less_and_finishes_better_trials(
    table: list[TableTrial],
) -> None:
    """Halving stops the weak ones."""
    ours = compare.POLICIES[-3]
    found = replay(table, ours, order=1)
    assert found.num_trials == len(table)
    assert found.seconds < 8.0 * len(table)
    strengths = [table[place].values[METRIC][-1] for _, place in found.finished]
    assert np.mean(strengths) > np.mean([trial.values[METRIC][-1] for trial in table])


def test_scalars_of_the_repository_are_replayed_without_predictions() -> None:
    """A trial's score is the mean over tasks, and that of an ensemble the mean of its members'."""
    found = read_scalars("news")
    rows = read_table()
    last = rows[(rows["corpus"] == "news") & (rows["share"] == 1.0)].sort_values(["config", "seed"])
    assert [trial.number for trial in found] == last["config"].tolist()
    np.testing.assert_allclose([trial.score for trial in found], last["test"], atol=1e-2)
    assert Pools(found, None).test([3, 8]) == pytest.approx((found[3].score + found[8].score) / 2)


def test_families_come_in_the_shuffled_order(table: list[TableTrial]) -> None:
    """The first twelve trials of a stratified search are of twelve families."""
    policy = Policy("stratified", METRIC, {"sampler": "random", "scheduler": "none"})
    found = replay(table, policy, order=5)
    first = [table[place].params["family"] for _, place in found.finished[:12]]
    assert first == list(shuffled(table_space(), seed=5).domains["family"].options)  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", compare.POLICIES, ids=lambda policy: policy.name)
def test_every_compared_policy_sees_the_whole_table(
    table: list[TableTrial], policy: Policy
) -> None:
    """Each proposes until no trial is left, and finishes some."""
    found = replay(table, policy, order=0)
    assert found.num_trials == len(table)
    assert found.finished


def test_a_taught_search_begins_with_what_was_good_and_cheap(table: list[TableTrial]) -> None:
    """In half of its trials; then as one that is not taught."""
    slower = [replace(one, seconds=one.seconds * (1 + one.number % 5)) for one in table]
    taught = taught_by([slower], METRIC)
    (policy,) = (
        one for one in compare.POLICIES if one.is_taught and one.limits["scheduler"] == "none"
    )
    found = replay(table, policy, order=2, taught=taught)
    begun = [table[place].params for _, place in found.finished]
    assert begun[:9] == taught[:9]
    assert begun[9:] != taught[9:]
    better = sorted(slower[6:], key=lambda one: (one.seconds[-1], -one.values[METRIC][-1]))
    assert taught == [one.params for one in better]


def test_an_answer_is_what_validation_rows_choose(table: list[TableTrial], tmp_path) -> None:
    """The pool whose mean probability of the right class is highest, found by trying every one; test rows only judge."""
    rows = {
        f"{part}_{task}": LABELS.get(task, LABELS["MR"])
        for part in ("test", "valid")
        for task in TASKS
    }
    save_arrays(tmp_path / "labels.npz", rows)
    few = [
        replace(
            one,
            **{
                part: {task: values.get(task, values["MR"]) for task in TASKS}
                for part, values in (("test", one.test), ("valid", one.valid))
            },
        )
        for one in (table[2], table[9], table[17])
    ]
    answers = Answers(few, tmp_path)
    expected = []
    for task in TASKS:
        chosen, best = [], math.inf
        while len(chosen) < 8:
            trials_ = [[*chosen, one] for one in range(3)]
            nll = [
                -np.mean(
                    np.log(
                        np.mean(
                            [
                                np.exp(few[one].valid[task][range(60), rows[f"valid_{task}"]])
                                for one in pool
                            ],
                            axis=0,
                        )
                    )
                )
                for pool in trials_
            ]
            if min(nll) >= best:
                break
            best, chosen = min(nll), trials_[int(np.argmin(nll))]
        pooled = np.mean([np.exp(few[one].test[task]) for one in chosen], axis=0)
        expected.append(100 * np.mean(pooled.argmax(axis=1) == rows[f"test_{task}"]))
    assert answers.test([0, 1, 2]) == pytest.approx(np.mean(expected))
    assert answers.test([0]) < answers.test([0, 1, 2])
    with_baseline = Answers(few[:2], tmp_path, baseline=few[2])
    assert [with_baseline.test(members) for members in ([], [0, 1])] == [
        answers.test([2]),
        answers.test([0, 1, 2]),
    ]


def test_drawn_table_has_one_trial_of_each_configuration(table: list[TableTrial]) -> None:
    """Orders differ in the seeds that they draw."""
    twice = [*table, *table[:6]]
    drawn = [drawn_table(twice, order=order) for order in range(8)]
    assert all(
        sorted(twice[place].number for place in places) == list(range(18)) for places in drawn
    )
    assert len({tuple(places) for places in drawn}) > 1
    assert drawn_table(twice, order=3) == drawn[3]


def test_score_at_counts_what_has_finished(table: list[TableTrial]) -> None:
    """Before the first end the first trial counts."""
    pools = Pools(table, LABELS)
    found = replay(table, compare.POLICIES[0], order=0)
    first, second = found.finished[0][1], found.finished[1][1]
    assert compare.score_at(pools, found, 8.0) == pools.test([first])
    assert compare.score_at(pools, found, 1.0) == pools.test([first])
    assert compare.score_at(pools, found, 16.0) == pools.test([first, second])
    assert compare.seconds_to(pools, found, 0.0) == 8.0
    assert math.isinf(compare.seconds_to(pools, found, 101.0))


def test_trial_of_a_record_carries_the_last_report_and_changes_signs() -> None:
    """Reports without a value have the one before."""
    metrics_of = [{"probe_200": 60.0, "loss": 2.0}, {"probe_200": 70.0, "loss": 1.0, "sts": 40.0}]
    reports = [
        {"report": index, "seconds": float(index), "evaluation_s": 0.1, "metrics": one}
        for index, one in zip((1, 8), metrics_of, strict=True)
    ]
    record = {"config": 3, "params": {"family": "uni"}, "reports": reports}
    trial = trial_of(record, {"8.test_MR": np.ones((2, 2))})
    assert trial.values["probe_200"].tolist() == [60.0] * 7 + [70.0]
    assert trial.values["loss"].tolist() == [-2.0] * 7 + [-1.0]
    assert np.isnan(trial.values["sts"][:7]).all()
    assert trial.seconds.tolist() == pytest.approx(range(1, 9))
    assert trial.test["MR"].shape == (2, 2)


def test_interval_is_of_the_mean() -> None:
    """Equal values have no interval; it is shown with signs."""
    assert compare.interval(np.full(5, 2.0)) == (2.0, 2.0, 2.0)
    assert compare.shown((0.5, -0.25, 1.0)) == "+0.50 [-0.25, +1.00]"
