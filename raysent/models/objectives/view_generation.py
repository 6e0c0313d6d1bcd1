"""View generation: predict the words of the next sentence against negatives; the decoder is the second view.

    x    = U z,   U [word dim, dim], the transpose of the second encoder's map W
    loss = mean over words w of the next sentence of  -log s(x . v_w) - sum over K negatives k of log s(-x . v_k)
    after each step  U <- (1 + beta) U - beta U U^T U,  so that U's rows stay orthonormal and W = U^T is its inverse

v are the first encoder's fixed word vectors; negatives are drawn in proportion to count^0.75.

Source: Tang and de Sa, 2018, section 2.1; Mikolov et al., 2013 (negative sampling); Cisse et al., 2017 (the update).
Differs: negatives are drawn once for a sentence and used for each word of the next one. The last sentence of a worker's
batch has no next one.
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
from raysent.errors import DataError
from raysent.kernels.devices import to_device
from raysent.models.encoders import EncoderConfig
from raysent.models.objectives import BuildContext, ObjectiveConfig, Read
from raysent.models.objectives import Objective as BaseObjective

_SMOOTHING = 0.75


class Config(ObjectiveConfig):
    """Settings of view generation.

    Attributes:
        num_negatives: K.
        beta: Strength of the update that keeps the decoder invertible; 0 for no update.
    """

    in_saved_model: ClassVar[Literal["kept", "rebuilt", "absent"]] = "absent"

    type: Literal["view_generation"] = "view_generation"
    num_negatives: int = pydantic.Field(default=5, ge=1)
    beta: float = pydantic.Field(default=0.01, ge=0, lt=0.5)

    def check_towers(self, first: EncoderConfig, second: EncoderConfig | None) -> None:
        """Refuse encoders without a map to decode with; see `check_map`."""
        check_map(first, second, num_maps=1, objective=self.type)
        super().check_towers(first, second)

    def comparable(self, vectors: Tensor) -> Tensor:
        """Return vectors of unit length, as the paper compares them."""
        return functional.normalize(vectors, dim=1)


def check_map(
    first: EncoderConfig, second: EncoderConfig | None, *, num_maps: int, objective: str
) -> None:
    """Refuse encoders whose second is not a linear map of the first's fixed word vectors.

    Raises:
        ValueError: With what must hold.
    """
    words = getattr(first, "embedding", None)
    if words is None or words.trained:
        raise ValueError(
            f"encoder.embedding.trained must be false with objective {objective}; fix its words"
        )
    if getattr(second, "num_maps", None) != num_maps or getattr(second, "embedding", None) != words:
        raise ValueError(
            f"second_encoder must be of type linear with num_maps: {num_maps} and the embedding of encoder; "
            f"objective {objective} trains its map as decoder"
        )


class Objective(BaseObjective):
    """The loss of one batch; the decoder is the second encoder's map."""

    def __init__(self, config: Config, build_context: BuildContext) -> None:
        super().__init__()
        if (
            build_context.words is None
            or not build_context.second_parameters
            or build_context.word_counts is None
        ):
            raise ValueError(
                "view generation needs a second encoder of type linear, fixed words and their counts"
            )
        self._config = config
        # Tuples, because both are parameters of the encoders, not of this module.
        self._words = (build_context.words,)
        self._map = build_context.second_parameters[-1:]
        weights = build_context.word_counts().double().pow(_SMOOTHING)
        weights[: UNK_ID + 1] = 0.0
        if not weights.any():
            raise DataError(
                "corpus: must have words with a vector; given unknown words alone; name other vectors"
            )
        # An array, because NumPy draws the negatives.
        self.word_probabilities = (weights / weights.sum()).numpy()

    def forward(
        self, read: Read, batch: Batch, *, generator: torch.Generator | None = None
    ) -> Tensor:
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
        word_ids = to_device(words, f.device)
        sources = to_device(rows, f.device)
        right = (decoded.index_select(0, sources) * self._vectors(word_ids)).sum(dim=1)
        negatives = to_device(self._draw(len(f), generator), f.device)
        wrong = torch.einsum("bd,bkd->bk", decoded, self._vectors(negatives))
        # All words that follow a sentence have its negatives, whose sum is computed once.
        negative_losses = functional.softplus(wrong).sum(dim=1)
        loss = functional.softplus(-right) + negative_losses.index_select(0, sources)
        return loss.mean()

    def after_step(self) -> None:
        """Move the decoder's rows towards orthonormal ones."""
        if self._config.beta:
            orthonormalize(self._map[0], beta=self._config.beta)

    def _vectors(self, words: Tensor) -> Tensor:
        """Return word vectors without gradient, [..., word dim]."""
        return self._words[0].weight.detach()[words].float()

    def _draw(self, batch: int, generator: torch.Generator | None) -> np.ndarray:
        seed = int(torch.randint(0, 2**62, (), generator=generator))
        size = (batch, self._config.num_negatives)
        return np.random.default_rng(seed).choice(
            len(self.word_probabilities), size=size, p=self.word_probabilities
        )


def next_words(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return each known word of a sentence whose predecessor is in the batch, with the predecessor's row.

    Args:
        batch: Sentences with their positions.

    Returns:
        Rows and words, int64 [words] each.
    """
    ids, lengths = batch.sentences
    ends = np.cumsum(lengths)
    # Positions are those of the corpus: the sentence after one, if the batch has it, is at the next position.
    row_of_position = {position: row for row, position in enumerate(batch.positions.tolist())}
    rows = [np.zeros(0, dtype=np.int64)]
    words = [np.zeros(0, dtype=np.int64)]
    for row, position in enumerate(batch.positions.tolist()):
        after = row_of_position.get(position + 1)
        if after is not None and batch.documents[after] == batch.documents[row]:
            following_words = ids[ends[after] - lengths[after] : ends[after]]
            following_words = following_words[following_words > UNK_ID]
            words.append(following_words.astype(np.int64))
            rows.append(np.full(len(following_words), row, dtype=np.int64))
    return np.concatenate(rows), np.concatenate(words)


@torch.no_grad()
def orthonormalize(weight: nn.Parameter, *, beta: float) -> None:
    """Compute one step of W <- (1 + beta) W - beta W W^T W in place, with the smaller Gram matrix."""
    is_tall = weight.shape[0] >= weight.shape[1]
    if is_tall:
        product = weight @ (weight.T @ weight)
    else:
        product = (weight @ weight.T) @ weight
    weight.mul_(1 + beta).sub_(product, alpha=beta)
