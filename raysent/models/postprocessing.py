"""Postprocessing: the towers' blocks -> a sentence's vector.

Each block loses its first singular vector where the configuration says so, gets unit length unless it says otherwise,
and all blocks are concatenated or averaged. That vector is whitened where the configuration says so. The first singular
vector of a sample of vectors, which are not centred, comes from power iteration; the whitening from the eigenvectors of
their covariance.

Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.2; Su et al., 2021, sections 3.1 to 3.3, after
Mu and Viswanath, 2018, algorithm 1.
"""

from __future__ import annotations

from typing import Literal, Self, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.config import StrictModel
from raysent.errors import DataError


def first_singular_vector(
    vectors: Tensor, start: Tensor, *, num_iterations: int, tolerance: float = 0.0
) -> Tensor:
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
    has_few_iterations = 2 * num_iterations < min(vectors.shape)
    direction = start
    matrix = None
    if not has_few_iterations and is_wide:
        matrix = vectors @ vectors.T
        direction = vectors @ start
    elif not has_few_iterations:
        matrix = vectors.T @ vectors
    for _ in range(num_iterations):
        before = direction
        if matrix is None:
            product = vectors.T @ (vectors @ direction)
        else:
            product = matrix @ direction
        direction = functional.normalize(product, dim=0)
        if tolerance and bool((direction - before).abs().max() <= tolerance):
            break
    if matrix is not None and is_wide:
        # A direction of the Gram matrix says how much of each row to take.
        direction = vectors.T @ direction
    direction = functional.normalize(direction, dim=0)
    # Vectors that are all zero have no direction.
    return torch.where(direction.any(), direction, start)


def without(vectors: Tensor, direction: Tensor) -> Tensor:
    """Return vectors [batch, dim] without their projection on a unit vector [dim]."""
    return vectors - (vectors @ direction)[:, None] * direction


# Smaller fractions of the largest variance are left out, because whitening enlarges the rounding of float32 by the
# inverse of the standard deviation.
VARIANCE_FLOOR = 1e-5
_ROWS_AT_ONCE = 4096


def whitening_directions(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return what whitens vectors: with (vectors - center) @ directions their covariance is the identity.

    Sums are float64. Directions whose variance is below `VARIANCE_FLOOR` of the largest one are left out.

    Args:
        vectors: [batch, dim], at least two.

    Returns:
        The center [dim], and the directions [dim, rank], the one of the largest variance first; both float64.

    Source: Su et al., 2021, equations 4 to 7: U Lambda^(-1/2), its first columns.
    """
    # In chunks, as all rows in float64 may take more memory than the model.
    chunks = torch.split(vectors, _ROWS_AT_ONCE)
    sums = torch.stack([chunk.double().sum(dim=0) for chunk in chunks])
    center = sums.sum(dim=0) / len(vectors)
    covariance = torch.zeros(len(center), len(center), dtype=torch.float64, device=vectors.device)
    for chunk in chunks:
        centred = chunk.double() - center
        covariance += centred.T @ centred
    ascending = torch.linalg.eigh(covariance / (len(vectors) - 1))
    variances = ascending.eigenvalues.flip(0)
    directions = ascending.eigenvectors.flip(1)
    is_kept = (variances > 0) & (variances > VARIANCE_FLOOR * variances[0])
    return center, directions[:, is_kept] / variances[is_kept].sqrt()


# Enough for the direction to converge in all digits of float32.
_ITERATIONS = 100
_TOLERANCE = 1e-12


class PostprocessingConfig(StrictModel):
    """Settings of postprocessing; each block gets unit length, unless its encoder is pretrained and says otherwise.

    Attributes:
        unit_length: Whether it does. Without it, a code reads vectors as the encoder returns them, of which a fixed
            threshold has a meaning: of a unit vector of 4,096 numbers next to none is above 0.1.
        remove_component: Whether each block loses its first singular vector, computed without centring from
            `num_sentences` sentences of the training text. It is stored with the model, so that a vector depends on
            its sentence only.
        num_sentences: Sentences that the singular vector and the whitening are computed from.
        combine: `concat` concatenates the blocks of all towers; `average` takes their mean, for blocks of one size.
        whitening: Dimensions to keep of the whitened vector of all blocks, which then has unit length: the directions
            of the largest variance, each with the same variance. It is computed and stored as the singular vector is.
            None does not whiten.

    Source: Arora et al., 2017, algorithm 1; Tang and de Sa, 2018, section 2.3; Su et al., 2021, section 3.3.
    """

    unit_length: bool = True
    remove_component: bool = False
    num_sentences: int = pydantic.Field(default=10_000, ge=2)
    combine: Literal["concat", "average"] = "concat"
    whitening: int | None = pydantic.Field(default=None, ge=1)

    @pydantic.model_validator(mode="after")
    def _sample_fits(self) -> Self:
        if self.whitening is not None and self.num_sentences <= self.whitening:
            raise ValueError(
                f"num_sentences must be above whitening, {self.whitening}; given {self.num_sentences}"
            )
        return self


class Postprocessing(nn.Module):
    """Turns the blocks of the towers into one vector.

    Attributes:
        components: The unit vector that each block loses, zero until it is fitted; empty where none is removed.
        center: The mean that whitening subtracts [dim], zero until it is fitted; None without whitening.
        projection: The product that whitens [dim, kept], zero until it is fitted; None without whitening.
        num_sentences: Sentences that all of them are computed from.
    """

    center: nn.Parameter | None
    projection: nn.Parameter | None

    def __init__(
        self, config: PostprocessingConfig, dims: tuple[int, ...], *, normalizes: bool = True
    ) -> None:
        """Prepare for blocks of the sizes `dims`; `normalizes` gives each unit length."""
        super().__init__()
        self._normalizes = normalizes
        self._is_average = config.combine == "average"
        self._dims = dims
        self.num_sentences = config.num_sentences
        self.components = nn.ParameterList()
        if config.remove_component:
            self.components.extend(
                nn.Parameter(torch.zeros(dim), requires_grad=False) for dim in dims
            )
        self.center = None
        self.projection = None
        if config.whitening is not None:
            size = self._combined_dim()
            self.center = nn.Parameter(torch.zeros(size), requires_grad=False)
            self.projection = nn.Parameter(torch.zeros(size, config.whitening), requires_grad=False)

    @property
    def is_fitted_to_text(self) -> bool:
        """Whether `fit` is required."""
        return len(self.components) > 0 or self.is_whitening

    @property
    def is_whitening(self) -> bool:
        """Whether the vector of all blocks is whitened; the first blocks alone then have no vector."""
        return self.projection is not None

    def dim(self, num_blocks: int | None = None) -> int:
        """Return the size of the finished vector of all blocks, or of the first `num_blocks`."""
        if self.projection is None:
            return self._combined_dim(num_blocks)
        return self.projection.shape[1]

    def _combined_dim(self, num_blocks: int | None = None) -> int:
        """Return the size of the vector before whitening."""
        if self._is_average:
            return self._dims[0]
        return sum(self._dims[:num_blocks])

    def forward(self, vectors: Tensor) -> Tensor:
        """Return finished vectors.

        Args:
            vectors: All blocks, or without whitening the first ones, concatenated [batch, sum of their dims].
        """
        combined = self.combine(vectors)
        if self.center is None or self.projection is None:
            return combined
        return functional.normalize((combined - self.center) @ self.projection, dim=1)

    def combine(self, vectors: Tensor) -> Tensor:
        """Return the vectors before whitening: blocks without their components, scaled, as one vector.

        Args:
            vectors: As for `forward`.
        """
        blocks = self._split(vectors)
        if len(self.components):
            # The vectors may be of the first blocks only.
            pairs = zip(blocks, self.components, strict=False)
            blocks = [without(block, component) for block, component in pairs]
        if self._normalizes:
            blocks = [functional.normalize(block, dim=1) for block in blocks]
        if self._is_average:
            return torch.stack(blocks).mean(dim=0)
        return torch.cat(blocks, dim=1)

    @torch.no_grad()
    def fit(self, vectors: Tensor) -> None:
        """Set the components and the whitening from the blocks of a sample [sentences, sum of dims].

        Raises:
            DataError: If the sample varies in fewer directions than whitening keeps.
        """
        # Without components the loop is empty.
        for component, block in zip(self.components, self._split(vectors), strict=False):
            exact = block.double()
            start = functional.normalize(exact.mean(dim=0) + 1e-12, dim=0)
            direction = first_singular_vector(
                exact, start, num_iterations=_ITERATIONS, tolerance=_TOLERANCE
            )
            cast("Tensor", component).copy_(direction)
        if self.is_whitening:
            center, directions = whitening_directions(self.combine(vectors))
            self.set_whitening(center, directions)

    @torch.no_grad()
    def set_whitening(self, center: Tensor, directions: Tensor) -> None:
        """Keep the first of the directions that `whitening_directions` returned.

        Args:
            center: [dim].
            directions: [dim, rank].

        Raises:
            DataError: If there are fewer than whitening keeps.
        """
        assert self.center is not None
        assert self.projection is not None
        num_kept = self.projection.shape[1]
        rank = directions.shape[1]
        if rank < num_kept:
            raise DataError(
                f"postprocessing.whitening: must be at most {rank}, the directions in which the vectors of the sample "
                f"vary; given {num_kept}; lower it or give more text"
            )
        self.center.copy_(center)
        self.projection.copy_(directions[:, :num_kept])

    def _split(self, vectors: Tensor) -> list[Tensor]:
        """Return the blocks that the vectors contain, float32 [batch, dim] each."""
        present: list[int] = []
        width = 0
        for dim in self._dims:
            width += dim
            if width <= vectors.shape[1]:
                present.append(dim)
        return list(torch.split(vectors.float(), present, dim=1))
