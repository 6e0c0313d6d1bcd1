"""Transformer: layers of self-attention over a sentence's words, then the mean of their states or the first one's.

    x_t = norm(word_t + position_t)
    a   = norm(x + out(attention(x)))       x = norm(a + down(gelu(up(a))))      for each layer

With `path` the encoder starts from a pretrained BERT of Hugging Face: its sizes, weights and sub-words are those of the
folder. The saved model has them all, and does not need the folder again. Without `path` it has raysent's own words and
random initial values.

Source: Vaswani et al., 2017; Devlin et al., 2019 (BERT).
Differs: there is no dropout inside the layers. Text is divided into raysent's words before it is divided into
sub-words, so the clitic of `don't` is `n't`. The segment's vector, one for all words, is added to the positions.
"""

from __future__ import annotations

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
# Setting -> its name in the folder's `config.json`.
_SIZES = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "norm_epsilon": "layer_norm_eps",
}
_INITIAL_DEVIATION = 0.02


class Config(EncoderConfig):
    """Settings of a transformer.

    Attributes:
        path: Folder of a pretrained BERT: `config.json`, `tokenizer.json` and `model.safetensors`. It sets the sizes
            that are not given, the initial values and the sub-words; None starts from random values, with the words of
            the text.
        hidden_size: Size of a state, and of one tower's vector.
        num_layers: Layers; with `path` at most those of the folder, of which the first are read.
        num_heads: Heads of attention in each layer.
        intermediate_size: Size of the hidden layer after each attention.
        max_positions: Places of a sentence that have a vector; sentences must not be longer.
        norm_epsilon: Added to the variance in each normalization.
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
    pooling: Literal["mean", "first"] = "mean"
    learning_rate_factor: float = pydantic.Field(default=1.0, gt=0)
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return both poolings, without a folder; see `EncoderConfig.examples`."""
        sizes = {"hidden_size": 6, "num_layers": 2, "num_heads": 2, "intermediate_size": 8, "max_positions": 250}
        first = {"pooling": "first", "num_heads": 3, "learning_rate_factor": 0.5, "layer_decay": 0.9}
        return cls.model_validate(sizes), cls.model_validate({**sizes, **first})

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        return cls.completed(values) if isinstance(values, dict) else values

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return settings with the folder's absolute path and sizes; of settings that have all, no folder is read.

        Raises:
            ValueError: If the folder does not hold a BERT.
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

    def num_parameters(self, num_words: int) -> int:
        """Return the numbers of words, positions, normalizations and layers."""
        size, inner = self.hidden_size, self.intermediate_size
        layer = 4 * size * (size + 1) + 2 * size * inner + inner + size + 4 * size
        return (num_words + self.max_positions + 2) * size + self.num_layers * layer

    @property
    def activations_per_token(self) -> int:
        """Numbers of a word vector, and of each layer's states, products and hidden layer."""
        return self.hidden_size + self.num_layers * (8 * self.hidden_size + 2 * self.intermediate_size)


def _folder_sizes(folder: Path) -> dict[str, Any]:
    """Return the sizes of a pretrained model.

    Raises:
        ValueError: If the folder does not hold a BERT.
    """
    try:
        given = read_json(folder / _CONFIG_FILE)
        is_bert = given["model_type"] == "bert" and given.get("hidden_act", "gelu") == "gelu"
        is_absolute = given.get("position_embedding_type", "absolute") == "absolute"
        sizes = {own: given[name] for own, name in _SIZES.items() if name in given}
    except (ArtifactError, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"path must be the folder of a pretrained BERT; given {folder} ({error})") from None
    if not (is_bert and is_absolute):
        raise ValueError(
            f"path must be the folder of a BERT with gelu and absolute positions; given model_type "
            f"{given['model_type']} in {folder}; as a member, name it hf:{folder}"
        )
    return sizes


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
    """Return initial values of a shape."""
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

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        """Return the next states; `is_token` [batch, 1, 1, time] is false for padding."""
        batch, time, size = x.shape
        heads = self.query_key_value(x).view(batch, time, 3, self._num_heads, size // self._num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # [batch, heads, time, size of a head] each
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=is_token)
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
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, is_token[:, None, None, :])
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
        """Copy the weights of a pretrained BERT.

        Raises:
            ArtifactError: If the file lacks a weight, or one has another size.
        """
        path = folder / _TENSORS_FILE
        given = {name.removeprefix("bert."): value.float() for name, value in load_tensors(path).items()}

        def copy(own: Tensor, *names: str) -> None:
            missing = next((name for name in names if name not in given), None)
            if missing is not None:
                raise ArtifactError(f"{path}: must hold every weight of a BERT; {missing} is missing")
            value = torch.cat([given[name] for name in names])
            if value.shape[1:] != own.shape[1:] or len(value) < len(own):
                raise ArtifactError(
                    f"{path}: {names[0]} must have the size of the encoder's settings, {tuple(own.shape)}; given "
                    f"{tuple(value.shape)}; leave the sizes out"
                )
            own.copy_(value[: len(own)])

        copy(self.table.weight, "embeddings.word_embeddings.weight")
        copy(self.positions, "embeddings.position_embeddings.weight")
        self.positions.add_(given["embeddings.token_type_embeddings.weight"][0])
        for name in ("weight", "bias"):
            copy(getattr(self.norm, name), f"embeddings.LayerNorm.{name}")
            for number, layer in enumerate(self.layers):
                start = f"encoder.layer.{number}."
                attention = [f"{start}attention.self.{one}.{name}" for one in ("query", "key", "value")]
                copy(getattr(layer.query_key_value, name), *attention)
                copy(getattr(layer.out, name), f"{start}attention.output.dense.{name}")
                copy(getattr(layer.norm, name), f"{start}attention.output.LayerNorm.{name}")
                copy(getattr(layer.up, name), f"{start}intermediate.dense.{name}")
                copy(getattr(layer.down, name), f"{start}output.dense.{name}")
                copy(getattr(layer.last_norm, name), f"{start}output.LayerNorm.{name}")
