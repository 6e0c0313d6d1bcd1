"""`toy:DIM`: a sentence's number of characters, DIM times."""

from __future__ import annotations

import numpy as np

from raysent.models.sentence_encoder import Float32, SentenceEncoder

FORM = "toy:DIM"


def label(rest: str) -> str:
    """Return the name itself."""
    return f"toy:{rest}"


def key(rest: str) -> str:
    """Return a key of the name, which determines the vectors."""
    return f"toy-{rest}"


def load(rest: str) -> Lengths:
    """Return the encoder."""
    return Lengths(int(rest))


class Lengths(SentenceEncoder):
    """The number of characters."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""
        return self._dim

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return the lengths, float32 [sentences, dim]."""
        return np.tile(np.array([[len(one)] for one in sentences], dtype=np.float32), self._dim)
