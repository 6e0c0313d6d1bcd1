"""Paraphrase margin: the sentences of a pair are closer to each other than to a negative from the batch.

    loss = mean over pairs of  [margin - cos(g1, g2) + cos(g1, t1)]+  +  [margin - cos(g1, g2) + cos(g2, t2)]+
           + 1/2 lambda_w |W - W0|^2  +  1/2 lambda_c |C|^2

W are the word vectors, W0 their initial values, C the encoder's other parameters. A negative is neither the sentence
itself nor its partner. The nearest sentences from the first step on collapse an encoder whose start knows nothing of
phrases, so the run begins with random negatives.

Source: Wieting et al., 2016; Jiao, Wang and Feng, 2018, equation 4, and their released code, which halves both terms.
Differs: the warm-up (`random_part`); a negative has the dropout mask that was drawn for its own pair, where the
released code draws another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.config import ByVariant
from raysent.data.pairs import Pairs
from raysent.data.vocabulary import Sentences
from raysent.kernels.devices import to_device
from raysent.models.layers import L2Penalty, unit
from raysent.models.objectives import (
    Batches,
    BuildContext,
    ObjectiveConfig,
    PairBatches,
    Read,
    StepShape,
)
from raysent.models.objectives import Objective as BaseObjective

Negatives: TypeAlias = Literal["max", "mix", "random"]


class Config(ObjectiveConfig):
    """Settings of the paraphrase margin.

    Attributes:
        margin: By how much partners must be closer, in cosine.
        negatives: `max` takes the nearest sentence of the batch, `random` any, `mix` either with probability 1/2.
        random_part: First part of the run's steps in which negatives are random, whatever `negatives` is. Set it to 0
            where the start is already trained on phrases, as with the paper's PARAGRAM vectors; it is 0 by default for
            a run that continues from a model (`initial`) and for `variant: authors`.
        lambda_w: Weight of the L2-SP penalty on the word vectors.
        lambda_c: Weight of the L2 penalty on the encoder's other parameters.
        scramble: Fraction of the pairs whose words are shuffled, drawn in every step. None follows `variant`: 0 for
            paper, 0.5 for authors.
    """

    num_towers: ClassVar[Literal[1, 2]] = 1
    across_workers: ClassVar[Literal["rows", "mean", "sum"]] = "rows"
    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"

    type: Literal["paraphrase_margin"] = "paraphrase_margin"
    margin: float = pydantic.Field(default=0.4, gt=0)
    negatives: Negatives = "max"
    random_part: float | None = pydantic.Field(default=None, ge=0, le=1)
    lambda_w: float = pydantic.Field(default=1e-6, ge=0)
    lambda_c: float = pydantic.Field(default=0.0, ge=0)
    scramble: float | None = pydantic.Field(default=None, ge=0, le=1)

    resolved_random_part: ClassVar[ByVariant[float]] = ByVariant(
        "random_part", paper=0.5, authors=0.0
    )
    resolved_scramble: ClassVar[ByVariant[float]] = ByVariant("scramble", paper=0.0, authors=0.5)

    @classmethod
    def values_from_initial(cls, *, num_towers: int) -> dict[str, Any]:
        """Return no warm-up: the run starts with a trained model."""
        del num_towers
        return {"random_part": 0.0}

    @property
    def batches(self) -> Batches:
        """Pairs of sentences."""
        return PairBatches()

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of the cosines of all sentences of a batch, as a mask, for the choice and for the loss."""
        return 3 * (2 * shape.batch_size) ** 2


class Objective(BaseObjective):
    """The loss of one batch; it remembers the initial word vectors."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        self._config = config
        words: tuple[nn.Parameter, ...] = ()
        if build_context.words is not None:
            words = (build_context.words.weight,)
        self.word_penalty = L2Penalty(words, weight=config.lambda_w, to="initial")
        self.weight_penalty = L2Penalty(build_context.parameters, weight=config.lambda_c, to="zero")
        self._negatives: Negatives = config.negatives

    def before_step(self, done: float) -> None:
        """Choose the kind of negatives."""
        self._negatives = self._config.negatives
        if done < self._config.resolved_random_part:
            self._negatives = "random"

    def prepare(self, batch: Pairs, *, generator: torch.Generator | None = None) -> Pairs:
        """Shuffle the words of some pairs, in both sentences."""
        fraction = self._config.resolved_scramble
        if fraction == 0:
            return batch
        first, second = scrambled(batch, fraction, generator=generator)
        return replace(batch, first=first, second=second)

    def forward(
        self, read: Read, batch: Pairs, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean over the pairs, or what the rows of this worker contribute to it."""
        first, second = batch.parts
        # Negatives are chosen by vectors without dropout and without a gradient.
        choosing = torch.cat([unit(read(side, is_training=False)[0]) for side in (first, second)])
        negatives = choose_negatives(
            choosing, self._negatives, generator=generator, rows=batch.rows
        )
        vectors = unit(torch.cat([read(first)[0], read(second)[0]]))
        num_pairs = len(vectors) // 2
        partners = (vectors * vectors.roll(num_pairs, dims=0)).sum(dim=1)
        own_vectors = _of_rows(vectors, batch.rows)
        hinges = functional.relu(
            self._config.margin
            - _of_rows(partners, batch.rows)
            + (own_vectors * vectors.index_select(0, negatives)).sum(dim=1)
        )
        return hinges.sum() / num_pairs

    def penalty(self) -> Tensor:
        """Return the penalties on the word vectors and on the other parameters."""
        total: Tensor = self.word_penalty() + self.weight_penalty()
        return total


def _of_rows(values: Tensor, rows: slice | None) -> Tensor:
    """Return the values [2 * pairs, ...] of the first and the second sentences of some pairs; of all for None."""
    if rows is None:
        return values
    return torch.cat([side[rows] for side in values.chunk(2)])


def choose_negatives(
    vectors: Tensor,
    kind: Negatives,
    *,
    generator: torch.Generator | None = None,
    rows: slice | None = None,
) -> Tensor:
    """Return the negative of each sentence, int64 [2 * pairs]: the row of another pair's sentence.

    Args:
        vectors: Unit vectors of the first sentences, then of the second ones [2 * pairs, dim].
        kind: See `Config.negatives`.
        generator: Source of random negatives and of the choice between both kinds.
        rows: The pairs whose negatives are returned, as they are for all; None for all.
    """
    count = len(vectors)
    similarity = _of_rows(vectors.detach(), rows) @ vectors.detach().T
    all_rows = torch.arange(count, device=vectors.device)
    own_rows = _of_rows(all_rows, rows)
    is_own = (own_rows[:, None] - all_rows[None, :]) % (count // 2) == 0
    nearest = similarity.masked_fill(is_own, -torch.inf).argmax(dim=1)
    if kind == "max":
        return nearest
    # Another pair, at a random distance from the own one, and either side of it.
    shift = _drawn(1, max(2, count // 2), like=all_rows, rows=rows, generator=generator)
    side = _drawn(0, 2, like=all_rows, rows=rows, generator=generator)
    drawn = (own_rows + shift) % (count // 2) + side * (count // 2)
    if kind == "random":
        return drawn
    is_nearest = _of_rows(
        to_device(torch.rand(count, generator=generator), own_rows.device) < 0.5, rows
    )
    return torch.where(is_nearest, nearest, drawn)


def _drawn(
    low: int, high: int, *, like: Tensor, rows: slice | None, generator: torch.Generator | None
) -> Tensor:
    """Return whole numbers drawn for all sentences, of which those of some pairs are kept."""
    return _of_rows(
        to_device(torch.randint(low, high, like.shape, generator=generator), like.device), rows
    )


def scrambled(
    batch: Pairs, fraction: float, *, generator: torch.Generator | None
) -> tuple[Sentences, Sentences]:
    """Return both columns, with the words of a fraction of the pairs shuffled in both sentences."""
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    random = np.random.default_rng(seed)
    is_chosen = random.random(len(batch)) < fraction
    return _shuffled(batch.first, is_chosen, random), _shuffled(batch.second, is_chosen, random)


def _shuffled(
    sentences: Sentences, is_chosen: np.ndarray, random: np.random.Generator
) -> Sentences:
    rows = np.repeat(np.arange(len(sentences.lengths)), sentences.lengths)
    keys = np.where(is_chosen[rows], random.random(len(rows)), np.arange(len(rows)))
    return Sentences(sentences.ids[np.lexsort((keys, rows))], sentences.lengths)
