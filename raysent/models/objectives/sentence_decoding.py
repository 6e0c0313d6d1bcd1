"""Sentence decoding: generate the sentence before and the sentence after, word by word, from a sentence's vector.

    r, z = sigmoid(W x + b + U h [+ C v])    gates; z = 1 keeps the state
    c    = tanh(W x + b + r * (U h) [+ C v])
    h    = z * h + (1 - z) * c
    loss = sum over sentences, both decoders and words, with the end of the sentence, of -log softmax(V h + a)_word

x is the vector of the previous word, zero at the first; v is the encoded sentence. `cond` (the paper) adds C v at every
step and starts with h = 0; `init` (the released trainer) starts with h = v and has no C. The end of a sentence is the
word with the id of the padding, which no sentence contains.

Source: Kiros et al., 2015, equations 5 to 9, and the released code.
Differs: the reset gate comes after the product, as in the released code; the encoder never reads the end of the
sentence; z has torch's meaning, the paper's is 1 - z.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.config import ByVariant
from raysent.data.batches import Triplets
from raysent.data.vocabulary import PAD_ID, Sentences
from raysent.errors import ConfigError
from raysent.kernels.devices import to_device_together
from raysent.kernels.fused_softmax import BLOCK_BYTES, vocabulary_cross_entropy
from raysent.kernels.gru_cells import Workspaces
from raysent.kernels.native import load
from raysent.kernels.packed_gru import packed_gru_over_inputs
from raysent.kernels.padded_recurrence import padded_states
from raysent.kernels.padding import TokenOrder, lay_out_padded
from raysent.kernels.recurrences import (
    Cell,
    Implementation,
    chosen_kernel,
    cut_for,
    library_recurrence,
    loop_recurrence,
)
from raysent.models.embeddings import WordTable
from raysent.models.layers import without_values
from raysent.models.objectives import (
    Batches,
    BuildContext,
    ObjectiveConfig,
    Read,
    StepShape,
    TripletBatches,
)
from raysent.models.objectives import Objective as BaseObjective

_END_ID = PAD_ID
_LIMIT = 0.1
_FLOAT_BYTES = 4
# Tensors of the size of the layer over all words: weight, two moments, the copy that is being saved, the gradient as it
# is computed and as it is passed on, and the weight in another layout.
_LAYER_COPIES = 7


class Config(ObjectiveConfig):
    """Settings of sentence decoding.

    Attributes:
        decoder: How a decoder reads the sentence's vector: `cond` at every step, `init` as its first state. None
            follows `variant`: `cond` for paper, `init` for authors.
        hidden_size: Size of the decoders' states; None is that of the encoder's vector.
        max_length: Words of each of the three sentences at most; triplets with a longer one are left out.
        shared_output: Whether the two decoders share the layer that scores words.
        output_bias: Whether that layer has a bias.
        implementation: `packed` is raysent's recurrence and a loss that computes its gradient block by block;
            `compiled` is the same with the code between two products of the recurrence compiled for this machine;
            `torch` is the plain formulas; `cudnn` is torch's recurrence over padded groups, `graph` raysent's loop
            over them. All give the same loss. `auto` is `cudnn` on a GPU, and on a CPU `compiled` with a compiler and
            `packed` without.
    """

    num_towers: ClassVar[Literal[1, 2]] = 1
    across_workers: ClassVar[Literal["rows", "mean", "sum"]] = "sum"
    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"
    is_by_example: ClassVar[bool] = True

    type: Literal["sentence_decoding"] = "sentence_decoding"
    decoder: Literal["cond", "init"] | None = None
    hidden_size: int | None = pydantic.Field(default=None, ge=1)
    max_length: int = pydantic.Field(default=30, ge=1)
    shared_output: bool = True
    output_bias: bool = True
    implementation: Implementation = "auto"

    resolved_decoder: ClassVar[ByVariant[str]] = ByVariant("decoder", paper="cond", authors="init")

    @property
    def batches(self) -> Batches:
        """Triplets of sentences that are short enough."""
        return TripletBatches(self.max_length)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Negative log-likelihood per word."""
        return ("nll",)

    def num_step_values(self, shape: StepShape) -> int:
        """Return the numbers of the layer over all words and of its scores: one block of them, or all tokens'."""
        hidden = self.hidden_size or shape.dim
        num_tokens = shape.batch_size * TripletBatches.num_encoded * shape.max_length
        if self.implementation == "torch":
            scores = num_tokens * shape.num_words
        else:
            scores = max(BLOCK_BYTES // _FLOAT_BYTES, shape.num_words)
        return _LAYER_COPIES * shape.num_words * hidden + 3 * scores

    @property
    def presets(self) -> dict[str, Any]:
        """The training settings of the paper, or of the released code; both clip the norm of the whole gradient."""
        presets = {"batch_size": 128, "learning_rate": 2e-4, "clip": 10.0, "clip_per": "global"}
        if self.variant == "authors":
            presets.update(batch_size=64, clip=5.0)
        return presets


class Objective(BaseObjective):
    """Two decoders and the layer that scores words."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        if build_context.words is None:
            raise ConfigError(
                "objective: sentence_decoding reads word vectors; the encoder must have some"
            )
        hidden = config.hidden_size or build_context.dim
        conditional = config.resolved_decoder == "cond"
        if not conditional and hidden != build_context.dim:
            raise ConfigError(
                f"objective.hidden_size: must be {build_context.dim}, the size of the encoder's vector, with decoder: "
                f"init; given {hidden}"
            )
        self._implementation = config.implementation
        if config.implementation == "compiled":
            load("gru")  # raises now, not in the first step, where there is no compiler
        generator = build_context.generator
        self.words: WordTable = build_context.words
        word_dim = int(self.words.weight.shape[1])
        self.decoders = nn.ModuleList(
            Decoder(word_dim, hidden, build_context.dim if conditional else 0, generator=generator)
            for _ in range(2)
        )
        num_outputs = 1 if config.shared_output else 2
        self.outputs = nn.ModuleList(
            _output(
                hidden, build_context.num_words, has_bias=config.output_bias, generator=generator
            )
            for _ in range(num_outputs)
        )

    def forward(
        self, read: Read, batch: Triplets, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the sum over sentences, decoders and words, in nats."""
        del generator
        [vectors] = read(batch.sentences)
        layouts = [lay_out(side, device=vectors.device) for side in (batch.before, batch.after)]
        outputs = cast("list[nn.Linear]", self.outputs)
        states = [
            decoder(self.words(side.words), vectors, side, implementation=self._implementation)
            for decoder, side in zip(self.decoders, layouts, strict=True)
        ]
        targets = [layout.targets for layout in layouts]
        if len(outputs) == 1:
            return self._loss(outputs[0], torch.cat(states), torch.cat(targets))
        losses = [self._loss(*side) for side in zip(outputs, states, targets, strict=True)]
        return torch.stack(losses).sum()

    def held_out_totals(self, read: Read, batch: Triplets) -> dict[str, tuple[float, int]]:
        """Return `nll`, per word and end of sentence."""
        num_words = sum(
            int(side.lengths.sum()) + len(side.lengths) for side in (batch.before, batch.after)
        )
        return {"nll": (float(self(read, batch).detach()), num_words)}

    def _loss(self, output: nn.Linear, states: Tensor, targets: Tensor) -> Tensor:
        if self._implementation == "torch":
            return functional.cross_entropy(output(states).float(), targets, reduction="sum")
        is_compiled = self._implementation != "packed"
        return vocabulary_cross_entropy(
            states, weight=output.weight, bias=output.bias, targets=targets, is_compiled=is_compiled
        )


class Layout(NamedTuple):
    """The steps of one decoder's sentences, time-major and without padding, the longest sentence first.

    Attributes:
        words: Distinct word ids [distinct].
        inputs: The previous word of each step, as 1 + its index in `words`; 0 where there is none [steps].
        targets: The word of each step [steps].
        rows: The sentence of each step [steps].
        batch_sizes: Sentences that reach time t, descending [time].
        order: The same steps on the host, for layouts in padded groups.
    """

    words: Tensor
    inputs: Tensor
    targets: Tensor
    rows: Tensor
    batch_sizes: list[int]
    order: TokenOrder


def lay_out(sentences: Sentences, *, device: torch.device) -> Layout:
    """Return the steps in which sentences and their ends are generated."""
    words, tokens = np.unique(sentences.ids, return_inverse=True)
    order = np.argsort(-sentences.lengths, kind="stable")
    lengths = sentences.lengths[order]
    starts = (np.cumsum(sentences.lengths) - sentences.lengths)[order]
    time = np.arange(lengths[0] + 1)[:, None]
    reaches = time <= lengths[None, :]  # [time, batch]
    # A place beyond the sentence is never read; its index is that of the first token.
    token_index = np.where(time < lengths[None, :], starts[None, :] + time, 0)
    before = np.where(time > 0, starts[None, :] + time - 1, 0)
    targets = np.where(time < lengths[None, :], sentences.ids[token_index], _END_ID)
    inputs = np.where(time > 0, 1 + tokens.reshape(-1)[np.minimum(before, len(tokens) - 1)], 0)
    rows = np.broadcast_to(order[None, :], reaches.shape)
    batch_sizes = reaches.sum(axis=1)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    tensors = to_device_together(
        {
            "words": words,
            "inputs": inputs[reaches],
            "targets": targets[reaches],
            "rows": rows[reaches],
        },
        device,
    )
    token_order = TokenOrder(
        lengths=sentences.lengths + 1,
        of_sentence=rank,
        of_time=np.cumsum(batch_sizes) - batch_sizes,
        rows=inputs[reaches],
        num_rows=1 + len(words),
    )
    return Layout(**tensors, batch_sizes=batch_sizes.tolist(), order=token_order)


class Decoder(nn.Module):
    """A GRU that generates words; see the module. Blocks in the order r, z, c."""

    def __init__(
        self, word_dim: int, hidden: int, vector_dim: int, *, generator: torch.Generator
    ) -> None:
        """Draw initial values: orthogonal recurrent blocks, uniform in [-0.1, 0.1] for word and vector, bias 0.

        Args:
            word_dim: Size of a word vector.
            hidden: Size of the state.
            vector_dim: Size of the sentence's vector where every step reads it; 0 where it is the first state.
            generator: Source of random values.
        """
        super().__init__()
        self.weight_ih = nn.Parameter(_uniform(3 * hidden, word_dim, generator))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        for block in torch.split(self.weight_hh.data, hidden):
            nn.init.orthogonal_(block, generator=generator)
        self.bias = nn.Parameter(torch.zeros(3 * hidden))
        self.weight_vh: nn.Parameter | None = None
        if vector_dim:
            self.weight_vh = nn.Parameter(_uniform(3 * hidden, vector_dim, generator))
        self._workspaces = Workspaces()
        self._padded = library_recurrence("gru", hidden)
        self._loop = loop_recurrence(hidden)

    def forward(
        self, word_vectors: Tensor, vectors: Tensor, layout: Layout, *, implementation: str
    ) -> Tensor:
        """Return the state of every step [steps, hidden].

        Args:
            word_vectors: Vectors of the layout's words [distinct, word dim].
            vectors: The encoded sentences [batch, dim].
            layout: The steps.
            implementation: The setting of the objective; `torch` is the plain formulas.
        """
        kernel = chosen_kernel(Cell("gru"), implementation, vectors.device)
        if kernel == "cudnn":
            return self._states_by_library(word_vectors, vectors, layout)
        if kernel == "graph":
            return self._states_by_loop(word_vectors, vectors, layout)
        inputs, first = self._inputs(word_vectors, vectors, layout)
        workspaces = self._workspaces if kernel == "compiled" else None
        return packed_gru_over_inputs(
            inputs, self.weight_hh, layout.batch_sizes, initial=first, workspaces=workspaces
        )

    def _inputs(
        self, word_vectors: Tensor, vectors: Tensor, layout: Layout
    ) -> tuple[Tensor, Tensor | None]:
        """Return the projected input of each step, and the first states, the longest sentence first, or None."""
        # Computed once a word, and once a sentence.
        projected = functional.linear(word_vectors, self.weight_ih)
        projected = torch.cat([projected.new_zeros(1, projected.shape[1]), projected])
        inputs = projected.index_select(0, layout.inputs) + self.bias
        first = None
        if self.weight_vh is None:
            first = vectors.index_select(0, layout.rows[: layout.batch_sizes[0]])
        else:
            projected_vectors = functional.linear(vectors, self.weight_vh)
            inputs = inputs + projected_vectors.index_select(0, layout.rows)
        return inputs, first

    def _states_by_loop(self, word_vectors: Tensor, vectors: Tensor, layout: Layout) -> Tensor:
        """Return the state of every step by raysent's loop over padded groups."""
        inputs, _ = self._inputs(word_vectors, vectors, layout)
        order = replace(layout.order, rows=None, num_rows=layout.order.num_tokens)
        cut = cut_for(self._loop, vectors.device, has_states=True)
        _, states = padded_states(
            self._loop,
            inputs,
            lay_out_padded(order, cut, vectors.device),
            [self.weight_hh, self.bias.new_zeros(self.weight_hh.shape[1])],
            vectors if self.weight_vh is None else None,
        )
        return states

    def _states_by_library(self, word_vectors: Tensor, vectors: Tensor, layout: Layout) -> Tensor:
        """Return the state of every step by torch's recurrence, which reads each step's word beside the sentence."""
        none = word_vectors.new_zeros(1, word_vectors.shape[1])
        values = torch.cat([none, word_vectors])
        weight: Tensor = self.weight_ih
        order = layout.order
        initial = vectors if self.weight_vh is None else None
        if self.weight_vh is not None:
            sentence = vectors.index_select(0, layout.rows)
            values = torch.cat([values.index_select(0, layout.inputs), sentence], dim=1)
            weight = torch.cat([self.weight_ih, self.weight_vh], dim=1)
            order = replace(order, rows=None, num_rows=order.num_tokens)
        cut = cut_for(self._padded, vectors.device, has_states=True)
        _, states = padded_states(
            self._padded,
            values,
            lay_out_padded(order, cut, vectors.device),
            [weight, self.weight_hh, self.bias, self.bias.new_zeros(len(self.bias))],
            initial,
        )
        return states


def _output(
    hidden: int, num_words: int, *, has_bias: bool, generator: torch.Generator
) -> nn.Linear:
    layer = without_values(nn.Linear, hidden, num_words, bias=has_bias)
    layer.weight.data.uniform_(-_LIMIT, _LIMIT, generator=generator)
    if has_bias:
        layer.bias.data.zero_()
    return layer


def _uniform(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.empty(rows, columns).uniform_(-_LIMIT, _LIMIT, generator=generator)
