"""The protocol `fast`: exact L2 logistic regression, C chosen by validation accuracy. Ours, used inside sweeps.

Features are centered and scaled on the rows that may train (see `ScaledFeatures`). How rows are divided:

- nested: ten stratified folds. For outer fold o, C is chosen by cross-validation over the nine others, each predicted
  by a fit on the remaining eight; then a fit on all nine predicts fold o. The fit without folds o and i is both inner
  fit i of o and inner fit o of i, so 45 fits per C replace 90.
- train-test: ten stratified folds of train choose C; a fit on all of train predicts test.
- train-validation-test: fits on train; validation chooses C and does not train. Where validation rows were drawn one by
  one, evaluations fit models that did not learn the task's labels as for train-test, on both, and predict both out of
  fold: that a model beside them learned from the train rows costs them nothing.
- scored pairs: the same with distributions over rating levels (see `relatedness`); validation's correlation chooses.

Fits that choose C stop within 5e-5 of their optimum, from C = 1 on within 5e-5 C^(2/3). This is closer than
scikit-learn gets with its default tolerance: 3e-5 to 2, growing with C, measured on vectors of 4,800 dimensions of
trained and untrained models. Final fits stop within 1e-7.

Under `fast/divided` a nested task is divided into train and test first. Ensembles and sweeps, which choose among
models, use it for such tasks.

Ties go to the C of the lowest log loss. Folds are drawn with a fixed seed from the labels and from which rows belong
together (`evaluation.units`), so all models share them.

Differs: nested cross-validation in scikit-learn and SentEval draws new inner folds inside every outer fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from raysent.evaluation.division import VERSION as DIVISION_VERSION
from raysent.evaluation.probes.logistic import (
    PATH_TOLERANCE,
    TOLERANCE,
    Fits,
    class_targets,
    log_probabilities,
)
from raysent.evaluation.probes.relatedness import level_targets, scored_result
from raysent.evaluation.probes.results import (
    FoldResult,
    Probe,
    ProbeResult,
    class_measures,
)
from raysent.evaluation.protocols import DIVIDED
from raysent.evaluation.targets import Targets, best_of
from raysent.evaluation.task import TaskData
from raysent.evaluation.units import folds_of_units

NUM_FOLDS = 10
FOLD_SEED = 1111
STRENGTHS = tuple(2.0**exponent for exponent in range(-4, 9, 2))
# The fold of rows that train nothing.
_NOT_TRAINED = -1


@dataclass(frozen=True)
class Fast:
    """Exact L2 logistic regression, C chosen by validation accuracy; ours, used inside sweeps.

    Attributes:
        divides: Whether evaluations divide a task without given splits into train and test first.
    """

    divides: bool = False

    def settings(self) -> dict[str, object]:
        """Return what scores depend on."""
        settings: dict[str, object] = {}
        if self.divides:
            settings["division"] = DIVISION_VERSION
        return {
            **settings,
            "version": 7,
            "strengths": list(STRENGTHS),
            "num_folds": NUM_FOLDS,
            "fold_seed": FOLD_SEED,
            "tolerance": TOLERANCE,
            "path_tolerance": PATH_TOLERANCE,
        }

    def fit(self, features: np.ndarray, data: TaskData) -> ProbeResult:
        """Fit and score a task's probe; see `EvaluationProtocol`."""
        return fit_rows(dense_fits(features, data), data)


PROTOCOLS = {"fast": Fast(), DIVIDED: Fast(divides=True)}


class Solver(Protocol):
    """Fits probes on some of a task's rows.

    A solution has the results of several problems: sets of rows that train, at some C.
    """

    @property
    def num_unfinished(self) -> int:
        """The fits that stopped at the maximum number of iterations."""

    @property
    def strengths(self) -> Sequence[float]:
        """The grid of C, ascending."""

    def path(self, masks: Tensor) -> Any:
        """Solve every mask [rows, masks] at each of `strengths`; problem `strength * masks + mask`."""

    def solve(self, masks: Tensor, strengths: Tensor, start: Any = None) -> Any:
        """Solve problems given by their rows [rows, problems] and C [problems], from another solution's `start`."""

    def margins(self, solution: Any) -> Tensor:
        """Return the margins of all rows, float32 [rows, outputs, problems]."""

    def probe(self, solution: Any, problem: int, strength: float) -> Probe:
        """Return the classifier of one problem."""


def dense_fits(features: np.ndarray, data: TaskData) -> Fits:
    """Return what fits probes on features [rows, features], centered and scaled on the rows that may train."""
    trainable = data.train
    if data.split == "nested":
        trainable = np.arange(len(data.labels))
    return Fits(features, _targets(data), trainable=trainable, strengths=STRENGTHS)


def fit_rows(fits: Solver, data: TaskData) -> ProbeResult:
    """Fit and score a task's probe: divide its rows, choose C, and fit."""
    if data.is_scored:
        return _fit_given_splits(fits, data)
    match data.split:
        case "nested":
            return _fit_nested(fits, data)
        case "train-test":
            return _fit_train_test(fits, data)
        case "train-validation-test":
            return _fit_given_splits(fits, data)


def stratified_ranks(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return a rank for each row, float64 [rows]: by rising ranks, classes alternate in their proportions."""
    ranks = np.empty(len(labels))
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        ranks[rows] = (np.arange(len(rows)) + generator.uniform(0, 0.5)) / len(rows)
    return ranks


def _targets(data: TaskData) -> Tensor:
    """Return the target probability of each output, float32 [rows, outputs]; two classes have one output."""
    num_classes = len(data.label_names)
    if data.is_scored:
        targets = torch.from_numpy(level_targets(data.scores, num_levels=num_classes))
        # The solver needs distributions: what a score below the first level lost goes to the first level.
        targets[:, 0] += 1 - targets.sum(dim=1)
        return targets
    return class_targets(data.labels, num_classes=num_classes)


def fold_numbers(data: TaskData, rows: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the fold of each of some rows, int64 [rows], and the number of folds: the task's own, or drawn."""
    if len(data.folds):
        return data.folds[rows], int(data.folds[rows].max()) + 1
    units = data.units
    if len(units):
        units = units[rows]
    folds = folds_of_units(data.labels[rows], NUM_FOLDS, seed=FOLD_SEED, units=units)
    return folds, int(folds.max()) + 1


def _fit_nested(fits: Solver, data: TaskData) -> ProbeResult:
    fold_array, num_folds = fold_numbers(data, np.arange(len(data)))
    folds = torch.from_numpy(fold_array)
    pairs = list(combinations(range(num_folds), 2))
    pair_masks = [(folds != first) & (folds != second) for first, second in pairs]
    path = fits.path(torch.stack(pair_masks, dim=1))
    margins = fits.margins(path)
    pair_numbers = _pair_numbers(pairs, num_folds)
    best_indices = []
    validated = []
    totals = np.zeros((len(fits.strengths), 2))
    for outer in range(num_folds):
        rows = torch.nonzero(folds != outer).squeeze(1)
        # Each row is predicted by the fit that left out the outer fold and the row's own.
        problems = pair_numbers[outer, folds[rows]]
        candidates = []
        for index in range(len(fits.strengths)):
            of_strength = margins[rows, :, problems + index * len(pairs)]
            candidates.append(log_probabilities(of_strength).numpy())
        measured = Targets.of(data).take(rows.numpy()).measure(candidates)
        totals += measured
        best = best_of(measured)
        best_indices.append(best)
        validated.append((rows.numpy(), candidates[best]))
    # The probe for new sentences trains on every fold; its C is the best over all inner folds.
    best_indices.append(best_of(totals))
    # No row has the fold after the last, so the last fit is on all rows.
    masks = torch.stack([folds != outer for outer in range(num_folds + 1)], dim=1)
    # Every fit starts from a solution of its own C, that of the first pair of folds.
    first_pair = int(pair_numbers.diagonal(1)[0])
    starts = torch.tensor([index * len(pairs) + first_pair for index in best_indices])
    strengths = [fits.strengths[index] for index in best_indices]
    refit = fits.solve(masks, torch.tensor(strengths), path.start(starts))
    fold_results = []
    for outer, (validation_rows, predicted) in enumerate(validated):
        test = torch.nonzero(folds == outer).squeeze(1)
        tested = log_probabilities(fits.margins(refit)[test, :, outer]).numpy()
        fold_results.append(
            FoldResult(validation_rows, predicted, test.numpy(), tested, strengths[outer])
        )
    probe = fits.probe(refit, num_folds, strengths[-1])
    return result_of_folds(fold_results, data, probe, fits.num_unfinished)


def _pair_numbers(pairs: Sequence[tuple[int, int]], num_folds: int) -> Tensor:
    """Return the number of the fit without folds o and i, int64 [folds, folds]; o = i is never read."""
    numbers = torch.zeros(num_folds, num_folds, dtype=torch.int64)
    for number, (first, second) in enumerate(pairs):
        numbers[first, second] = numbers[second, first] = number
    return numbers


def _fit_train_test(fits: Solver, data: TaskData) -> ProbeResult:
    folds = torch.full((len(data.labels),), _NOT_TRAINED)
    train_folds, num_folds = fold_numbers(data, data.train)
    folds[data.train] = torch.from_numpy(train_folds)
    trains = (folds != _NOT_TRAINED)[:, None]
    path = fits.path((folds[:, None] != torch.arange(num_folds)) & trains)
    margins = fits.margins(path)
    train = torch.from_numpy(data.train)
    candidates = []
    for index in range(len(fits.strengths)):
        # Each row is predicted by the fit that left out its fold.
        problems = folds[train] + index * num_folds
        candidates.append(log_probabilities(margins[train, :, problems]).numpy())
    best = Targets.of(data).take(data.train).best(candidates, fits.strengths)
    strength = fits.strengths[best]
    start = path.start(torch.tensor([best * num_folds]))
    refit = fits.solve(trains, torch.tensor([strength]), start)
    tested = log_probabilities(fits.margins(refit)[data.test, :, 0]).numpy()
    fold = FoldResult(data.train, candidates[best], data.test, tested, strength)
    return result_of_folds([fold], data, fits.probe(refit, 0, strength), fits.num_unfinished)


def _fit_given_splits(fits: Solver, data: TaskData) -> ProbeResult:
    masks = torch.zeros(len(data.labels), 1, dtype=torch.bool)
    masks[data.train] = True
    path = fits.path(masks)
    margins = fits.margins(path)  # [rows, outputs, strengths]
    candidates = [
        log_probabilities(margins[data.validation, :, index]).numpy()
        for index in range(len(fits.strengths))
    ]
    best = Targets.of(data).take(data.validation).best(candidates, fits.strengths)
    tested = log_probabilities(margins[data.test, :, best]).numpy()
    strength = fits.strengths[best]
    fold = FoldResult(data.validation, candidates[best], data.test, tested, strength)
    probe = fits.probe(path, best, strength)
    if data.is_scored:
        return scored_result(fold, data, probe, fits.num_unfinished)
    return result_of_folds([fold], data, probe, fits.num_unfinished)


def scored_by_validation(result: ProbeResult, data: TaskData) -> ProbeResult:
    """Return the result of `data.cross_validated()` with the score of the validation rows alone.

    That score can stand beside those of models that learned the other rows, whose predictions of them say nothing.
    """
    (fold,) = result.folds
    predicted = fold.at(data.validation).validation_log_probabilities
    score = Targets.of(data).take(data.validation).score(predicted)
    return replace(result, validation=100 * score)


def result_of_folds(
    folds: Sequence[FoldResult], data: TaskData, probe: Probe, num_unfinished: int
) -> ProbeResult:
    """Return folds with their scores."""
    targets = Targets.of(data)
    validation_scores = [
        targets.take(fold.validation_rows).score(fold.validation_log_probabilities)
        for fold in folds
    ]
    test_rows = np.concatenate([fold.test_rows for fold in folds])
    tested = np.concatenate([fold.test_log_probabilities for fold in folds])
    return ProbeResult(
        validation=100 * float(np.mean(validation_scores)),
        test=100 * targets.take(test_rows).score(tested),
        folds=tuple(folds),
        probe=probe,
        num_unfinished=num_unfinished,
        measures=class_measures(data, tested, test_rows),
    )
