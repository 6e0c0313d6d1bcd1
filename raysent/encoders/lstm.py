"""LSTM over the words of a sentence, its states pooled; InferSent's BiLSTM with maximum is the default.

Source: Conneau et al., 2017, section 3.2; the paper's 2048 is the size of each direction.
"""

from __future__ import annotations

import math
from typing import Literal, Self

import pydantic
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from raysent.embeddings import Tables
from raysent.encoders import SentenceReader, WordEncoderConfig
from raysent.packing import Packed
from raysent.pooling import Pooling, States, token_rows


class Config(WordEncoderConfig):
    """An LSTM.

    Attributes:
        bidirectional: Whether a second LSTM reads the sentence backwards.
        hidden_size: Size of one tower's vector; each of two directions has half of it.
        pooling: How the states become a sentence's vector.
    """

    type: Literal["lstm"] = "lstm"
    bidirectional: bool = True
    hidden_size: int = pydantic.Field(default=4096, ge=1)
    pooling: Pooling = "max"

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.bidirectional and self.hidden_size % 2:
            raise ValueError(f"hidden_size must be even when bidirectional: true; given {self.hidden_size}")
        return self

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.hidden_size


class Encoder(SentenceReader):
    """One tower."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self.words = tables.table(config.embedding)
        self._config = config
        # Made without values: torch's own first ones would be drawn from the global generator.
        self.lstm = nn.LSTM(
            config.embedding.dim,
            config.hidden_size // (2 if config.bidirectional else 1),
            bidirectional=config.bidirectional,
            device="meta",
        ).to_empty(device="cpu")
        limit = 1 / math.sqrt(self.lstm.hidden_size)
        if tables.sets_values:
            for parameter in self.lstm.parameters():
                parameter.data.uniform_(-limit, limit, generator=tables.generator)

    def project(self, words: Tensor) -> Tensor:
        """Return the word vectors [distinct, word dim]."""
        vectors: Tensor = self.words(words)
        return vectors

    def read(self, packed: Packed, projected: Tensor) -> Tensor:
        """Return the vectors [batch, dim]."""
        steps = torch.tensor(packed.batch_sizes, dtype=torch.int64)
        states, (last, _) = self.lstm(PackedSequence(projected[packed.forward_tokens], steps))
        last_states = torch.cat(tuple(last), dim=1)[packed.rank]
        return States(states.data, token_rows(packed), last_states).pooled(self._config.pooling)
