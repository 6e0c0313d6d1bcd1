"""Toy copy: the model in raysent's own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysent.exports.formats import Encode
from raysent.models import SentenceModel, load
from raysent.models.sentence_encoder import Float32

TARGET = "toy_copy"
EXTRA = ""
LIBRARY = "raysent"
USAGE = 'model = raysent.load("FOLDER")'
DIFFERS_ON: tuple[str, ...] = ()


def check_model(models: Sequence[SentenceModel]) -> None:
    """Accept every model."""


def write(models: Sequence[SentenceModel], folder: Path) -> None:
    """Write the first model."""
    models[0].save(folder)


def open(folder: Path) -> Encode:
    """Return the `encode` of the copy."""
    model = load(folder)

    def encode(sentences: list[str]) -> Float32:
        return model.encode(sentences)

    return encode
