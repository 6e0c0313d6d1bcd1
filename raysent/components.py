"""The top component of a set of vectors: their first right singular vector, not centred, by power iteration.

Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def top_direction(vectors: Tensor, start: Tensor, *, num_iterations: int, tolerance: float = 0.0) -> Tensor:
    """Return about the first right singular vector of vectors.

    Few iterations multiply by the vectors and their transpose in turn, many by the second-moment matrix: it has to pay
    for itself. With fewer vectors than dimensions that is their Gram matrix, and the result is mapped back.

    Args:
        vectors: [batch, dim].
        start: Unit vector to begin with [dim].
        num_iterations: Products with the second-moment matrix, at most.
        tolerance: Where no number changes by more, the rest is left out; 0 never looks, which a GPU would wait for.

    Returns:
        Unit vector [dim]; `start` where the vectors are all zero.
    """
    is_wide = len(vectors) < vectors.shape[1]
    if 2 * num_iterations < min(vectors.shape):
        matrix, direction = None, start
    else:
        matrix = vectors @ vectors.T if is_wide else vectors.T @ vectors
        direction = vectors @ start if is_wide else start
    for _ in range(num_iterations):
        before = direction
        product = vectors.T @ (vectors @ direction) if matrix is None else matrix @ direction
        direction = functional.normalize(product, dim=0)
        if tolerance and bool((direction - before).abs().max() <= tolerance):
            break
    is_mapped = matrix is not None and is_wide
    direction = functional.normalize(vectors.T @ direction if is_mapped else direction, dim=0)
    return torch.where(direction.any(), direction, start)


def without(vectors: Tensor, direction: Tensor) -> Tensor:
    """Return vectors [batch, dim] without their part along a unit vector [dim]."""
    return vectors - (vectors @ direction)[:, None] * direction
