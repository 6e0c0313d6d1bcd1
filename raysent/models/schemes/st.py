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
label = _FOLDERS.label
key = _FOLDERS.key
num_bytes = _FOLDERS.num_bytes


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
    if not _FOLDERS.is_earlier_key(rest, key):
        return None
    return load(rest)


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
        # The first vocabulary has no number, as in the export of one model.
        vocabulary_name = VOCABULARY_FILE
        if number:
            vocabulary_name = VOCABULARY_FILE.replace(".", f"{number}.")
        vocabulary = Vocabulary.load(folder / vocabulary_name)
        prefix = f"{number}."
        member_tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        record = parse_record(member, source=path, fix="export the model again")
        model = SentenceModel.from_tensors(
            record, vocabulary, member_tensors, source=folder / TENSORS_FILE
        )
        models.append(model)
    if len(models) == 1:
        return models[0]
    return JoinedEncoders(models)


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
        self._folder = folder
        self._scheme = scheme
        self._is_trusted = is_trusted
        self._lock = Lock()
        name = f"{scheme}:{folder}"
        library = import_module(_LIBRARY)
        options: dict[str, Any] = {"trust_remote_code": is_trusted, "local_files_only": True}
        # The library may draw weights that the folder lacks.
        with reading(name, folder, library=_READERS[scheme]), torch.random.fork_rng(devices=[]):
            root = transformer_folder(folder)
            has_transformer = (root / _CONFIG_FILES[0]).is_file()
            model_options = dict(options)
            if has_transformer:
                model_options["model_kwargs"] = {"dtype": torch.float32}
            self.model = library.SentenceTransformer(str(folder), device="cpu", **model_options)
            check_tokenizer(name, folder, getattr(self.model, "tokenizer", None))
            if has_transformer:
                first_missing(name, missing_weights(root, self.model[0], **options))
        check_weights(name, self.model)
        if not (folder / _MODULES_FILE).is_file() and not is_trusted:
            limit = read_backbone(str(folder)).max_tokens
            # Where positions begin after that of padding, the library allows too many.
            if limit is not None:
                self.model.max_seq_length = limit
        self.prompts = dict(self.model.prompts)
        self.default_prompt_name = self.model.default_prompt_name

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(SentenceTransformersModel, scheme=self._scheme, is_trusted=self._is_trusted)
        return make, (self._folder,)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of an encoded sentence."""
        return int(self.model.get_embedding_dimension())

    @property
    def max_seq_length(self) -> int | None:
        """Tokens read of a longer sentence; None where all are read."""
        limit = self.model.max_seq_length
        if limit is None or limit >= NO_LIMIT:
            return None
        return int(limit)

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
        with self._lock:  # as above
            # A static table has a tokenizer of the library tokenizers, which is not called.
            if callable(tokenizer):
                rows = tokenizer(texts)["input_ids"]
            else:
                rows = tokenizer.encode_batch(texts)
        counts = np.array([max(1, len(row)) for row in rows], np.int64)
        limit = self.max_seq_length
        if limit is None:
            return counts
        return np.minimum(counts, limit)

    def use_device(self, device: torch.device) -> None:
        """Move the model."""
        self.model.to(device)


def _as_utf8(text: str) -> str:
    """Return a text with a question mark for each half of a surrogate pair, which is no text for a tokenizer."""
    return text.encode(errors="replace").decode()
