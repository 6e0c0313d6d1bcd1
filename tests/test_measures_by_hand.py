"""Measures of predictions, on few rows whose values a reader can count."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raysent.evaluation.probes.logistic import log_probabilities
from raysent.evaluation.probes.results import (
    FoldResult,
    accuracy,
    auroc,
    balance_measures,
    class_measures,
    f1,
    macro_f1,
    pearson,
    predicted_scores,
    ranks,
    spearman,
)

# Log-probabilities of two classes for four rows, of which the first three are right.
LABELS = np.array([0, 1, 1, 0])
LOGS = np.log(np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.3, 0.7]]))


@pytest.mark.parametrize("measure", [pearson, spearman])
def test_a_correlation_with_a_constant_is_zero_and_with_two_values_is_not(measure) -> None:
    """Whichever of both is constant; a range of 1 is none."""
    values, same = np.array([0.0, 1.0, 1.0, 0.0]), np.full(4, 3.0)
    assert measure(values, same) == 0.0
    assert measure(same, values) == 0.0
    assert measure(same, same) == 0.0
    assert measure(values, values) == pytest.approx(1.0)
    assert measure(values, 1 - values) == pytest.approx(-1.0)
    assert measure(2 * values + 7, values) == pytest.approx(1.0)


def test_pearson_is_of_values_and_spearman_of_their_order() -> None:
    """A far value moves one of both."""
    values, others = np.array([1.0, 2.0, 3.0, 100.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(values, others) == pytest.approx(1.0)
    assert 0.7 < pearson(values, others) < 0.9


def test_ranks_of_equal_values_are_their_mean() -> None:
    """Counted from 1."""
    assert ranks(np.array([30.0, 10.0, 30.0, 20.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_measures_of_four_rows() -> None:
    """Accuracy, F1 of the second class, and the mean of both classes' F1, from 0 to 1."""
    assert accuracy(LOGS, LABELS) == 0.75
    assert f1(LOGS, LABELS) == pytest.approx(0.8)
    assert f1(LOGS[:1], LABELS[:1]) == 0.0
    assert macro_f1(LOGS.argmax(axis=1), LABELS) == pytest.approx((0.8 + 2 / 3) / 2)
    # A class that is in neither counts for nothing.
    assert macro_f1(np.array([0, 3]), np.array([0, 0])) == pytest.approx((2 / 3 + 0) / 2)
    # Of four pairs of a row of each class, three are in the right order.
    assert auroc(LOGS, LABELS) == 0.75


def test_auroc_of_several_classes_is_the_mean_of_each_against_the_rest() -> None:
    """Of one class alone there is none; a class without a row is left out."""
    labels = np.array([0, 1, 2])
    right = np.log(np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.2, 0.7]]))
    assert auroc(right, labels) == 1.0
    assert auroc(right[:2], labels[:2]) == 1.0
    assert np.isnan(auroc(right, np.zeros(3, int)))
    tied = np.log(np.full((4, 2), 0.5))
    assert auroc(tied, LABELS) == 0.5


def test_the_f1_of_a_task_is_of_pairs_with_two_classes_alone() -> None:
    """In percent, on the rows that are named."""
    pairs = SimpleNamespace(kind="pair", label_names=("other", "same"), labels=LABELS)
    rows = np.array([3, 2])
    assert class_measures(pairs, LOGS[rows], rows) == {"f1": pytest.approx(100 * 2 / 3)}
    three = SimpleNamespace(kind="pair", label_names=("a", "b", "c"), labels=LABELS)
    assert class_measures(three, LOGS[rows], rows) == {}
    sentences = SimpleNamespace(kind="sentence", label_names=("a", "b"), labels=LABELS)
    assert class_measures(sentences, LOGS[rows], rows) == {}


def test_balance_measures_are_of_the_test_rows_of_all_folds() -> None:
    """In percent; accuracy too where another metric counts; none of scored pairs, nor what is not defined."""
    folds = tuple(
        FoldResult(np.array([], int), np.empty((0, 2)), rows, LOGS[rows], None)
        for rows in (np.array([2, 0]), np.array([1, 3]))
    )
    result = SimpleNamespace(folds=folds)
    data = SimpleNamespace(is_scored=False, labels=LABELS, metric="accuracy")
    expected = {"macro_f1": pytest.approx(50 * (0.8 + 2 / 3)), "auroc": pytest.approx(75.0)}
    assert balance_measures(data, result) == expected
    data.metric = "macro_f1"
    assert balance_measures(data, result) == {"accuracy": pytest.approx(75.0), **expected}
    data.labels = np.zeros(4, int)
    assert "auroc" not in balance_measures(data, result)
    data.is_scored = True
    assert balance_measures(data, result) == {}


def test_margins_of_one_output_are_those_of_two_classes() -> None:
    """The first class has the margin 0."""
    expected = np.log([[1 / (1 + np.e), np.e / (1 + np.e)]])
    np.testing.assert_allclose(log_probabilities(torch.ones(1, 1)).numpy(), expected, rtol=1e-6)
    two = log_probabilities(torch.tensor([[0.0, 1.0]]))
    np.testing.assert_allclose(two.numpy(), expected, rtol=1e-6)


def test_a_predicted_score_is_the_mean_of_the_levels() -> None:
    """Counted from 1."""
    assert predicted_scores(np.log([[0.5, 0.25, 0.25]])).tolist() == [pytest.approx(1.75)]
