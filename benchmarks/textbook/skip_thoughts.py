"""Textbook Skip-Thoughts: padded `nn.GRU` decoders, `nn.Linear` over all their steps, cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchmarks.textbook import Gru
from raysent.data.batches import Triplets
from raysent.data.vocabulary import Sentences

NOTHING = -100  # ignored by cross-entropy


class SkipThoughts(nn.Module):
    """An encoder, two decoders that see its vector at every step, and one layer that scores words."""

    def __init__(self, num_words: int, word_dim: int, dim: int) -> None:
        super().__init__()
        self.encoder = Gru(num_words, word_dim, dim)
        self.decoders = nn.ModuleList(
            nn.GRU(word_dim + dim, dim, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(dim, num_words)

    def forward(self, batch: Triplets) -> Tensor:
        """Return the summed loss; word 0 ends a sentence, and the input of the first word is zero."""
        vectors = self.encoder(*padded(batch.sentences))
        return torch.stack(
            [
                self.decode(gru, vectors, side)
                for gru, side in zip(self.decoders, (batch.before, batch.after), strict=True)
            ]
        ).sum()

    def decode(self, gru: nn.Module, vectors: Tensor, sentences: Sentences) -> Tensor:
        """Return the summed loss of the sentences of one decoder."""
        ids, lengths = padded(sentences)
        words = nn.functional.pad(
            self.encoder.words(ids), (0, 0, 1, 0)
        )  # [batch, time + 1, word dim]
        states, _ = gru(torch.cat([words, vectors[:, None].expand(-1, words.shape[1], -1)], dim=2))
        is_step = torch.arange(words.shape[1]) <= lengths[:, None]
        targets = nn.functional.pad(ids, (0, 1)).masked_fill(~is_step, NOTHING)
        scores = self.output(states).flatten(0, 1)
        return nn.functional.cross_entropy(
            scores, targets.flatten(), ignore_index=NOTHING, reduction="sum"
        )


def padded(sentences: Sentences) -> tuple[Tensor, Tensor]:
    """Return ids [batch, time] padded with zeros, and lengths [batch]."""
    rows = torch.from_numpy(sentences.ids).long().split(sentences.lengths.tolist())
    return pad_sequence(list(rows), batch_first=True), torch.from_numpy(sentences.lengths)


class Trainer:
    """Dense Adam on all parameters in float32, with the whole gradient clipped by its norm."""

    def __init__(self, *, num_words: int, word_dim: int, dim: int) -> None:
        torch.manual_seed(0)
        self.model = SkipThoughts(num_words, word_dim, dim)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-4)

    def __call__(self, batch: Triplets) -> float:
        """Train on one batch and return the loss."""
        torch.set_float32_matmul_precision("highest")
        loss = self.model(batch)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self._optimizer.step()
        return float(loss.detach())
