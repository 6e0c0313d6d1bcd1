"""`st:PATH`: a folder of sentence-transformers.

A folder that `raysent export --to sentence-transformers` wrote is read without sentence-transformers, and none of its
code is run. Any other folder is read by sentence-transformers, which must be installed; one with code of its own is
refused unless that code is trusted; see `raysent.models.pretrained`.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.data.vocabulary import Vocabulary
from raysent.errors import ArtifactError, ConfigError
from raysent.models.files import TENSORS_FILE, parse_record
from raysent.models.model import SentenceModel
from raysent.models.pretrained import (
    PretrainedFolders,
    check_code,
    check_tokenizer,
    check_weights,
    first_script,
    reading,
)
from raysent.models.sentence_encoder import Float32, JoinedEncoders, SentenceEncoder
from raysent.storage import load_tensors, read_json
from raysent.storage.layout import EXPORT_FILE, VOCABULARY_FILE

FORM = "st:PATH"
KIND = "raysent export"

_MODULES_FILE = "modules.json"
_LIBRARY = "sentence_transformers"
_BATCH_SIZE = 64


_FOLDERS = PretrainedFolders("st", "sentence-transformers")
label, key, num_bytes = _FOLDERS.label, _FOLDERS.key, _FOLDERS.num_bytes


def load(rest: str) -> SentenceEncoder:
    """Return the model of a folder.

    Raises:
        ArtifactError: If there is no such folder, or its files are truncated or of another kind.
        ConfigError: If it needs sentence-transformers, which is not installed, or code that is not trusted.
    """
    folder = _FOLDERS.folder(rest)
    if (folder / EXPORT_FILE).is_file():
        return _load_own(folder)
    if find_spec(_LIBRARY) is None:
        raise ConfigError(f"st:{rest}: needs sentence-transformers; install raysent[sentence-transformers]")
    is_trusted = check_code(f"st:{rest}", _foreign_code(folder))
    return SentenceTransformersModel(folder, is_trusted=is_trusted)


def _foreign_code(folder: Path) -> str | None:
    """Return the first module that is none of sentence-transformers'; None if there is none."""
    path = folder / _MODULES_FILE
    modules = read_json(path) if path.is_file() else []
    types = [str(module.get("type", "")) for module in modules if isinstance(module, dict)]
    own = next((name for name in types if not name.startswith(f"{_LIBRARY}.")), None)
    return own or first_script(folder)


def _load_own(folder: Path) -> SentenceEncoder:
    path = folder / EXPORT_FILE
    about = read_json(path)
    if not isinstance(about, dict) or about.get("kind") != KIND or about.get("format") != 1:
        raise ArtifactError(f"{path}: not an export of this version of raysent; export the model again")
    tensors = load_tensors(folder / TENSORS_FILE)
    models = []
    for number, member in enumerate(about["members"]):
        own = {name.partition(".")[2]: value for name, value in tensors.items() if name.startswith(f"{number}.")}
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE.replace(".", f"{number or ''}."))
        record = parse_record(member, source=path, fix="export the model again")
        models.append(SentenceModel.from_tensors(record, vocabulary, own, source=folder / TENSORS_FILE))
    return models[0] if len(models) == 1 else JoinedEncoders(models)


class SentenceTransformersModel(SentenceEncoder):
    """A model that sentence-transformers reads."""

    def __init__(self, folder: Path, *, is_trusted: bool = False) -> None:
        """Read a folder.

        Raises:
            ArtifactError: If sentence-transformers cannot read it, it has no tokenizer, or a weight is not finite.
        """
        self._folder, self._is_trusted = folder, is_trusted
        library = import_module(_LIBRARY)
        with reading(f"st:{folder}", folder, library="sentence-transformers"):
            self.model = library.SentenceTransformer(
                str(folder), device="cpu", trust_remote_code=is_trusted, local_files_only=True
            )
            check_tokenizer(f"st:{folder}", folder, getattr(self.model, "tokenizer", None))
        check_weights(f"st:{folder}", self.model)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SentenceTransformersModel, is_trusted=self._is_trusted), (self._folder,)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""
        return int(self.model.get_embedding_dimension())

    @property
    def max_seq_length(self) -> int | None:
        """Tokens read of a longer sentence."""
        found = self.model.max_seq_length
        return int(found) if found is not None and np.isfinite(found) else None

    def encode_texts(self, sentences: list[str], *, batch_size: int = _BATCH_SIZE) -> Float32:
        """Return the vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        if not sentences:
            return np.empty((0, self.get_sentence_embedding_dimension()), dtype=np.float32)
        size = min(batch_size, _BATCH_SIZE)
        vectors = self.model.encode(sentences, batch_size=size, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    def use_device(self, device: torch.device) -> None:
        """Move the model."""
        self.model.to(device)
