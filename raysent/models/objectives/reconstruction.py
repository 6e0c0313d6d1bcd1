"""Reconstruction: a linear decoder restores a fixed encoder's vector from its code; codes keep which pairs are closer.

    h' = W' (2b - 1) + k';   loss = mean of (h - h')^2  +  lambda_sp * mean of max(0, l [d(a, b) - d(b, c)])^power
    l = 1 where cos(a, b) >= cos(b, c), else -1

a, b and c are codes of three sentences of the batch. For methods that need no training only the decoder learns, so that
the errors of all methods can be compared.

Source: Shen et al., 2019, sections 3.4 and 3.5, and the released code.
Differs: the Hamming distance is divided by the number of bits unless `sp_distance` says otherwise; with the paper's
lambda_sp, counts of bits dominate the rest of the loss.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pydantic
import torch
from torch import Tensor
from torch.nn import functional

from raysent.models.codes import Code, CodeConfig
from raysent.models.layers import linear_layer
from raysent.models.objectives import (
    Batches,
    BuildContext,
    ContextBatches,
    ObjectiveConfig,
    PairBatches,
    Read,
    StepShape,
)
from raysent.models.objectives import Objective as BaseObjective


class Config(ObjectiveConfig):
    """Settings of reconstruction.

    Attributes:
        text: Whether sentences come from the corpus, or from both columns of pairs.
        source_towers: Towers of the fixed encoder.
        candidates: Which sentences of the corpus form a batch.
        lambda_sp: Weight of the semantic-preserving term. None follows `variant`: 0.8 for paper, 1e-5 for authors.
        sp_distance: `normalized_hamming` is the fraction of differing bits, `hamming` their number, `l2` the root of
            that. None is `normalized_hamming` for paper, `l2` for authors.
        sp_power: 1 or 2. None is 1 for paper, 2 for authors.
    """

    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"
    trains_code: ClassVar[bool] = True

    type: Literal["reconstruction"] = "reconstruction"
    text: Literal["corpus", "pairs"] = "corpus"
    source_towers: Literal[1, 2] = 1
    candidates: Literal["contiguous", "random"] = "random"
    lambda_sp: float | None = pydantic.Field(default=None, ge=0)
    sp_distance: Literal["normalized_hamming", "hamming", "l2"] | None = None
    sp_power: Literal[1, 2] | None = None

    @classmethod
    def values_from_initial(cls, *, num_towers: int) -> dict[str, Any]:
        """Return the number of towers; the fixed encoder is the model that the run starts with."""
        return {"source_towers": num_towers}

    @property
    def num_towers(self) -> Literal[1, 2]:  # type: ignore[override]
        """Towers of the fixed encoder."""
        return self.source_towers

    @property
    def batches(self) -> Batches:
        """Sentences of running text, or pairs."""
        return PairBatches() if self.text == "pairs" else ContextBatches(candidates=self.candidates)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The decoder's error, and how well codes keep similarities."""
        return ("reconstruction_mse", "similarity_kept")

    def check_code(self, code: CodeConfig | None) -> None:
        """Refuse a model without a code.

        Raises:
            ValueError: With what must hold.
        """
        if code is None:
            raise ValueError(f"code.type must be set for objective {self.type}; it says how vectors become bits")

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of code and decoder with their moments, and of the bits, vectors and distances."""
        return shape.num_bits * (8 * shape.dim + 6 * shape.batch_size) + 6 * shape.batch_size * shape.dim

    @property
    def weight_sp(self) -> float:
        """Weight of the semantic-preserving term; that of the variant where `lambda_sp` is None."""
        return self.lambda_sp if self.lambda_sp is not None else (1e-5 if self.variant == "authors" else 0.8)

    @property
    def distance(self) -> Literal["normalized_hamming", "hamming", "l2"]:
        """The distance of codes; that of the variant where `sp_distance` is None."""
        return self.sp_distance or ("l2" if self.variant == "authors" else "normalized_hamming")

    @property
    def power(self) -> Literal[1, 2]:
        """The hinge's power; that of the variant where `sp_power` is None."""
        return self.sp_power or (2 if self.variant == "authors" else 1)


class Objective(BaseObjective):
    """The decoder and its loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        self._config = config
        if build_context.code is None:
            raise ValueError("code.type must be set for objective reconstruction; it says how vectors become bits")
        # A tuple, because the code's parameters are the model's, not this module's.
        self._code: tuple[Code, ...] = (build_context.code,)
        self.decoder = linear_layer(build_context.num_bits, build_context.dim, generator=build_context.generator)

    def forward(self, read: Read, batch: object, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the loss of one batch, a scalar."""
        vectors = self._vectors(read, batch)
        bits = self._code[0].binarize(vectors, generator=generator)
        loss = functional.mse_loss(self.decoder(2 * bits - 1), vectors)
        if self._config.weight_sp:
            loss = loss + self._config.weight_sp * self._semantic(vectors, bits, generator)
        return loss

    def scores(self, read: Read, batch: object) -> dict[str, tuple[float, int]]:
        """Return the mean squared error, and the correlation of codes' distances with the vectors' cosines."""
        vectors = self._vectors(read, batch)
        bits = self._code[0](vectors)
        rows = len(vectors)
        error = functional.mse_loss(self.decoder(2 * bits - 1), vectors).item() * rows
        return {
            "reconstruction_mse": (error, rows),
            "similarity_kept": (rows * similarity_kept(vectors, bits), rows),
        }

    def _vectors(self, read: Read, batch: object) -> Tensor:
        """Return the fixed vectors of all sentences of a batch [sentences, dim]."""
        parts = batch.parts  # type: ignore[attr-defined]  # every kind of batch has them
        return torch.cat([read(part)[0] for part in parts])

    def _semantic(self, vectors: Tensor, bits: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return the semantic-preserving term of random triples, a scalar."""
        order = [torch.randperm(len(vectors), generator=generator).to(vectors.device) for _ in range(2)]
        unit = functional.normalize(vectors, dim=1)
        first, third = ((unit * unit[rows]).sum(dim=1) for rows in order)
        sign = torch.where(first >= third, 1.0, -1.0)
        near, far = (self._distance(bits, bits[rows]) for rows in order)
        return functional.relu(sign * (near - far)).pow(self._config.power).mean()

    def _distance(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the distance of codes, row by row [batch]."""
        # For bits this equals |b - b'|, with a gradient that does not vanish where they agree.
        differing = (one * (1 - other) + other * (1 - one)).sum(dim=1)
        if self._config.distance == "l2":
            return (differing.clamp(min=0) + 1e-8).sqrt()
        return differing if self._config.distance == "hamming" else differing / one.shape[1]


def similarity_kept(vectors: Tensor, bits: Tensor) -> float:
    """Return Pearson's correlation of cosines of vectors with minus the Hamming distances of their codes.

    Args:
        vectors: [rows, dim]; each is compared with all later ones.
        bits: 0 or 1 [rows, bits].
    """
    unit, signs = functional.normalize(vectors.detach(), dim=1), 2 * bits.detach() - 1
    above = torch.triu_indices(len(vectors), len(vectors), offset=1)
    cosines, agreement = ((side @ side.T)[above[0], above[1]] for side in (unit, signs))
    both = torch.stack([cosines.double(), agreement.double()])
    if min(both.std(dim=1).tolist(), default=0.0) == 0:
        return 0.0
    return torch.corrcoef(both)[0, 1].item()
