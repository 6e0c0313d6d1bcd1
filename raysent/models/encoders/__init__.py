"""Packed sentences -> vectors [batch, dim]; one file per encoder, and the folder is the registry.

A file of this folder defines `class Config(WordEncoderConfig)` (or `EncoderConfig`), whose `type: Literal["..."]`
names it, and `class Encoder(SentenceReader)`. Nothing else is touched: configuration, JSON Schema and `build_encoder`
find it here.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pydantic
import torch
from torch import Tensor, nn

from raysent.config import StrictModel
from raysent.kernels.packing import Packed
from raysent.models.embeddings import EmbeddingConfig, Tables, WordTable
from raysent.registry import Registry, by_type, union


class EncoderConfig(StrictModel):
    """What every encoder's configuration tells about its vectors."""

    type: str

    @property
    @abstractmethod
    def dim(self) -> int:
        """Size of one tower's vector."""

    @property
    def block_dims(self) -> tuple[int, ...]:
        """Sizes of the blocks that are normalised separately; they add up to `dim`."""
        return (self.dim,)

    @property
    def loss_dims(self) -> tuple[int, ...]:
        """Sizes of the blocks that have a loss of their own; they add up to `dim`."""
        return (self.dim,)

    @property
    def encoded_dims(self) -> tuple[int, ...]:
        """Sizes of the blocks that `encode` normalises; others than `block_dims` where it pools in another way."""
        return self.block_dims

    @property
    def has_dropout(self) -> bool:
        """Whether a sentence's vector is another in training."""
        return False

    def dropout_masks(self, batch: int, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return factors for the vectors of f and g, each broadcastable to [batch, dim]; all ones without dropout."""
        del batch, generator
        return torch.ones(1, self.dim), torch.ones(1, self.dim)


class WordEncoderConfig(EncoderConfig):
    """An encoder that reads word vectors.

    Attributes:
        embedding: The word vectors.
        variant: `authors` sets the defaults to the released code's behaviour; keys that are given override them.
        dropout: Share of the sentence vector's values set to zero in training. `paper` draws them for every sentence
            and tower and rescales the rest; `authors` draws one mask for the whole batch and both towers, and does
            not rescale.
    """

    embedding: EmbeddingConfig = EmbeddingConfig()
    variant: Literal["paper", "authors"] = "paper"
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)

    @property
    def has_dropout(self) -> bool:
        """Whether a sentence's vector is another in training."""
        return self.dropout > 0 or self.embedding.dropout > 0

    def dropout_masks(self, batch: int, *, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return factors for the vectors of f and g, each broadcastable to [batch, dim]."""
        if self.dropout == 0:
            return super().dropout_masks(batch, generator=generator)
        if self.variant == "authors":
            mask = self._kept(1, generator)
            return mask, mask
        scale = 1 / (1 - self.dropout)
        return self._kept(batch, generator) * scale, self._kept(batch, generator) * scale

    def _kept(self, rows: int, generator: torch.Generator | None) -> Tensor:
        """Return 1 where a value stays and 0 where it is dropped [rows, dim]."""
        return (torch.rand(rows, self.dim, generator=generator) >= self.dropout).float()


class SentenceReader(nn.Module):
    """One tower. `project` does what depends on the word alone, `read` what depends on its place."""

    @abstractmethod
    def project(self, words: Tensor) -> Any:
        """Return what `read` needs for each of the distinct word ids [distinct]."""

    @abstractmethod
    def read(self, packed: Packed, projected: Any) -> Tensor:
        """Return the vectors [batch, dim] in the given order of sentences."""

    def read_encoded(self, packed: Packed, projected: Any) -> Tensor:
        """Return what `encode` gives before it is normalised, blocks of `encoded_dims`; by default as in training."""
        return self.read(packed, projected)

    def block_tables(self) -> list[WordTable | None]:
        """Return the word table behind each block that has a loss of its own; by default the attribute `words`."""
        return [getattr(self, "words", None)]

    def block_parameters(self) -> list[tuple[nn.Parameter, ...]]:
        """Return the parameters of each such block that are no word vectors."""
        words = {
            id(parameter) for table in self.modules() if isinstance(table, WordTable) for parameter in [table.weight]
        }
        return [tuple(parameter for parameter in self.parameters() if id(parameter) not in words)]

    def forward(self, packed: Packed) -> Tensor:
        """Return the vectors [batch, dim]; none depends on the batch's other sentences."""
        return self.read(packed, self.project(packed.words))

    def encoded(self, packed: Packed) -> Tensor:
        """Return what `encode` gives before it is normalised [batch, encoded dims]."""
        return self.read_encoded(packed, self.project(packed.words))


def build_encoder(config: EncoderConfig, tables: Tables) -> SentenceReader:
    """Return a new tower of the kind that the configuration names."""
    encoder: SentenceReader = ENCODERS[config.type].Encoder(config, tables)
    return encoder


ENCODERS: Registry[Any] = Registry("encoder", package=__name__, folders=__path__, read=by_type)

if TYPE_CHECKING:
    AnyEncoder: TypeAlias = EncoderConfig
else:
    AnyEncoder = union(ENCODERS)
    for _module in ENCODERS.values():
        # A composition names `AnyEncoder`, which exists only now.
        _module.Config.model_rebuild(force=True, _types_namespace={"AnyEncoder": AnyEncoder})


def known_encoders() -> dict[str, type[EncoderConfig]]:
    """Return the configuration of every encoder by name."""
    return {name: module.Config for name, module in ENCODERS.items()}
