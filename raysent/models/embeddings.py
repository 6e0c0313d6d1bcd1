"""Word ids -> word vectors: the tables of a model, their initial values, and which of them the towers share.

A trained table belongs to one tower. A fixed table has no gradient; it is made once and shared by all towers and
members of a model that read the same vectors.

Source: Logeswaran and Lee, 2018 (Quick-Thoughts), section 3 and the released code.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pydantic
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raysent.config import StrictModel
from raysent.data.vocabulary import (
    PAD_ID,
    UNK_ID,
    Sentences,
    Vocabulary,
    WordVectors,
    read_word_vectors,
    shared_words,
)
from raysent.errors import ConfigError
from raysent.kernels.devices import to_device
from raysent.models.known import STATIC_SCHEME
from raysent.models.static import read_static_vectors

# The value of `vectors` for vectors that are counted from the corpus.
CORPUS_VECTORS = "ppmi"

_TRAINED_LIMIT = 0.1

with warnings.catch_warnings():
    # PyTorch 2.11 warns at the first sparse gradient that its checks are off, which it takes here as chosen.
    warnings.simplefilter("ignore")
    _checks: Any = torch.sparse.check_sparse_tensor_invariants
    if not _checks.is_enabled():
        _checks.disable()

CorpusVectors = Callable[[int], npt.NDArray[np.float32]]
"""Dimension -> word vectors counted from the corpus, float32 [vocabulary, dim]."""
Keys = npt.NDArray[np.uint64]


class EmbeddingConfig(StrictModel):
    """Settings of an encoder's word vectors.

    Attributes:
        dim: Size of a word vector.
        vectors: File of initial vectors (GloVe or word2vec text, word2vec binary, fastText `.vec`, each also gzipped);
            `static:NAME` for those of an encoder's static table, see the scheme `static`; or `ppmi` for vectors counted
            from the corpus; None draws random ones.
        trained: Whether training changes them. Fixed vectors are shared by both towers.
        dropout: Fraction of the word vectors' values set to zero in training, with one mask for all occurrences of a
            word in a batch; the rest is rescaled.
        unknown: The fixed vector of every word without one: `random` is uniform in [0, 1), as in Quick-Thoughts'
            released code; `zero` is Multi-view's.
    """

    dim: int = pydantic.Field(default=300, ge=1)
    vectors: str | None = None
    trained: bool = True
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    unknown: Literal["random", "zero"] = "random"

    @pydantic.model_validator(mode="after")
    def _fixed_vectors_are_given(self) -> Self:
        if not self.trained and self.vectors is None:
            raise ValueError(
                "fixed vectors (trained: false) need `vectors`: a file of word vectors, or ppmi"
            )
        return self


class WordTable(nn.Module):
    """Word id -> vector.

    Attributes:
        weight: One row per word of the vocabulary [vocabulary, dim].
        sparse_gradient: Whether the gradient holds the rows in use only, as `RowAdam` wants it.
        dropout: Fraction of values set to zero in training.
        generator: Source of dropout masks; None is torch's global one.
    """

    def __init__(self, weight: Tensor, *, trained: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=trained)
        self.sparse_gradient = False
        self.dropout = dropout
        self.generator: torch.Generator | None = None

    def forward(self, words: Tensor) -> Tensor:
        """Return the vectors [distinct, dim] of distinct, ascending word ids [distinct]."""
        if self.sparse_gradient:
            vectors: Tensor = _Rows.apply(self.weight, words)  # type: ignore[no-untyped-call]
        else:
            vectors = functional.embedding(words, self.weight)
        if not (self.training and self.dropout):
            return vectors
        mask = torch.rand(vectors.shape, generator=self.generator) >= self.dropout
        return vectors * to_device(mask, vectors.device) / (1 - self.dropout)


class _Rows(torch.autograd.Function):
    """Rows of a table, with a sparse gradient that holds each row once and in order.

    The gradient is assigned in `backward`, because autograd would lose the mark that it is coalesced; sorting the rows
    again, or checking their order, waits for a GPU.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, words: Tensor) -> Tensor:
        ctx.save_for_backward(words)
        ctx.weight = weight
        return weight.index_select(0, words)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        (words,) = ctx.saved_tensors
        weight = ctx.weight
        if weight.grad is not None and not weight.grad.is_sparse:
            # A penalty on all words has left a dense gradient.
            weight.grad.index_add_(0, words, gradient)
            return None, None
        rows = torch.sparse_coo_tensor(
            words[None], gradient, weight.shape, is_coalesced=True, check_invariants=False
        )
        if weight.grad is None:
            weight.grad = rows
        else:
            weight.grad = weight.grad + rows
        return None, None


class Tables:
    """Makes the word tables of one model, each fixed one once.

    Attributes:
        generator: Source of random values.
        sets_values: Whether modules must draw initial values; false where saved values follow.
    """

    sets_values = True

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        generator: torch.Generator,
        corpus_vectors: CorpusVectors | None = None,
    ) -> None:
        """Store the sources of initial values.

        Args:
            vocabulary: Words of the tables' rows.
            generator: Source of random values.
            corpus_vectors: Returns the vectors of `vectors: ppmi`; required only where an encoder reads them.
        """
        self._vocabulary = vocabulary
        self.generator = generator
        self._corpus_vectors = corpus_vectors
        self._fixed: dict[EmbeddingConfig, WordTable] = {}

    def table(self, config: EmbeddingConfig) -> WordTable:
        """Return a new trained table, or the only fixed table of these vectors."""
        if config.trained:
            return WordTable(self._weight(config), trained=True, dropout=config.dropout)
        if config not in self._fixed:
            self._fixed[config] = WordTable(
                self._weight(config), trained=False, dropout=config.dropout
            )
        return self._fixed[config]

    def _weight(self, config: EmbeddingConfig) -> Tensor:
        """Return the initial vectors of all words, float32 [vocabulary, dim]."""
        weight = torch.empty(len(self._vocabulary), config.dim)
        weight.uniform_(-_TRAINED_LIMIT, _TRAINED_LIMIT, generator=self.generator)
        if config.vectors is not None:
            if not config.trained:
                # Every word without a vector has that of the unknown word. It is drawn also where it is zero, so that
                # what is drawn next does not depend on it.
                unknown = torch.rand(config.dim, generator=self.generator)
                if config.unknown == "zero":
                    unknown = torch.zeros(config.dim)
                weight[:] = unknown
            self._fill(weight, config)
        weight[PAD_ID] = 0.0
        return weight

    def _fill(self, weight: Tensor, config: EmbeddingConfig) -> None:
        """Set the rows of the words that have a vector in the source that `config` names."""
        if config.vectors == CORPUS_VECTORS:
            if self._corpus_vectors is None:
                raise ConfigError(
                    "encoder.embedding.vectors: 'ppmi' counts vectors from a corpus; given no corpus"
                )
            counted = self._corpus_vectors(config.dim)
            _check_dim(counted, config)
            # Padding and unknown words are not counted.
            weight[UNK_ID + 1 :] = torch.from_numpy(counted[UNK_ID + 1 :])
            return
        vectors = given_vectors(str(config.vectors), self._vocabulary)
        _check_dim(vectors.vectors, config)
        rows, sources = shared_words(self._vocabulary, vectors)
        weight[rows] = torch.from_numpy(vectors.vectors[sources])


class EmptyTables(Tables):
    """Makes tables without initial values, for a model whose saved values follow."""

    sets_values = False

    def _weight(self, config: EmbeddingConfig) -> Tensor:
        return torch.empty(len(self._vocabulary), config.dim)


def given_vectors(source: str, vocabulary: Vocabulary) -> WordVectors:
    """Return the vectors that a vocabulary's words have in a file of word vectors or in a static table.

    Args:
        source: The file, or ``static:NAME``.
        vocabulary: The words.

    Raises:
        DataError: If a file is missing or damaged, or no word has a vector.
        ArtifactError: If there is no such table, or it cannot be read.
    """
    words = vocabulary.words
    if source.startswith(STATIC_SCHEME):
        return read_static_vectors(source, words)
    return read_word_vectors(source, words=words, unicode_form=vocabulary.unicode_form)


def _check_dim(vectors: npt.NDArray[np.float32], config: EmbeddingConfig) -> None:
    dim = vectors.shape[1]
    if dim != config.dim:
        raise ConfigError(
            f"encoder.embedding.dim: must be that of the vectors in {config.vectors}, {dim}; given {config.dim}"
        )


def sentence_keys(sentences: Sentences) -> Keys:
    """Return a key of each sentence, uint64 [batch]: equal for equal words in equal order."""
    if len(sentences.lengths) == 0:
        return np.empty(0, dtype=np.uint64)
    starts = np.cumsum(sentences.lengths) - sentences.lengths
    positions = np.arange(len(sentences.ids)) - np.repeat(starts, sentences.lengths)
    # A word's key says where in its sentence it stands, so that their sum depends on their order.
    high_bits = positions.astype(np.uint64) << np.uint64(32)
    word_keys = _mixed(high_bits | sentences.ids.astype(np.uint64))
    return _mixed(np.add.reduceat(word_keys, starts))


def _mixed(numbers: Keys) -> Keys:
    """Return a permutation of the numbers of 64 bits in which each bit depends on all.

    Source: Steele et al., 2014, "Fast splittable pseudorandom number generators", mix64 variant 13.
    """
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class KnownVectors:
    """The vectors of sentences that an encoder of fixed weights has encoded, found by the sentences' words.

    Two of n sentences share a key, and then a vector, with a probability of n^2 / 2^65: 3e-6 for ten million.

    Args:
        keys: Distinct keys, ascending, uint64 [sentences].
        vectors: float32 [sentences, dim]; may be memory-mapped.
    """

    def __init__(self, keys: Keys, vectors: npt.NDArray[np.float32]) -> None:
        self._keys = keys
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, sentences: Sentences) -> npt.NDArray[np.float32] | None:
        """Return the vectors of sentences, float32 [batch, dim], as a new array; None unless all are known."""
        keys = sentence_keys(sentences)
        rows = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        if not np.array_equal(self._keys[rows], keys):
            return None
        vectors: npt.NDArray[np.float32] = self._vectors[rows]
        return vectors
