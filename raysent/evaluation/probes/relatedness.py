"""Scored pairs: a score as a distribution over rating levels, and probes that predict that distribution.

A score y from 1 to 5 becomes a distribution over the rating levels 1 to 5 whose mean is y: it puts weight on the two
levels beside y. The predicted score is the mean of the predicted distribution, and log-probabilities are those of the
levels.

Source: Tai et al., 2015, section 4.2; Conneau and Kiela, 2018, SentEval, senteval/tools/relatedness.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysent.evaluation.probes.results import (
    FoldResult,
    Probe,
    ProbeResult,
    pearson,
    predicted_scores,
    spearman,
)
from raysent.evaluation.task import TaskData

# Number of rows -> the order in which an epoch takes them.
Order = Callable[[int], np.ndarray]
# Margins and targets [batch, levels] -> the loss.
Loss = Callable[[Tensor, Tensor], Tensor]


def level_targets(scores: np.ndarray, *, num_levels: int) -> np.ndarray:
    """Return the distributions over rating levels 1 to `num_levels` of scores [rows], float32 [rows, levels].

    A score y below 1 is treated as in SentEval: level 1 gets probability y, and the rest is lost to a level 0 that
    does not exist.
    """
    lower = np.floor(scores)
    levels = np.arange(1, num_levels + 1)
    targets = np.where(levels == lower[:, None] + 1, (scores - lower)[:, None], 0.0)
    targets = np.where(levels == lower[:, None], (lower - scores + 1)[:, None], targets)
    return targets.astype(np.float32)


def scored_result(
    fold: FoldResult, data: TaskData, probe: Probe, num_unfinished: int = 0
) -> ProbeResult:
    """Return the result on a task of scored pairs: Pearson's correlation times 100, and other measures of test rows."""
    predicted = predicted_scores(fold.test_log_probabilities)
    scores = data.scores[fold.test_rows]
    validated = predicted_scores(fold.validation_log_probabilities)
    test_score = 100 * pearson(predicted, scores)
    measures = {
        "pearson": test_score,
        "spearman": 100 * spearman(predicted, scores),
        "mse": float(np.square(predicted - scores).mean()),
    }
    return ProbeResult(
        validation=100 * pearson(validated, data.scores[fold.validation_rows]),
        test=test_score,
        folds=(fold,),
        probe=probe,
        num_unfinished=num_unfinished,
        measures=measures,
    )


class Stop(NamedTuple):
    """After so many rounds that were not better, or so many in all."""

    tenacity: int
    max_rounds: int


class SoftmaxLayer:
    """A linear layer and a softmax over rating levels, trained by Adam.

    Call order: `fit` once.
    """

    def __init__(
        self, features: np.ndarray, scores: np.ndarray, *, layer: torch.nn.Linear, order: Order
    ) -> None:
        """Take features [rows, dim], scores [rows], the initial layer, and the order of rows in an epoch."""
        self.features = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        self.targets = torch.from_numpy(level_targets(scores, num_levels=layer.out_features))
        self.weights = layer.weight.detach().clone()
        self.weights.grad = torch.zeros_like(self.weights)
        self.intercepts = layer.bias.detach().clone()
        self.intercepts.grad = torch.zeros_like(self.intercepts)
        self.optimizer = torch.optim.Adam([self.weights, self.intercepts], foreach=False)
        self.order = order

    def train(self, rows: np.ndarray, *, num_epochs: int, batch_size: int, loss: Loss) -> None:
        """Train on rows; the loss takes margins and targets [batch, levels]."""
        for _ in range(num_epochs):
            shuffled = torch.from_numpy(rows[self.order(len(rows))])
            for batch in torch.split(shuffled, batch_size):
                inputs = self.features.index_select(0, batch)
                margins = torch.addmm(self.intercepts, inputs, self.weights.t()).requires_grad_()
                (residuals,) = torch.autograd.grad(loss(margins, self.targets[batch]), margins)
                torch.mm(residuals.t(), inputs, out=self.weights.grad)
                torch.sum(residuals, 0, out=self.intercepts.grad)
                self.optimizer.step()

    def log_probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Return the log-probabilities of the levels for rows, float32 [rows, levels]."""
        margins = torch.addmm(
            self.intercepts, self.features[torch.from_numpy(rows)], self.weights.t()
        )
        return torch.log_softmax(margins, dim=1).numpy()

    def fit(
        self,
        data: TaskData,
        splits: Sequence[np.ndarray],
        *,
        num_epochs: int,
        batch_size: int,
        loss: Loss,
        stop: Stop,
    ) -> ProbeResult:
        """Train in rounds, keep the one of the best correlation on validation rows, and score it.

        Args:
            data: The task.
            splits: The rows that train, validate and test, int64 [rows] each.
            num_epochs: Of a round.
            batch_size: Rows of a step.
            loss: As for `train`.
            stop: When no further round is trained.
        """
        train, validation, test = splits
        best = -1.0
        best_weights = self.weights.clone()
        best_intercepts = self.intercepts.clone()
        num_failures = 0
        for _ in range(stop.max_rounds):
            self.train(train, num_epochs=num_epochs, batch_size=batch_size, loss=loss)
            predicted = predicted_scores(self.log_probabilities(validation))
            reached = pearson(predicted, data.scores[validation])
            if reached > best:
                best = reached
                best_weights = self.weights.clone()
                best_intercepts = self.intercepts.clone()
            else:
                # Failures are counted over the whole training, not in a row.
                num_failures += 1
            if num_failures > stop.tenacity:
                break
        # In place, because the optimizer holds these tensors.
        self.weights.copy_(best_weights)
        self.intercepts.copy_(best_intercepts)
        # The probe for new pairs has no penalty.
        probe = Probe(self.weights.T.contiguous().numpy(), self.intercepts.numpy(), None)
        fold = FoldResult(
            validation,
            self.log_probabilities(validation),
            test,
            self.log_probabilities(test),
            probe.strength,
        )
        return scored_result(fold, data, probe)


def squared_error(margins: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of the probabilities, over rows and levels."""
    return torch.nn.functional.mse_loss(torch.softmax(margins, dim=-1), targets)


def cross_entropy(margins: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the distributions, over rows."""
    return torch.nn.functional.cross_entropy(margins, targets)
