"""The fits of one task at every C, each begun from what other fits say of it.

In: features, targets, masks of training rows, the values of C. Out: solutions (see `logistic`).

Along C a fit starts at the best point of the line through its last two solutions: the margins there are known without
a product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raysent.probes.logistic import MAX_STEPS, TOLERANCE, Point, Problems, Solution, Start, solve
from raysent.probes.results import Probe
from raysent.probes.spectrum import ScaledFeatures, Spectrum

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
