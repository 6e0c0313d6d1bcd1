"""`words:PATH`: the mean of a trained model's own word vectors, without its encoder; also `words:start:PATH`."""

from __future__ import annotations

from pathlib import Path

from raysent.models.derived import bag_of_words
from raysent.models.model import SentenceModel
from raysent.models.schemes import start
from raysent.storage import content_key, file_sha256
from raysent.storage.layout import MODEL_FILE, TENSORS_FILE, VOCABULARY_FILE

FORM = "words:PATH"

_START = "start:"


def label(rest: str) -> str:
    """Return the name with the last part of the path."""
    if rest.startswith(_START):
        return f"words:{start.label(rest.removeprefix(_START))}"
    return f"words:{Path(rest).name}"


def key(rest: str) -> str:
    """Return a key of the model's content."""
    if rest.startswith(_START):
        return content_key("words", start.key(rest.removeprefix(_START)))
    folder = start.model_folder(rest)
    digests = [file_sha256(folder / name) for name in (MODEL_FILE, TENSORS_FILE, VOCABULARY_FILE)]
    return content_key("words", *digests)


def load(rest: str) -> SentenceModel:
    """Return the model that averages the word vectors of another.

    Raises:
        ArtifactError: If the folder holds no trained model.
    """
    if rest.startswith(_START):
        return bag_of_words(start.load(rest.removeprefix(_START)))
    return bag_of_words(SentenceModel.load(start.model_folder(rest)))
