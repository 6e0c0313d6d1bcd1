"""The way in which an objective reads sentences: each once, in blocks, with the encoders out of sight."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from raysent.objectives import Read
    from raysent.vocabulary import Sentences

ReadTowers = Callable[["Sentences", bool], tuple[Tensor, ...]]
"""Sentences, and whether in training -> the vectors of each tower [batch, dim]."""


class Reading:
    """One step's vectors: a sentences object that several objectives ask for is encoded once."""

    def __init__(self, read: ReadTowers, *, has_dropout: bool = True) -> None:
        """Remember how to read; without dropout a sentence has the same vector in training and out of it."""
        self._read = read
        self._has_dropout = has_dropout
        # The sentences are kept beside their vectors, so that an identity is never given away twice.
        self._known: dict[tuple[int, bool], tuple[Sentences, tuple[Tensor, ...]]] = {}

    def know(self, sentences: Sentences, vectors: tuple[Tensor, ...], *, is_training: bool = True) -> None:
        """Take over vectors that were computed before, for instance gathered from several workers."""
        self._known[(id(sentences), is_training)] = (sentences, vectors)

    def block(self, index: int, dims: list[int]) -> Read:
        """Return a way to read the block `index` of every tower's vectors, which are made of blocks of `dims`."""

        def read(sentences: Sentences, *, is_training: bool = True) -> tuple[Tensor, ...]:
            if not is_training and not self._has_dropout:
                return tuple(tower.detach() for tower in read(sentences))
            key = (id(sentences), is_training)
            if key not in self._known:
                with torch.set_grad_enabled(torch.is_grad_enabled() and is_training):
                    self._known[key] = (sentences, self._read(sentences, is_training))
            return tuple(torch.split(tower.float(), dims, dim=1)[index] for tower in self._known[key][1])

        return read
