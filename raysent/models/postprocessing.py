"""The top component of a set of vectors: their first right singular vector, not centred, by power iteration.

Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.2.

Blocks of the towers -> a sentence's vector: the top component taken away, unit length, and put together.
"""

from __future__ import annotations

from typing import Literal, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.config import StrictModel


def first_singular_vector(vectors: Tensor, start: Tensor, *, num_iterations: int, tolerance: float = 0.0) -> Tensor:
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


# Until the direction no longer moves in any digit that is kept.
_ITERATIONS = 100
_TOLERANCE = 1e-12


class PostprocessingConfig(StrictModel):
    """What becomes of the blocks of a vector after training; each is then given unit length.

    Attributes:
        remove_component: Whether each block loses its top component: the first right singular vector, not centred, of
            `num_sentences` sentences of the training text. It is stored with the model, so that a vector depends on
            its sentence alone.
        num_sentences: Sentences that the component comes from.
        combine: `concat` puts the blocks of all towers one after another; `average` takes their mean, and they must
            be of one size.

    Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.3.
    """

    remove_component: bool = False
    num_sentences: int = pydantic.Field(default=10_000, ge=2)
    combine: Literal["concat", "average"] = "concat"


class Postprocessing(nn.Module):
    """What is done to the blocks of every vector.

    Attributes:
        components: The direction that each block loses, of unit length, zero until it is fitted; none where the
            configuration removes none.
        dim: Size of a whole vector.
    """

    def __init__(self, config: PostprocessingConfig, dims: tuple[int, ...]) -> None:
        """Prepare for blocks of these sizes.

        Raises:
            ValueError: If blocks of several sizes are to be averaged.
        """
        super().__init__()
        self._is_average = config.combine == "average"
        self._dims = dims
        self.num_sentences = config.num_sentences
        self.components = nn.ParameterList(
            nn.Parameter(torch.zeros(dim), requires_grad=False) for dim in (dims if config.remove_component else ())
        )

    @property
    def is_fitted_to_text(self) -> bool:
        """Whether there is something to fit."""
        return len(self.components) > 0

    def dim(self, num_blocks: int | None = None) -> int:
        """Return the size of a vector made of all blocks, or of the first ones."""
        return self._dims[0] if self._is_average else sum(self._dims[:num_blocks])

    def forward(self, vectors: Tensor) -> Tensor:
        """Return finished vectors.

        Args:
            vectors: All blocks, or the first ones, side by side [batch, sum of their dims].
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
        """Return the blocks that are there, float32 [batch, dim] each."""
        present, width = [], 0
        for dim in self._dims:
            width += dim
            if width <= vectors.shape[1]:
                present.append(dim)
        return list(torch.split(vectors.float(), present, dim=1))
