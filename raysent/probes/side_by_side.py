"""Products of several linear classifiers with the same batch in one, and whether they have the bits of lone ones.

A product of a batch with a few columns of weights takes as long as reading the batch; side by side it is read once.
Exactness depends on the library: oneDNN adds up in the same order however many columns there are, at all but the
smallest shapes, others do not. So it is tried out, once a shape.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def margins_side_by_side(weights: Tensor, intercepts: Tensor, inputs: Tensor) -> Tensor:
    """Return X W + b of inputs [batch, dim] for weights [fits, classes, dim], [fits, batch, classes]."""
    product = torch.addmm(intercepts.view(-1, 1), weights.flatten(0, 1), inputs.t())
    return product.view(*intercepts.shape, -1).transpose(1, 2).contiguous()


def weight_gradients_side_by_side(residuals: Tensor, inputs: Tensor, *, out: Tensor) -> None:
    """Put R^T X of residuals [fits, batch, classes] into `out` [fits, classes, dim]."""
    torch.mm(residuals.transpose(1, 2).flatten(0, 1), inputs, out=out.flatten(0, 1))


@lru_cache(maxsize=256)
def adds_alike(shape: tuple[int, int, int], batch_size: int, precision: str) -> bool:
    """Return whether products of fits side by side have the bits of each fit's own, found out by trying.

    Args:
        shape: Number of fits, of classes, and of dimensions.
        batch_size: Rows of the batch.
        precision: Of float32 products in this process; another takes other sums.
    """
    del precision
    generator = torch.Generator().manual_seed(0)
    weights, inputs = torch.randn(shape, generator=generator), torch.randn(batch_size, shape[2], generator=generator)
    intercepts = torch.randn(shape[:2], generator=generator)
    residuals = torch.randn(shape[0], batch_size, shape[1], generator=generator)
    margins = torch.stack([torch.addmm(b, inputs, w.t()) for b, w in zip(intercepts, weights, strict=True)])
    gradients = torch.stack([torch.mm(residual.t(), inputs) for residual in residuals])
    found = torch.empty_like(gradients)
    weight_gradients_side_by_side(residuals, inputs, out=found)
    return torch.equal(margins, margins_side_by_side(weights, intercepts, inputs)) and torch.equal(gradients, found)
