"""Encoders: packed sentences -> vectors [batch, dim]. One file per encoder; the folder is the registry.

A file of this folder, or the value of an entry point of the group `raysent.encoders`, is an `EncoderModule`: a class
`Config` whose `type: Literal["..."]` is the encoder's name, and a class `Encoder`. No other file changes: the
configuration, its JSON Schema and `build_encoder` find both here.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeAlias

import pydantic
import torch
from torch import Tensor, nn

from raysent.config import StrictModel
from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Vocabulary
from raysent.kernels.packing import Packed
from raysent.models.backbone import Backbone
from raysent.models.embeddings import EmbeddingConfig, EmptyTables, Tables, WordTable
from raysent.registry import AnyOf, Registry, by_type

_NO_WORDS = (PAD_WORD, UNK_WORD)


class EncoderConfig(StrictModel):
    """Settings of an encoder, and what follows from them without building it.

    Attributes:
        reads_order: Whether the order of words matters.
        type: The encoder's name.
    """

    reads_order: ClassVar[bool] = True

    type: str

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return small configurations that together reach every branch; the contract tests build each of them."""
        return (cls.model_validate({}),)

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return settings, not validated yet, with what the files that they name decide."""
        return values

    @property
    @abstractmethod
    def dim(self) -> int:
        """Size of one tower's vector."""

    @property
    def spoken_kind(self) -> str:
        """What it is in a few words, such as `GRU both ways`; by default its type."""
        return self.type.replace("_", " ")

    @property
    def spoken_name(self) -> str:
        """What it is and the size of its vector, as a person says it: `GRU both ways, 300 numbers`."""
        return f"{self.spoken_kind}, {self.dim:,} numbers"

    @property
    def block_dims(self) -> tuple[int, ...]:
        """Sizes of the blocks that are normalized separately; they add up to `dim`."""
        return (self.dim,)

    @property
    def loss_dims(self) -> tuple[int, ...]:
        """Sizes of the blocks that have a loss of their own; they add up to `dim`."""
        return (self.dim,)

    @property
    def encoded_dims(self) -> tuple[int, ...]:
        """Sizes of the blocks that `encode` normalizes; they differ from `block_dims` where it pools differently."""
        return self.block_dims

    @property
    def has_dropout(self) -> bool:
        """Whether a sentence's vector in training differs from its vector outside of training."""
        return False

    def dropout_masks(
        self, batch: int, *, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return factors for the vectors of f and g, each broadcastable to [batch, dim]; all ones without dropout."""
        del batch, generator
        return torch.ones(1, self.dim), torch.ones(1, self.dim)

    @property
    def tokenizer(self) -> Backbone | None:
        """The pretrained model whose sub-words the encoder reads; None for the run's vocabulary."""
        return None

    @property
    def token_limit(self) -> int | None:
        """Tokens of the longest sentence that the encoder can read; None for any."""
        return None

    def encoded_length(self, trained: int) -> int:
        """Return the tokens that `encode` reads of a longer text; by default as many as training read."""
        return trained

    @property
    def token_dim(self) -> int | None:
        """Size of the state of a word; None where there is none, and `Tower.tokens` is not implemented."""
        return None

    @property
    def is_normalized(self) -> bool:
        """Whether `encode` returns vectors of unit length."""
        return True

    @property
    def named_prompts(self) -> tuple[dict[str, str], str | None]:
        """The prompts that texts may begin with, by name, and the name of the one that stands before every text."""
        return {}, None

    def word_tables(self) -> dict[str, EmbeddingConfig]:
        """Return the settings of every word table by dotted name, such as `embedding` or `members.a.embedding`."""
        return dict(_word_tables(self, ""))

    def num_parameters(self, num_words: int) -> int:
        """Return the parameters of one tower, word tables included; a table that its parts share counts once.

        By default a tower is built without values and counted; override it with a formula to save that time.

        Args:
            num_words: Rows of the vocabulary.
        """
        tower = self.empty_tower()
        if tower is None:
            return sys.maxsize
        tables = [module for module in tower.modules() if isinstance(module, WordTable)]
        num_others = sum(parameter.numel() for parameter in tower.parameters())
        table_dims = sum(table.weight.shape[1] for table in tables)
        return num_others + (num_words - len(_NO_WORDS)) * table_dims

    def empty_tower(self) -> Tower | None:
        """Return a tower without values, over no words; None if it is larger than torch can address."""
        try:
            with torch.device("meta"):
                generator = torch.Generator(device="cpu")
                return build_encoder(self, EmptyTables(Vocabulary(_NO_WORDS), generator=generator))
        except RuntimeError:  # no machine holds such sizes
            return None

    @property
    def num_fixed(self) -> int:
        """Parameters of one tower that training does not change, beside fixed word vectors."""
        return 0

    @property
    def activations_per_token(self) -> int:
        """About how many numbers one token adds to the states of a forward pass, word vectors included.

        By default the sizes of its word vectors and of the tower's vector. Override it for an encoder that keeps more,
        such as several layers.
        """
        return self.dim + sum(table.dim for table in self.word_tables().values())


def _word_tables(part: Any, name: str) -> Iterator[tuple[str, EmbeddingConfig]]:
    if isinstance(part, EmbeddingConfig):
        yield name, part
        return
    for key, value in _fields(part).items():
        yield from _word_tables(value, f"{name}.{key}".lstrip("."))


def _fields(part: Any) -> Mapping[str, Any]:
    if isinstance(part, pydantic.BaseModel):
        return {field: getattr(part, field) for field in type(part).model_fields}
    if isinstance(part, Mapping):
        return part
    return {}


def encoders_in(part: Any) -> Iterator[EncoderConfig]:
    """Yield an encoder's configuration and those of its members."""
    if isinstance(part, EncoderConfig):
        yield part
    for value in _fields(part).values():
        yield from encoders_in(value)


def count_parameters(configs: Iterable[EncoderConfig], num_words: int) -> tuple[int, int]:
    """Return the parameters of encoders that are built with the same `Tables`: trained ones, and fixed ones.

    Equal fixed word tables are one table, which all of them read.
    """
    towers = list(configs)
    fixed_tables = [
        {table for table in tower.word_tables().values() if not table.trained} for tower in towers
    ]
    # Of each tower the fixed tables that are its own, and last those of all towers, each once.
    sizes = [
        num_words * sum(table.dim for table in tables)
        for tables in [*fixed_tables, set().union(*fixed_tables)]
    ]
    fixed = sum(part.num_fixed for tower in towers for part in encoders_in(tower))
    num_all = sum(tower.num_parameters(num_words) for tower in towers)
    num_trained = num_all - sum(sizes[:-1]) - fixed
    return num_trained, sizes[-1] + fixed


class WordEncoderConfig(EncoderConfig):
    """Settings of an encoder that reads word vectors.

    Attributes:
        embedding: The word vectors.
        variant: `authors` sets the defaults to the released code's behaviour; keys that are given override them.
        dropout: Fraction of the sentence vector's values set to zero in training. `paper` draws them for every
            sentence and tower and rescales the rest; `authors` draws one mask for the whole batch and both towers, and
            does not rescale.
    """

    embedding: EmbeddingConfig = EmbeddingConfig()
    variant: Literal["paper", "authors"] = "paper"
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the defaults over small word vectors; see `EncoderConfig.examples`."""
        return (cls.model_validate({"embedding": {"dim": 5}}),)

    @property
    def has_dropout(self) -> bool:
        """Whether a sentence's vector in training differs from its vector outside of training."""
        return self.dropout > 0 or self.embedding.dropout > 0

    def dropout_masks(
        self, batch: int, *, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return factors for the vectors of f and g, each broadcastable to [batch, dim]."""
        if self.dropout == 0:
            return super().dropout_masks(batch, generator=generator)
        if self.variant == "authors":
            mask = self._keep_mask(1, generator)
            return mask, mask
        scale = 1 / (1 - self.dropout)
        return self._keep_mask(batch, generator) * scale, self._keep_mask(batch, generator) * scale

    def _keep_mask(self, rows: int, generator: torch.Generator | None) -> Tensor:
        """Return 1 where a value is kept and 0 where it is dropped [rows, dim]."""
        return (torch.rand(rows, self.dim, generator=generator) >= self.dropout).float()


class Tower(nn.Module):
    """One encoder of a model. `project` computes what depends on the word only, `read` what depends on its place.

    Attributes:
        generator: Source of dropout masks inside the encoder; None is torch's global one.
        has_small_groups: Whether groups of sentences have little padding, because a GPU's memory has become full.
    """

    generator: torch.Generator | None = None
    has_small_groups: bool = False

    def use_small_groups(self) -> bool:
        """Take groups with little padding from now on; returns whether that may need less memory than before."""
        return False

    def compile_layers(self, *, backend: str = "inductor") -> None:
        """Compile what `torch.compile` makes faster; by default nothing.

        Args:
            backend: Its backend.
        """

    def lay_out(self, packed: Packed) -> None:
        """Lay out what `read` wants of a batch, ahead of the step that reads it; by default nothing."""
        del packed

    @abstractmethod
    def project(self, words: Tensor) -> Any:
        """Return what `read` needs for each of the distinct word ids [distinct]."""

    @abstractmethod
    def read(self, packed: Packed, projected: Any) -> Tensor:
        """Return the vectors [batch, dim] in the given order of sentences."""

    def read_encoded(self, packed: Packed, projected: Any) -> Tensor:
        """Return what `encode` normalizes, blocks of `encoded_dims`; by default the vectors of training."""
        return self.read(packed, projected)

    def tokens(self, packed: Packed) -> Tensor:
        """Return the state of each word [tokens, token_dim], the sentences concatenated in their given order."""
        raise NotImplementedError

    def token_words(self) -> nn.Parameter:
        """Return the vectors of words that an encoder with `tokens` reads; by default those of its `words`."""
        return self.get_parameter("words.weight")

    def block_tables(self) -> list[WordTable | None]:
        """Return the word table behind each block that has a loss of its own; by default the attribute `words`."""
        return [getattr(self, "words", None)]

    def block_parameters(self) -> list[tuple[nn.Parameter, ...]]:
        """Return the parameters of each such block except the word vectors."""
        # By identity: two parameters of equal values are not the same one.
        words = {id(table.weight) for table in self.modules() if isinstance(table, WordTable)}
        return [tuple(parameter for parameter in self.parameters() if id(parameter) not in words)]

    def learning_rate_factors(self) -> dict[str, float]:
        """Return factors of the learning rate by names of parameters; 1 for one without."""
        return {}

    def forward(self, packed: Packed) -> Tensor:
        """Return the vectors [batch, dim]; none depends on the batch's other sentences."""
        return self.read(packed, self.project(packed.words))

    def encoded(self, packed: Packed) -> Tensor:
        """Return what `encode` normalizes [batch, sum of `encoded_dims`]."""
        return self.read_encoded(packed, self.project(packed.words))


class EncoderModule(Protocol):
    """The form of an encoder's module.

    Call order:

    1. `Config` is validated from the `encoder` section of a run. `dim`, the block sizes, `word_tables`,
       `num_parameters` and `activations_per_token` are read from it before anything is built.
    2. `Encoder(config, tables)` builds one tower, with word tables from `tables.table(config.embedding)` and all
       initial values drawn from `tables.generator`; where `tables.sets_values` is false, saved values follow.
    3. For each batch `project(packed.words)`, then `read(packed, projected)`. `encode` calls `project` once for many
       blocks that share their words, then `read_encoded` for each.
    """

    Config: type[EncoderConfig]
    Encoder: Callable[[Any, Tables], Tower]


def build_encoder(config: EncoderConfig, tables: Tables) -> Tower:
    """Return a new tower of the type that the configuration names."""
    return ENCODERS[config.type].Encoder(config, tables)


ENCODERS: Registry[EncoderModule] = Registry(
    "encoder", package=__name__, folders=__path__, read=by_type
)

AnyEncoder: TypeAlias = Annotated[EncoderConfig, AnyOf(ENCODERS)]
