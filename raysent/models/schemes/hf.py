"""`hf:PATH`: a folder of Hugging Face's transformers with its tokenizer, or a model of the hub by its name.

A folder without settings of sentence-transformers gives the mean of the last hidden states of a sentence's tokens,
special tokens included and padding excluded. It is read as `st:PATH` reads it; see `raysent.models.schemes.st`.
"""

from __future__ import annotations

from raysent.models.pretrained import PretrainedFolders
from raysent.models.schemes.st import read_model
from raysent.models.sentence_encoder import SentenceEncoder

FORM = "hf:PATH"

# Part of the key: a change of how vectors are made makes new records.
_VERSION = 2

_FOLDERS = PretrainedFolders("hf", keys=("hf", _VERSION))
label = _FOLDERS.label
key = _FOLDERS.key
num_bytes = _FOLDERS.num_bytes


def load(rest: str) -> SentenceEncoder:
    """Return the model of a folder.

    Raises:
        ArtifactError: If there is no such folder, or its libraries cannot read it.
        ConfigError: If these are not installed, or the folder needs code that is not trusted.
    """
    return read_model("hf", _FOLDERS.files(rest), rest)


def load_earlier(rest: str, key: str) -> SentenceEncoder | None:
    """Return the model that an earlier version knew by a key; None where it knew none."""
    if not _FOLDERS.is_earlier_key(rest, key):
        return None
    return load(rest)
