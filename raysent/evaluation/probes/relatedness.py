"""Scored pairs: a score between the marks 1 and 5 as a distribution over them, and probes that predict it.

A score y between two marks shares its probability between them, so that the distribution's mean is y; the predicted
score is the mean of the predicted distribution. Log-probabilities are those of the marks.

Source: Tai et al., 2015, section 4.2; Conneau and Kiela, 2018, SentEval, senteval/tools/relatedness.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import Tensor

from raysent.evaluation.probes.results import FoldResult, Probe, ProbeResult
from raysent.evaluation.tasks import TaskData

Float64 = npt.NDArray[np.float64]
# Number of rows -> the order in which an epoch takes them.
Order = Callable[[int], np.ndarray]
# Margins and targets [batch, marks] -> the loss.
Loss = Callable[[Tensor, Tensor], Tensor]


def mark_shares(scores: np.ndarray, *, num_marks: int) -> np.ndarray:
    """Return the distributions over marks 1 to `num_marks` of scores [rows], float32 [rows, marks].

    A score y below 1 keeps SentEval's reading: y falls to mark 1, and the rest to a mark 0 that there is not.
    """
    lower = np.floor(scores)
    marks = np.arange(1, num_marks + 1)
    shares = np.where(marks == lower[:, None] + 1, (scores - lower)[:, None], 0.0)
    shares = np.where(marks == lower[:, None], (lower - scores + 1)[:, None], shares)
    return shares.astype(np.float32)


def predicted_scores(log_probabilities: np.ndarray) -> Float64:
    """Return the mean mark of log-probabilities [rows, marks], float64 [rows]."""
    marks = np.arange(1, log_probabilities.shape[1] + 1)
    means: Float64 = np.exp(log_probabilities.astype(np.float64)) @ marks
    return means


def pearson(predicted: np.ndarray, scores: np.ndarray) -> float:
    """Return Pearson's correlation; 0 where a side is constant."""
    if np.ptp(predicted) == 0 or np.ptp(scores) == 0:
        return 0.0
    return float(np.corrcoef(predicted, scores)[0, 1])


class Predictions(NamedTuple):
    """Some rows [rows] and their predicted log-probabilities [rows, marks]."""

    rows: np.ndarray
    log_probabilities: np.ndarray


def scored_result(
    data: TaskData, validation: Predictions, test: Predictions, *, probe: Probe, num_unfinished: int = 0
) -> ProbeResult:
    """Return the result of a task of scored pairs: Pearson's correlation times 100, and further measures of test."""
    figures = []
    for part in (validation, test):
        predicted, scores = predicted_scores(part.log_probabilities), data.scores[part.rows]
        figures.append((100 * pearson(predicted, scores), predicted, scores))
    tested, predicted, scores = figures[1]
    spearman = 100 * pearson(stats.rankdata(predicted), stats.rankdata(scores))
    measures = {"pearson": tested, "spearman": spearman, "mse": float(np.square(predicted - scores).mean())}
    fold = FoldResult(*validation, *test, probe.strength)
    return ProbeResult(figures[0][0], tested, (fold,), probe, num_unfinished, measures)


class SoftmaxLayer:
    """A linear layer and a softmax over marks, trained by Adam, round after round until validation is no better."""

    def __init__(self, features: np.ndarray, scores: np.ndarray, *, layer: torch.nn.Linear, order: Order) -> None:
        """Take features [rows, dim], scores [rows], the layer as it begins, and the order of rows in an epoch."""
        self.features = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        self.targets = torch.from_numpy(mark_shares(scores, num_marks=layer.out_features))
        self.weights, self.intercepts = layer.weight.detach().clone(), layer.bias.detach().clone()
        self.weights.grad, self.intercepts.grad = torch.zeros_like(self.weights), torch.zeros_like(self.intercepts)
        self.optimizer = torch.optim.Adam([self.weights, self.intercepts], foreach=False)
        self.order = order

    def train(self, rows: np.ndarray, *, num_epochs: int, batch_size: int, loss: Loss) -> None:
        """Train on rows; the loss takes margins and targets [batch, marks]."""
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
        """Return the marks' log-probabilities of rows, float32 [rows, marks]."""
        chosen = torch.from_numpy(rows)
        margins = torch.addmm(self.intercepts, self.features[chosen], self.weights.t())
        return torch.log_softmax(margins, dim=1).numpy()

    def copy(self) -> tuple[Tensor, Tensor]:
        """Return the weights [marks, dim] and intercepts [marks] of this moment."""
        return self.weights.clone(), self.intercepts.clone()

    def go_back(self, copied: tuple[Tensor, Tensor]) -> None:
        """Take up weights and intercepts copied before."""
        self.weights.copy_(copied[0])
        self.intercepts.copy_(copied[1])

    def probe(self) -> Probe:
        """Return the layer for new pairs; nothing of it is penalised."""
        return Probe(self.weights.T.contiguous().numpy(), self.intercepts.numpy(), None)


def squared_error(margins: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of the probabilities, over rows and marks."""
    return torch.nn.functional.mse_loss(torch.softmax(margins, dim=-1), targets)


def cross_entropy(margins: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the distributions, over rows."""
    return torch.nn.functional.cross_entropy(margins, targets)
