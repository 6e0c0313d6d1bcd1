"""Transformer: a BERT from random initial values, over the words or sub-words of the text.

Source: Vaswani et al., 2017; Devlin et al., 2019 (BERT), by Hugging Face's transformers.
"""

from __future__ import annotations

from typing import Any, Literal, Self, cast

import pydantic
from torch import Tensor, nn

from raysent.models.backbone import Backbone, PoolingMode
from raysent.models.embeddings import EmbeddingConfig, Tables
from raysent.models.encoders import pretrained
from raysent.models.encoders.pretrained import BackboneEncoderConfig


class Config(BackboneEncoderConfig):
    """Settings of a transformer from scratch.

    Attributes:
        hidden_size: Size of a state, and of one tower's vector.
        num_layers: Layers.
        num_heads: Heads of attention in each layer.
        intermediate_size: Size of the hidden layer after each attention.
        max_positions: Places of a sentence that have a vector; sentences must not be longer.
        pooling: What the vector is made of, of all states or of the first one (`cls`).
    """

    type: Literal["transformer"] = "transformer"
    hidden_size: int = pydantic.Field(default=256, ge=1)
    num_layers: int = pydantic.Field(default=4, ge=1)
    num_heads: int = pydantic.Field(default=4, ge=1)
    intermediate_size: int = pydantic.Field(default=1024, ge=1)
    max_positions: int = pydantic.Field(default=512, ge=1)
    pooling: PoolingMode = "mean"

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return two poolings; see `EncoderConfig.examples`."""
        sizes = {
            "hidden_size": 6,
            "num_layers": 2,
            "num_heads": 2,
            "intermediate_size": 8,
            "max_positions": 250,
        }
        first = {"pooling": "cls", "num_heads": 3, "learning_rate_factor": 0.5, "layer_decay": 0.9}
        return cls.model_validate(sizes), cls.model_validate({**sizes, **first})

    @pydantic.model_validator(mode="before")
    @classmethod
    def _is_from_scratch(cls, values: Any) -> Any:
        if isinstance(values, dict) and not {"path", "norm_epsilon", "num_buckets"}.isdisjoint(
            values
        ):
            raise ValueError(
                "is from scratch, by transformers; start from a folder, and train a model of an earlier version again, "
                "with encoder: {type: pretrained, path: FOLDER}"
            )
        return values

    @pydantic.model_validator(mode="after")
    def _heads_divide_the_size(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_heads; given {self.hidden_size} and {self.num_heads}"
            )
        return self

    @property
    def spoken_kind(self) -> str:
        """What it is in a few words."""
        return f"transformer of {self.num_layers} layers"

    @property
    def about(self) -> Backbone:
        """The sizes as a configuration of BERT, without words."""
        config = {
            "model_type": "bert",
            "vocab_size": 1,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_positions,
            "type_vocab_size": 1,
        }
        return Backbone(config=config, pooling=[self.pooling])

    @property
    def token_limit(self) -> int | None:
        """Tokens of the longest sentence that can be read."""
        return self.max_positions

    def word_tables(self) -> dict[str, EmbeddingConfig]:
        """Return the settings of the word table."""
        return {"words": EmbeddingConfig(dim=self.hidden_size)}


class Encoder(pretrained.Encoder):
    """One tower; its words are a table of raysent, of which a step updates the rows in use."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__(config, tables)
        self.model.set_input_embeddings(nn.Identity())
        # Not `words`: an objective that predicts words has to refuse sub-words.
        self.table = tables.table(EmbeddingConfig(dim=config.hidden_size))

    def project(self, words: Tensor) -> Tensor:
        """Return the word vectors [distinct, dim]."""
        return cast("Tensor", self.table(words))

    def token_words(self) -> nn.Parameter:
        """Return the rows of the table."""
        return self.table.weight
