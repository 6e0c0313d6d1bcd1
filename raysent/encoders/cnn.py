"""Convolution over a sentence's words: windows of several widths, each pooled over the places it fits.

    y_t = act(sum_k W_k x_(t+k) + b)     for every place t at which the window lies inside the sentence
    g   = sum, mean or maximum of y_t over t, one block of filters for each width

A sentence shorter than a window counts as one place, with zeros for the words that are missing; other places beyond the
sentence do not count, so that a vector does not depend on the batch's padding.

Source: Jiao, Wang and Feng, 2018, section 3, and the released code.
Differs: the released code also pools over the batch's padding, which adds the bias for every place of it.
"""

from __future__ import annotations

import math
from typing import Literal, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.embeddings import Tables
from raysent.encoders import SentenceReader, WordEncoderConfig
from raysent.packing import Packed


class Config(WordEncoderConfig):
    """A convolution.

    Attributes:
        windows: Widths of the windows, in words.
        num_filters: Filters of each width.
        activation: `linear` (the paper's best) or `tanh`.
        pooling: How the places of a window become one.
    """

    type: Literal["cnn"] = "cnn"
    windows: list[int] = pydantic.Field(default=[1, 2, 3], min_length=1)
    num_filters: int = pydantic.Field(default=100, ge=1)
    activation: Literal["linear", "tanh"] = "linear"
    pooling: Literal["sum", "mean", "max"] = "sum"

    @pydantic.field_validator("windows")
    @classmethod
    def _windows_are_widths(cls, windows: list[int]) -> list[int]:
        if min(windows) < 1 or len(set(windows)) < len(windows):
            raise ValueError(f"windows must be different widths of at least 1; given {windows}")
        return windows

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return len(self.windows) * self.num_filters


class Encoder(SentenceReader):
    """One tower."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self.words = tables.table(config.embedding)
        self._config = config
        size, filters = config.embedding.dim, config.num_filters
        # One block of rows for each place inside a window: [width * filters, word dim].
        self.weights = nn.ParameterList(
            nn.Parameter(
                torch.empty(width * filters, size).uniform_(
                    -_limit(width * size, filters), _limit(width * size, filters), generator=tables.generator
                )
            )
            for width in config.windows
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(filters)) for _ in config.windows)

    def project(self, words: Tensor) -> list[Tensor]:
        """Return what each word adds at each place of each window, [distinct, width, filters] by width."""
        vectors = cast("Tensor", self.words(words))
        filters = self._config.num_filters
        return [functional.linear(vectors, weight).view(len(vectors), -1, filters) for weight in self.weights]

    def read(self, packed: Packed, projected: list[Tensor]) -> Tensor:
        """Return the vectors [batch, dim]."""
        starts = packed.sentence_starts
        lengths = torch.diff(starts, append=starts.new_tensor([packed.num_tokens]))
        blocks = [self._pool(packed, one, bias, lengths) for one, bias in zip(projected, self.biases, strict=True)]
        return torch.cat(blocks, dim=1)

    def _pool(self, packed: Packed, projected: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
        """Return one width's filters pooled over each sentence [batch, filters]."""
        width = projected.shape[1]
        counts = (lengths - width + 1).clamp(min=1)
        rows = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        inside = torch.arange(len(rows), device=rows.device) - (torch.cumsum(counts, 0) - counts)[rows]
        values = bias.expand(len(rows), -1)
        for offset in range(width):
            is_there = inside + offset < lengths[rows]
            place = torch.where(is_there, packed.sentence_starts[rows] + inside + offset, 0)
            added = projected[packed.sentence_tokens[place], offset]
            values = values + added * is_there[:, None]
        if self._config.activation == "tanh":
            values = torch.tanh(values)
        return _pooled(values, rows, counts, self._config.pooling)


def _pooled(values: Tensor, rows: Tensor, counts: Tensor, pooling: Literal["sum", "mean", "max"]) -> Tensor:
    """Return values [places, filters] pooled by sentence, [batch, filters]; places of a sentence follow each other."""
    batch = values.new_zeros(len(counts), values.shape[1])
    if pooling == "max":
        index = rows[:, None].expand_as(values)
        return batch.scatter_reduce(0, index, values, reduce="amax", include_self=False)
    total = batch.index_add(0, rows, values)
    return total if pooling == "sum" else total / counts[:, None]


def _limit(inputs: int, outputs: int) -> float:
    """Return the bound of Glorot's uniform first values."""
    return math.sqrt(6 / (inputs + outputs))
