"""`hf:PATH`: a folder of Hugging Face's transformers with its tokenizer, or a model of the hub by its name.

A folder without settings of sentence-transformers gives the mean of the last hidden states of a sentence's tokens,
special tokens included and padding excluded. It is read as `st:PATH` reads it; see `raysent.models.schemes.st`.
"""

from __future__ import annotations

from raysent.models.pretrained import PretrainedFolders
from raysent.models.schemes.st import SentenceTransformersModel, read_model

FORM = "hf:PATH"

# Part of the key: a change of how vectors are made makes new records.
_VERSION = 2

_FOLDERS = PretrainedFolders("hf", "transformers", keys=("hf", _VERSION))
label, key, num_bytes = _FOLDERS.label, _FOLDERS.key, _FOLDERS.num_bytes


def load(rest: str) -> SentenceTransformersModel:
    """Return the model of a folder.

    Raises:
        ArtifactError: If there is no such folder, or its libraries cannot read it.
        ConfigError: If these are not installed, or the folder needs code that is not trusted.
    """
    return read_model("hf", _FOLDERS.folder(rest), rest)
