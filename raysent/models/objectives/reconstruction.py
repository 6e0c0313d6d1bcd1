"""Reconstruction: a linear decoder restores a fixed encoder's vector from its code; codes keep which pairs are closer.

    h' = m + v (W' (2b - 1) + k');   loss = mean of (h - h')^2 / v^2
                                            + lambda_sp * mean of max(0, l [d(a, b) - d(x, c)])^power
    l = 1 where cos(a, b) >= cos(x, c), else -1

m is the mean of a sample of vectors and v^2 their mean variance: vectors of unit length have tiny errors, and without v
the second term decides alone. a, b, x and c are codes of sentences of the batch. a and b are related: the two sentences
of a pair, or a sentence and the next one of its text. c is a random sentence and x is a, or x and c are another related
pair. For methods that need no training only the decoder learns, so that the errors of all methods can be compared.

Source: Shen et al., 2019, sections 3.4 and 3.5, and the released code, whose sentences are natural language inference
pairs.
Differs: m and v; the Hamming distance is divided by the number of bits unless `sp_distance` says otherwise.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.config import ByVariant
from raysent.data.batches import Batch
from raysent.kernels.devices import to_device
from raysent.models.codes import Code, CodeConfig
from raysent.models.layers import linear_layer, spread
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
        scaled: Whether errors are divided by the vectors' variance, and the decoder starts from their mean. None is
            true for paper, false for authors.
        sp_triples: `related` compares a related pair with a random sentence, `disjoint` two related pairs, `random`
            two random sentences. None is `related` for paper, `disjoint` for authors.
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
    scaled: bool | None = None
    sp_triples: Literal["related", "disjoint", "random"] | None = None
    lambda_sp: float | None = pydantic.Field(default=None, ge=0)
    sp_distance: Literal["normalized_hamming", "hamming", "l2"] | None = None
    sp_power: Literal[1, 2] | None = None

    is_scaled: ClassVar[ByVariant[bool]] = ByVariant("scaled", paper=True, authors=False)
    triples: ClassVar[ByVariant[str]] = ByVariant("sp_triples", paper="related", authors="disjoint")
    weight_sp: ClassVar[ByVariant[float]] = ByVariant("lambda_sp", paper=0.8, authors=1e-5)
    distance: ClassVar[ByVariant[str]] = ByVariant(
        "sp_distance", paper="normalized_hamming", authors="l2"
    )
    power: ClassVar[ByVariant[int]] = ByVariant("sp_power", paper=1, authors=2)

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
        # Windows of three sentences, so that a sentence's next one is in its batch.
        if self.text == "pairs":
            return PairBatches()
        return ContextBatches(1, self.candidates)

    @property
    def metrics(self) -> tuple[str, ...]:
        """How well codes rank related sentences, the decoder's error, and how well codes keep similarities."""
        return ("related_auc", "reconstruction_mse", "reconstruction_r2", "similarity_kept")

    def check_code(self, code: CodeConfig | None) -> None:
        """Refuse a model without a code.

        Raises:
            ValueError: With what must hold.
        """
        if code is None:
            raise ValueError(
                f"code.type must be set for objective {self.type}; it says how vectors become bits"
            )

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of code and decoder with their moments, and of the bits, vectors and distances."""
        return (
            shape.num_bits * (8 * shape.dim + 6 * shape.batch_size)
            + 6 * shape.batch_size * shape.dim
        )


class Objective(BaseObjective):
    """The decoder and its loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        self._config = config
        if build_context.code is None:
            raise ValueError(
                "code.type must be set for objective reconstruction; it says how vectors become bits"
            )
        # A tuple, because the code's parameters are the model's, not this module's.
        self._code: tuple[Code, ...] = (build_context.code,)
        self.decoder = linear_layer(
            build_context.num_bits, build_context.dim, generator=build_context.generator
        )
        self.center = nn.Parameter(torch.zeros(build_context.dim), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)

    def fit(self, vectors: Tensor) -> None:
        """Set m and v to those of a sample [rows, dim]."""
        if self._config.is_scaled:
            self.center.data.copy_(vectors.mean(dim=0))
            self.scale.data.copy_(spread(vectors))

    def forward(
        self, read: Read, batch: Any, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the loss of one batch, a scalar."""
        vectors = self._vectors(read, batch)
        bits = self._code[0].binarize(vectors, generator=generator)
        loss = functional.mse_loss(self._decoded(bits), vectors) / self.scale.square()
        if self._config.weight_sp:
            loss = loss + self._config.weight_sp * self._semantic(
                vectors, bits, _related_rows(batch), generator
            )
        return loss

    def held_out_totals(self, read: Read, batch: Any) -> dict[str, tuple[float, int]]:
        """Return how well codes rank related sentences, the decoder's error, and how well codes keep similarities."""
        vectors = self._vectors(read, batch)
        bits = self._code[0](vectors)
        rows = len(vectors)
        error = functional.mse_loss(self._decoded(bits), vectors).item()
        first, second = _related_rows(batch)
        auc = related_auc(bits, first, second)
        return {
            "related_auc": (auc * len(first), len(first)),
            "reconstruction_mse": (error * rows, rows),
            "reconstruction_r2": (rows * (1 - error / self.scale.square().item()), rows),
            "similarity_kept": (rows * similarity_kept(vectors, bits), rows),
        }

    def _decoded(self, bits: Tensor) -> Tensor:
        decoded: Tensor = self.center + self.scale * self.decoder(2 * bits - 1)
        return decoded

    def _vectors(self, read: Read, batch: Any) -> Tensor:
        """Return the fixed vectors of all sentences of a batch [sentences, dim]."""
        return torch.cat([read(part)[0] for part in batch.parts])

    def _semantic(
        self,
        vectors: Tensor,
        bits: Tensor,
        related: tuple[Tensor, Tensor],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return the semantic-preserving term, a scalar; 0 for a batch without related sentences."""
        compared = self._compared(len(vectors), related, generator)
        if len(compared[0][0]) == 0:
            return 0.0 * bits.sum()
        unit = functional.normalize(vectors, dim=1)
        pairs = [(to_device(a, bits.device), to_device(b, bits.device)) for a, b in compared]
        # Of the pairs (a, b) and of the pairs (x, c): the more similar ones must have the nearer codes.
        cosines = []
        distances = []
        for a, b in pairs:
            cosines.append((unit.index_select(0, a) * unit.index_select(0, b)).sum(dim=1))
            distances.append(self._distance(bits.index_select(0, a), bits.index_select(0, b)))
        sign = torch.where(cosines[0] >= cosines[1], 1.0, -1.0)
        excess = functional.relu(sign * (distances[0] - distances[1]))
        return excess.pow(self._config.power).mean()

    def _compared(
        self, rows: int, related: tuple[Tensor, Tensor], generator: torch.Generator | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return two columns of pairs (a, b) and (x, c), each as the rows of both sentences."""
        if self._config.triples == "random":
            first, third = (torch.randperm(rows, generator=generator) for _ in range(2))
            return (torch.arange(rows), first), (torch.arange(rows), third)
        a, b = related
        if self._config.triples == "disjoint":
            shuffled = torch.randperm(len(a), generator=generator)
            return (a, b), (a[shuffled], b[shuffled])
        return (a, b), (a, torch.randint(0, rows, (len(a),), generator=generator))

    def _distance(self, bits: Tensor, other_bits: Tensor) -> Tensor:
        # For bits this equals |b - b'|, with a gradient that does not vanish where they agree.
        differing = (bits * (1 - other_bits) + other_bits * (1 - bits)).sum(dim=1)
        if self._config.distance == "l2":
            return (differing.clamp(min=0) + 1e-8).sqrt()
        if self._config.distance == "hamming":
            return differing
        return differing / bits.shape[1]


def _related_rows(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the rows of related sentences of a batch, int64 [pairs] each.

    Those of pairs are each pair's two sentences, in the order of `batch.parts`. Those of running text are a sentence
    and the next one of its document. A batch with neither has none.
    """
    if len(batch.parts) == 2:
        first = torch.arange(len(batch))
        return first, first + len(first)
    if not isinstance(batch, Batch):
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    order = np.lexsort((batch.positions, batch.documents))
    positions = batch.positions[order]
    documents = batch.documents[order]
    is_next = (np.diff(positions) == 1) & (np.diff(documents) == 0)
    return torch.from_numpy(order[:-1][is_next]), torch.from_numpy(order[1:][is_next])


def related_auc(bits: Tensor, first: Tensor, second: Tensor) -> float:
    """Return how often a related sentence's code is nearer than another one's, from 0 to 1; a tie counts one half.

    Args:
        bits: 0 or 1 [rows, bits].
        first: Rows of sentences [pairs].
        second: Rows of the sentences related to them [pairs]; each is compared with all the others of this column.
    """
    if len(first) < 2:
        return 0.5
    signs = 2 * bits.detach() - 1
    agreement = signs[first.to(bits.device)] @ signs[second.to(bits.device)].T
    related_agreement = agreement.diagonal()[:, None]
    wins = (related_agreement > agreement).double() + 0.5 * (
        related_agreement == agreement
    ).double()
    # A related sentence ties with itself.
    return float((wins.sum() - 0.5 * len(first)) / (len(first) * (len(first) - 1)))


def similarity_kept(vectors: Tensor, bits: Tensor) -> float:
    """Return Pearson's correlation of cosines of vectors with minus the Hamming distances of their codes.

    It is 0 where there is none, as of fewer than three rows, which have less than two pairs.

    Args:
        vectors: [rows, dim]; each is compared with all later ones.
        bits: 0 or 1 [rows, bits].
    """
    if len(vectors) < 3:
        return 0.0
    unit = functional.normalize(vectors.detach(), dim=1)
    signs = 2 * bits.detach() - 1
    above = torch.triu_indices(len(vectors), len(vectors), offset=1)
    cosines, agreement = ((side @ side.T)[above[0], above[1]] for side in (unit, signs))
    measures = torch.stack([cosines.double(), agreement.double()])
    if min(measures.std(dim=1).tolist(), default=0.0) == 0:
        return 0.0
    return torch.corrcoef(measures)[0, 1].item()
