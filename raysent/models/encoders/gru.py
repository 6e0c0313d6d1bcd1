"""GRU over the words of a sentence: its last state or all states pooled, of one direction or of both concatenated.

    r, z = sigmoid(W x + b + U h)         gates; z = 1 keeps the state
    c    = tanh(W x + b + r * (U h + b'))   reset: after  (torch's and cuDNN's form)
    c    = tanh(W x + b + U (r * h))        reset: before (TensorFlow's GRUCell, the authors')
    h    = z * h + (1 - z) * c

Source: Logeswaran and Lee, 2018, section 3 and the released code.
Differs: the reset gate comes after the product unless `variant: authors`; initial values are the released code's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, cast

import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from raysent.config import ByVariant
from raysent.kernels.gru_cells import Workspaces
from raysent.kernels.native import load
from raysent.kernels.packed_gru import (
    WORD_MULTIPLE,
    packed_gru,
    packed_gru_all_states,
    reset_before_gru,
)
from raysent.kernels.packing import Packed
from raysent.kernels.padded_recurrence import padded_states
from raysent.kernels.padding import Cut
from raysent.kernels.recurrences import (
    Cell,
    Implementation,
    Kernel,
    chosen_kernel,
    cut_for,
    library_recurrence,
    loop_recurrence,
)
from raysent.models.embeddings import EmbeddingConfig, Tables
from raysent.models.encoders import Tower, WordEncoderConfig
from raysent.models.layers import Pooling, States, token_rows, without_values

_UNIFORM_LIMIT = 0.1


class Config(WordEncoderConfig):
    """Settings of a GRU.

    Attributes:
        bidirectional: Whether a second GRU reads the sentence backwards.
        hidden_size: Size of one tower's vector; each of two directions has half of it.
        num_layers: GRUs on top of each other.
        initialization: Initial values. `glorot`: those of Quick-Thoughts' released code. `orthogonal`: those of
            Skip-Thoughts: orthogonal recurrent blocks, uniform in [-0.1, 0.1] for inputs, biases 0, the recurrent bias
            not trained. `he`: those of Multi-view: normal with variance 2 / inputs, gate biases 1.
        pooling: How the states become a sentence's vector in training.
        encode_pooling: Poolings of `encode`, concatenated; None is `pooling`.
        reset: Where the reset gate acts, see the module. None follows `variant`: `after` for paper, `before` for
            authors.
        implementation: `packed` is raysent's recurrence over packed sentences by the plain formulas; `compiled` is the
            same with the code between two products compiled for this machine; `torch` is torch's over its packed
            sequences; `cudnn` is torch's over padded groups; `graph` is raysent's loop over padded groups. All give the
            same vectors. `auto` is `cudnn` on a GPU. On a CPU and for one layer it is `compiled` with a compiler and
            `packed` without, else `torch`. With `reset: before`, which torch does not have, `graph` is itself, as
            is `auto` on a GPU, and all others are one plain loop.
    """

    type: Literal["gru"] = "gru"
    bidirectional: bool = False
    hidden_size: int = pydantic.Field(default=1200, ge=1)
    num_layers: int = pydantic.Field(default=1, ge=1)
    initialization: Literal["glorot", "orthogonal", "he"] = "glorot"
    pooling: Pooling = "last"
    encode_pooling: list[Pooling] | None = pydantic.Field(default=None, min_length=1)
    reset: Literal["after", "before"] | None = None
    implementation: Implementation = "auto"

    resolved_reset: ClassVar[ByVariant[str]] = ByVariant("reset", paper="after", authors="before")

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return directions, implementations, layers, gates, initial values and poolings; see `EncoderConfig`."""
        common: dict[str, Any] = {"embedding": EmbeddingConfig(dim=5), "hidden_size": 6}
        return (
            cls(**common),
            cls(**common, bidirectional=True),
            cls(**common, implementation="torch"),
            cls(**common, bidirectional=True, implementation="torch"),
            cls(**common, bidirectional=True, num_layers=2),
            cls(**common, bidirectional=True, variant="authors"),
            cls(**common, initialization="orthogonal"),
            cls(**common, bidirectional=True, pooling="mean", initialization="he"),
            cls(**common, encode_pooling=["last", "max"]),
            cls(**common, bidirectional=True, implementation="cudnn"),
            cls(**common, bidirectional=True, variant="authors", implementation="graph"),
        )

    @pydantic.model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.bidirectional and self.hidden_size % 2:
            raise ValueError(
                f"hidden_size must be even when bidirectional: true; given {self.hidden_size}"
            )
        if self.num_layers > 1 and self.resolved_reset == "before":
            raise ValueError(
                "num_layers must be 1 with reset: before (variant: authors); set reset: after"
            )
        if self.implementation in {"packed", "compiled", "graph"}:
            if self.num_layers > 1:
                raise ValueError(
                    f"num_layers must be 1 with implementation: {self.implementation}; set it to auto"
                )
            if self.needs_states and self.implementation != "graph":
                raise ValueError(
                    f"pooling must be last with implementation: {self.implementation}; set it to auto"
                )
        if self.needs_states and self.resolved_reset == "before":
            raise ValueError("pooling must be last with reset: before; set reset: after")
        return self

    @property
    def spoken_kind(self) -> str:
        """What it is in a few words."""
        directions = " both ways" if self.bidirectional else ""
        layers = f" of {self.num_layers} layers" if self.num_layers > 1 else ""
        return f"GRU{layers}{directions}"

    @property
    def dim(self) -> int:
        """Size of one tower's vector."""
        return self.hidden_size

    @property
    def encoded_dims(self) -> tuple[int, ...]:
        """One block with all poolings."""
        return (self.hidden_size * len(self.encode_pooling or [self.pooling]),)

    @property
    def needs_states(self) -> bool:
        """Whether other states than the last are read."""
        return {self.pooling, *(self.encode_pooling or [])} != {"last"}

    @property
    def cell(self) -> Cell:
        """What the recurrence computes."""
        return Cell(
            kind="gru",
            resets_before=self.resolved_reset == "before",
            num_layers=self.num_layers,
            pools_states=self.pooling != "last",
        )

    @property
    def token_dim(self) -> int | None:
        """Size of the state of a word, of both directions; None with `reset: before`, which torch lacks."""
        return self.hidden_size if self.resolved_reset == "after" else None

    @property
    def activations_per_token(self) -> int:
        """Numbers of a word vector and of the states of all layers."""
        return self.embedding.dim + self.num_layers * self.hidden_size


class Encoder(Tower):
    """One tower."""

    def __init__(self, config: Config, tables: Tables) -> None:
        super().__init__()
        self._config = config
        self.words = tables.table(config.embedding)
        self.gru = without_values(
            nn.GRU,
            config.embedding.dim,
            config.hidden_size // (2 if config.bidirectional else 1),
            num_layers=config.num_layers,
            bidirectional=config.bidirectional,
        )
        if tables.sets_values:
            _INITIALIZATIONS[config.initialization](self.gru, generator=tables.generator)
        if config.resolved_reset == "before" or config.initialization != "glorot":
            # The papers' cells have one bias; training a second one would double its learning rate.
            for name, parameter in self.gru.named_parameters():
                parameter.requires_grad_(not name.startswith("bias_hh"))
        self._workspaces = Workspaces()
        self._loop = loop_recurrence(
            self.gru.hidden_size, resets_before=config.resolved_reset == "before"
        )
        self._padded_layers = [
            library_recurrence("gru", self.gru.hidden_size) for _ in range(config.num_layers)
        ]
        if config.implementation == "compiled":
            load("gru")  # raises now, not in the first step, where there is no compiler

    @property
    def _kernel(self) -> Kernel:
        device = next(self.gru.parameters()).device
        return chosen_kernel(self._config.cell, self._config.implementation, device)

    @property
    def _kept_buffers(self) -> Workspaces | None:
        return self._workspaces if self._kernel == "compiled" else None

    def lay_out(self, packed: Packed) -> None:
        """Lay out the padded groups that training reads."""
        kernel = self._kernel
        has_states = self._config.pooling != "last"
        if kernel == "graph":
            packed.padded(self._loop_cut(packed.words.device, has_states=has_states))
        elif kernel == "cudnn":
            packed.padded(self._layer_cut(0, packed.words.device, has_states=has_states))

    def _loop_cut(self, device: torch.device, *, has_states: bool) -> Cut:
        directions = len(self._directions())
        return cut_for(
            self._loop,
            device,
            directions=directions,
            rows_per_word=directions,
            has_states=has_states,
            has_small_groups=self.has_small_groups,
        )

    def _layer_cut(self, number: int, device: torch.device, *, has_states: bool) -> Cut:
        return cut_for(
            self._padded_layers[number],
            device,
            directions=len(self._directions()),
            has_states=has_states or number < len(self._padded_layers) - 1,
            has_small_groups=self.has_small_groups,
        )

    def use_small_groups(self) -> bool:
        """Cut batches into groups with little padding, and free the buffers of larger ones."""
        is_changed = self._kernel in {"cudnn", "graph"} and not self.has_small_groups
        self.has_small_groups = self.has_small_groups or is_changed
        for recurrence in (self._loop, *self._padded_layers):
            recurrence.kept.clear()
        return is_changed

    def project(self, words: Tensor) -> list[Tensor]:
        """Return what the kernel reads of each distinct word.

        Packed kernels read each direction's input projections [distinct, 3 * hidden]; torch's recurrences the word
        vectors. Where `encode` reads all states, packed kernels get both.
        """
        vectors = self.words(words)
        kernel = self._kernel
        if kernel in {"torch", "cudnn"}:
            return [vectors]
        if kernel == "graph":
            return [self._projected_together(vectors)]
        padded = functional.pad(vectors, (0, 0, 0, -len(vectors) % WORD_MULTIPLE))
        ours = [
            functional.linear(padded, weight, _input_bias(*biases))
            for weight, _, *biases in self._directions()
        ]
        if self._config.needs_states:
            return [*ours, vectors]
        return ours

    def _projected_together(self, vectors: Tensor) -> Tensor:
        """Return the input projections, a row for each direction of a word [distinct * directions, 3 * hidden]."""
        directions = self._directions()
        weight = torch.cat([weight_ih for weight_ih, *_ in directions])
        bias = torch.cat([_input_bias(*biases) for _, _, *biases in directions])
        return functional.linear(vectors, weight, bias).view(-1, 3 * self.gru.hidden_size)

    def read(self, packed: Packed, projected: list[Tensor]) -> Tensor:
        """Return the vectors [batch, dim]."""
        pooling = self._config.pooling
        kernel = self._kernel
        if kernel == "torch":
            return self._states_by_torch(packed, projected[0]).pooled(pooling)
        if kernel == "cudnn":
            states = self._states_of_groups(packed, projected[0], has_states=pooling != "last")
            return states.pooled(pooling)
        if kernel == "graph":
            states = self._states_of_loop(packed, projected[0], has_states=pooling != "last")
            return states.pooled(pooling)
        if self._config.resolved_reset == "before":
            last = self._run(reset_before_gru, packed, projected)
        else:
            last = self._run(packed_gru, packed, projected, workspaces=self._kept_buffers)
        return torch.cat(last, dim=1).index_select(0, packed.rank)

    def _run(
        self, run: Callable[..., Any], packed: Packed, projected: list[Tensor], **options: Any
    ) -> list[Any]:
        # Packed kernels read every bias but the candidate's recurrent one with the projected words.
        directions = zip(projected, self._directions(), strict=False)  # word vectors may follow
        return [
            run(
                inputs,
                weight,
                bias_hh[2 * self.gru.hidden_size :],
                packed,
                backwards=backwards == 1,
                **options,
            )
            for backwards, (inputs, (_, weight, _, bias_hh)) in enumerate(directions)
        ]

    def read_encoded(self, packed: Packed, projected: list[Tensor]) -> Tensor:
        """Return the vectors as `encode` pools them [batch, dims of all poolings]."""
        poolings = self._config.encode_pooling
        if poolings is None or poolings == [self._config.pooling]:
            return self.read(packed, projected)
        kernel = self._kernel
        if kernel == "cudnn":
            states = self._states_of_groups(packed, projected[0], has_states=True)
        elif kernel == "graph":
            states = self._states_of_loop(packed, projected[0], has_states=True)
        elif kernel == "torch" or torch.is_grad_enabled():
            # Raysent's own kernel of all states has no backward.
            states = self._states_by_torch(packed, projected[-1])
        else:
            states = self._states(packed, projected)
        return states.concatenated(poolings)

    def tokens(self, packed: Packed) -> Tensor:
        """Return the state of each word [tokens, hidden_size], by a recurrence of torch."""
        vectors = self.words(packed.words)
        if self._kernel == "cudnn":
            return self._states_of_groups(packed, vectors, has_states=True).values
        if self._kernel == "graph":
            projected = self._projected_together(vectors)
            return self._states_of_loop(packed, projected, has_states=True).values
        states = self._states_by_torch(packed, vectors)
        return states.values.index_select(0, packed.forward_places.argsort())

    def _states(self, packed: Packed, projected: list[Tensor]) -> States:
        """Return all states of raysent's recurrence; of two directions a row holds two words of its sentence."""
        runs = self._run(packed_gru_all_states, packed, projected, workspaces=self._kept_buffers)
        states, last = zip(*runs, strict=True)
        return States(
            torch.cat(states, dim=1),
            token_rows(packed),
            torch.cat(last, dim=1).index_select(0, packed.rank),
        )

    def _states_of_groups(self, packed: Packed, vectors: Tensor, *, has_states: bool) -> States:
        """Return last states, and those of all `sentence_tokens`, of torch's recurrence over padded groups."""
        directions = len(self._directions())
        weights = cast("list[list[Tensor]]", self.gru.all_weights)
        for number, recurrence in enumerate(self._padded_layers):
            cut = self._layer_cut(number, vectors.device, has_states=has_states)
            if number == 0:
                layout = packed.padded(cut)
            else:
                layout = packed.padded_tokens(cut)
            layer_weights = weights[number * directions : (number + 1) * directions]
            parameters = [parameter for direction in layer_weights for parameter in direction]
            last, vectors = padded_states(recurrence, vectors, layout, parameters)
        return _states(packed, last, vectors, has_states=has_states)

    def _states_of_loop(self, packed: Packed, projected: Tensor, *, has_states: bool) -> States:
        """Return last states, and those of all `sentence_tokens`, of raysent's loop over padded groups."""
        directions = self._directions()
        cut = self._loop_cut(projected.device, has_states=has_states)
        parameters = [
            part
            for _, weight, _, bias_hh in directions
            for part in (weight, bias_hh[2 * self.gru.hidden_size :])
        ]
        last, states = padded_states(self._loop, projected, packed.padded(cut), parameters)
        return _states(packed, last, states, has_states=has_states)

    def _states_by_torch(self, packed: Packed, vectors: Tensor) -> States:
        """Return all states of torch's recurrence over packed sequences: the reference."""
        steps = torch.tensor(packed.batch_sizes, dtype=torch.int64)
        states, last = self.gru(
            PackedSequence(vectors.index_select(0, packed.forward_tokens), steps)
        )
        # The last layer's, of [layers * directions, batch, hidden].
        last = last[-len(self._directions()) :]
        return States(
            states.data,
            token_rows(packed),
            torch.cat(tuple(last), dim=1).index_select(0, packed.rank),
        )

    def _directions(self) -> list[list[Tensor]]:
        """Return weight_ih, weight_hh, bias_ih and bias_hh of each direction of the first layer."""
        weights = cast("list[list[Tensor]]", self.gru.all_weights)
        return weights[: 2 if self._config.bidirectional else 1]


def _states(packed: Packed, last: Tensor, values: Tensor, *, has_states: bool) -> States:
    """Return states whose values are those of `sentence_tokens`; without them, what counts is the last ones."""
    rows = packed.sentences.rows if has_states else packed.order
    return States(values, rows, last)


def _input_bias(bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    """Return the bias of the projected input [3 * hidden]: all biases except the candidate's recurrent one."""
    hidden = len(bias_hh) // 3
    return bias_ih + functional.pad(bias_hh[: 2 * hidden], (0, hidden))


def _initialize_glorot(gru: nn.GRU, *, generator: torch.Generator) -> None:
    """Set the initial values of Quick-Thoughts' released code.

    That code has one kernel [x; h] -> r, z and one [x; h] -> c, and draws each from Glorot's uniform range of the whole
    kernel. Gate biases start at 1, which keeps the state; all other biases start at 0. Blocks are in the order r, z, c.
    """
    hidden = gru.hidden_size
    for name, parameter in gru.named_parameters():
        blocks = torch.split(parameter.data, hidden)
        if name.startswith("bias"):
            parameter.data.zero_()
            if name.startswith("bias_ih"):
                blocks[0].fill_(1.0)
                blocks[1].fill_(1.0)
            continue
        layer = int(name.split("_l")[1].split("_")[0])
        if layer == 0:
            inputs = gru.input_size
        else:
            inputs = 2 * hidden if gru.bidirectional else hidden
        for block, outputs in zip(blocks, (2 * hidden, 2 * hidden, hidden), strict=True):
            limit = math.sqrt(6 / (inputs + hidden + outputs))
            block.uniform_(-limit, limit, generator=generator)


def _initialize_orthogonal(gru: nn.GRU, *, generator: torch.Generator) -> None:
    """Set the initial values of Skip-Thoughts' released code."""
    for name, parameter in gru.named_parameters():
        if name.startswith("bias"):
            parameter.data.zero_()
        elif name.startswith("weight_ih"):
            parameter.data.uniform_(-_UNIFORM_LIMIT, _UNIFORM_LIMIT, generator=generator)
        else:
            for block in torch.split(parameter.data, gru.hidden_size):
                nn.init.orthogonal_(block, generator=generator)


def _initialize_he(gru: nn.GRU, *, generator: torch.Generator) -> None:
    """Set Multi-view's initial values: He's normal ones, gate biases 1, other biases 0."""
    hidden = gru.hidden_size
    for name, parameter in gru.named_parameters():
        if name.startswith("bias"):
            parameter.data.zero_()
            if name.startswith("bias_ih"):
                parameter.data[: 2 * hidden].fill_(1.0)
        else:
            parameter.data.normal_(0.0, math.sqrt(2 / parameter.shape[1]), generator=generator)


_INITIALIZATIONS = {
    "glorot": _initialize_glorot,
    "orthogonal": _initialize_orthogonal,
    "he": _initialize_he,
}
