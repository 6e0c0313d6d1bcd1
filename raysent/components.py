"""The top component of a set of vectors: their first right singular vector, not centred, by power iteration.

Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.2.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def top_direction(vectors: Tensor, start: Tensor, *, num_iterations: int) -> Tensor:
    """Return about the first right singular vector of vectors.

    With fewer vectors than dimensions it runs on their Gram matrix and is mapped back.

    Args:
        vectors: [batch, dim].
        start: Unit vector to begin with [dim].
        num_iterations: Products with the second-moment matrix.

    Returns:
        Unit vector [dim]; `start` where the vectors are all zero.
    """
    is_wide = len(vectors) < vectors.shape[1]
    matrix = vectors @ vectors.T if is_wide else vectors.T @ vectors
    direction = vectors @ start if is_wide else start
    for _ in range(num_iterations):
        direction = functional.normalize(matrix @ direction, dim=0)
    direction = functional.normalize(vectors.T @ direction if is_wide else direction, dim=0)
    return direction if bool(direction.any()) else start


def without(vectors: Tensor, direction: Tensor) -> Tensor:
    """Return vectors [batch, dim] without their part along a unit vector [dim]."""
    return vectors - (vectors @ direction)[:, None] * direction
