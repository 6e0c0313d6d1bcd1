"""Denoising: most words of a sentence are deleted, and the whole sentence is rebuilt from the vector of what is left.

    h_t  = GRU(h_t-1, [x_t-1 ; v])
    loss = mean over sentences of the sum over their words t, with the end, of -log softmax(E h_t + a)_word t

v is the vector of what is left, E the encoder's own vectors of words, x_t-1 that of the word before, and a starts as
the logarithm of the words' counts. The decoder sees nothing of the sentence but v. At least one word is left; special
sub-words are never deleted. What is deleted follows from the step and a sentence's place in the text, so that several
workers delete what one would.

Source: Wang, Reimers and Gurevych, 2021, "TSDAE", section 3.
Differs: the decoder is the GRU of `sentence_decoding`, not a transformer; it shares vectors of words with the encoder,
not layers. Sub-words are deleted, not the words that they are of. Sums over a sentence's words.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pydantic
import torch
from torch import Tensor

from raysent.data.batches import Batch
from raysent.data.vocabulary import Sentences
from raysent.kernels.ragged import ragged_sums
from raysent.models.encoders import EncoderConfig
from raysent.models.objectives import BuildContext, Read, StepShape
from raysent.models.objectives.masked_words import NoisyBatch, WordsConfig, WordsObjective, drawn
from raysent.models.objectives.sentence_decoding import Decoder, lay_out

_STATES = 12  # numbers that a step of the decoder keeps, for each of a word's vector


class Config(WordsConfig):
    """Settings of denoising.

    Attributes:
        fraction: Part of a sentence's words that are deleted.
    """

    type: Literal["denoising"] = "denoising"
    fraction: float = pydantic.Field(default=0.6, gt=0, lt=1)

    def check_towers(self, first: EncoderConfig, second: EncoderConfig | None) -> None:
        """Refuse a second encoder, and members without vectors of words."""
        super().check_towers(first, second)
        if first.token_dim is None and len(first.word_tables()) < len(first.loss_dims):
            raise ValueError(
                f"encoder's members must each have an embedding with objective {self.type}"
            )

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of the words' scores, and of the decoder's states."""
        return (
            super().num_step_values(shape)
            + _STATES * shape.batch_size * shape.max_length * shape.dim
        )


class Objective(WordsObjective):
    """The decoder and its loss."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__(build_context)
        assert build_context.vocabulary is not None
        self._fraction = config.fraction
        # An unknown word is a word.
        self._is_special[build_context.vocabulary.unknown_id] = False
        size = self._words().shape[1]
        self.decoder = Decoder(size, size, build_context.dim, generator=build_context.generator)

    def prepare(self, batch: Batch, *, generator: torch.Generator | None = None) -> NoisyBatch:
        """Return the sentences without the deleted words; see the module."""
        ids, lengths = batch.sentences
        is_special = self._is_special[ids]
        [draw] = np.where(is_special, -1.0, drawn(batch, count=1, generator=generator))
        # The word with the highest number is left, whatever the fraction.
        least = np.minimum(self._fraction, np.maximum.reduceat(draw, np.cumsum(lengths) - lengths))
        is_left = is_special | (draw >= np.repeat(least, lengths))
        shortened = Sentences(ids[is_left], ragged_sums(is_left, lengths))
        return NoisyBatch(shortened, batch.positions, batch.documents, targets=batch.sentences)

    def sums(self, read: Read, batch: NoisyBatch) -> tuple[Tensor, int]:
        """Return the sum over words and ends of sentences, in nats, and their number."""
        [vectors] = read(batch.sentences)
        layout = lay_out(batch.targets, device=vectors.device)
        words = self._words().index_select(0, layout.words)
        states = self.decoder(words, vectors, layout, implementation="auto")
        return self.cross_entropy(states, layout.targets), sum(layout.batch_sizes)
