"""Contrast: a sentence is more similar to its positives than to the rest of the batch, by cosine and softmax.

    s_ij = cos(anchor i, candidate j) / temperature
    loss = mean over anchors i with a positive of  -1/|P(i)| sum over p in P(i) of log softmax over C(i) of s_ip

    positives   anchors and candidates                                         P(i)
    self        each sentence, and each read again with other dropout          the same sentence (SimCSE)
    context     the sentences of a block, but the anchor                       neighbours in running text
    pairs       first sentences; second ones, then those of further columns    the partners of its text (multiple
                                                                               negatives ranking)
    labels      training rows of a task, but the anchor                        rows of the same class

C(i) are all candidates but those that repeat the text of the anchor or of a positive and are no positives themselves.
With `prefixes` the same loss of the first numbers of all vectors is added for each size, times its weight.

Source: Gao, Yao and Chen, 2021 (SimCSE); Henderson et al., 2017 (pairs); Khosla et al., 2020, equation 2; Gao et al.,
2021 (GradCache); Kusupati et al., 2022 (Matryoshka: prefixes).
Differs: sentences with equal text are never negatives of each other.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import pydantic
import torch
from torch import Tensor

from raysent.data.pairs import number_texts
from raysent.data.vocabulary import Sentences
from raysent.kernels.devices import to_device
from raysent.models.encoders import EncoderConfig
from raysent.models.layers import unit
from raysent.models.objectives import (
    Batches,
    BuildContext,
    ContextBatches,
    ContextConfig,
    LabelBatches,
    PairBatches,
    Read,
    StepShape,
    neighbour_masks,
    places_of,
)
from raysent.models.objectives import Objective as BaseObjective


class Config(ContextConfig):
    """Settings of contrast; `context_size` and `candidates` are those of `positives: context`.

    Attributes:
        positives: What a sentence is to be similar to. `self`: itself, read again with other dropout, which the encoder
            must have (`encoder.dropout` or `encoder.embedding.dropout`). `context`: its neighbours in running text.
            `pairs`: its partners in `pairs.second` and `pairs.positives`; those in `pairs.negatives` are further
            negatives. `labels`: rows of the same class, among the training rows of the task that `labels.task` names.
        temperature: Divides the cosines; lower values weigh the most similar negatives more.
        symmetric: Whether candidates are anchors too, for `self` and `pairs`; the loss is the mean of both directions.
        cached: Whether all sentences are encoded without a graph first, and `micro_batch` of them at a time again for
            the gradient: the same gradient in the memory of a micro-batch, at about 4/3 of the time (GradCache).
        micro_batch: Sentences that are encoded at a time with `cached`.
        prefixes: Sizes, rising and below the vector's, to which vectors may be cut afterwards: their first numbers are
            trained to be vectors too.
        prefix_weights: The weight of the loss of each of them, beside 1 for the whole vector; empty for 1 each.
    """

    num_towers: ClassVar[Literal[1, 2]] = 1

    type: Literal["contrast"] = "contrast"
    positives: Literal["self", "context", "pairs", "labels"] = "context"
    temperature: float = pydantic.Field(default=0.05, gt=0)
    symmetric: bool = False
    cached: bool = False
    micro_batch: int = pydantic.Field(default=64, ge=1)
    prefixes: list[pydantic.PositiveInt] = pydantic.Field(default=[])
    prefix_weights: list[pydantic.PositiveFloat] = pydantic.Field(default=[])

    @pydantic.model_validator(mode="after")
    def _is_directed(self) -> Self:
        if self.symmetric and self.positives not in ("self", "pairs"):
            raise ValueError(
                f"symmetric must be false with positives: {self.positives}, which has one direction"
            )
        if self.prefixes != sorted(set(self.prefixes)):
            raise ValueError(f"prefixes must rise; given {self.prefixes}")
        if len(self.prefix_weights) not in (0, len(self.prefixes)):
            count = f"{len(self.prefixes)} prefixes; given {len(self.prefix_weights)}"
            raise ValueError(f"prefix_weights must be empty or as many as prefixes: {count}")
        return self

    @property
    def trained_prefixes(self) -> tuple[int, ...]:
        """Sizes to which vectors may be cut."""
        return tuple(self.prefixes)

    @property
    def batches(self) -> Batches:
        """Sentences of running text, in random order for `self`; or pairs."""
        match self.positives:
            case "self":
                return ContextBatches(context_size=0, candidates="random", num_encoded=2)
            case "context":
                return super().batches
            case "pairs":
                return PairBatches(reads_further=True)
            case "labels":
                return LabelBatches()

    @property
    def reads(self) -> str:
        """What it is trained on, in words, for each of `positives`."""
        return "running text, pairs, or labels of a task"

    @property
    def metrics(self) -> tuple[str, ...]:
        """For pairs, how often the most similar sentence of a held-out block is a partner."""
        return ("accuracy",) if self.positives == "pairs" else ()

    @property
    def encoded_at_once(self) -> int | None:
        """Sentences whose states are kept for the gradient at a time; None for those of the whole step."""
        return self.micro_batch if self.cached else None

    def check_towers(self, first: EncoderConfig, second: EncoderConfig | None) -> None:
        """Refuse a second encoder; for `self` also an encoder that reads a sentence the same way twice."""
        super().check_towers(first, second)
        if self.positives == "self" and not first.has_dropout:
            raise ValueError(
                "encoder.dropout or encoder.embedding.dropout must be above 0 with objective contrast and positives: "
                "self, which reads each sentence twice with other dropout; set it to 0.1"
            )
        if self.prefixes and (first.encoded_dims != (first.dim,) or self.prefixes[-1] >= first.dim):
            sizes = f"{self.prefixes} of {' + '.join(map(str, first.encoded_dims))}"
            raise ValueError(
                f"objective.prefixes must be below the size of the encoder's one block; given {sizes}"
            )

    def comparable(self, vectors: Tensor) -> Tensor:
        """Return vectors of unit length: the loss compares cosines."""
        return unit(vectors)

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of the scores, their probabilities and gradients, and the masks of both."""
        directions = (2 if self.symmetric else 1) * (1 + len(self.prefixes))
        return 4 * shape.batch_size**2 * max(1, shape.num_encoded - 1) * directions


class Objective(BaseObjective):
    """The loss of one batch; no parameters of its own."""

    def __init__(self, config: Config, build_context: BuildContext | None = None) -> None:
        super().__init__()
        del build_context
        self._config = config

    def forward(
        self, read: Read, batch: Any, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean over the anchors that have a positive, or what the rows of this worker contribute to it."""
        del generator
        columns = self._columns(read, batch)
        device = columns[0].device
        # Scores are a small part of a step's work, so they stay in float32 under mixed precision.
        with torch.autocast(device.type, enabled=False):
            masks = self._masks(batch, device)
            loss = self._loss(columns, masks, batch.rows)
            sizes = self._config.prefixes
            weights = self._config.prefix_weights or [1.0] * len(sizes)
            for size, weight in zip(sizes, weights, strict=True):
                prefixes = [column[:, :size] for column in columns]
                loss = loss + weight * self._loss(prefixes, masks, batch.rows)
        return loss

    def _loss(
        self, columns: list[Tensor], masks: tuple[list[Tensor], list[Tensor]], rows: slice | None
    ) -> Tensor:
        vectors = [unit(column) for column in columns]
        # The last columns are the candidates: the second reading of `self`, the sentences themselves of contexts and
        # labels, and all columns but the first of pairs.
        loss = self._direction(vectors[0], torch.cat(vectors[-len(masks[0]) :]), masks, rows)
        if self._config.symmetric:
            # In the other direction candidates look for anchors, so rows and columns of the masks change places.
            masks = ([masks[0][0].T], [masks[1][0].T])
            loss = (loss + self._direction(vectors[1], vectors[0], masks, rows)) / 2
        return loss

    def held_out_totals(self, read: Read, batch: Any) -> dict[str, tuple[float, int]]:
        """Return for how many first sentences of the pairs the most similar candidate is a partner."""
        if self._config.positives != "pairs":
            return {}
        first, *candidates = (unit(column) for column in self._columns(read, batch))
        positives, negatives = (
            torch.cat(masks, dim=1) for masks in self._masks(batch, first.device)
        )
        scores = (first @ torch.cat(candidates).T).masked_fill(~(positives | negatives), -torch.inf)
        is_right = positives.gather(1, scores.argmax(dim=1, keepdim=True))
        return {"accuracy": (float(is_right.sum()), len(first))}

    def _columns(self, read: Read, batch: Any) -> list[Tensor]:
        """Return the vectors of anchors, then those of each column of candidates where they are others [rows, dim]."""
        parts: list[Sentences] = list(batch.parts)
        if self._config.positives == "self":
            parts.append(Sentences(*batch.sentences))  # another object, so that it is encoded again
        return [read(part)[0] for part in parts]

    def _masks(self, batch: Any, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Return which candidates of each column are positives, and which are negatives, bool [rows, rows] each."""
        texts = batch.texts or number_texts(*batch.parts)
        anchors, *columns = (to_device(column, device) for column in texts)
        is_same = anchors[:, None] == anchors[None, :]
        match self._config.positives:
            case "self":
                positives = [is_same]
                columns = [anchors]
            case "context":
                sentence_places = places_of(batch.positions, batch.documents, device)
                positives = [
                    neighbour_masks(
                        sentence_places, sentence_places, context_size=self._config.context_size
                    )[0]
                ]
                columns = [anchors]
            case "labels":
                labels = to_device(batch.labels, device)
                itself = torch.eye(len(labels), dtype=torch.bool, device=device)
                positives = [(labels[:, None] == labels[None, :]) & ~itself]
                columns = [anchors]
            case "pairs":
                end = 1 + len(batch.positives)  # a cell that repeats another is no partner
                partners = [is_same & (column != columns[0])[None, :] for column in columns[1:end]]
                positives = [
                    is_same,
                    *partners,
                    *(torch.zeros_like(is_same) for _ in columns[end:]),
                ]
        is_known_text = _texts_known(
            positives, anchors, columns, num_texts=1 + max(int(column.max()) for column in texts)
        )
        pairs = zip(columns, positives, strict=True)
        return positives, [~is_known_text.index_select(1, column) & ~mask for column, mask in pairs]

    def _direction(
        self,
        anchors: Tensor,
        candidates: Tensor,
        masks: tuple[list[Tensor], list[Tensor]],
        rows: slice | None,
    ) -> Tensor:
        """Return the mean over the anchors with a positive; of one worker's rows the part that these contribute.

        Args:
            anchors: Unit vectors [batch, dim].
            candidates: Unit vectors, a column after another [candidates, dim].
            masks: Positives and negatives, as `_masks` returns them.
            rows: This worker's anchors; None for all.
        """
        is_positive = torch.cat(masks[0], dim=1)
        num_positives = is_positive.sum(dim=1)
        total = (num_positives > 0).sum().clamp(min=1)
        own_rows = slice(None) if rows is None else rows
        targets = is_positive[own_rows]
        num_positives = num_positives[own_rows]
        # A candidate that is neither a positive nor a negative, such as the anchor's own text, is not compared.
        left_out = ~(targets | torch.cat(masks[1], dim=1)[own_rows]) & (num_positives > 0)[:, None]
        scores = anchors[own_rows] @ candidates.T / self._config.temperature
        log_probabilities = scores.masked_fill(left_out, -torch.inf).log_softmax(dim=1)
        sums = torch.where(targets, log_probabilities, 0.0).sum(dim=1)
        return -(sums / num_positives.clamp(min=1)).sum() / total


def _texts_known(
    positives: list[Tensor], anchors: Tensor, columns: list[Tensor], *, num_texts: int
) -> Tensor:
    """Return which texts are the anchor's own or one of its positives', bool [batch, texts]."""
    counts = torch.zeros(len(anchors), num_texts, device=anchors.device)
    counts.scatter_(1, anchors[:, None], 1.0)
    for mask, column in zip(positives, columns, strict=True):
        counts.index_add_(1, column, mask.float())
    return counts > 0
