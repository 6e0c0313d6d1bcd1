"""View generation: a sentence's vector tells the words of the next one from others; its decoder is the second view.

    x    = U z,   U [word dim, dim], the transpose of the second encoder's map W
    loss = mean over words w of the next sentence of  -log s(x . v_w) - sum over K negatives k of log s(-x . v_k)
    after each step  U <- (1 + beta) U - beta U U^T U,  so that U's rows stay orthonormal and W = U^T is its inverse

v are the first encoder's word vectors, fixed; negatives are drawn in proportion to count^0.75.

Source: Tang and de Sa, 2018, section 2.1; Mikolov et al., 2013 (negative sampling); Cisse et al., 2017 (the update).
Differs: a sentence draws its negatives once and uses them for each word of the next one. The last sentence of a batch,
or of a worker's share of it, has no next one.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysent.data.batches import Batch
from raysent.data.vocabulary import UNK_ID
from raysent.kernels.devices import to_device
from raysent.models.objectives import BuildContext, ObjectiveConfig, Read
from raysent.models.objectives import Objective as BaseObjective

_SMOOTHING = 0.75


class Config(ObjectiveConfig):
    """View generation.

    Attributes:
        num_negatives: K.
        beta: Strength of the update that keeps the decoder invertible; 0 for none.
    """

    has_state: ClassVar[bool] = True
    is_cosine: ClassVar[bool] = True
    reads_counts: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    needs_map: ClassVar[bool] = True

    type: Literal["view_generation"] = "view_generation"
    num_negatives: int = pydantic.Field(default=5, ge=1)
    beta: float = pydantic.Field(default=0.01, ge=0, lt=0.5)


class Objective(BaseObjective):
    """The loss of one batch; the decoder is the second encoder's map."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        if build_context.words is None or not build_context.second_parameters or build_context.word_counts is None:
            raise ValueError("view generation needs a second encoder of type linear, fixed words and their counts")
        self._config = config
        # Neither is a parameter of the objective's own: they are the encoders'.
        self._words = (build_context.words,)
        self._map = build_context.second_parameters[-1:]
        weights = build_context.word_counts.double().pow(_SMOOTHING)
        weights[: UNK_ID + 1] = 0.0
        # Drawn from by NumPy, so they stay in its memory.
        self.shares = (weights / weights.sum()).numpy()

    def forward(self, read: Read, batch: Batch, *, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean over the words of all sentences that follow one of the batch, in nats."""
        f = read(batch.sentences)[0]
        with torch.autocast(f.device.type, enabled=False):
            return self.generate(f, batch, generator=generator)

    def generate(self, f: Tensor, batch: Batch, *, generator: torch.Generator | None) -> Tensor:
        """Return the loss of vectors [batch, dim]."""
        rows, words = next_words(batch)
        if len(words) == 0:
            return 0.0 * f.sum()
        decoded = f.float() @ self._map[0].float()  # U z [batch, word dim]
        chosen = to_device(words, f.device)
        sources = to_device(rows, f.device)
        right = (decoded[sources] * self._vectors(chosen)).sum(dim=1)
        negatives = to_device(self._draw(len(f), generator), f.device)
        wrong = torch.einsum("bd,bkd->bk", decoded, self._vectors(negatives))
        loss = functional.softplus(-right) + functional.softplus(wrong).sum(dim=1)[sources]
        return loss.mean()

    def after_step(self) -> None:
        """Bring the decoder's rows back towards orthonormal ones."""
        if self._config.beta:
            orthonormalize(self._map[0], beta=self._config.beta)

    def _vectors(self, words: Tensor) -> Tensor:
        """Return word vectors without gradient, [..., word dim]."""
        return self._words[0].weight.detach()[words].float()

    def _draw(self, batch: int, generator: torch.Generator | None) -> np.ndarray:
        """Return negative words of each sentence [batch, num_negatives]."""
        seed = int(torch.randint(0, 2**62, (), generator=generator))
        size = (batch, self._config.num_negatives)
        return np.random.default_rng(seed).choice(len(self.shares), size=size, p=self.shares)


def next_words(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each known word of a sentence that follows another of the batch, the other's row and the word.

    Returns:
        int64 [words] each.
    """
    ids, lengths = batch.sentences
    ends = np.cumsum(lengths)
    place = {position: row for row, position in enumerate(batch.positions.tolist())}
    rows, words = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for row, position in enumerate(batch.positions.tolist()):
        after = place.get(position + 1)
        if after is not None and batch.documents[after] == batch.documents[row]:
            found = ids[ends[after] - lengths[after] : ends[after]]
            found = found[found > UNK_ID]
            words.append(found.astype(np.int64))
            rows.append(np.full(len(found), row, dtype=np.int64))
    return np.concatenate(rows), np.concatenate(words)


@torch.no_grad()
def orthonormalize(weight: nn.Parameter, *, beta: float) -> None:
    """Take one step of W <- (1 + beta) W - beta W W^T W, in place; the smaller Gram matrix is used."""
    is_tall = weight.shape[0] >= weight.shape[1]
    product = weight @ (weight.T @ weight) if is_tall else (weight @ weight.T) @ weight
    weight.mul_(1 + beta).sub_(product, alpha=beta)
