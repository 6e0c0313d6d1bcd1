"""LSTM over the words of a sentence, its states pooled; the default is InferSent's BiLSTM with maximum.

Source: Conneau et al., 2017, section 3.2; the paper's 2048 is the size of each direction.
"""

from __future__ import annotations

import math
from typing import Literal, Self, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from raysent.kernels.gru_cells import Workspaces
from raysent.kernels.native import load
from raysent.kernels.packed_gru import last_rows
from raysent.kernels.packed_lstm import lstm_workspaces, packed_lstm
from raysent.kernels.packing import Packed
from raysent.kernels.padded_recurrence import padded_states
from raysent.kernels.padding import Cut
from raysent.kernels.recurrences import Cell, Kernel, chosen_kernel, cut_for, library_recurrence
from raysent.models.embeddings import EmbeddingConfig, Tables
from raysent.models.encoders import Tower, WordEncoderConfig
from raysent.models.layers import Pooling, States, token_rows, without_values


class Config(WordEncoderConfig):
    """Settings of an LSTM.

    Attributes:
        bidirectional: Whether a second LSTM reads the sentence backwards.
        hidden_size: Size of one tower's vector; each of two directions has half of it.
        pooling: How the states become a sentence's vector.
        implementation: `compiled` is raysent's recurrence over packed sentences, with the code between products in C++,
            which a compiler of the machine builds once; `packed` is the plain formulas; `torch` is torch's over its
            packed sequences, `cudnn` torch's over padded groups. All give the same vectors. `auto` is `cudnn` on a GPU;
            on a CPU it is `compiled` with a compiler and `torch` without.
    """

    type: Literal["lstm"] = "lstm"
    bidirectional: bool = True
    hidden_size: int = pydantic.Field(default=4096, ge=1)
    pooling: Pooling = "max"
    implementation: Literal["auto", "compiled", "packed", "torch", "cudnn"] = "auto"

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return both implementations, one and two directions; see `EncoderConfig.examples`."""
        words = EmbeddingConfig(dim=5)
        return (
            cls(embedding=words, hidden_size=6),
            cls(embedding=words, hidden_size=6, implementation="torch"),
            cls(embedding=words, hidden_size=6, bidirectional=False, pooling="last"),
        )

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.bidirectional and self.hidden_size % 2:
            raise ValueError(
                f"hidden_size must be even when bidirectional: true; given {self.hidden_size}"
            )
        return self

    @property
    def spoken_kind(self) -> str:
        """What it is in a few words."""
        return "LSTM both ways" if self.bidirectional else "LSTM"

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.hidden_size


class Encoder(Tower):
    """One tower."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self.words = tables.table(config.embedding)
        self._config = config
        self.lstm = without_values(
            nn.LSTM,
            config.embedding.dim,
            config.hidden_size // (2 if config.bidirectional else 1),
            bidirectional=config.bidirectional,
        )
        self._workspaces = lstm_workspaces()
        self._padded = library_recurrence("lstm", self.lstm.hidden_size)
        if config.implementation == "compiled":
            load("lstm")  # raises now, not in the first step, where there is no compiler
        limit = 1 / math.sqrt(self.lstm.hidden_size)
        if tables.sets_values:
            for parameter in self.lstm.parameters():
                parameter.data.uniform_(-limit, limit, generator=tables.generator)

    @property
    def _kernel(self) -> Kernel:
        device = next(self.lstm.parameters()).device
        return chosen_kernel(Cell("lstm"), self._config.implementation, device)

    def lay_out(self, packed: Packed) -> None:
        """Lay out the padded groups that training reads."""
        if self._kernel == "cudnn":
            packed.padded(self._cut(packed.words.device))

    def _cut(self, device: torch.device) -> Cut:
        return cut_for(
            self._padded,
            device,
            directions=len(self.lstm.all_weights),
            has_states=self._config.pooling != "last",
            has_small_groups=self.has_small_groups,
        )

    def use_small_groups(self) -> bool:
        """Cut batches into groups with little padding, and free the buffers of larger ones."""
        is_changed = self._kernel == "cudnn" and not self.has_small_groups
        self.has_small_groups = self.has_small_groups or is_changed
        self._padded.kept.clear()
        return is_changed

    def project(self, words: Tensor) -> list[Tensor]:
        """Return each direction's input projections [distinct, 4 * hidden]; for torch's LSTM the word vectors."""
        vectors = cast("Tensor", self.words(words))
        if self._kernel in {"torch", "cudnn"}:
            return [vectors]
        # Both biases are added to the same sum of each gate.
        return [
            functional.linear(vectors, weight, input_bias + recurrent_bias)
            for weight, _, input_bias, recurrent_bias in self.lstm.all_weights
        ]

    def read(self, packed: Packed, projected: list[Tensor]) -> Tensor:
        """Return the vectors [batch, dim]."""
        kernel = self._kernel
        if kernel == "cudnn":
            return self._states_of_groups(packed, projected[0]).pooled(self._config.pooling)
        if kernel == "torch":
            values, last = self._by_torch(packed, projected[0])
        else:
            workspaces = self._workspaces if kernel == "compiled" else None
            values, last = self._packed(packed, projected, workspaces)
        return States(values, token_rows(packed), last.index_select(0, packed.rank)).pooled(
            self._config.pooling
        )

    def _states_of_groups(self, packed: Packed, vectors: Tensor) -> States:
        cut = self._cut(vectors.device)
        parameters = [parameter for direction in self.lstm.all_weights for parameter in direction]
        last, states = padded_states(self._padded, vectors, packed.padded(cut), parameters)
        return States(states, packed.sentences.rows, last)

    def _by_torch(self, packed: Packed, vectors: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.tensor(packed.batch_sizes, dtype=torch.int64)
        states, (last, _) = self.lstm(
            PackedSequence(vectors.index_select(0, packed.forward_tokens), steps)
        )
        return states.data, torch.cat(tuple(last), dim=1)

    def _packed(
        self, packed: Packed, projected: list[Tensor], workspaces: Workspaces | None
    ) -> tuple[Tensor, Tensor]:
        """Return all states and the last states; the two directions of a row may be of different words."""
        directions = zip(projected, self.lstm.all_weights, strict=True)
        states = torch.cat(
            [
                packed_lstm(inputs, weight, packed, backwards=number == 1, workspaces=workspaces)
                for number, (inputs, (_, weight, *_)) in enumerate(directions)
            ],
            dim=1,
        )
        return states, states.index_select(0, last_rows(packed))
