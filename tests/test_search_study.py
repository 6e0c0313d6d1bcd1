"""The study of search on a table of trials: formulas with known answers, and replays on a small simulated table."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.plots import Line, Mark, curves, scatter
from benchmarks.search import metrics, policies, trials
from benchmarks.search.evaluation import pool_scores, task_rows
from benchmarks.search.members import GainASHA
from benchmarks.search.replay import (
    Pools,
    TableTrial,
    distance,
    drawn_table,
    greedy_members,
    nearest,
    replay,
    shuffled,
    top_members,
    trial_of,
)
from benchmarks.search.table import as_rows, read_table
from raysent.evaluation.task import TaskData
from raysent.live import CORRELATIONS
from raysent.training.validation.pool import block_scores, neighbours

METRIC = policies.METRIC
LABELS = {part: {task: np.array([0, 1] * 30) for task in ("MR", "SUBJ")} for part in ("valid", "test")}


def predictions(strength: float, seed: int) -> dict[str, np.ndarray]:
    """Return log-probabilities [60, 2] of both tasks; more strength, more rows right."""
    random = np.random.default_rng(seed)
    found = {}
    for task, labels in LABELS["test"].items():
        margins = np.where(labels == 1, 1, -1) * strength + random.normal(size=len(labels))
        found[task] = np.stack([-np.logaddexp(0, margins), -np.logaddexp(0, -margins)], axis=1)
    return found


def simulated(number: int, strength: float) -> TableTrial:
    """Return a trial of a second at each report, whose metric is its strength."""
    value = np.full(8, strength)
    return TableTrial(
        number=number,
        params=trials.configuration(number).params,
        seconds=np.arange(1.0, 9.0),
        values={METRIC: value, policies.OLD_METRIC: -value},
        valid=predictions(strength, number),
        test=predictions(strength, 100 + number),
        early={1: {task: one[:20] for task, one in predictions(strength, number).items()}},
    )


@pytest.fixture(scope="module")
def table() -> list[TableTrial]:
    """Return eighteen trials, each stronger than the one before."""
    return [simulated(number, strength) for number, strength in enumerate(np.linspace(0.0, 2.0, 18))]


def test_configuration_is_of_the_family_of_its_number_and_the_same_each_time() -> None:
    """Configuration n is of family n modulo 12, whatever was drawn before."""
    names = trials.families()
    assert [trials.configuration(number).family for number in range(12)] == names
    trials.configuration.cache_clear()
    first = trials.configuration(15)
    trials.configuration.cache_clear()
    assert trials.configuration(15) == first


def test_order_has_every_family_corpus_and_seed_in_each_round() -> None:
    """A build that is stopped after a round is balanced."""
    rounds = list(trials.order(2, ("a", "b")))
    assert len(rounds) == 2 * 12 * 2 * 2
    first = {(corpus, chosen.family, seed) for corpus, chosen, seed in rounds[:48]}
    assert len(first) == 48


def test_pool_scores_are_those_of_validation() -> None:
    """The faster formula gives the sums that `raysent` reports."""
    random = torch.Generator().manual_seed(0)
    f, g = torch.randn(2, 50, 4, generator=random)
    documents = np.repeat([0, 1, 2], [20, 1, 29])
    correct, nll = pool_scores(f, g, documents)
    wanted = block_scores(f, g, torch.from_numpy(neighbours(documents, context_size=1)))
    assert (float(correct.sum()), float(nll.sum())) == pytest.approx(wanted, rel=1e-5)


def test_task_rows_are_disjoint_and_hold_out_training_rows_for_a_small_test_split() -> None:
    """No row is in two parts."""
    data = TaskData(
        "t", "sentence", "train-test", ("a", "b"), ([str(row) for row in range(6000)],), np.arange(6000) % 2,
        train=np.arange(5500), test=np.arange(5500, 6000),
    )  # fmt: skip
    rows = task_rows(data)
    parts = [{rows.sentences[0][row] for row in part} for part in (rows.train, rows.validation, rows.test)]
    assert [len(part) for part in parts] == [2000, 800, 1200]
    assert len(set.union(*parts)) == 4000
    assert sum(int(row) >= 5500 for row in parts[2]) == 500


def test_distance_counts_family_first_then_parts_of_ranges() -> None:
    """Differences are shares of ranges."""
    domains = trials.table_space().domains
    one = {"family": "bag", "training.batch_size": 50, "training.learning_rate": 5e-4}
    near = {**one, "training.batch_size": 100}
    far = {**one, "training.learning_rate": 1e-2}
    assert distance(one, near, domains) == pytest.approx(0.5)
    assert distance(one, far, domains) == pytest.approx(1.0)
    assert distance(one, {**one, "family": "uni"}, domains) == pytest.approx(100.0)
    assert distance(one, {**one, "encoder.embedding.dim": 100}, domains) == pytest.approx(1.0)


def test_nearest_is_of_the_same_family_while_there_is_one(table: list[TableTrial]) -> None:
    """Another family is taken only when there is no other trial left."""
    domains = trials.table_space().domains
    assert nearest(table[12].params, [0, 1, 2], table, domains) == 0
    assert nearest(table[12].params, [1, 2, 12], table, domains) == 12
    assert nearest(table[12].params, [1, 2], table, domains) in (1, 2)


def test_greedy_members_take_what_lowers_the_pool_most() -> None:
    """A member is taken again unless another one adds more."""
    labels = np.array([0, 1, 0, 1])
    sure, wrong = math.log(0.9), math.log(0.1)
    good = np.where(labels[:, None] == [0, 1], sure, wrong)
    bad = np.log(np.full((4, 2), 0.5))
    half = good.copy()
    half[2:] = half[2:, ::-1]
    other = good.copy()
    other[:2] = other[:2, ::-1]
    assert greedy_members([[(bad, labels)], [(good, labels)]], size=2) == [1, 1]
    assert greedy_members([[(bad, labels)], [(good, labels)]], size=2, repeats=False) == [1, 0]
    # Two that err on different rows; the first is taken by its place, the second for what it adds.
    assert greedy_members([[(half, labels)], [(half, labels)], [(other, labels)]], size=3)[:1] != [1]
    chosen = greedy_members([[(half * 2, labels)], [(half * 2, labels)], [(other, labels)]], size=2)
    assert set(chosen) == {0, 2} or chosen == [2, 2]


def test_pools_score_equal_and_weighted_members(table: list[TableTrial]) -> None:
    """A member twice is the member alone."""
    pools = Pools(table, LABELS)
    best = len(table) - 1
    alone = np.mean(
        [100 * (table[best].test[task].argmax(axis=1) == labels).mean() for task, labels in LABELS["test"].items()]
    )
    assert pools.test([best]) == pytest.approx(alone)
    assert pools.test([best, best]) == pytest.approx(alone)
    assert pools.test([0, best], weights="validation") >= pools.test([0, best]) - 10
    assert top_members(table, range(len(table)), METRIC, 2) == (best, best - 1)


def test_replay_without_stopping_trains_everything_once(table: list[TableTrial]) -> None:
    """All trials finish, at the whole cost, the same each time."""
    policy = policies.policies()[0]
    found = replay(table, policy, order=3)
    assert sorted(place for _, place in found.finished) == list(range(len(table)))
    assert found.seconds == pytest.approx(8.0 * len(table))
    assert replay(table, policy, order=3) == found


def test_replay_with_halving_spends_less_and_finishes_better_trials(table: list[TableTrial]) -> None:
    """Halving stops the weak ones."""
    ours = next(policy for policy in policies.policies() if policy.name == "raysent")
    found = replay(table, ours, order=1)
    assert found.num_trials == len(table)
    assert found.seconds < 8.0 * len(table)
    strengths = [table[place].values[METRIC][-1] for _, place in found.finished]
    assert np.mean(strengths) > np.mean([trial.values[METRIC][-1] for trial in table])


def test_families_come_in_the_shuffled_order(table: list[TableTrial]) -> None:
    """The first twelve trials are of twelve families."""
    policy = next(policy for policy in policies.policies() if policy.name == "families in turn")
    found = replay(table, policy, order=5)
    first = [table[place].params["family"] for _, place in found.finished[:12]]
    assert first == list(shuffled(trials.table_space(), seed=5).domains["family"].options)  # type: ignore[union-attr]


def test_gain_continues_with_what_greedy_selection_takes(table: list[TableTrial]) -> None:
    """Some trials continue and some stop."""
    policy = policies.Policy("gain", METRIC, {"sampler": "random", **policies.asha(3, 1)})
    found = replay(table, policy, order=0, scheduler=GainASHA(LABELS["valid"]))
    assert 0 < len(found.finished) < len(table)


def test_drawn_table_has_one_trial_of_each_configuration(table: list[TableTrial]) -> None:
    """Orders differ in the seeds that they draw."""
    twice = [*table, *table[:6]]
    drawn = [drawn_table(twice, order=order) for order in range(8)]
    assert all(sorted(twice[place].number for place in places) == list(range(18)) for places in drawn)
    assert len({tuple(places) for places in drawn}) > 1
    assert drawn_table(twice, order=3) == drawn[3]


def test_score_at_counts_what_has_finished(table: list[TableTrial]) -> None:
    """Before the first end the first trial counts."""
    pools = Pools(table, LABELS)
    found = replay(table, policies.policies()[0], order=0)
    first, second = found.finished[0][1], found.finished[1][1]
    assert policies.score_at(pools, found, "top 6", METRIC, 8.0) == pools.test([first])
    assert policies.score_at(pools, found, "top 6", METRIC, 1.0) == pools.test([first])
    assert policies.score_at(pools, found, "top 6", METRIC, 16.0) == pools.test([first, second])
    assert policies.seconds_to(pools, found, "top 6", METRIC, 0.0) == 8.0
    assert math.isinf(policies.seconds_to(pools, found, "top 6", METRIC, 101.0))


def test_trial_of_a_record_carries_the_last_report_and_changes_signs() -> None:
    """Reports without a value have the one before."""
    metrics_of = [{"probe_200": 60.0, "loss": 2.0}, {"probe_200": 70.0, "loss": 1.0, "sts": 40.0}]
    reports = [
        {"report": index, "seconds": float(index), "evaluation_s": 0.1, "metrics": one, "costs": {}}
        for index, one in zip((1, 8), metrics_of, strict=True)
    ]
    record = {"config": 3, "params": {"family": "uni"}, "reports": reports}
    trial = trial_of(record, {"1.valid_MR": np.zeros((2, 2)), "8.test_MR": np.ones((2, 2))})
    assert trial.values["probe_200"].tolist() == [60.0] * 7 + [70.0]
    assert trial.values["loss"].tolist() == [-2.0] * 7 + [-1.0]
    assert np.isnan(trial.values["sts"][:7]).all()
    assert trial.seconds.tolist() == pytest.approx(range(1, 9))
    assert trial.early[1]["MR"].shape == trial.test["MR"].shape == (2, 2)


def scalars(tmp_path, *, noise: float) -> pd.DataFrame:
    """Return a table of 8 configurations in two families, whose metric is the test accuracy plus noise."""
    records = []
    for config in range(8):
        for seed in (0, 1):
            test = 60.0 + config + 10 * (config % 2)
            jitter = noise * (1 if seed else -1)
            values = {"probe_200": test + jitter, "loss": -test, "test_MR": test}
            report = {"seconds": 1.0, "evaluation_s": 0.5, "costs": {"probe_200": 0.25}}
            reports = [{"report": index, "metrics": values, **report} for index in (2, 8)]
            record = {
                "corpus": "docs",
                "config": config,
                "seed": seed,
                "family": "ab"[config % 2],
                "status": "finished",
            }
            records.append({**record, "steps": 1, "sentences": 1, "params": {}, "setup_s": 0.0, "reports": reports})
    path = tmp_path / "table.csv"
    rows = as_rows(records)
    pd.DataFrame(rows).to_csv(path, index=False)
    assert json.loads(rows[0]["params"]) == {}
    return read_table(path)


def test_correlations_of_known_tables(tmp_path) -> None:
    """A metric that is the test accuracy but for noise correlates by nearly 1."""
    table = scalars(tmp_path, noise=0.25)
    for metric in ("probe_200", "loss"):
        pairs = metrics.pairs_of(table, metric, 0.25)
        assert len(pairs) == 16
        found = metrics.correlation(pairs)
        assert found is not None
        assert found.value > 0.98
        assert found.interval[0] > 0.8
        within = metrics.correlation(metrics.centred(pairs))
        assert within is not None
        assert within.value > 0.95
    assert metrics.correlation(metrics.pairs_of(table, "sts", 1.0)) is None
    assert metrics.cost(table, "probe_200") == 0.25
    assert metrics.other_seed(table) == pytest.approx(1.0)
    assert "16 trials of 8 configurations in 2 families" in metrics.summary(table)
    assert any(line.startswith("| `probe_200` |") for line in metrics.lines_of(table))


@pytest.mark.parametrize(
    ("metric", "column"),
    [
        ("context_accuracy", "context_accuracy_1000"),
        ("document_accuracy", "document_500"),
        ("downstream", "probe_500"),
        ("pearson", "sts"),
    ],
)
def test_plan_has_the_correlations_of_the_shipped_table(metric: str, column: str) -> None:
    """What the plan says of a metric is what the table says."""
    table = read_table()
    for corpus, value in zip(("novels", "docs"), CORRELATIONS[metric], strict=True):
        found = metrics.correlation(metrics.pairs_of(table[table.corpus == corpus], column, 1.0))
        assert found is not None
        assert value == pytest.approx(found.value, abs=0.005)


def test_seed_noise_is_the_ratio_of_standard_deviations() -> None:
    """The estimate takes the noise out of the means."""
    random = np.random.default_rng(0)
    between, within = random.normal(0, 3, size=2000), random.normal(0, 1, size=(2, 2000))
    pairs = pd.DataFrame({"config": np.tile(np.arange(2000), 2), "x": np.concatenate(between + within)})
    assert metrics.seed_noise(pairs) == pytest.approx(1 / 3, abs=0.02)


def test_ratio_and_interval_are_paired() -> None:
    """Half of every order is half of the mean."""
    one, other = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])
    assert policies.ratio(one, other) == pytest.approx((0.5, 0.5, 0.5))
    assert policies.interval(np.full(5, 2.0)) == (2.0, 2.0, 2.0)
    assert policies.shown((0.5, -0.25, 1.0)) == "+0.50 [-0.25, +1.00]"


def test_plots_are_one_document_with_every_label() -> None:
    """Plots hold what they are given."""
    marks = scatter(
        [("docs", [Mark("probe", 0.1, 0.8, (0.7, 0.9)), Mark("sts", 1.0, -0.2, (-0.4, 0.1))])], x="s", y="r"
    )
    lines = curves([("docs", [Line("random", [10, 20], [60.0, 61.0], [(59.0, 61.0), (60.0, 62.0)])])], x="%", y="test")
    for text, words in ((marks, ("probe", "sts")), (lines, ("random",))):
        assert text.count("<svg") == text.count("</svg>") == 1
        assert all(word in text for word in words)
        assert "nan" not in text
