"""Pretrained: a transformer of a folder or the hub, with the folder's pooling, further modules and prompts.

Any architecture that `AutoModel` of transformers knows. The saved model has its configuration, weights, sub-words and
prompts, and does not need the folder again. With `lora` the weights stay as they are, and adapters are trained.

Source: Reimers and Gurevych, 2019 (pooling); Hu et al., 2022 (LoRA).
Differs: dropout is 0 unless it is set, and its masks follow from the run's seed and step, so that a run that was
stopped continues to the same weights.
"""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import pydantic
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from raysent.config import StrictModel
from raysent.errors import ConfigError, RaysentError
from raysent.kernels.devices import is_gpu, to_device, to_device_together
from raysent.kernels.packed_attention import Row, reads_rows
from raysent.kernels.packing import Packed
from raysent.kernels.padding import similar_lengths
from raysent.models.backbone import (
    Backbone,
    PoolingMode,
    drawing,
    heads,
    library,
    read_backbone,
    transformer,
)
from raysent.models.embeddings import Tables
from raysent.models.encoders import EncoderConfig, Tower

# What a group of sentences is taken to cost whatever its size, in places of a batch: on a CPU few, so that little of a
# batch is padding; on a GPU, which starts a group slowly, the products with so many squared states, more in bfloat16.
# They are equal for every call, since `cached` passes a batch twice. See speed.md and gpu.md of benchmarks/results.
_CPU_COST = 16
_GPU_COST = 1 << 32
_GPU_BFLOAT16_COST = 1 << 34
# Without cuDNN's, which plans each new shape of a group for longer than a whole layer takes.
_ATTENTIONS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_LAYER = re.compile(r"\.(\d+)\.")


class LoraConfig(StrictModel):
    """Settings of the adapters beside the linear layers.

    Attributes:
        rank: Size of an adapter.
        alpha: Factor of its product, divided by the rank; None for twice the rank.
        dropout: Fraction of an adapter's input set to zero in training.
        targets: Endings of the names of the layers that get one, such as `query`; empty for all linear layers.
    """

    rank: int = pydantic.Field(default=8, ge=1)
    alpha: float | None = pydantic.Field(default=None, gt=0)
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    targets: list[str] = pydantic.Field(default_factory=list)


class BackboneEncoderConfig(EncoderConfig):
    """Settings of an encoder that transformers computes.

    Attributes:
        dropout: Fraction of values set to zero in training inside the layers; `auto` is the configuration's own.
        gradient_checkpointing: Whether states are computed again in the backward pass instead of kept.
        learning_rate_factor: Factor of the learning rate for this encoder.
        layer_decay: Further factor for each layer below the last one; the words' vectors are below all.
    """

    dropout: float | Literal["auto"] = 0.0
    gradient_checkpointing: bool = False
    learning_rate_factor: float = pydantic.Field(default=1.0, gt=0)
    layer_decay: float = pydantic.Field(default=1.0, gt=0, le=1)

    @pydantic.field_validator("dropout")
    @classmethod
    def _is_a_fraction(cls, value: float | str) -> float | str:
        if not isinstance(value, str) and not 0 <= value < 1:
            raise ValueError(f"must be at least 0 and below 1, or auto; given {value}")
        return value

    @property
    @abstractmethod
    def about(self) -> Backbone:
        """What the transformer is made from."""

    @property
    def lora_settings(self) -> LoraConfig | None:
        """The adapters that are trained; None where all weights are."""
        return None

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.about.dim

    @property
    def token_dim(self) -> int:
        """Size of the state of a word."""
        return self.about.hidden_size

    @property
    def num_fixed(self) -> int:
        """Parameters of one tower that training does not change: the weights beside adapters, and a pooler."""
        tower = self.empty_tower()
        if tower is None:
            return 0
        return sum(
            parameter.numel() for parameter in tower.parameters() if not parameter.requires_grad
        )

    @property
    def has_dropout(self) -> bool:
        """Whether a sentence's vector in training differs from its vector outside of training."""
        return self.dropout != 0 or bool(self.lora_settings and self.lora_settings.dropout)

    @property
    def activations_per_token(self) -> int:
        """Numbers of a word vector, and of each layer's states, products and hidden layer.

        With `gradient_checkpointing` one layer at a time, and the states between layers.
        """
        backbone = self.about
        layer = 8 * backbone.hidden_size + 2 * backbone.intermediate_size
        if self.gradient_checkpointing:
            return (1 + backbone.num_layers) * backbone.hidden_size + layer
        return backbone.hidden_size + backbone.num_layers * layer


class Config(BackboneEncoderConfig):
    """Settings of a pretrained transformer.

    Attributes:
        path: Its folder, of transformers or sentence-transformers; or its name on the hub, such as `owner/name`.
        revision: Branch, tag or commit of the hub; the record has the commit.
        pooling: What a vector is made of: `mean`, `cls`, `max`, `lasttoken` …; `auto` is what the folder says.
        normalize: Whether vectors have unit length; `auto` is what the folder says.
        prompts: Texts by name that stand before a text, such as `query`; `auto` is what the folder says.
        max_tokens: Tokens that `encode` reads of a longer text; None is what the folder says. Training reads at most
            `corpus.max_length`.
        layer: The layer whose states' mean is the vector, of unit length; None for the last one, read as the folder
            says. Layers above it are left out.
        lora: Adapters, which are trained in place of the weights; None trains the weights.
        backbone: What the folder says; it is read from there, and need not be given.
    """

    type: Literal["pretrained"] = "pretrained"
    path: str
    revision: str | None = None
    pooling: Literal["auto"] | PoolingMode = "auto"
    normalize: Literal["auto"] | bool = "auto"
    prompts: Literal["auto"] | dict[str, str] = "auto"
    max_tokens: int | None = pydantic.Field(default=None, ge=3)
    layer: int | None = pydantic.Field(default=None, ge=1)
    lora: LoraConfig | None = None
    backbone: Backbone = pydantic.Field(repr=False)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return descriptions of small models, of one without weights; see `EncoderConfig.examples`."""
        sizes = {
            "hidden_size": 6,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 8,
        }
        about = {"model_type": "bert", "vocab_size": 40, "max_position_embeddings": 250, **sizes}
        dense = {"type": "Dense", "in_features": 6, "out_features": 4}
        backbones: list[dict[str, Any]] = [
            {"config": about},
            {"config": about, "pooling": ["cls"], "heads": [dense, {"type": "Normalize"}]},
        ]
        settings: list[dict[str, Any]] = [
            {},
            {"lora": {"rank": 2}, "learning_rate_factor": 0.5, "layer_decay": 0.9},
        ]
        return tuple(
            cls.model_validate({"path": "model", "backbone": {"path": None, **backbone}, **further})
            for backbone, further in zip(backbones, settings, strict=True)
        )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return cls.completed(values)
        return values

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return settings with what the folder says; of settings that have it, no folder is read.

        Raises:
            ValueError: If the folder does not hold a model that can be trained.
        """
        path = values.get("path")
        backbone = values.get("backbone")
        if isinstance(backbone, dict) and "path" not in backbone:
            raise ValueError(
                "backbone is read from the folder; leave it out, and set max_tokens, pooling or prompts"
            )
        if not isinstance(path, str):
            return values
        if backbone:
            # The folder was read before, or there is none, as where a model is made without weights.
            if isinstance(backbone, dict):
                read_from = backbone["path"]
            else:
                read_from = backbone.path
            if read_from in (path, None):
                return values
        try:
            folder_backbone = read_backbone(path, values.get("revision"))
        except RaysentError as error:
            raise ValueError(str(error).removeprefix("encoder.path: ")) from None
        return {**values, "path": folder_backbone.path, "backbone": folder_backbone.model_dump()}

    @property
    def spoken_kind(self) -> str:
        """What it is in a few words: the name of what it started from, and how it was trained further."""
        how = "fine-tuned" if self.lora is None else "fine-tuned by LoRA"
        layer = "" if self.layer is None else f", {self.layer} layers"
        return f"{Path(self.path).name}{layer} {how}"

    @property
    def about(self) -> Backbone:
        """The folder's description, with the settings that are not `auto`."""
        backbone = self.backbone
        if self.layer is not None:
            backbone = backbone.shortened(self.layer)
        overrides: dict[str, Any] = {}
        if self.pooling != "auto":
            overrides["pooling"] = [self.pooling]
        if self.normalize != "auto":
            other_heads = [head for head in backbone.heads if head["type"] != "Normalize"]
            if self.normalize:
                other_heads.append({"type": "Normalize"})
            overrides["heads"] = other_heads
        if self.prompts != "auto":
            overrides["prompts"] = self.prompts
            overrides["default_prompt"] = ""
        if self.max_tokens is not None:
            overrides["max_tokens"] = self.max_tokens
        return backbone.model_copy(update=overrides)

    @property
    def lora_settings(self) -> LoraConfig | None:
        """The adapters that are trained; None where all weights are."""
        return self.lora

    @property
    def tokenizer(self) -> Backbone | None:
        """The folder whose sub-words the encoder reads."""
        return self.backbone

    @property
    def token_limit(self) -> int | None:
        """Tokens of the longest sentence that can be read."""
        return self.about.max_tokens

    def encoded_length(self, trained: int) -> int:
        """Return the tokens that `encode` reads of a longer text."""
        return self.about.max_tokens or trained

    @property
    def is_normalized(self) -> bool:
        """Whether `encode` returns vectors of unit length."""
        return self.about.is_normalized

    @property
    def named_prompts(self) -> tuple[dict[str, str], str | None]:
        """The prompts by name, and the name of the one that stands before every text."""
        return self.about.prompts, self.about.default_prompt or None


class Encoder(Tower):
    """One tower."""

    def __init__(self, config: BackboneEncoderConfig, tables: Tables) -> None:
        super().__init__()
        self._config = config
        self._about = config.about
        has_weights = tables.sets_values and self._about.path is not None
        dropout = None
        if config.dropout != "auto":
            dropout = float(config.dropout)
        with drawing(tables.generator if tables.sets_values else None):
            self.model = transformer(self._about, has_weights=has_weights, dropout=dropout)
            self.heads = nn.ModuleList(heads(self._about, has_weights=has_weights))
            if config.lora_settings is not None:
                _add_adapters(self.model, config.lora_settings)
        for name, parameter in self.model.named_parameters():
            if name.startswith("pooler."):  # read by no module after it
                parameter.requires_grad_(False)
        if config.gradient_checkpointing:
            if hasattr(self.model, "activation_checkpointing_enable"):
                self.model.activation_checkpointing_enable()
            else:  # its name in earlier versions of transformers
                self.model.gradient_checkpointing_enable()

    def project(self, words: Tensor) -> Tensor:
        """Return the vectors of sub-words [distinct, dim]: each look-up has a gradient as large as their table."""
        return cast("Tensor", self.model.get_input_embeddings()(words))

    def read(self, packed: Packed, projected: Tensor) -> Tensor:
        """Return the vectors [batch, dim]."""
        vectors = []
        for states, _, mask in self._states(packed, projected):
            features: dict[str, Any] = {"token_embeddings": states, "attention_mask": mask}
            for head in self.heads:
                features = head(features)
            vectors.append(features["sentence_embedding"])
        return torch.cat(vectors).index_select(0, packed.rank)

    def tokens(self, packed: Packed) -> Tensor:
        """Return the last state of each word [tokens, hidden]."""
        projected = self.project(packed.words)
        num_tokens = packed.num_tokens
        states = []
        rows = []
        for group_states, token_indices, mask in self._states(packed, projected):
            states.append(group_states.flatten(0, 1))
            # Padding goes to a last row, which is left out: selecting by the mask would wait for a GPU.
            rows.append(torch.where(mask.bool(), token_indices, num_tokens).flatten())
        values = torch.cat(states)
        rows_and_spare = values.new_zeros(num_tokens + 1, values.shape[1])
        return rows_and_spare.index_copy(0, torch.cat(rows), values)[:num_tokens]

    def token_words(self) -> nn.Parameter:
        """Return the rows of the transformer's vectors of sub-words."""
        return cast("nn.Parameter", self.model.get_input_embeddings().weight)

    def _states(self, packed: Packed, projected: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield last states [rows, time, hidden], places in `sentence_tokens` and mask, by groups, longest first."""
        device = packed.words.device
        first = self._about.first_position
        if first is None:
            # Texts of this architecture cannot stand side by side in one row.
            yield from self._states_of_groups(packed, projected)
        elif not is_gpu(device):
            yield from self._states_side_by_side(packed, projected, first)
        elif self._draws or not reads_rows(device, head_size=self._about.head_size):
            # The attention over one row has no dropout, and not every GPU has it.
            yield from self._states_of_groups(packed, projected)
        else:
            yield self._states_of_row(packed, projected, first)

    @property
    def _draws(self) -> bool:
        """Whether dropout acts."""
        return self.training and self._config.has_dropout

    def _read_words(
        self, projected: Tensor, words: Tensor, shape: Sequence[int], **options: Any
    ) -> Tensor:
        """Return the last states of words, as rows of `projected` [places], in the shape of places."""
        inputs = projected.index_select(0, words).view(*shape, -1)
        drawn: AbstractContextManager[None] = nullcontext()
        if self._draws:
            drawn = drawing(self.generator)
        with drawn, sdpa_kernel(_ATTENTIONS):
            return cast("Tensor", self.model(inputs_embeds=inputs, **options).last_hidden_state)

    def _states_of_groups(
        self, packed: Packed, projected: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the states of padded groups, for which transformers makes a mask where there is padding."""
        device = packed.words.device
        if torch.is_autocast_enabled("cuda"):
            of_gpu = _GPU_BFLOAT16_COST
        else:
            of_gpu = _GPU_COST
        is_large = is_gpu(device) and not self.has_small_groups
        cost = of_gpu // self._about.hidden_size**2 if is_large else _CPU_COST
        for token_indices, _, mask, is_full in _laid_out(packed, cost):
            words = packed.sentence_tokens.index_select(0, token_indices.flatten())
            attention_mask = None
            if not is_full:
                attention_mask = mask
            states = self._read_words(
                projected, words, token_indices.shape, attention_mask=attention_mask
            )
            yield states, token_indices, mask

    def _states_side_by_side(
        self, packed: Packed, projected: Tensor, first: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the states of groups without padding, which stand in one row; attention alone keeps sentences apart."""
        token_indices, positions, masks, _ = zip(*_laid_out(packed, 0), strict=True)
        row = torch.cat([part.flatten() for part in token_indices])[None]
        steps = torch.cat([part.flatten() for part in positions])[None]
        words = packed.sentence_tokens.index_select(0, row.flatten())
        states = self._read_words(
            projected,
            words,
            row.shape,
            attention_mask=row.new_zeros(1, 1, 1, 1),  # no mask is made of this form
            position_ids=steps + first,
            groups=[tuple(part.shape) for part in token_indices],
        )[0]
        parts = torch.split(states, [part_places.numel() for part_places in token_indices])
        for part, part_places, mask in zip(parts, token_indices, masks, strict=True):
            yield part.view(*part_places.shape, -1), part_places, mask

    def _states_of_row(
        self, packed: Packed, projected: Tensor, first: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states of all sentences, which stand in one row and are padded for pooling alone."""
        order = packed.token_order
        device = packed.words.device
        num_tokens = order.num_tokens
        positions = np.arange(num_tokens) - np.repeat(order.of_sentence, order.lengths)
        arrays = {"positions": positions, "starts": np.append(order.of_sentence, num_tokens)}
        tensors = to_device_together(arrays, device)
        [(token_indices, _, mask, _)] = _laid_out(packed, num_tokens * int(order.lengths.max()))
        row_states = self._read_words(
            projected,
            packed.sentence_tokens,
            (1, num_tokens),
            attention_mask=mask.new_zeros(1, 1, 1, 1),  # no mask is made of this form
            position_ids=tensors["positions"][None] + first,
            row=Row(tensors["starts"].int(), int(order.lengths.max())),
        )[0]
        states = row_states.index_select(0, token_indices.flatten()).view(*token_indices.shape, -1)
        return states, token_indices, mask

    def compile_layers(self, *, backend: str = "inductor") -> None:
        """Compile the transformer, once for all numbers of sentences and words."""
        self.model.compile(dynamic=True, backend=backend)

    def use_small_groups(self) -> bool:
        """Cut batches into groups with as little padding as on a CPU."""
        is_changed = is_gpu(next(self.parameters()).device) and not self.has_small_groups
        self.has_small_groups = self.has_small_groups or is_changed
        return is_changed

    def learning_rate_factors(self) -> dict[str, float]:
        """Return the factor of the learning rate of each parameter."""
        num_layers = self._about.num_layers
        factors = {}
        for name, _ in self.named_parameters():
            layer = None
            if name.startswith("model."):
                layer = _LAYER.search(name)
            if layer:
                below = num_layers - int(layer[1]) - 1
            elif "embed" in name or "shared" in name:
                below = num_layers
            else:
                below = 0
            factors[name] = self._config.learning_rate_factor * self._config.layer_decay**below
        return factors

    def merged(self) -> Any:
        """Return a copy of the transformer with its adapters added to its weights."""
        plain = copy.deepcopy(self.model)
        for name, layer in list(plain.named_modules()):
            if hasattr(layer, "get_base_layer"):
                layer.merge()
                plain.set_submodule(name, layer.get_base_layer())
        return plain.eval()


def _laid_out(packed: Packed, cost: int) -> Iterator[tuple[Tensor, Tensor, Tensor, bool]]:
    """Yield each group's places in `sentence_tokens`, positions, mask [rows, time], and whether it has no padding."""
    lengths = (np.asarray(packed.batch_sizes)[:, None] > np.arange(packed.batch)).sum(axis=0)
    starts = packed.sentence_starts.index_select(0, packed.order)
    for first, end in similar_lengths(lengths, group_cost=cost):
        time = np.arange(lengths[first])
        is_token = time < lengths[first:end, None]
        offsets = to_device(np.where(is_token, time, 0), starts.device)
        mask = to_device(is_token, starts.device)
        yield starts[first:end, None] + offsets, offsets, mask, bool(is_token.all())


def _add_adapters(model: Any, config: LoraConfig) -> None:
    """Put adapters beside linear layers of a transformer, at least one, which is then fixed but for them."""
    peft = library("peft", where="encoder.lora")
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=2 * config.rank if config.alpha is None else config.alpha,
        lora_dropout=config.dropout,
        target_modules=config.targets or "all-linear",
    )
    try:
        peft.inject_adapter_in_model(settings, model)
    except ValueError as error:
        raise ConfigError(f"encoder.lora.targets: {' '.join(str(error).split())}") from None
