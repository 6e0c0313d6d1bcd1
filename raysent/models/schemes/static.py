"""`static:PATH`: the table of sub-words that model2vec distills from a pretrained encoder, or a folder of model2vec.

A text's vector is the mean of its sub-words' vectors, of unit length, hundreds of times faster than the encoder. The
table is made once, see `raysent.models.static`, and the model is a bag of sub-words: it is saved with its table, and
exported, whitened and searched like any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from raysent.config import Document, validate
from raysent.models.config import ModelConfig
from raysent.models.embeddings import EmptyTables
from raysent.models.known import STATIC_SCHEME
from raysent.models.model import SentenceModel
from raysent.models.origin import Origin
from raysent.models.pretrained import PretrainedFolders, model_files
from raysent.models.static import (
    earlier_folder,
    is_static_folder,
    read_table,
    table_folder,
    table_key,
)

FORM = f"{STATIC_SCHEME}PATH"

_FOLDERS = PretrainedFolders("static")


def label(rest: str) -> str:
    """Return the encoder's short name, with the scheme before it; of a folder of model2vec its own."""
    short = _FOLDERS.label(rest)
    return short if is_static_folder(_FOLDERS.folder(rest)) else f"{STATIC_SCHEME}{short}"


def key(rest: str) -> str:
    """Return a key of the table's files, or of the encoder, the recipe and the libraries that distill it.

    Raises:
        ConfigError: If an encoder is to be distilled, and the libraries are not installed.
    """
    return table_key(_FOLDERS.files(rest))


def num_bytes(rest: str) -> int:
    """Return the size of the table's files."""
    folder = table_folder(_FOLDERS.files(rest))
    return sum(path.stat().st_size for path in model_files(folder))


def load(rest: str) -> SentenceModel:
    """Return the model of a table.

    Raises:
        ArtifactError: If there is no such folder or encoder, or it cannot be read.
        ConfigError: If an encoder is to be distilled, and the libraries are not installed.
    """
    files = _FOLDERS.files(rest)
    return model_of_table(table_folder(files), name=f"{STATIC_SCHEME}{rest}", encoder=files.name)


def load_earlier(rest: str, key: str) -> SentenceModel | None:
    """Return the model of a table that is still in the cache under the key of an earlier version; None if it is not."""
    folder = earlier_folder(key)
    if folder is None:
        return None
    return model_of_table(folder, name=f"{STATIC_SCHEME}{rest}", encoder=_FOLDERS.files(rest).name)


def model_of_table(folder: Path, *, name: str, encoder: str) -> SentenceModel:
    """Return the model of a folder of model2vec.

    Args:
        folder: The folder.
        name: What names it, for messages.
        encoder: The encoder that it is a table of, or its own name.

    Raises:
        ArtifactError: If it cannot be read.
    """
    table = read_table(folder, name=name)
    settings: dict[str, Any] = {
        "type": "bag",
        "pooling": "mean",
        "embedding": {"dim": int(table.vectors.shape[1])},
    }
    config = validate(ModelConfig, Document({"encoder": settings}))
    tables = EmptyTables(table.vocabulary, generator=torch.Generator())
    model = SentenceModel(config, table.vocabulary, tables=tables, max_length=table.max_length)
    model.tables[0].weight.data = table.vectors
    model.origin = Origin(kind="static", encoder=Path(encoder).name)
    return model.eval()
