"""Masked words: some words of a sentence are hidden, and its states predict them.

    x_t  = U h_t   (h_t where the sizes are equal)
    loss = mean over sentences of the sum over their chosen words t of -log softmax(E x_t + a)_{word t}

h_t is the encoder's state of word t, E its own vectors of words, and a starts as the logarithm of the words' counts. Of
the chosen words 80 % are read as the mask, 10 % as another word at random, and 10 % as they are. Special sub-words and
unknown words are never chosen. The mask of a vocabulary without one is its unknown word. A sentence's choices follow
from the step and its place in the text, so that several workers make those of one.

Source: Devlin et al., 2019 (BERT), section 3.1.
Differs: sums over a sentence's words; the states are compared with the words without a layer in between.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pydantic
import torch
from torch import Tensor, nn

from raysent.data.batches import Batch
from raysent.data.vocabulary import Sentences
from raysent.errors import DataError
from raysent.kernels.devices import to_device
from raysent.kernels.fused_softmax import BLOCK_BYTES, vocabulary_cross_entropy
from raysent.models.encoders import EncoderConfig
from raysent.models.layers import linear_layer
from raysent.models.objectives import (
    Batches,
    BuildContext,
    ContextBatches,
    ObjectiveConfig,
    Read,
    StepShape,
)
from raysent.models.objectives import Objective as BaseObjective

# Of the chosen words: below the first the mask, below the second another word.
_MASK_SHARE = 0.8
_OTHER_SHARE = 0.9


class WordsConfig(ObjectiveConfig):
    """Settings of an objective that predicts words of a text from the text with noise."""

    num_towers: ClassVar[Literal[1, 2]] = 1
    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"
    is_by_example: ClassVar[bool] = True
    scores_words: ClassVar[bool] = True

    @property
    def batches(self) -> Batches:
        """Sentences of running text in random order."""
        return ContextBatches(context_size=0, candidates="random")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Negative log-likelihood per predicted word."""
        return ("nll",)

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of the words' gradient, twice, of their layout in products, and of a block of scores."""
        return 3 * (shape.num_words * shape.dim + max(BLOCK_BYTES // 4, shape.num_words))


class Config(WordsConfig):
    """Settings of masked words.

    Attributes:
        fraction: Part of a sentence's words that are chosen.
    """

    type: Literal["masked_words"] = "masked_words"
    fraction: float = pydantic.Field(default=0.15, gt=0, le=0.9)

    def check_towers(self, first: EncoderConfig, second: EncoderConfig | None) -> None:
        """Refuse a second encoder, and an encoder without a state for each word."""
        super().check_towers(first, second)
        if first.token_dim is None:
            raise ValueError(
                f"encoder must have a state for each word with objective {self.type}, as gru (reset: after), "
                f"pretrained and transformer have; given {first.type}"
            )


@dataclass(frozen=True)
class NoisyBatch(Batch):
    """Sentences with noise, and what is predicted from them.

    Attributes:
        targets: Ids that are predicted; -1 for a place where none is.
    """

    targets: Sentences


class WordsObjective(BaseObjective):
    """An objective that predicts words of a text from the text with noise, by the encoder's own vectors of words."""

    def __init__(self, build_context: BuildContext, dim: int = 0) -> None:
        """Make the scores of words for states of `dim` numbers; 0 is the size of a word's vector."""
        super().__init__()
        table = build_context.words
        vocabulary = build_context.vocabulary
        words: Callable[[], nn.Parameter] | None = build_context.token_words
        if table is not None:
            words = partial(table.get_parameter, "weight")
        assert words is not None
        assert vocabulary is not None
        self._words = words  # not a parameter of this module, and another one on another device
        num_words, word_dim = words().shape
        has_map = dim not in (0, word_dim)
        generator = build_context.generator
        self.map = linear_layer(dim, word_dim, generator=generator) if has_map else None
        self.bias = nn.Parameter(torch.zeros(num_words))
        self._is_special = np.isin(np.arange(num_words), list(vocabulary.special_ids))
        if build_context.word_counts is not None:
            counts = build_context.word_counts()
            if not counts.numpy()[~self._is_special[: len(counts)]].any():
                raise DataError(
                    "corpus: must have words that the model knows, which the objective predicts; given unknown words "
                    "alone; train a model on this text first, or take vocabulary.type: subwords"
                )
            self.bias.data[: len(counts)] = ((counts + 1) / (counts + 1).sum()).log()

    @abstractmethod
    def prepare(self, batch: Batch, *, generator: torch.Generator | None = None) -> NoisyBatch:
        """Return the sentences with noise; see the module."""

    @abstractmethod
    def sums(self, read: Read, batch: NoisyBatch) -> tuple[Tensor, int]:
        """Return the sum of the loss over the predicted words, in nats, and their number."""

    def forward(
        self, read: Read, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean over the sentences, in nats."""
        if not isinstance(batch, NoisyBatch):
            batch = self.prepare(batch, generator=generator)
        return self.sums(read, batch)[0] / len(batch)

    def held_out_totals(self, read: Read, batch: Batch) -> dict[str, tuple[float, int]]:
        """Return `nll`, with the same noise at each report."""
        total, count = self.sums(
            read, self.prepare(batch, generator=torch.Generator().manual_seed(0))
        )
        return {"nll": (float(total.detach()), count)}

    def cross_entropy(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over the words that states [words, dim] predict, in nats."""
        if self.map is None:
            mapped = states
        else:
            mapped = self.map(states)
        return vocabulary_cross_entropy(
            mapped, weight=self._words(), bias=self.bias, targets=targets
        )


def drawn(
    batch: Batch, *, count: int, generator: torch.Generator | None
) -> npt.NDArray[np.float64]:
    """Return numbers from 0 to below 1, [count, words]; they follow from the step and each sentence's place."""
    seed = int(torch.randint(2**62, (), generator=generator))
    sizes = zip(batch.positions.tolist(), batch.sentences.lengths.tolist(), strict=True)
    draws = [
        np.random.default_rng((seed, position)).random((count, length))
        for position, length in sizes
    ]
    return np.concatenate(draws, axis=1)


class Objective(WordsObjective):
    """The choice of words, and their loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__(build_context, build_context.token_dim or 0)
        vocabulary = build_context.vocabulary
        assert vocabulary is not None
        self._fraction = config.fraction
        self._mask = vocabulary.mask_id
        self._others = np.flatnonzero(~self._is_special[: len(vocabulary)])

    def prepare(self, batch: Batch, *, generator: torch.Generator | None = None) -> NoisyBatch:
        """Return the sentences with hidden words; see the module."""
        kind, replacement = drawn(batch, count=2, generator=generator)
        kind = kind / self._fraction
        ids = batch.sentences.ids
        is_chosen = (kind < 1) & ~self._is_special[ids]
        hidden = np.where(
            kind < _MASK_SHARE,
            self._mask,
            self._others[(replacement * len(self._others)).astype(np.int64)],
        )
        read = np.where(is_chosen & (kind < _OTHER_SHARE), hidden, ids).astype(ids.dtype)
        masked = Sentences(read, batch.sentences.lengths)
        targets = Sentences(np.where(is_chosen, ids, -1), batch.sentences.lengths)
        return NoisyBatch(masked, batch.positions, batch.documents, targets=targets)

    def sums(self, read: Read, batch: NoisyBatch) -> tuple[Tensor, int]:
        """Return the sum over the chosen words, in nats, and their number."""
        states = read(batch.sentences, tokens=True)[0]
        target_positions = np.flatnonzero(batch.targets.ids >= 0)
        states = states.index_select(0, to_device(target_positions, states.device))
        targets = to_device(batch.targets.ids[target_positions], states.device)
        return self.cross_entropy(states, targets), len(target_positions)
