"""Packing: ragged ids -> the layout that every encoder reads, computed once for both towers and both directions.

Sentences are sorted by length, longest first, and stored time-major: the tokens of time step t are one block of
`batch_sizes[t]` rows, without padding. A token is an index into the distinct words of the batch, so that values that
depend on the word only (its vector, its input projection) are computed once per distinct word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysent.kernels.devices import to_device_together
from raysent.kernels.padding import Cut, PaddedBatch, TokenOrder, lay_out_padded
from raysent.kernels.ragged import Sentences

_UINT16 = 1 << 16


@dataclass(frozen=True)
class Bags:
    """Rows of words to be summed.

    Attributes:
        tokens: Indices into the distinct words, the rows concatenated [tokens].
        starts: First token of each row [rows].
        num_words: Number of distinct words.
        weights: Weight of each token, float32 [tokens]; None is 1.
    """

    tokens: Tensor
    starts: Tensor
    num_words: int
    weights: Tensor | None = None

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each row [rows]."""
        return torch.diff(self.starts, append=self.starts.new_full((1,), len(self.tokens)))

    @cached_property
    def rows(self) -> Tensor:
        """Row of each token [tokens]."""
        rows = torch.arange(len(self.starts), device=self.starts.device)
        return torch.repeat_interleave(rows, self.lengths, output_size=len(self.tokens))

    @cached_property
    def by_word(self) -> Bags:
        """The transpose: for each word, the rows that contain it."""
        order, starts = groups(self.tokens, self.num_words)
        weights = None if self.weights is None else self.weights[order]
        return Bags(self.rows[order], starts, len(self.starts), weights)


@dataclass(frozen=True)
class Packed:
    """One packed batch; index tensors are int64, on the device of the model.

    Attributes:
        words: Distinct word ids, ascending [distinct].
        batch_sizes: Number of sentences that reach time step t, decreasing [time].
        forward_tokens: Indices into `words`, time-major, sentences read forwards [tokens].
        backward_tokens: Indices into `words`, time-major, sentences read backwards [tokens].
        order: Sentence at each sorted position [batch].
        rank: Sorted position of each sentence [batch].
        sentence_tokens: Indices into `words`, the sentences concatenated in their given order [tokens].
        sentence_starts: First token of each sentence in `sentence_tokens` [batch].
        token_order: The same on the host, for layouts in padded groups.
    """

    words: Tensor
    batch_sizes: tuple[int, ...]
    forward_tokens: Tensor
    backward_tokens: Tensor
    order: Tensor
    rank: Tensor
    sentence_tokens: Tensor
    sentence_starts: Tensor
    token_order: TokenOrder
    _padded: dict[tuple[Cut, bool], PaddedBatch] = field(
        default_factory=dict, repr=False, compare=False
    )

    def padded(self, cut: Cut) -> PaddedBatch:
        """Return the batch in padded groups that read distinct words, laid out once for all towers that read it so."""
        return self._laid_out(cut, by_word=True)

    def padded_tokens(self, cut: Cut) -> PaddedBatch:
        """Return the batch in padded groups that read a row for each of `sentence_tokens`."""
        return self._laid_out(cut, by_word=False)

    def _laid_out(self, cut: Cut, *, by_word: bool) -> PaddedBatch:
        key = (cut, by_word)
        if key not in self._padded:
            order = self.token_order
            if not by_word:
                order = replace(order, rows=None, num_rows=order.num_tokens)
            self._padded[key] = lay_out_padded(order, cut, self.words.device)
        return self._padded[key]

    @property
    def batch(self) -> int:
        """Number of sentences."""
        return self.batch_sizes[0]

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all sentences."""
        return len(self.forward_tokens)

    @cached_property
    def forward_places(self) -> Tensor:
        """Place of each time-major token in `sentence_tokens` [tokens]."""
        starts = self.sentence_starts.index_select(0, self.order)
        return torch.cat([starts[:batch] + time for time, batch in enumerate(self.batch_sizes)])

    @cached_property
    def sentences(self) -> Bags:
        """The words of each sentence."""
        return Bags(self.sentence_tokens, self.sentence_starts, len(self.words))


class PackedAhead:
    """Sentences that are packed already, found by the object that holds them."""

    def __init__(self) -> None:
        """Hold none."""
        # The sentences are kept, so that no other object gets the same id.
        self._packed: dict[int, tuple[Sentences, Packed]] = {}

    def add(self, sentences: Sentences, packed: Packed) -> None:
        """Store sentences as they are packed."""
        self._packed[id(sentences)] = (sentences, packed)

    def find(self, sentences: Sentences) -> Packed | None:
        """Return the same object of sentences as it was packed; None where it was not."""
        return self._packed.get(id(sentences), (sentences, None))[1]


def groups(tokens: Tensor, num_words: int) -> tuple[Tensor, Tensor]:
    """Group tokens by word, for sums over all tokens of a word.

    Args:
        tokens: Index of each token's word [tokens].
        num_words: Number of words.

    Returns:
        Tokens ordered by word [tokens], and the position of each word's first token among them [distinct].
    """
    if tokens.device.type == "cpu" and num_words <= _UINT16:
        # NumPy uses a radix sort for 16 bits, which is faster.
        order = torch.from_numpy(np.argsort(tokens.numpy().astype(np.uint16), kind="stable"))
    else:
        order = torch.argsort(tokens, stable=True)
    return order, torch.searchsorted(tokens[order], torch.arange(num_words, device=tokens.device))


def pack(sentences: Sentences, *, device: torch.device | None = None) -> Packed:
    """Pack one batch.

    Args:
        sentences: At least one sentence, every length at least 1.
        device: Device of the model's parameters.
    """
    words, tokens = np.unique(sentences.ids, return_inverse=True)
    return _pack(words, tokens.reshape(-1), sentences.lengths, device)


def pack_blocks(
    sentences: Sentences, *, batch_size: int, device: torch.device | None = None
) -> Iterable[Packed]:
    """Pack many sentences in blocks of similar lengths that share one list of distinct words.

    The blocks have the sentences of `block_rows`, in that order.

    Args:
        sentences: At least one sentence, every length at least 1.
        batch_size: Maximum number of sentences of a block.
        device: Device of the model's parameters.
    """
    words, tokens = np.unique(sentences.ids, return_inverse=True)
    tokens = tokens.reshape(-1)
    starts = _starts(sentences.lengths)
    for rows in block_rows(sentences.lengths, batch_size=batch_size):
        lengths = sentences.lengths[rows]
        # The place of each token in its sentence, so that a block's tokens are found in those of all sentences.
        inside = np.arange(int(lengths.sum())) - np.repeat(_starts(lengths), lengths)
        yield _pack(words, tokens[np.repeat(starts[rows], lengths) + inside], lengths, device)


def block_rows(lengths: npt.NDArray[np.int64], *, batch_size: int) -> list[npt.NDArray[np.int64]]:
    """Return the sentences of each block of similar lengths, longest first, int64 [batch] each."""
    order = np.argsort(-lengths, kind="stable")
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def _starts(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first token of each sentence, int64 [batch]."""
    return np.cumsum(lengths) - lengths


def _pack(
    words: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    device: torch.device | None,
) -> Packed:
    order = np.argsort(-lengths, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    starts = _starts(lengths)
    sorted_lengths = lengths[order]
    time = np.arange(sorted_lengths[0])[:, None]
    reaches = time < sorted_lengths[None, :]  # [time, batch]
    # Time-major: of each time step the tokens of the sentences that reach it, which are the first ones.
    forward = (starts[order][None, :] + time)[reaches]
    backward = ((starts[order] + sorted_lengths - 1)[None, :] - time)[reaches]

    tensors = to_device_together(
        {
            "words": words,
            "forward_tokens": tokens[forward],
            "backward_tokens": tokens[backward],
            "order": order,
            "rank": rank,
            "sentence_tokens": tokens,
            "sentence_starts": starts,
        },
        device,
    )
    return Packed(
        words=tensors["words"],
        forward_tokens=tensors["forward_tokens"],
        backward_tokens=tensors["backward_tokens"],
        order=tensors["order"],
        rank=tensors["rank"],
        sentence_tokens=tensors["sentence_tokens"],
        sentence_starts=tensors["sentence_starts"],
        batch_sizes=tuple(reaches.sum(axis=1).tolist()),
        token_order=TokenOrder(
            lengths=lengths,
            of_sentence=starts,
            of_time=time[:, 0],
            rows=tokens,
            num_rows=len(words),
        ),
    )
