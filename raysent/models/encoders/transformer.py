"""Transformer: layers of self-attention over a sentence's words, then the mean of their states or the first one's.

    x_t = norm(word_t + position_t)
    a   = norm(x + out(attention(x)))       x = norm(a + down(gelu(up(a))))      for each layer

With `path` the encoder starts from a pretrained BERT, DistilBERT, RoBERTa or MPNet of Hugging Face: its sizes, weights
and sub-words are those of the folder. The saved model has them all, and does not need the folder again. Without `path`
it has raysent's own words and random initial values.

Source: Vaswani et al., 2017; Devlin et al., 2019 (BERT); Raffel et al., 2020, and Song et al., 2020 (the bias of
attention by distance).
Differs: there is no dropout inside the layers. The segment's vector, one for all words, is added to the positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.errors import ArtifactError, ConfigError
from raysent.kernels.packing import Packed
from raysent.models.embeddings import EmbeddingConfig, Tables
from raysent.models.encoders import EncoderConfig, Tower
from raysent.storage import load_tensors, read_json

_CONFIG_FILE, _TENSORS_FILE = "config.json", "model.safetensors"
_INITIAL_DEVIATION = 0.02
# Distance between two tokens from which all share one bias, with `num_buckets`.
_MAX_DISTANCE = 128

# Setting -> its name in a folder's `config.json`.
_SIZES = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "norm_epsilon": "layer_norm_eps",
}
# Parameter of a layer -> names of those of a folder's layer that it consists of.
_LAYER = {
    "query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": ("attention.output.dense",),
    "norm": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "last_norm": ("output.LayerNorm",),
}


@dataclass(frozen=True)
class _Kind:
    """A kind of folder, by `model_type`.

    Attributes:
        prefix: What the names of weights begin with in a model that has more than the encoder.
        layers: What the names of a layer's weights begin with, before its number.
        layer: As `_LAYER`.
        sizes: As `_SIZES`.
        skips_positions: Whether the first positions are those of padding.
        has_segments: Whether words have the vector of a segment.
    """

    prefix: str
    layers: str = "encoder.layer."
    layer: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LAYER)
    sizes: Mapping[str, str] = field(default_factory=lambda: _SIZES)
    skips_positions: bool = False
    has_segments: bool = True


_ROBERTA = _Kind("roberta.", skips_positions=True)
_KINDS = {
    "bert": _Kind("bert."),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": _Kind(
        "distilbert.",
        layers="transformer.layer.",
        layer={
            "query_key_value": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            "out": ("attention.out_lin",),
            "norm": ("sa_layer_norm",),
            "up": ("ffn.lin1",),
            "down": ("ffn.lin2",),
            "last_norm": ("output_layer_norm",),
        },
        sizes={
            "hidden_size": "dim",
            "num_layers": "n_layers",
            "num_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "max_positions": "max_position_embeddings",
        },
        has_segments=False,
    ),
    "mpnet": _Kind(
        "mpnet.",
        layer={
            **_LAYER,
            "query_key_value": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
            "out": ("attention.attn.o",),
            "norm": ("attention.LayerNorm",),
        },
        sizes={**_SIZES, "num_buckets": "relative_attention_num_buckets"},
        skips_positions=True,
        has_segments=False,
    ),
}
_PRETRAINED = "a pretrained BERT, DistilBERT, RoBERTa or MPNet"


class Config(EncoderConfig):
    """Settings of a transformer.

    Attributes:
        path: Folder of a pretrained BERT, DistilBERT, RoBERTa or MPNet: `config.json`, `tokenizer.json` and
            `model.safetensors`. It sets the sizes that are not given, the initial values and the sub-words; None starts
            from random values, with the words of the text.
        hidden_size: Size of a state, and of one tower's vector.
        num_layers: Layers; with `path` at most those of the folder, of which the first are read.
        num_heads: Heads of attention in each layer.
        intermediate_size: Size of the hidden layer after each attention.
        max_positions: Places of a sentence that have a vector; sentences must not be longer.
        norm_epsilon: Added to the variance in each normalization.
        num_buckets: Ranges of distances between two tokens that have a bias of attention for each head; 0 for none.
        pooling: Whether the vector is the mean of all states, special sub-words included, or the first state.
        learning_rate_factor: Factor of the learning rate for this encoder.
        layer_decay: Further factor for each layer below the last one; the words' and positions' vectors are below all.
    """

    type: Literal["transformer"] = "transformer"
    path: str | None = None
    hidden_size: int = pydantic.Field(default=256, ge=1)
    num_layers: int = pydantic.Field(default=4, ge=1)
    num_heads: int = pydantic.Field(default=4, ge=1)
    intermediate_size: int = pydantic.Field(default=1024, ge=1)
    max_positions: int = pydantic.Field(default=512, ge=1)
    norm_epsilon: float = pydantic.Field(default=1e-12, gt=0)
    num_buckets: int = pydantic.Field(default=0, ge=0, multiple_of=4)
    pooling: Literal["mean", "first"] = "mean"
    learning_rate_factor: float = pydantic.Field(default=1.0, gt=0)
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return both poolings, with and without biases, no folder; see `EncoderConfig.examples`."""
        sizes = {"hidden_size": 6, "num_layers": 2, "num_heads": 2, "intermediate_size": 8, "max_positions": 250}
        first = {"pooling": "first", "num_heads": 3, "num_buckets": 8, "learning_rate_factor": 0.5, "layer_decay": 0.9}
        return cls.model_validate(sizes), cls.model_validate({**sizes, **first})

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        return cls.completed(values) if isinstance(values, dict) else values

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return settings with the folder's absolute path and sizes; of settings that have all, no folder is read.

        Raises:
            ValueError: If the folder does not hold a model of a known kind.
        """
        if not isinstance(values.get("path"), str) or _SIZES.keys() <= values.keys():
            return values
        folder = Path(values["path"]).expanduser().resolve()
        return {**_folder_sizes(folder), **values, "path": str(folder)}

    @pydantic.model_validator(mode="after")
    def _heads_divide_the_size(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_heads; given {self.hidden_size} and {self.num_heads}"
            )
        return self

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.hidden_size

    @property
    def tokenizer(self) -> str | None:
        """Folder of the sub-words that the encoder reads; None for words of the text."""
        return self.path

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest sentence that can be read."""
        return self.max_positions

    def word_tables(self) -> dict[str, EmbeddingConfig]:
        """Return the settings of the word table."""
        return {"words": EmbeddingConfig(dim=self.hidden_size)}

    @property
    def activations_per_token(self) -> int:
        """Numbers of a word vector, and of each layer's states, products and hidden layer."""
        return self.hidden_size + self.num_layers * (8 * self.hidden_size + 2 * self.intermediate_size)


def _folder_sizes(folder: Path) -> dict[str, Any]:
    """Return the sizes of a pretrained model.

    Raises:
        ValueError: If the folder does not hold a model of a known kind.
    """
    try:
        given = read_json(folder / _CONFIG_FILE)
        name = given["model_type"]
        kind = _KINDS.get(name)
        is_gelu = given.get("hidden_act", given.get("activation", "gelu")) == "gelu"
        is_absolute = given.get("position_embedding_type", "absolute") == "absolute"
        sizes = {} if kind is None else {own: given[key] for own, key in kind.sizes.items() if key in given}
    except (ArtifactError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"path must be the folder of {_PRETRAINED}; given {folder} ({error})") from None
    if kind is None or not (is_gelu and is_absolute):
        raise ValueError(
            f"path must be the folder of {_PRETRAINED} with gelu and absolute positions; given model_type {name} in "
            f"{folder}; as a member, name it hf:{folder}"
        )
    if "max_positions" in sizes:
        sizes["max_positions"] -= _first_position(kind, given)
    return sizes


def _first_position(kind: _Kind, given: Mapping[str, Any]) -> int:
    return int(given.get("pad_token_id", 1)) + 1 if kind.skips_positions else 0


class _Linear(nn.Module):
    """A product and a bias: [..., from] -> [..., to]."""

    def __init__(self, num_in: int, num_out: int, tables: Tables) -> None:
        super().__init__()
        self.weight = nn.Parameter(_values(num_out, num_in, tables=tables))
        self.bias = nn.Parameter(torch.zeros(num_out))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product plus the bias."""
        return functional.linear(x, self.weight, self.bias)


def _values(*shape: int, tables: Tables) -> Tensor:
    values = torch.empty(*shape)
    return values.normal_(0, _INITIAL_DEVIATION, generator=tables.generator) if tables.sets_values else values


class _Layer(nn.Module):
    """One layer of attention and a hidden layer; it does not change the shape [batch, time, size]."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self._num_heads = config.num_heads
        self.query_key_value = _Linear(size, 3 * size, tables)
        self.out = _Linear(size, size, tables)
        self.norm = nn.LayerNorm(size, eps=config.norm_epsilon)
        self.up = _Linear(size, inner, tables)
        self.down = _Linear(inner, size, tables)
        self.last_norm = nn.LayerNorm(size, eps=config.norm_epsilon)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next states.

        Args:
            x: States [batch, time, size].
            mask: False for padding [batch, 1, 1, time]; or what is added to the scores [batch, heads, time, time].
        """
        batch, time, size = x.shape
        heads = self.query_key_value(x).view(batch, time, 3, self._num_heads, size // self._num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # [batch, heads, time, size of a head] each
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended: Tensor = self.norm(x + self.out(found.transpose(1, 2).reshape(batch, time, size)))
        states: Tensor = self.last_norm(attended + self.down(functional.gelu(self.up(attended))))
        return states


class Encoder(Tower):
    """One tower."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self._config = config
        # Not `words`: an objective that predicts words has to refuse sub-words.
        self.table = tables.table(EmbeddingConfig(dim=config.hidden_size))
        self.positions = nn.Parameter(_values(config.max_positions, config.hidden_size, tables=tables))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.layers = nn.ModuleList(_Layer(config, tables) for _ in range(config.num_layers))
        biases = _values(config.num_buckets, config.num_heads, tables=tables) if config.num_buckets else None
        self.distances = None if biases is None else nn.Parameter(biases)
        if tables.sets_values and config.path is not None:
            self._read(Path(config.path))

    def project(self, words: Tensor) -> Tensor:
        """Return the word vectors [distinct, dim]."""
        vectors: Tensor = self.table(words)
        return vectors

    def read(self, packed: Packed, projected: Tensor) -> Tensor:
        """Return the vectors [batch, dim]."""
        time, most = len(packed.batch_sizes), self._config.max_positions
        if time > most:
            raise ConfigError(f"encoder.max_positions: must be at least the longest sentence, {time}; given {most}")
        bags = packed.sentences
        places = torch.arange(len(bags.rows), device=bags.rows.device) - packed.sentence_starts[bags.rows]
        vectors = projected.index_select(0, packed.sentence_tokens) + self.positions.index_select(0, places)
        x = vectors.new_zeros(packed.batch, time, vectors.shape[1]).index_put((bags.rows, places), vectors)
        is_token = torch.arange(time, device=x.device)[None, :] < bags.lengths[:, None]
        x, mask = self.norm(x), is_token[:, None, None, :]
        if self.distances is not None:
            buckets = _distance_buckets(time, len(self.distances)).to(x.device)
            biases = self.distances.index_select(0, buckets.view(-1)).view(time, time, -1).permute(2, 0, 1)
            mask = torch.where(mask, biases.to(x.dtype), -torch.inf)
        for layer in self.layers:
            x = layer(x, mask)
        sums = (x * is_token[:, :, None]).sum(dim=1)
        pooled: Tensor = x[:, 0] if self._config.pooling == "first" else sums / bags.lengths[:, None]
        return pooled

    def learning_rate_factors(self) -> dict[str, float]:
        """Return the factor of the learning rate of each parameter."""
        factors = {}
        for name, _ in self.named_parameters():
            part, _, rest = name.partition(".")
            depth = self._config.num_layers - int(rest.partition(".")[0]) - 1 if part == "layers" else None
            below = self._config.num_layers if depth is None else depth
            factors[name] = self._config.learning_rate_factor * self._config.layer_decay**below
        return factors

    @torch.no_grad()
    def _read(self, folder: Path) -> None:
        """Copy the weights of a pretrained model.

        Raises:
            ArtifactError: If the file lacks a weight, or one has another size or is not finite.
        """
        path, about = folder / _TENSORS_FILE, read_json(folder / _CONFIG_FILE)
        kind = _KINDS[about["model_type"]]
        given = {name.removeprefix(kind.prefix): value.float() for name, value in load_tensors(path).items()}

        def copy(own: Tensor, *names: str, start: int = 0) -> None:
            missing = next((name for name in names if name not in given), None)
            if missing is not None:
                raise ArtifactError(f"{path}: must hold every weight of the encoder; {missing} is missing")
            value = torch.cat([given[name] for name in names])[start:]
            if value.shape[1:] != own.shape[1:] or len(value) < len(own):
                raise ArtifactError(
                    f"{path}: {names[0]} must have the size of the encoder's settings, {tuple(own.shape)}; given "
                    f"{tuple(value.shape)}; leave the sizes out"
                )
            if not torch.isfinite(value).all():
                raise ArtifactError(f"{path}: {names[0]} must be finite; given NaN or infinity; restore it")
            own.copy_(value[: len(own)])

        copy(self.table.weight, "embeddings.word_embeddings.weight")
        copy(self.positions, "embeddings.position_embeddings.weight", start=_first_position(kind, about))
        if kind.has_segments:
            segments = "embeddings.token_type_embeddings.weight"
            first = torch.empty_like(self.positions[:1])
            copy(first, segments)
            self.positions.add_(first)
        if self.distances is not None:
            copy(self.distances, "encoder.relative_attention_bias.weight")
        for name in ("weight", "bias"):
            copy(getattr(self.norm, name), f"embeddings.LayerNorm.{name}")
            for number, layer in enumerate(self.layers):
                for own, parts in kind.layer.items():
                    names = [f"{kind.layers}{number}.{part}.{name}" for part in parts]
                    copy(getattr(getattr(layer, own), name), *names)


def _distance_buckets(time: int, num_buckets: int) -> Tensor:
    """Return the bucket of the distance from each token to each other one [time, time].

    Half of the buckets are for later tokens. Half of each half are single distances; the others grow with the distance.

    Source: Raffel et al., 2020, section 2.1; MPNet in Hugging Face's transformers.
    """
    places = torch.arange(time)
    distance = places[None] - places[:, None]
    half, single = num_buckets // 2, num_buckets // 4
    near = distance.abs()
    ratio = torch.log(near.clamp(min=1).float() / single) / math.log(_MAX_DISTANCE / single)
    far = (single + (ratio * (half - single)).long()).clamp(max=half - 1)
    return torch.where(near < single, near, far) + torch.where(distance > 0, half, 0)
