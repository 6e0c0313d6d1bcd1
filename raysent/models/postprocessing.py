"""Postprocessing: the towers' blocks -> a sentence's vector.

Each block loses its first singular vector where the configuration says so, gets unit length, and all blocks are
concatenated or averaged. The first singular vector of a sample of vectors, which are not centred, comes from power
iteration.

Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.2.
"""

from __future__ import annotations

from typing import Literal, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.config import StrictModel


def first_singular_vector(vectors: Tensor, start: Tensor, *, num_iterations: int, tolerance: float = 0.0) -> Tensor:
    """Return an approximation of the first right singular vector of vectors.

    A few iterations multiply by the vectors and their transpose in turn; many iterations multiply by the second-moment
    matrix, which then costs less. With fewer vectors than dimensions that is their Gram matrix, and the result is
    mapped back.

    Args:
        vectors: [batch, dim].
        start: Unit vector of the first iteration [dim].
        num_iterations: Products with the second-moment matrix, at most.
        tolerance: Stop when no number changes by more; 0 never checks, because checking waits for a GPU.

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
    """Return vectors [batch, dim] without their projection on a unit vector [dim]."""
    return vectors - (vectors @ direction)[:, None] * direction


# Enough for the direction to converge in all digits of float32.
_ITERATIONS = 100
_TOLERANCE = 1e-12


class PostprocessingConfig(StrictModel):
    """Settings of postprocessing; each block gets unit length in any case.

    Attributes:
        remove_component: Whether each block loses its first singular vector, computed without centring from
            `num_sentences` sentences of the training text. It is stored with the model, so that a vector depends on
            its sentence only.
        num_sentences: Sentences that the singular vector is computed from.
        combine: `concat` concatenates the blocks of all towers; `average` takes their mean, for blocks of one size.

    Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.3.
    """

    remove_component: bool = False
    num_sentences: int = pydantic.Field(default=10_000, ge=2)
    combine: Literal["concat", "average"] = "concat"


class Postprocessing(nn.Module):
    """Turns the blocks of the towers into one vector.

    Attributes:
        components: The unit vector that each block loses, zero until it is fitted; empty where none is removed.
        num_sentences: Sentences that the components are computed from.
    """

    def __init__(self, config: PostprocessingConfig, dims: tuple[int, ...]) -> None:
        """Prepare for blocks of the sizes `dims`."""
        super().__init__()
        self._is_average = config.combine == "average"
        self._dims = dims
        self.num_sentences = config.num_sentences
        self.components = nn.ParameterList(
            nn.Parameter(torch.zeros(dim), requires_grad=False) for dim in (dims if config.remove_component else ())
        )

    @property
    def is_fitted_to_text(self) -> bool:
        """Whether `fit` is required."""
        return len(self.components) > 0

    def dim(self, num_blocks: int | None = None) -> int:
        """Return the size of the vector of all blocks, or of the first `num_blocks`."""
        return self._dims[0] if self._is_average else sum(self._dims[:num_blocks])

    def forward(self, vectors: Tensor) -> Tensor:
        """Return finished vectors.

        Args:
            vectors: All blocks, or the first ones, concatenated [batch, sum of their dims].
        """
        blocks = self._split(vectors)
        if self.is_fitted_to_text:
            pairs = zip(blocks, self.components, strict=False)
            blocks = [without(block, component) for block, component in pairs]
        blocks = [nn.functional.normalize(block, dim=1) for block in blocks]
        return torch.stack(blocks).mean(dim=0) if self._is_average else torch.cat(blocks, dim=1)

    @torch.no_grad()
    def fit(self, vectors: Tensor) -> None:
        """Set the components from the blocks of a sample [sentences, sum of dims]."""
        for component, block in zip(self.components, self._split(vectors), strict=True):
            exact = block.double()
            start = nn.functional.normalize(exact.mean(dim=0) + 1e-12, dim=0)
            found = first_singular_vector(exact, start, num_iterations=_ITERATIONS, tolerance=_TOLERANCE)
            cast("Tensor", component).copy_(found)

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Return the blocks that the vectors contain, float32 [batch, dim] each."""
        present, width = [], 0
        for dim in self._dims:
            width += dim
            if width <= vectors.shape[1]:
                present.append(dim)
        return list(torch.split(vectors.float(), present, dim=1))
