"""A batch of each kind, and a toy read function: sums of random word vectors, so that objectives need no encoder."""

from __future__ import annotations

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from raysent.data.batches import Batch, LabelBatch, TargetBatch, TargetSizes, Triplets
from raysent.data.pairs import Pairs
from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Sentences, Vocabulary
from raysent.models.codes import build_code
from raysent.models.codes.autoencoder import Config as Autoencoder
from raysent.models.embeddings import WordTable
from raysent.models.objectives import (
    BuildContext,
    ContextBatches,
    LabelBatches,
    TargetBatches,
    TripletBatches,
)

NUM_WORDS = 30
TARGETS = TargetSizes(6, {"two": 2, "three": 3})


class NoRowsByIndex(TorchFunctionMode):
    """Refuses `x[rows]` where x has a gradient and `rows` are numbers.

    With several threads the gradients of equal rows are then summed in any order, so that a run does not have the same
    weights twice. `x.index_select(0, rows)` sums them in one order.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call the function unless it is such an access."""
        del types
        if (
            function is torch.Tensor.__getitem__
            and args[0].requires_grad
            and torch.is_grad_enabled()
        ):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            kinds = [
                torch.as_tensor(place).dtype
                for place in places
                if isinstance(place, (torch.Tensor, np.ndarray, list))
            ]
            assert all(kind == torch.bool for kind in kinds), "use index_select"
        return function(*args, **(kwargs or {}))


def sentences(lengths, seed=0):
    """Random words from id 2 on."""
    ids = np.random.default_rng(seed).integers(2, NUM_WORDS, size=int(np.sum(lengths)))
    return Sentences(ids.astype(np.int32), np.asarray(lengths, dtype=np.int64))


def toy_batch(kind, size=12, seed=0):
    """A batch of a kind, such as `PairBatches`."""
    lengths = np.random.default_rng(seed).integers(1, 7, size=(3, size))
    if kind is ContextBatches:
        return Batch(sentences(lengths[0], seed), np.arange(size), np.arange(size) // 6)
    if kind is TripletBatches:
        parts = (
            sentences(row, seed + place)
            for place, row in enumerate([np.full(size, 4), *lengths[1:]])
        )
        return Triplets(*parts, np.arange(size))
    if kind is LabelBatches:
        return LabelBatch(
            sentences(lengths[0], seed),
            np.arange(size),
            np.zeros(size, dtype=np.int64),
            np.arange(size) % 3,
        )
    if kind is TargetBatches:
        random = np.random.default_rng(seed)
        probabilities = {
            task: random.dirichlet(np.ones(count), size)
            for task, count in TARGETS.num_classes.items()
        }
        return TargetBatch(
            sentences(lengths[0], seed),
            np.arange(size),
            np.zeros(size, dtype=np.int64),
            vectors=random.normal(size=(size, TARGETS.dim)).astype(np.float32),
            log_probabilities={
                task: np.log(values).astype(np.float32) for task, values in probabilities.items()
            },
        )
    labels, scores = np.arange(size) % 3, np.linspace(0, 5, size)
    return Pairs(sentences(lengths[0], seed), sentences(lengths[1], seed + 1), labels, scores)


def build_context(dim=8, seed=0, num_classes=3, word_dim=5):
    """The context that an objective is built with."""
    generator = torch.Generator().manual_seed(seed)
    table = WordTable(torch.randn(NUM_WORDS, word_dim, generator=generator), trained=True)
    decoder = torch.nn.Parameter(torch.randn(dim, word_dim, generator=generator))
    return BuildContext(
        dim=dim,
        num_words=NUM_WORDS,
        words=table,
        generator=generator,
        num_classes=num_classes,
        second_parameters=(decoder,),
        word_counts=lambda: torch.ones(NUM_WORDS),
        code=build_code(Autoencoder(bits=12), dim=dim, generator=generator),
        num_bits=12,
        targets=TARGETS,
        vocabulary=Vocabulary(
            [PAD_WORD, UNK_WORD, *(f"w{number}" for number in range(2, NUM_WORDS))]
        ),
        token_dim=dim,
        token_words=lambda: table.weight,
    )


class ToyRead(torch.nn.Module):
    """Towers that add up random word vectors."""

    def __init__(self, num_towers=2, dim=8, seed=1):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.tables = torch.nn.ParameterList(
            torch.randn(NUM_WORDS, dim, generator=generator) for _ in range(num_towers)
        )

    def forward(self, sentences, *, is_training=True, tokens=False):
        """The vectors of each tower, or the states of its words."""
        starts = torch.from_numpy(np.cumsum(sentences.lengths) - sentences.lengths)
        ids = torch.from_numpy(sentences.ids).long()
        if tokens:
            return tuple(torch.nn.functional.embedding(ids, table) for table in self.tables)
        return tuple(
            torch.nn.functional.embedding_bag(ids, table, starts, mode="sum")
            for table in self.tables
        )
