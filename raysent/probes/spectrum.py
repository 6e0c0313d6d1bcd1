"""Features as a solver sees them: centred and scaled without a copy, and the leading eigenvectors of their products.

In: features [rows, dim]. Out: products with them, and an approximate inverse Hessian that costs a small product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

RANK = 256
SAMPLE_BYTES = 128 * 2**20
MAX_SAMPLED = 4096
NUM_PASSES = 2
# What differs by less, as a share of its size, differs by rounding in products of float32.
ROUNDING = 64 * torch.finfo(torch.float32).eps
# Rows read at a time; few, so that they stay in the processor's caches.
CHUNK = 128


class ScaledFeatures:
    """Features seen centred and divided by one number, without a copy of them.

    The mean and the number come from the rows given for it: afterwards their mean squared distance to the mean is
    one, whatever the encoder's dimension and blocks, so one grid of C suits all. As the intercept is free, centring
    changes no fit; the number only says in which unit C is measured.
    """

    def __init__(self, features: Tensor, rows: Tensor) -> None:
        """Take the mean and the scale from `rows` [any], an int64 index into `features` [rows, dim]."""
        self.features = features
        chunks = torch.split(rows, CHUNK)
        total = torch.zeros(features.shape[1], dtype=torch.float64)
        for chunk in self._read(chunks):
            total += chunk.sum(0, dtype=torch.float64)
        self.mean = (total / len(rows)).to(features.dtype)
        squares = sum(float(chunk.sub_(self.mean).flatten().square_().sum()) for chunk in self._read(chunks))
        spread = (squares / len(rows)) ** 0.5
        # Constant features have no scale of their own, only what rounding leaves; any will do.
        self.scale = spread if spread > ROUNDING * float(self.mean.norm()) else 1.0

    def _read(self, chunks: Sequence[Tensor]) -> Iterator[Tensor]:
        """Copy rows, chunk after chunk, into one array that stays in the processor's caches."""
        room = torch.empty(CHUNK, self.features.shape[1], dtype=self.features.dtype)
        for chunk in chunks:
            yield torch.index_select(self.features, 0, chunk, out=room[: len(chunk)])

    def times(self, weights: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the product with weights [dim, outputs, problems] as [rows, outputs, problems].

        Args:
            weights: For the features as they are seen.
            features: Others seen in the same way [rows, dim]; by default these.
        """
        flat = weights.flatten(1)
        product: Tensor = torch.addmm(-(self.mean @ flat), self.features if features is None else features, flat)
        return product.div_(self.scale).view(-1, *weights.shape[1:])

    def transposed_times(self, residuals: Tensor) -> Tensor:
        """Return the transposed product with residuals [rows, outputs, problems] as [dim, outputs, problems]."""
        # R^T X and not X^T R: with few columns the latter is up to ten times slower in the libraries below.
        flat = residuals.flatten(1).T.contiguous()
        product: Tensor = torch.addr(flat @ self.features, flat.sum(1), self.mean, alpha=-1)
        return product.div_(self.scale).T.reshape(-1, *residuals.shape[1:])

    def unscaled(self, weights: Tensor, intercepts: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [dim, outputs] and intercepts [outputs] that act on the features as they were given."""
        plain = weights / self.scale
        return plain, intercepts - self.mean @ plain


class Spectrum:
    """The leading eigenvectors of X^T X by randomised subspace iteration; the rest is taken as isotropic.

    Only the speed depends on it, never the solution.

    Source: Halko, Martinsson and Tropp, 2011, Algorithm 4.4.
    """

    def __init__(self, scaled: ScaledFeatures, rows: Tensor) -> None:
        """Find the eigenvectors on a fixed sample of `rows`."""
        generator = torch.Generator().manual_seed(0)
        num_sampled = min(len(rows), max(256, SAMPLE_BYTES // (4 * scaled.features.shape[1])), MAX_SAMPLED)
        sample = rows[torch.randperm(len(rows), generator=generator)[:num_sampled]]
        sampled = scaled.features.index_select(0, sample).sub_(scaled.mean).div_(scaled.scale)
        dim = sampled.shape[1]
        rank = min(RANK, dim, num_sampled)
        basis = torch.randn(dim, min(rank + 16, dim), generator=generator)
        for _ in range(NUM_PASSES):
            basis = torch.linalg.qr(sampled.T @ (sampled @ basis))[0]
        projected = sampled @ basis
        values, vectors = torch.linalg.eigh(projected.T @ projected)
        kept = values.flip(0)[:rank].clamp(min=0)
        self.vectors = basis @ vectors.flip(1)[:, :rank]
        # Per row, so that it can be scaled to the rows of any problem.
        self.values = (kept / num_sampled)[:, None, None]
        rest = float(sampled.square_().sum() - kept.sum()) / num_sampled
        self.rest = max(rest, 0.0) / max(1, dim - rank)

    def precondition(self, gradient: Tensor, curvature: Tensor) -> Tensor:
        """Return the approximate inverse Hessian times the gradient [dim, outputs, problems].

        Args:
            gradient: The gradient, or another direction.
            curvature: C times the sum over training rows of p (1 - p), [outputs, problems].
        """
        rest: Tensor = 1 / (1 + curvature * self.rest)
        leading = 1 / (1 + curvature * self.values) - rest
        inside = (self.vectors.T @ gradient.flatten(1)).view(-1, *gradient.shape[1:])
        correction = self.vectors @ (leading * inside).flatten(1)
        product: Tensor = gradient * rest + correction.view(gradient.shape)
        return product
