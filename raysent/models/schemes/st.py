"""`st:PATH`: a folder of sentence-transformers, or a model of the hub by its name, with its pooling and prompts.

A folder that `raysent export --to sentence-transformers` wrote is read without sentence-transformers, and none of its
code is run. One of a transformer, pooling, dense layers and unit length is encoded in packed batches, see
`raysent.models.frozen`; any other folder is read by sentence-transformers, which must be installed. One with code of
its own is refused unless that code is trusted; see `raysent.models.pretrained`.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from raysent.data.vocabulary import Vocabulary
from raysent.errors import ArtifactError, ConfigError
from raysent.models.backbone import (
    NO_LIMIT,
    ForeignModelError,
    missing_weights,
    read_backbone,
    transformer_folder,
)
from raysent.models.files import parse_record
from raysent.models.frozen import read_frozen
from raysent.models.known import EncoderFiles
from raysent.models.model import SentenceModel
from raysent.models.pretrained import (
    PretrainedFolders,
    check_code,
    check_tokenizer,
    check_weights,
    first_code,
    first_missing,
    reading,
)
from raysent.models.sentence_encoder import Float32, JoinedEncoders, SentenceEncoder
from raysent.storage import load_tensors, read_json
from raysent.storage.layout import EXPORT_FILE, TENSORS_FILE, VOCABULARY_FILE

FORM = "st:PATH"
KIND = "raysent export"

_MODULES_FILE = "modules.json"
_LIBRARY = "sentence_transformers"
_READERS = {"st": "sentence-transformers", "hf": "transformers"}
_CONFIG_FILES = ("config.json", "tokenizer_config.json")
_BATCH_SIZE = 64


_FOLDERS = PretrainedFolders("st")
label, key, num_bytes = _FOLDERS.label, _FOLDERS.key, _FOLDERS.num_bytes


def load(rest: str) -> SentenceEncoder:
    """Return the model of a folder.

    Raises:
        ArtifactError: If there is no such folder, or its files are truncated or of another kind.
        ConfigError: If it needs libraries that are not installed, or code that is not trusted.
    """
    files = _FOLDERS.files(rest)
    if (files.folder / EXPORT_FILE).is_file():
        return _load_own(files.folder)
    return read_model("st", files, rest)


def load_earlier(rest: str, key: str) -> SentenceEncoder | None:
    """Return the model that an earlier version knew by a key; None where it knew none."""
    return load(rest) if _FOLDERS.is_earlier_key(rest, key) else None


def read_model(scheme: str, files: EncoderFiles, rest: str) -> SentenceEncoder:
    """Return the model of a folder of sentence-transformers or transformers; see `load`."""
    if find_spec(_LIBRARY) is None:
        raise ConfigError(
            f"{scheme}:{rest}: needs sentence-transformers; install raysent[pretrained]"
        )
    foreign_code = first_code(files.folder)
    if foreign_code is None:
        try:
            return read_frozen(files)
        except ForeignModelError:  # the library may read it
            pass
        except ArtifactError as error:
            raise ArtifactError(f"{scheme}:{error}") from None
    is_trusted = check_code(f"{scheme}:{rest}", foreign_code)
    return SentenceTransformersModel(files.folder, scheme=scheme, is_trusted=is_trusted)


def _load_own(folder: Path) -> SentenceEncoder:
    path = folder / EXPORT_FILE
    about = read_json(path)
    if not isinstance(about, dict) or about.get("kind") != KIND or about.get("format") != 1:
        raise ArtifactError(
            f"{path}: not an export of this version of raysent; export the model again"
        )
    tensors = load_tensors(folder / TENSORS_FILE)
    models = []
    for number, member in enumerate(about["members"]):
        own = {
            name.partition(".")[2]: value
            for name, value in tensors.items()
            if name.startswith(f"{number}.")
        }
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE.replace(".", f"{number or ''}."))
        record = parse_record(member, source=path, fix="export the model again")
        models.append(
            SentenceModel.from_tensors(record, vocabulary, own, source=folder / TENSORS_FILE)
        )
    return models[0] if len(models) == 1 else JoinedEncoders(models)


class SentenceTransformersModel(SentenceEncoder):
    """A model that sentence-transformers reads.

    Attributes:
        model: The model, in float32.
    """

    adds_prompts = False

    def __init__(self, folder: Path, *, scheme: str = "st", is_trusted: bool = False) -> None:
        """Read a folder.

        Raises:
            ArtifactError: If it cannot be read, has no tokenizer, or weights are missing or not finite.
        """
        self._folder, self._scheme, self._is_trusted = folder, scheme, is_trusted
        self._lock = Lock()
        name, library = f"{scheme}:{folder}", import_module(_LIBRARY)
        options = {"trust_remote_code": is_trusted, "local_files_only": True}
        with reading(name, folder, library=_READERS[scheme]), torch.random.fork_rng(devices=[]):
            root = transformer_folder(folder)
            values = (
                {"model_kwargs": {"dtype": torch.float32}}
                if (root / _CONFIG_FILES[0]).is_file()
                else {}
            )
            self.model = library.SentenceTransformer(str(folder), device="cpu", **options, **values)
            check_tokenizer(name, folder, getattr(self.model, "tokenizer", None))
            if values:
                first_missing(name, missing_weights(root, self.model[0], **options))
        check_weights(name, self.model)
        is_plain = not (folder / _MODULES_FILE).is_file() and not is_trusted
        limit = read_backbone(str(folder)).max_tokens if is_plain else None
        if (
            limit is not None
        ):  # where positions begin after that of padding, the library allows too many
            self.model.max_seq_length = limit
        self.prompts, self.default_prompt_name = (
            dict(self.model.prompts),
            self.model.default_prompt_name,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(SentenceTransformersModel, scheme=self._scheme, is_trusted=self._is_trusted)
        return make, (self._folder,)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""
        return int(self.model.get_embedding_dimension())

    @property
    def max_seq_length(self) -> int | None:
        """Tokens read of a longer sentence; None where all are read."""
        found = self.model.max_seq_length
        return int(found) if found is not None and found < NO_LIMIT else None

    def encode_texts(
        self, sentences: list[str], *, batch_size: int = _BATCH_SIZE, prompt: str = ""
    ) -> Float32:
        """Return the vectors, float32 [sentences, dim]; see `SentenceEncoder`."""
        if not sentences:
            return np.empty((0, self.get_sentence_embedding_dimension()), dtype=np.float32)
        texts = [_as_utf8(text) for text in sentences]
        size = min(batch_size, _BATCH_SIZE)
        with self._lock:  # the tokenizer's settings are not for several threads
            vectors = self.model.encode(
                texts, batch_size=size, prompt=prompt, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)

    def num_tokens(self, sentences: list[str]) -> npt.NDArray[np.int64]:
        """Return how many tokens are read of each sentence, with special tokens and the prompt, int64 [sentences]."""
        start = self._prompt(None, None)
        texts = [_as_utf8(start + sentence) for sentence in sentences]
        tokenizer = self.model.tokenizer
        limit = self.max_seq_length
        with self._lock:  # as above
            encoded = tokenizer(texts) if callable(tokenizer) else tokenizer.encode_batch(texts)
        rows = encoded["input_ids"] if callable(tokenizer) else encoded
        counts = np.array([max(1, len(row)) for row in rows], np.int64)
        return counts if limit is None else np.minimum(counts, limit)

    def use_device(self, device: torch.device) -> None:
        """Move the model."""
        self.model.to(device)


def _as_utf8(text: str) -> str:
    """Return a text with a question mark for each half of a surrogate pair, which is no text for a tokenizer."""
    return text.encode(errors="replace").decode()
