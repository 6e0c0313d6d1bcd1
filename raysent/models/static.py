"""Static tables: one vector for each sub-word, so that a text costs a look-up and a mean.

In: where the files of a pretrained encoder are. Out: a folder of model2vec, its `StaticTable`, and vectors of words.
The scheme `static` makes models of such tables.

An encoder is distilled into a table by model2vec: each sub-word of its tokenizer passes through it alone, the vectors
are projected on their principal components, and weighted by the rank of the sub-word, which stands for its frequency
(SIF). That needs no text and takes about a minute; the table is kept in the user's cache. A folder that model2vec
wrote, such as that of potion-base-8M, is read as it is, without the library.

Source: Tulkens and van Dongen, 2024, "Model2Vec: Fast State-of-the-Art Static Embeddings".
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from raysent.data.corpus.cache import build_once
from raysent.data.vocabulary import UNK_WORD, WORD_START, SubwordVocabulary, WordVectors
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.kernels.devices import default_device
from raysent.models.backbone import (
    Backbone,
    ForeignModelError,
    library,
    read_backbone,
    transformer,
    transformer_folder,
)
from raysent.models.known import STATIC_SCHEME, EncoderFiles, find_encoder
from raysent.models.pretrained import check_tokenizer, folder_key, reading
from raysent.reading import parse_json, read_text
from raysent.storage import cache_folder, content_key, load_tensors, read_json, tensor_types
from raysent.storage.layout import MODEL_FILE

# Size of a vector, as by model2vec.
DIM = 256

_CONFIG_FILE = "config.json"
_TENSORS_FILE = "model.safetensors"
_TOKENIZER_FILE = "tokenizer.json"
_FILES = (_CONFIG_FILE, _TENSORS_FILE, _TOKENIZER_FILE)
_MODEL_TYPE = "model2vec"
# The name of the table among the tensors.
_VECTORS = "embeddings"
# What makes tables; the second is what the first reads tokenizers with.
_LIBRARIES = ("model2vec", "skeletoken")
# Changes whenever the same encoder gives another table.
_RECIPE = 1
_SIF_COEFFICIENT = 1e-4
# Tokens read of a longer text, where the folder does not say how many.
_MAX_TOKENS = 512
# Stands for a limit of 0 or null, which means none.
_NO_LIMIT = 1 << 20
# Names that a vocabulary knows the unknown sub-word by.
_UNKNOWN = ("[UNK]", UNK_WORD)
# Sub-words of single bytes, which no text spells.
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class StaticTable:
    """The vectors of sub-words.

    Attributes:
        vocabulary: The sub-words, read without special tokens around a text.
        vectors: Their vectors, float32 [sub-words, dim]; that of the unknown one is zero, so that it does not count.
        max_length: Tokens read of a longer text.
    """

    vocabulary: SubwordVocabulary
    vectors: Tensor
    max_length: int


def is_static_folder(folder: Path) -> bool:
    """Return whether a folder holds a table in the form of model2vec."""
    if not all((folder / name).is_file() for name in _FILES):
        return False
    settings = read_json(folder / _CONFIG_FILE)
    if not isinstance(settings, dict):
        return False
    if "model_type" in settings:
        return bool(settings["model_type"] == _MODEL_TYPE)
    # model2vec writes no type for a model that was made of arrays.
    return _VECTORS in tensor_types(folder / _TENSORS_FILE)


def table_key(files: EncoderFiles) -> str:
    """Return a key of what a table depends on: its files, or the encoder, the recipe and the libraries.

    Raises:
        ConfigError: If an encoder is to be distilled, and the libraries are not installed.
    """
    if is_static_folder(files.folder):
        return content_key(STATIC_SCHEME, folder_key(files.folder))
    _check_installed(files.name)
    versions = [version(name) for name in _LIBRARIES]
    return content_key(STATIC_SCHEME, _RECIPE, *versions, folder_key(files.folder))


def table_folder(files: EncoderFiles) -> Path:
    """Return the folder of a table; that of an encoder is distilled once, and again if it is damaged.

    Raises:
        ArtifactError: If the encoder cannot be read.
        ConfigError: If it is no transformer, or the libraries are not installed.
    """
    if is_static_folder(files.folder):
        return files.folder
    build = partial(_build, files)
    return build_once(cache_folder(), _cache_name(table_key(files)), build)


def earlier_folder(key: str) -> Path | None:
    """Return the folder of a table that is in the cache by its key, as of earlier versions; None if it is not."""
    folder = cache_folder() / _cache_name(key)
    return folder if is_static_folder(folder) else None


def _cache_name(key: str) -> str:
    return f"static/{key}"


# -- distilling --------------------------------------------------------------------------------------------------------


def _build(files: EncoderFiles, folder: Path) -> dict[str, Any]:
    short = Path(files.name).name
    from raysent.progress import messages  # noqa: PLC0415 - rich takes long to import, and reading a table prints nothing

    messages.print(
        f"{STATIC_SCHEME}{short}: model2vec distills a table of sub-words, once on this machine (about a minute)",
        soft_wrap=True,
    )
    return distill_table(files, folder)


def distill_table(files: EncoderFiles, folder: Path, *, dim: int = DIM) -> dict[str, Any]:
    """Write the table of an encoder into an empty folder, and return what it is made of.

    Args:
        files: The encoder's files.
        folder: An empty folder.
        dim: Size of a vector; at most that of the encoder's states.

    Raises:
        ArtifactError: If the encoder cannot be read.
        ConfigError: If it is no transformer, or the libraries are not installed.
    """
    name = f"{STATIC_SCHEME}{files.name}"
    _check_installed(files.name)
    if (files.folder / MODEL_FILE).is_file():
        raise ConfigError(
            f"{name}: must be a pretrained encoder or a folder of model2vec; given a model of raysent; "
            "'raysent distill MODEL --into static' makes a table of one"
        )
    try:
        backbone = read_backbone(str(files.folder))
    except ForeignModelError:
        raise ConfigError(
            f"{name}: must be a transformer, which reads each sub-word alone; st:{files.name} reads it as it is"
        ) from None
    tokenizer = _tokenizer(backbone, name)
    with reading(name, files.folder, library=_MODEL_TYPE), _silent():
        made = import_module("model2vec.distill").distill_from_model(
            model=transformer(backbone, has_weights=True),
            tokenizer=tokenizer,
            device=str(default_device()),
            pca_dims=min(dim, backbone.hidden_size),
            sif_coefficient=_SIF_COEFFICIENT,
            quantize_to="float32",
        )
        made.save_pretrained(folder)
    return {"encoder": files.name, "dim": int(made.dim)}


def _check_installed(name: str) -> None:
    missing = [needed for needed in _LIBRARIES if find_spec(needed) is None]
    if missing:
        raise ConfigError(
            f"{STATIC_SCHEME}{name}: needs {' and '.join(missing)}; install raysent[static]"
        )


def _tokenizer(backbone: Backbone, name: str) -> Any:
    """Return the tokenizer of a folder, as transformers reads it."""
    root = transformer_folder(backbone.folder())
    with reading(name, root, library="transformers"):
        tokenizer = library("transformers", where=name).AutoTokenizer.from_pretrained(
            str(root), local_files_only=True, trust_remote_code=False
        )
        check_tokenizer(name, root, tokenizer)
    return tokenizer


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep libraries from drawing progress bars where there is no terminal, or where a pipe would keep them."""
    from raysent.progress import messages  # noqa: PLC0415 - as above

    if messages.is_terminal:
        yield
        return
    with contextlib.redirect_stderr(io.StringIO()):
        yield


# -- reading -----------------------------------------------------------------------------------------------------------


def read_table(folder: Path, *, name: str) -> StaticTable:
    """Read a folder of model2vec.

    Args:
        folder: The folder.
        name: What names it, for messages.

    Raises:
        ArtifactError: If files are missing or damaged, or do not belong together.
    """
    settings = read_json(folder / _CONFIG_FILE)
    vectors = _vectors(folder / _TENSORS_FILE, name)
    path = folder / _TOKENIZER_FILE
    try:
        tokenizer = parse_json(read_text(path))
        unknown = _unknown_id(tokenizer["model"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path}: not a tokenizer: {error}; restore it") from None
    # Special tokens, cuts and padding are for the model that the table is of.
    tokenizer |= {"post_processor": None, "truncation": None, "padding": None}
    vocabulary = _vocabulary(tokenizer, source=path)
    if len(vocabulary) != len(vectors):
        raise ArtifactError(
            f"{name}: must have a vector for each of the {len(vocabulary):,} sub-words; given {len(vectors):,}; "
            "restore the folder"
        )
    if vocabulary.words[vocabulary.unknown_id] not in _UNKNOWN:
        # A text without a sub-word is read as the unknown one.
        vocabulary = _with_unknown(tokenizer, len(vocabulary), source=path)
        vectors = torch.cat([vectors, torch.zeros(1, vectors.shape[1])])
    for number in {unknown, vocabulary.unknown_id} - {None}:
        vectors[number] = 0.0
    max_length = settings.get("max_length", _MAX_TOKENS) or _NO_LIMIT
    return StaticTable(vocabulary, vectors, int(max_length))


def _vectors(path: Path, name: str) -> Tensor:
    """Return the vectors of all sub-words, float32; clustered ones are written out."""
    tensors = load_tensors(path)
    if _VECTORS not in tensors or tensors[_VECTORS].ndim != 2:
        raise ArtifactError(f"{name}: must hold the table `{_VECTORS}` in {path.name}; restore it")
    vectors = tensors[_VECTORS].float()
    if "mapping" in tensors:
        vectors = vectors[tensors["mapping"].long()]
    if "weights" in tensors:
        vectors = vectors * tensors["weights"].float()[:, None]
    if not torch.isfinite(vectors).all():
        raise ArtifactError(f"{name}: every vector must be finite; given NaN or infinity")
    return vectors


def _unknown_id(model: dict[str, Any]) -> int | None:
    """Return the id of what a tokenizer's model does not know; None where it knows everything."""
    # A unigram model says which by its id, others by its text.
    if "unk_id" in model:
        number = model["unk_id"]
        return None if number is None else int(number)
    token = model.get("unk_token")
    return None if token is None else model["vocab"].get(token)


def _with_unknown(tokenizer: dict[str, Any], number: int, *, source: Path) -> SubwordVocabulary:
    """Return the sub-words of a tokenizer, and an unknown one with the id `number`."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = {"id": number, "content": _UNKNOWN[0], **flags, "special": True}
    words = [*tokenizer.get("added_tokens", []), added]
    return _vocabulary({**tokenizer, "added_tokens": words}, source=source)


def _vocabulary(tokenizer: dict[str, Any], *, source: Path) -> SubwordVocabulary:
    return SubwordVocabulary(json.dumps(tokenizer, ensure_ascii=False), source=source)


# -- vectors of words --------------------------------------------------------------------------------------------------


def read_static_vectors(name: str, words: Sequence[str]) -> WordVectors:
    """Return the vectors of words, each the sum of those of its sub-words, so that a text's sum is that of its words.

    A word of unknown sub-words has none.

    Args:
        name: The table's name, with its scheme.
        words: The words; a mark of where a word begins is not part of one.

    Raises:
        ArtifactError: If there is no such table or encoder, or it cannot be read.
        ConfigError: If an encoder is to be distilled, and the libraries are not installed.
        DataError: If it knows none of the words.
    """
    files = find_encoder(name.removeprefix(STATIC_SCHEME), where="encoder.embedding.vectors")
    table = read_table(table_folder(files), name=name)
    spelled = [word for word in words if not _BYTE.fullmatch(word)]
    texts = [word.removeprefix(WORD_START) for word in spelled]
    read = table.vocabulary.ids(texts, max_length=table.max_length)
    starts = np.cumsum(read.lengths) - read.lengths
    ids = torch.from_numpy(read.ids.astype(np.int64))
    offsets = torch.from_numpy(starts)
    sums = functional.embedding_bag(ids, table.vectors, offsets, mode="sum")
    # The unknown sub-word's vector is zero, and so is the sum of a word that has no other.
    has_vector: npt.NDArray[np.bool_] = sums.any(dim=1).numpy()
    if not has_vector.any():
        raise DataError(f"{name}: must know words of the vocabulary; it knows none; name another")
    spelled_words = [spelled[index] for index in np.flatnonzero(has_vector)]
    return WordVectors(spelled_words, sums.numpy()[has_vector])
