"""`middle:PATH`: the middle layer of a pretrained encoder: the mean of its states after two thirds of the layers.

These states say more about the words of a text than those of the last layer, which was trained to compare meanings: a
combination of both is above the last layer alone on nearly every labelled table.
"""

from __future__ import annotations

from raysent.models.frozen import read_frozen
from raysent.models.model import SentenceModel
from raysent.models.pretrained import PretrainedFolders

FORM = "middle:PATH"

_FOLDERS = PretrainedFolders("middle", keys=("middle", 1))
key = _FOLDERS.key
num_bytes = _FOLDERS.num_bytes


def label(rest: str) -> str:
    """Return the encoder's short name, with the scheme before it."""
    return f"middle:{_FOLDERS.label(rest)}"


def load(rest: str) -> SentenceModel:
    """Return the encoder of the middle layer.

    Raises:
        ArtifactError: If there is no such encoder, or it has parts that only sentence-transformers reads.
        ConfigError: If the libraries of the extra `pretrained` are not installed.
    """
    return read_frozen(_FOLDERS.files(rest), is_middle=True)
