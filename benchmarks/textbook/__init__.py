"""Textbook implementations: padded encoders in stock PyTorch, dense Adam, float32; the peer of raysent's step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from raysent.data.batches import Batch


class Tower(nn.Module):
    """Padded ids [batch, time] and lengths [batch] -> vectors [batch, dim]."""

    def __init__(self, num_words: int, word_dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, word_dim)

    def kept(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return 1 for words and 0 for padding, [batch, time, 1]."""
        return (torch.arange(ids.shape[1]) < lengths[:, None]).float()[:, :, None]


class Gru(Tower):
    """The state at the last word."""

    def __init__(self, num_words: int, word_dim: int, dim: int) -> None:
        super().__init__(num_words, word_dim)
        self.gru = nn.GRU(word_dim, dim, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors."""
        states, _ = self.gru(self.words(ids))
        return states[torch.arange(len(ids)), lengths - 1]


class BiGru(Tower):
    """The last states of two directions; the second must not start in the padding, so torch packs the batch."""

    def __init__(self, num_words: int, word_dim: int, dim: int) -> None:
        super().__init__(num_words, word_dim)
        self.gru = nn.GRU(word_dim, dim // 2, batch_first=True, bidirectional=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors."""
        _, last = self.gru(
            pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        )
        return torch.cat(tuple(last), dim=1)


class Lstm(Tower):
    """The maximum over the states of two directions."""

    def __init__(self, num_words: int, word_dim: int, dim: int) -> None:
        super().__init__(num_words, word_dim)
        self.lstm = nn.LSTM(word_dim, dim // 2, batch_first=True, bidirectional=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors."""
        packed, _ = self.lstm(
            pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        )
        states, _ = pad_packed_sequence(packed, batch_first=True)
        return states.masked_fill(self.kept(ids, lengths) == 0, -torch.inf).amax(dim=1)


class Cnn(Tower):
    """Sums over the positions of windows of one, two and three words."""

    def __init__(self, num_words: int, word_dim: int, dim: int) -> None:
        super().__init__(num_words, word_dim)
        self.windows = nn.ModuleList(nn.Conv1d(word_dim, dim // 3, width) for width in (1, 2, 3))

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors."""
        words = nn.functional.pad(
            self.words(ids) * self.kept(ids, lengths), (0, 0, 0, 2)
        ).transpose(1, 2)
        blocks = []
        for width, window in enumerate(self.windows, start=1):
            values = window(words)
            counts = (lengths - width + 1).clamp(min=1)
            is_place = torch.arange(values.shape[2]) < counts[:, None]
            blocks.append((values * is_place[:, None]).sum(dim=2))
        return torch.cat(blocks, dim=1)


class Bag(Tower):
    """Means of word vectors."""

    def __init__(self, num_words: int, word_dim: int, dim: int) -> None:
        super().__init__(num_words, word_dim)
        del dim

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors."""
        return (self.words(ids) * self.kept(ids, lengths)).sum(dim=1) / lengths[:, None]


class Linear(Tower):
    """Means of linearly mapped word vectors."""

    def __init__(self, num_words: int, word_dim: int, dim: int) -> None:
        super().__init__(num_words, word_dim)
        self.map = nn.Linear(word_dim, dim, bias=False)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the vectors."""
        return (self.map(self.words(ids)) * self.kept(ids, lengths)).sum(dim=1) / lengths[:, None]


TOWERS: dict[str, tuple[type[Tower], type[Tower]]] = {
    "gru": (Gru, Gru),
    "bigru": (BiGru, BiGru),
    "lstm": (Lstm, Lstm),
    "cnn": (Cnn, Cnn),
    "bag": (Bag, Bag),
    "views": (Gru, Linear),
}


def step(encoder: str, *, num_words: int, word_dim: int, dim: int) -> Callable[[Batch], float]:
    """Return a function that trains two towers on one batch, with contexts as the objective, and returns the loss."""
    torch.manual_seed(0)
    f, g = (tower(num_words, word_dim, dim) for tower in TOWERS[encoder])
    parameters = [*f.parameters(), *g.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=5e-4)

    def one(batch: Batch) -> float:
        torch.set_float32_matmul_precision("highest")
        rows = torch.from_numpy(batch.sentences.ids).long().split(batch.sentences.lengths.tolist())
        ids, lengths = (
            pad_sequence(list(rows), batch_first=True),
            torch.from_numpy(batch.sentences.lengths),
        )
        place, document = torch.from_numpy(batch.positions), torch.from_numpy(batch.documents)
        target = ((place[:, None] - place).abs() == 1) & (document[:, None] == document)
        sources = target.any(dim=1)
        scores = (f(ids, lengths) @ g(ids, lengths).T).masked_fill(
            torch.eye(len(ids), dtype=torch.bool), -1e9
        )
        share = target[sources].float() / target[sources].sum(dim=1, keepdim=True)
        loss = nn.functional.cross_entropy(scores[sources], share)
        optimizer.zero_grad()
        loss.backward()
        for parameter in parameters:
            nn.utils.clip_grad_norm_([parameter], 5.0)
        optimizer.step()
        return loss.item()

    return one
