"""How sentences become rows of vectors: precision, length, prompt; and how many are encoded at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from raysent.errors import ConfigError
from raysent.models.codes import pack_bits
from raysent.models.model import SentenceModel
from raysent.models.sentence_encoder import SentenceEncoder

# What a row of a file of vectors is made of.
Precision = Literal["float32", "int8", "ubinary"]
_PRECISIONS: tuple[Precision, ...] = get_args(Precision)
# Sentences between two steps of the progress bar, and rows of a row group.
BLOCK_SENTENCES = 8192
PROCESS_BYTES = 2 << 30


@dataclass(frozen=True)
class Encoding:
    """How sentences become rows of vectors.

    Attributes:
        precision: ``float32``; ``int8``, each vector times a number of its own, so that its largest one becomes 127;
            or ``ubinary``, the bits of a model with a code or else the signs, eight per byte.
        normalize: Whether each vector gets length 1.
        batch_size: Sentences per batch.
        bfloat16: Whether products are computed in bfloat16; only for trained models.
        device: ``cpu``, or ``cuda``, on a cluster for workers with a GPU each; `encode_corpus` sets it.
        prompt_name: The model's prompt that is put before each text; of several the first that it has; None for none.
    """

    precision: str = "float32"
    normalize: bool = False
    batch_size: int = 512
    bfloat16: bool = False
    device: str | None = None
    prompt_name: str | Sequence[str] | None = None

    def check(self, encoder: SentenceEncoder, name: str | Path) -> None:
        """Check that a model can be used so.

        Raises:
            ConfigError: If it cannot.
        """
        if self.precision not in _PRECISIONS:
            raise ConfigError(
                f"precision: must be {', '.join(_PRECISIONS)}; given '{self.precision}'"
            )
        if self.precision == "int8" and encoder.similarity_measure == "hamming":
            raise ConfigError(
                f"precision: must be float32 or ubinary for a model with a code; given int8 for {name}"
            )
        if self.bfloat16 and not isinstance(encoder, SentenceModel):
            raise ConfigError(
                f"bfloat16: must be used with a trained model; given {name}; leave it out"
            )

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `encode`."""
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "normalize_embeddings": self.normalize,
        }
        if isinstance(self.prompt_name, str) and self.prompt_name:
            options["prompt_name"] = self.prompt_name
        elif self.prompt_name:
            # Each of several encoders takes the first of these prompts that it has.
            options["reads_as"] = self.prompt_name
        if self.device:
            options["device"] = self.device
        if self.bfloat16:
            options["bfloat16"] = True
        return options

    def rows(self, vectors: np.ndarray) -> np.ndarray:
        """Return what `encode` returned [rows, dim] as it is stored; bits as uint8 [rows, bytes]."""
        if self.precision == "float32":
            return vectors
        if self.precision == "int8":
            largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
            # A vector of zeros stays one.
            factors = 127 / np.where(largest > 0, largest, 1)
            return np.rint(vectors * factors).astype(np.int8)
        return pack_bits(vectors > 0)


def unit_of(precision: str) -> str:
    """Return what the width of a row counts at a precision."""
    if precision == "float32":
        return "dimensions"
    return "bytes each"
