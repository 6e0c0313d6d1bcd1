"""Convolution over a sentence's words: windows of several widths, each pooled over the places where it fits.

    y_t = act(sum_k W_k x_(t+k) + b)     for every place t at which the window lies inside the sentence
    g   = sum, mean or maximum of y_t over t, one block of filters for each width

A sentence shorter than a window counts as one place, with zeros for the missing words. Places beyond the sentence do
not count, so a vector does not depend on the batch's padding.

With `linear` and sums or means no window is computed. Over all places of a window of width w, its position k covers all
words except the first k and the last w - 1 - k, so the sum over the windows is

    sum_t y_t = sum_k W_k (S - x_1 - ... - x_k - x_(n-w+2+k) - ... - x_n) + (n - w + 1) b,   S = x_1 + ... + x_n

one product for each position and sentence instead of one for each position and word.

Source: Jiao, Wang and Feng, 2018, section 3, and the released code.
Differs: the released code also pools over the batch's padding, which adds the bias for every place of it.
"""

from __future__ import annotations

import math
from typing import Literal, Self, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.kernels.packing import Bags, Packed
from raysent.models.embeddings import EmbeddingConfig, Tables
from raysent.models.encoders import Tower, WordEncoderConfig
from raysent.models.layers import word_sums


class Config(WordEncoderConfig):
    """Settings of a convolution.

    Attributes:
        windows: Widths of the windows, in words.
        num_filters: Filters of each width.
        activation: `linear` (the paper's best) or `tanh`.
        pooling: How the places of a window become one value.
        implementation: `windows` computes every window; `summed` multiplies sums of words, for `linear` and sums or
            means. Both give the same vectors. `auto` is `summed` where possible.
    """

    type: Literal["cnn"] = "cnn"
    windows: list[int] = pydantic.Field(default=[1, 2, 3], min_length=1)
    num_filters: int = pydantic.Field(default=100, ge=1)
    activation: Literal["linear", "tanh"] = "linear"
    pooling: Literal["sum", "mean", "max"] = "sum"
    implementation: Literal["auto", "summed", "windows"] = "auto"

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return every pooling, with windows longer than some sentences; see `EncoderConfig.examples`."""
        words = EmbeddingConfig(dim=5)
        return (
            cls(embedding=words, num_filters=3),
            cls(embedding=words, num_filters=2, windows=[4, 2], pooling="mean", activation="tanh"),
            cls(embedding=words, num_filters=3, windows=[9], pooling="max"),
        )

    @pydantic.model_validator(mode="after")
    def _sums_are_linear(self) -> Self:
        if self.implementation == "summed" and not self._can_sum:
            raise ValueError(
                "implementation must not be summed with activation: tanh or pooling: max, which are not linear; "
                "set implementation: auto"
            )
        return self

    @property
    def _can_sum(self) -> bool:
        return self.activation == "linear" and self.pooling != "max"

    @property
    def is_summed(self) -> bool:
        """Whether words are summed before they are multiplied."""
        return self._can_sum and self.implementation != "windows"

    @pydantic.field_validator("windows")
    @classmethod
    def _windows_are_widths(cls, windows: list[int]) -> list[int]:
        if min(windows) < 1 or len(set(windows)) < len(windows):
            raise ValueError(f"windows must be different widths of at least 1; given {windows}")
        return windows

    @property
    def spoken_kind(self) -> str:
        """What it is in a few words."""
        return "CNN"

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return len(self.windows) * self.num_filters

    @property
    def activations_per_token(self) -> int:
        """Numbers of a word vector, and of the filters at its place unless words are summed first."""
        return self.embedding.dim + (0 if self.is_summed else self.dim)


class Encoder(Tower):
    """One tower."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self.words = tables.table(config.embedding)
        self._config = config
        size = config.embedding.dim
        filters = config.num_filters
        # One block of rows for each position inside a window: [width * filters, word dim].
        self.weights = nn.ParameterList(
            nn.Parameter(
                torch.empty(width * filters, size).uniform_(
                    -_limit(width * size, filters),
                    _limit(width * size, filters),
                    generator=tables.generator,
                )
            )
            for width in config.windows
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(filters)) for _ in config.windows)

    def project(self, words: Tensor) -> list[Tensor]:
        """Return each word's product with each position of each window, [distinct, width, filters] by width.

        Where words are summed first, return their vectors [distinct, word dim].
        """
        vectors = cast("Tensor", self.words(words))
        if self._config.is_summed:
            return [vectors]
        filters = self._config.num_filters
        return [
            functional.linear(vectors, weight).view(len(vectors), -1, filters)
            for weight in self.weights
        ]

    def read(self, packed: Packed, projected: list[Tensor]) -> Tensor:
        """Return the vectors [batch, dim]."""
        if self._config.is_summed:
            return self._read_sums(packed, projected[0])
        blocks = [
            self._pool(packed, products, bias)
            for products, bias in zip(projected, self.biases, strict=True)
        ]
        return torch.cat(blocks, dim=1)

    def _read_sums(self, packed: Packed, vectors: Tensor) -> Tensor:
        """Return the vectors [batch, dim] from the sums of the words at each position of each window."""
        sums = word_sums(packed.sentences, vectors)
        blocks = []
        for width, weight, bias in zip(
            self._config.windows, self.weights, self.biases, strict=True
        ):
            counts = (packed.sentences.lengths - width + 1).clamp(min=1)[:, None]
            at_places = sums
            if width > 1:
                missing = word_sums(_missing(packed, width), vectors).view(packed.batch, width, -1)
                at_places = (sums[:, None] - missing).flatten(1)
            # Rows by place and filter -> rows by filter, columns by place and word dimension.
            by_filter = weight.view(width, len(bias), -1).transpose(0, 1).flatten(1)
            block = functional.linear(at_places, by_filter) + counts * bias
            if self._config.pooling == "mean":
                block = block / counts
            blocks.append(block)
        return torch.cat(blocks, dim=1)

    def _pool(self, packed: Packed, projected: Tensor, bias: Tensor) -> Tensor:
        """Return one width's filters pooled over each sentence [batch, filters]."""
        width = projected.shape[1]
        lengths = packed.sentences.lengths
        counts = (lengths - width + 1).clamp(min=1)
        num_places = packed.batch + sum(packed.batch_sizes[width:])
        rows = torch.repeat_interleave(
            torch.arange(packed.batch, device=counts.device), counts, output_size=num_places
        )
        # Rows are windows: those of a sentence follow one another, and each begins one word after the one before.
        first_rows = torch.cumsum(counts, 0) - counts
        window_starts = torch.arange(len(rows), device=rows.device) - first_rows[rows]
        values = bias.expand(len(rows), -1)
        for offset in range(width):
            # A sentence shorter than the window has one window, with zeros for the words that it lacks.
            exists = window_starts + offset < lengths[rows]
            token_index = torch.where(
                exists, packed.sentence_starts[rows] + window_starts + offset, 0
            )
            added = projected[:, offset].index_select(0, packed.sentence_tokens[token_index])
            values = values + added * exists[:, None]
        if self._config.activation == "tanh":
            values = torch.tanh(values)
        return _pooled(values, rows, counts, self._config.pooling)


def _missing(packed: Packed, width: int) -> Bags:
    """Return the words of a sentence that no window has at each position, a row for each sentence and position.

    These are the first `place` words and the last `width - 1 - place`. A sentence shorter than the window has a single
    window, which begins at its first word: there all other words are missing.
    """
    lengths = packed.sentences.lengths[:, None, None]
    window_position = torch.arange(width, device=lengths.device)[:, None]
    number = torch.arange(width - 1, device=lengths.device)
    from_end = lengths - (width - 1) + number
    is_long = lengths >= width
    words_of_places = torch.where(
        is_long & (number >= window_position), from_end, number.expand(len(lengths), width, -1)
    )
    exists = is_long | ((number < lengths) & (number != window_position))
    tokens = packed.sentence_tokens[
        torch.where(exists, packed.sentence_starts[:, None, None] + words_of_places, 0)
    ]
    starts = torch.arange(0, tokens.numel(), width - 1, device=tokens.device)
    return Bags(tokens.flatten(), starts, len(packed.words), exists.flatten().float())


def _pooled(
    values: Tensor, rows: Tensor, counts: Tensor, pooling: Literal["sum", "mean", "max"]
) -> Tensor:
    """Return values [places, filters] pooled by sentence [batch, filters]; a sentence's places are contiguous."""
    batch = values.new_zeros(len(counts), values.shape[1])
    if pooling == "max":
        index = rows[:, None].expand_as(values)
        return batch.scatter_reduce(0, index, values, reduce="amax", include_self=False)
    total = batch.index_add(0, rows, values)
    if pooling == "sum":
        return total
    return total / counts[:, None]


def _limit(inputs: int, outputs: int) -> float:
    return math.sqrt(6 / (inputs + outputs))
