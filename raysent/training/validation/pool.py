"""The validation pool: contexts of held-out text, the same for every trial, whatever it trains with.

In: a corpus' validation split. Out: blocks of contiguous sentences, fixed by the text and the settings alone, and a
model's scores on them. A source sentence is scored by f . g against all others of its block, as in training.

    context_accuracy  fraction of source sentences whose top candidate is one of its neighbours
    context_nll       mean over source sentences of -sum_j T_ij log p_ij, T uniform over the neighbours

A neighbour is within `context_size` sentences in the same document and block. Sentences without a neighbour are
candidates but no sources. The metrics of two models can be compared only where the pools' hashes are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysent.data.corpus import Corpus, CorpusSplit
from raysent.data.vocabulary import Sentences
from raysent.errors import DataError
from raysent.storage import content_key
from raysent.training.validation.config import ValidationConfig

# Sentences encoded at once; bounds memory and does not change the vectors.
_CHUNK = 512

Encode = Callable[[Sentences], tuple[Tensor, ...]]


class ValidationPool:
    """Blocks of contiguous validation sentences, the same for every model on the same text.

    Attributes:
        starts: First sentence of every block, ascending, int64 [blocks].
        num_candidates: Sentences of a block; fewer than configured where the split is smaller.
        num_sources: Sentences with at least one neighbour.
        hash: Equal for equal text, positions and settings.
        facts: What is recorded beside a score: hash and sizes, and the metrics of scores that are all equal.
    """

    def __init__(self, corpus: Corpus, config: ValidationConfig) -> None:
        """Choose the blocks.

        Raises:
            DataError: If no sentence of the validation split has a neighbour.
        """
        self._split: CorpusSplit = corpus.validation
        self._context_size = config.context_size
        self.starts, self.num_candidates = block_starts(len(self._split), config)
        num_neighbours = 0
        num_sources = 0
        for start in self.starts:
            in_context = neighbours(self._documents(start), context_size=config.context_size)
            num_neighbours += int(in_context.sum())
            num_sources += int(in_context.any(axis=1).sum())
        if num_sources == 0:
            raise DataError(
                f"corpus: the validation split of {len(self._split)} sentences holds no two neighbouring sentences "
                "of one document; give more text or raise corpus.validation_fraction"
            )
        num_others = self.num_candidates - 1
        self.num_sources = num_sources
        settings = {
            "num_candidates": config.num_candidates,
            "num_sentences": config.num_sentences,
            "context_size": config.context_size,
            "seed": config.seed,
        }
        self.hash = content_key(
            corpus.text_key,
            self._split.text_hash,
            corpus.across_documents,
            self.starts.tolist(),
            self.num_candidates,
            settings,
        )
        self.facts: dict[str, float | int | str] = {
            "hash": self.hash,
            "num_blocks": len(self.starts),
            "num_candidates": self.num_candidates,
            "num_sources": num_sources,
            "chance_accuracy": num_neighbours / (num_sources * num_others),
            "chance_nll": math.log(num_others),
        }

    def _documents(self, start: int) -> npt.NDArray[np.int64]:
        """Return the document of each sentence of the block that begins at `start` [candidates]."""
        return np.asarray(self._split.documents(int(start), int(start) + self.num_candidates))

    def blocks(self) -> Iterator[tuple[Sentences, npt.NDArray[np.bool_]]]:
        """Yield the sentences of each block, and which of them are neighbours, bool [candidates, candidates]."""
        for start in self.starts.tolist():
            in_context = neighbours(self._documents(start), context_size=self._context_size)
            yield self._split.sentences(start, start + self.num_candidates), in_context

    def context_metrics(self, encode: Encode) -> dict[str, float]:
        """Score a model on the pool.

        Args:
            encode: Sentences -> f and g, each [batch, dim], without gradient and without dropout. A vector must not
                depend on the rest of the batch.

        Returns:
            `context_accuracy` (a fraction) and `context_nll` (nats); not finite where the vectors are not.
        """
        correct = 0.0
        nll = 0.0
        for sentences, in_context in self.blocks():
            chunks = [encode(chunk) for chunk in sentences.split(_CHUNK)]
            f, g = (torch.cat(vectors).float() for vectors in zip(*chunks, strict=True))
            is_neighbour = torch.from_numpy(in_context).to(f.device)
            block_correct, block_nll = similarity_scores(f @ g.T, is_neighbour)
            correct += block_correct
            nll += block_nll
        return {
            "context_accuracy": correct / self.num_sources,
            "context_nll": nll / self.num_sources,
        }


def block_starts(num_sentences: int, config: ValidationConfig) -> tuple[npt.NDArray[np.int64], int]:
    """Choose the blocks of a split.

    The split is divided into blocks of `num_candidates`, and as many as fit into `num_sentences` are drawn with the
    seed. A split smaller than one block is one smaller block.

    Args:
        num_sentences: Sentences of the split.
        config: Sizes and seed.

    Returns:
        First sentence of every block, ascending, int64 [blocks]; and the sentences of a block.
    """
    num_candidates = min(config.num_candidates, num_sentences)
    if num_candidates == 0:
        return np.zeros(0, dtype=np.int64), 0
    available = num_sentences // num_candidates
    num_blocks = min(available, max(1, config.num_sentences // num_candidates))
    generator = np.random.default_rng(config.seed)
    blocks = generator.choice(available, size=num_blocks, replace=False)
    return np.sort(blocks).astype(np.int64) * num_candidates, num_candidates


def neighbours(documents: npt.NDArray[np.int64], *, context_size: int) -> npt.NDArray[np.bool_]:
    """Return which sentences of a contiguous block are neighbours, bool [candidates, candidates]."""
    position = np.arange(len(documents))
    distance = np.abs(position[:, None] - position[None, :])
    near = (distance >= 1) & (distance <= context_size)
    return np.asarray(near & (documents[:, None] == documents[None, :]))


def similarity_scores(similarity: Tensor, in_context: Tensor) -> tuple[float, float]:
    """Return accuracy and negative log-likelihood summed over the source sentences of one block.

    Candidates with the same top score share the answer, so that equal vectors score exactly as chance does.

    Args:
        similarity: Of sources with candidates, f . g, float [candidates, candidates]; its diagonal is overwritten.
        in_context: The neighbours, bool [candidates, candidates].

    Returns:
        The number of correct answers, and the negative log-likelihood in nats.
    """
    similarity.fill_diagonal_(-torch.inf)
    sources = in_context.any(dim=1)
    similarity = similarity[sources]
    in_context = in_context[sources]
    top = similarity == similarity.amax(dim=1, keepdim=True)
    correct = (top & in_context).sum(dim=1).double() / top.sum(dim=1).double()
    similarity = similarity.double()
    # Log-probabilities of the few neighbours only.
    rows, columns = in_context.nonzero(as_tuple=True)
    log_probabilities = similarity[rows, columns] - similarity.logsumexp(dim=1)[rows]
    nll = -(log_probabilities / in_context.sum(dim=1)[rows]).sum()
    return float(correct.sum()), float(nll)
