"""The fits of one task at every C, each begun from what other fits say of it.

In: features, targets, masks of training rows, the values of C. Out: solutions (see `logistic`).

Along C a fit starts at the best point of the line through its last two solutions: the margins there are known without
a product.

The protocol `fast`: exact L2 logistic regression, C chosen by validation accuracy. Our own, used inside sweeps.

Features are measured from their mean in units of their root mean square distance to it (see `ScaledFeatures`); the
unit and the mean are taken over the rows that may train. Where rows are divided:

- nested: ten stratified folds. For outer fold o, C is chosen by cross-validation over the nine others, each of
  which is predicted by a fit on the remaining eight; then a fit on all nine predicts fold o. The fit without folds
  o and i serves both as inner fit i of o and as inner fit o of i, so 45 fits per C do the work of 90.
- train-test: ten stratified folds of train choose C; a fit on all of train predicts test.
- train-validation-test: fits on train; validation chooses C and is not trained on.
- scored pairs: the same on distributions over marks (see `relatedness`); validation's correlation chooses.

Fits that choose C end within 5e-5 of their optimum, from C = 1 on within 5e-5 C^(2/3): nearer than
scikit-learn comes by its own tolerance (3e-5 to 2 of it, the farther the larger C, measured on vectors of 4,800
dimensions of trained and of untrained models); the final ones within 1e-7.

The smallest C wins ties. Folds are drawn with a fixed seed from the labels alone, so all models share them.

Differs: scikit-learn's and SentEval's nested cross-validation draw new inner folds inside every outer fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from raysent.evaluation.probes.logistic import (
    MAX_STEPS,
    TOLERANCE,
    Point,
    Problems,
    ScaledFeatures,
    Solution,
    Spectrum,
    Start,
    log_probabilities,
    solve,
)
from raysent.evaluation.probes.relatedness import Predictions, mark_shares, pearson, predicted_scores, scored_result
from raysent.evaluation.probes.results import FoldResult, Probe, ProbeResult, accuracy, class_measures
from raysent.evaluation.tasks import TaskData

# Margins and their kin are about ten arrays of [rows, outputs, problems]; this bounds each of them.
ARRAY_BYTES = 32 * 2**20
# Fewer columns than this leave a product bound by reading X: values of C are then solved side by side.
MIN_COLUMNS = 8
PATH_TOLERANCE = 5e-5


class Fits:
    """The fits of one task: shares features, spectrum and targets between them, and counts the unfinished.

    Attributes:
        num_unfinished: Fits along C that ended at the limit of iterations.
    """

    def __init__(
        self, features: np.ndarray, targets: Tensor, *, trainable: np.ndarray, strengths: Sequence[float]
    ) -> None:
        """Take features [rows, dim], targets [rows, outputs], the rows that may train, and C from the smallest up."""
        array = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        # Rows behind the last one that may train are no part of any product until all is solved.
        stop = int(trainable.max()) + 1
        rows = torch.from_numpy(trainable)
        self._scaled, self._behind = ScaledFeatures(array[:stop], rows), array[stop:]
        self._spectrum = Spectrum(self._scaled, rows)
        self._targets = targets[:stop, :, None]
        self._strengths = torch.tensor(strengths)
        self.num_unfinished = 0

    def solve(
        self,
        masks: Tensor,
        strengths: Tensor,
        start: Start | None = None,
        *,
        way: Start | None = None,
        tolerance: Tensor | None = None,
    ) -> Solution:
        """Solve problems of training rows `masks`, bool [rows, problems], and C [problems], in bounded memory.

        They start at zero, or at `start`, or at the best point of the line through it along `way`, and end within the
        tolerance [problems], by default the final one.
        """
        rows, outputs = self._targets.shape[:2]
        size = max(1, ARRAY_BYTES // (4 * rows * outputs))
        parts = []
        for some in torch.split(torch.arange(len(strengths)), size):
            costs = masks[:rows, some].to(torch.float32) * strengths[some]
            problems = Problems(self._scaled, self._spectrum, self._targets, costs)
            begin = start.select(some) if start else None
            if begin and way:
                begin = problems.along(begin, way.select(some))
            near = TOLERANCE if tolerance is None else tolerance[some]
            parts.append(solve(problems, start=begin, tolerance=near))
        return _joined(parts)

    def path(self, masks: Tensor) -> Solution:
        """Solve every mask [rows, masks] at every C, from the smallest up, each starting from those before.

        Returns:
            The solution of masks x strengths problems, problem `strength * masks + mask`.
        """
        num_masks, outputs = masks.shape[1], self._targets.shape[1]
        together = -(-MIN_COLUMNS // (num_masks * outputs))
        parts: list[Solution] = []
        for group in torch.split(self._strengths, together):
            last = torch.arange(num_masks).repeat(len(group)) - num_masks
            before = [part.start(last) for part in parts[-2:]]
            way = before[1].minus(before[0]) if len(before) == 2 else None
            strengths = group.repeat_interleave(num_masks)
            start = before[-1] if before else None
            tolerance = path_tolerance(strengths)
            parts.append(self.solve(masks.repeat(1, len(group)), strengths, start, way=way, tolerance=tolerance))
        path = _joined(parts)
        self.num_unfinished += int((path.num_steps >= MAX_STEPS).sum())
        return path

    def margins(self, solution: Solution) -> Tensor:
        """Return X W + b of all rows, those that cannot train included, [rows, outputs, problems]."""
        if not len(self._behind):
            return solution.margins
        weights, intercepts = solution.point
        return torch.cat([solution.margins, self._scaled.times(weights, self._behind) + intercepts])

    def probe(self, solution: Solution, problem: int, strength: float) -> Probe:
        """Return one problem's classifier for features as they were given."""
        point = solution.point
        weights, intercepts = self._scaled.unscaled(point.weights[..., problem], point.intercepts[..., problem])
        return Probe(weights.numpy(), intercepts.numpy(), strength)


def path_tolerance(strengths: Tensor) -> Tensor:
    """Return how near to its optimum a fit ends that helps to choose C, by C [problems]: 5e-5, and more for large C."""
    return PATH_TOLERANCE * strengths.clamp(min=1) ** (2 / 3)


def _joined(parts: Sequence[Solution]) -> Solution:
    """Put solutions of several sets of problems side by side."""
    if len(parts) == 1:
        return parts[0]
    point = Point(
        torch.cat([part.point.weights for part in parts], dim=-1),
        torch.cat([part.point.intercepts for part in parts], dim=-1),
    )
    return Solution(
        point,
        torch.cat([part.margins for part in parts], dim=-1),
        torch.cat([part.objective for part in parts]),
        torch.cat([part.num_steps for part in parts]),
    )


NUM_FOLDS = 10
FOLD_SEED = 1111
STRENGTHS = tuple(2.0**exponent for exponent in range(-4, 9, 2))
NOT_TRAINED = -1


def settings(configuration: str) -> dict[str, object]:
    """Return what the figures depend on; there is one configuration."""
    del configuration
    return {
        "version": 4,
        "strengths": list(STRENGTHS),
        "num_folds": NUM_FOLDS,
        "fold_seed": FOLD_SEED,
        "tolerance": TOLERANCE,
        "path_tolerance": PATH_TOLERANCE,
    }


def fit(features: np.ndarray, data: TaskData, *, configuration: str) -> ProbeResult:
    """Fit and score a task's probe; features [rows, dim] are finite and hold at least two training classes."""
    del configuration
    if data.is_scored:
        return _scored_pairs(_fits(features, data, data.train), data)
    match data.split:
        case "nested":
            return _nested(_fits(features, data, np.arange(len(data.labels))), data)
        case "train-test":
            return _train_test(_fits(features, data, data.train), data)
        case "train-validation-test":
            return _given(_fits(features, data, data.train), data)


def stratified_folds(labels: np.ndarray, num_folds: int, *, seed: int) -> np.ndarray:
    """Return each row's fold, int64 [rows]: every class is dealt out evenly, in an order drawn from the seed."""
    generator = np.random.default_rng(seed)
    folds = np.empty(len(labels), dtype=np.int64)
    dealt = 0
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        folds[rows] = (np.arange(len(rows)) + dealt) % num_folds
        # Go on where the last class ended, so that the folds' sizes differ by one at most.
        dealt += len(rows)
    return folds


def _fits(features: np.ndarray, data: TaskData, trainable: np.ndarray) -> Fits:
    """Return the fits of a task on its rows that may train, int64 [trainable]."""
    return Fits(features, _targets(data), trainable=trainable, strengths=STRENGTHS)


def _targets(data: TaskData) -> Tensor:
    """Return what each output should say, float32 [rows, outputs]; with two classes there is one output."""
    num_classes = len(data.label_names)
    if data.is_scored:
        shares = torch.from_numpy(mark_shares(data.scores, num_marks=num_classes))
        # The solver takes distributions: what a score below the first mark lost is the first mark's.
        shares[:, 0] += 1 - shares.sum(dim=1)
        return shares
    classes = torch.arange(1, 2) if num_classes == 2 else torch.arange(num_classes)
    return (torch.from_numpy(data.labels)[:, None] == classes).to(torch.float32)


def _nested(fits: Fits, data: TaskData) -> ProbeResult:
    folds = torch.from_numpy(stratified_folds(data.labels, NUM_FOLDS, seed=FOLD_SEED))
    pairs = list(combinations(range(NUM_FOLDS), 2))
    path = fits.path(torch.stack([(folds != first) & (folds != second) for first, second in pairs], dim=1))
    inner = _pair_numbers(pairs)
    chosen, seen, totals = [], [], np.zeros(len(STRENGTHS))
    for outer in range(NUM_FOLDS):
        rows = torch.nonzero(folds != outer).squeeze(1)
        problems = inner[outer, folds[rows]]
        candidates = [
            log_probabilities(path.margins[rows, :, problems + index * len(pairs)]) for index in range(len(STRENGTHS))
        ]
        best, scores = _choose(candidates, data.labels[rows.numpy()])
        totals += scores
        chosen.append(best)
        seen.append((rows.numpy(), candidates[best].numpy()))
    # The probe for new sentences trains on every fold; its C is the best over all inner folds.
    chosen.append(int(totals.argmax()))
    refit = _refit(fits, folds, path, [pick * len(pairs) + int(inner.diagonal(1)[0]) for pick in chosen], chosen)
    results = []
    for outer, (validation_rows, validated) in enumerate(seen):
        test = torch.nonzero(folds == outer).squeeze(1)
        tested = log_probabilities(refit.margins[test, :, outer]).numpy()
        results.append(FoldResult(validation_rows, validated, test.numpy(), tested, STRENGTHS[chosen[outer]]))
    return _scored(results, data, fits.probe(refit, NUM_FOLDS, STRENGTHS[chosen[-1]]), fits.num_unfinished)


def _pair_numbers(pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Return the number of the fit that left out folds o and i, int64 [folds, folds]; o = i is never read."""
    numbers = torch.zeros(NUM_FOLDS, NUM_FOLDS, dtype=torch.int64)
    for number, (first, second) in enumerate(pairs):
        numbers[first, second] = numbers[second, first] = number
    return numbers


def _refit(fits: Fits, folds: Tensor, path: Solution, starts: Sequence[int], chosen: Sequence[int]) -> Solution:
    """Fit without each fold in turn and last on all rows, at the C chosen, starting from solved problems."""
    masks = torch.stack([folds != outer for outer in range(NUM_FOLDS + 1)], dim=1)
    strengths = torch.tensor([STRENGTHS[pick] for pick in chosen])
    return fits.solve(masks, strengths, path.start(torch.tensor(starts)))


def _train_test(fits: Fits, data: TaskData) -> ProbeResult:
    folds = torch.full((len(data.labels),), NOT_TRAINED)
    folds[data.train] = torch.from_numpy(stratified_folds(data.labels[data.train], NUM_FOLDS, seed=FOLD_SEED))
    path = fits.path((folds[:, None] != torch.arange(NUM_FOLDS)) & (folds != NOT_TRAINED)[:, None])
    margins = fits.margins(path)
    train = torch.from_numpy(data.train)
    candidates = [
        log_probabilities(margins[train, :, folds[train] + index * NUM_FOLDS]) for index in range(len(STRENGTHS))
    ]
    best, _ = _choose(candidates, data.labels[data.train])
    start = path.start(torch.tensor([best * NUM_FOLDS]))
    refit = fits.solve((folds != NOT_TRAINED)[:, None], torch.tensor([STRENGTHS[best]]), start)
    tested = log_probabilities(fits.margins(refit)[data.test, :, 0]).numpy()
    result = FoldResult(data.train, candidates[best].numpy(), data.test, tested, STRENGTHS[best])
    return _scored([result], data, fits.probe(refit, 0, STRENGTHS[best]), fits.num_unfinished)


def _given(fits: Fits, data: TaskData) -> ProbeResult:
    masks = torch.zeros(len(data.labels), 1, dtype=torch.bool)
    masks[data.train] = True
    path = fits.path(masks)
    margins = fits.margins(path)
    candidates = [log_probabilities(margins[data.validation, :, index]) for index in range(len(STRENGTHS))]
    best, _ = _choose(candidates, data.labels[data.validation])
    tested = log_probabilities(margins[data.test, :, best]).numpy()
    result = FoldResult(data.validation, candidates[best].numpy(), data.test, tested, STRENGTHS[best])
    return _scored([result], data, fits.probe(path, best, STRENGTHS[best]), fits.num_unfinished)


def _scored_pairs(fits: Fits, data: TaskData) -> ProbeResult:
    masks = torch.zeros(len(data.labels), 1, dtype=torch.bool)
    masks[data.train] = True
    path = fits.path(masks)
    margins = fits.margins(path)
    parts = [
        [Predictions(rows, log_probabilities(margins[rows, :, index]).numpy()) for index in range(len(STRENGTHS))]
        for rows in (data.validation, data.test)
    ]
    scores = data.scores[data.validation]
    best = int(np.argmax([pearson(predicted_scores(one.log_probabilities), scores) for one in parts[0]]))
    probe = fits.probe(path, best, STRENGTHS[best])
    return scored_result(data, parts[0][best], parts[1][best], probe=probe, num_unfinished=fits.num_unfinished)


def _choose(candidates: Sequence[Tensor], labels: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the index of the most accurate C, the smallest of equals, and all accuracies [strengths]."""
    scores = np.array([accuracy(candidate.numpy(), labels) for candidate in candidates])
    return int(scores.argmax()), scores


def _scored(results: Sequence[FoldResult], data: TaskData, probe: Probe, num_unfinished: int) -> ProbeResult:
    validation = [accuracy(fold.validation_log_probabilities, data.labels[fold.validation_rows]) for fold in results]
    rows = np.concatenate([fold.test_rows for fold in results])
    tested = np.concatenate([fold.test_log_probabilities for fold in results])
    test = accuracy(tested, data.labels[rows])
    measures = class_measures(data, tested, rows)
    return ProbeResult(100 * float(np.mean(validation)), 100 * test, tuple(results), probe, num_unfinished, measures)
