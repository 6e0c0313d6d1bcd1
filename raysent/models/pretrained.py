"""Folders of pretrained models that raysent did not write: their content's key, their size, and whose code may run.

Code in such a folder runs only where it is trusted: inside `trust_remote_code()`, with the command-line option
`--trust-remote-code`, or where the environment variable `RAYSENT_TRUST_REMOTE_CODE` is 1.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from raysent.errors import ArtifactError, ConfigError, RaysentError
from raysent.models.hub import MODULES_FILE
from raysent.models.known import EncoderFiles, find_encoder, quiet
from raysent.reading import LFS_POINTER, LFS_REASON
from raysent.storage import content_key, file_sha256, read_json

_TRUST_VARIABLE = "RAYSENT_TRUST_REMOTE_CODE"

# What vectors depend on; folders of other libraries' weights; and what is kept of a training beside the model.
_MODEL_SUFFIXES = frozenset({".bin", ".json", ".model", ".npy", ".npz", ".safetensors", ".txt"})
# Code is read where the folder names some.
_CODE_SUFFIX = ".py"
# Settings of sentence-transformers, which name versions of libraries beside the prompts.
_SETTINGS_FILE = "config_sentence_transformers.json"
_SETTINGS_OF_VECTORS = ("prompts", "default_prompt_name")
_LIBRARY = "sentence_transformers"
_CONFIG_FILES = ("config.json", "tokenizer_config.json")
_OTHER_FOLDERS = frozenset({"onnx", "openvino"})
_RECORDS = frozenset(
    {"all_results.json", "data_config.json", "train_results.json", "trainer_state.json"}
)
# Parameters after the last hidden states, which many folders lack.
_UNUSED = ("pooler.", "lm_head.", "cls.")


@contextmanager
def trust_remote_code(is_trusted: bool = True) -> Iterator[None]:
    """Let models that are loaded inside the block run code of their folders.

    The environment variable `RAYSENT_TRUST_REMOTE_CODE` is 1 inside the block, for this process and for processes that
    are started inside it. Workers of a running Ray cluster need the variable in their own environment.

    Args:
        is_trusted: False changes nothing.
    """
    before = os.environ.get(_TRUST_VARIABLE)
    if is_trusted:
        os.environ[_TRUST_VARIABLE] = "1"
    try:
        yield
    finally:
        if is_trusted and before is None:
            os.environ.pop(_TRUST_VARIABLE, None)
        elif is_trusted and before is not None:
            os.environ[_TRUST_VARIABLE] = before


def is_code_trusted() -> bool:
    """Return whether code of models' folders may run."""
    return os.environ.get(_TRUST_VARIABLE) == "1"


def check_code(name: str, foreign: str | None) -> bool:
    """Return whether code is trusted, before a folder is loaded.

    Args:
        name: The model's name, such as ``st:models/one``.
        foreign: The first code of the folder; None if it has none.

    Raises:
        ConfigError: If the folder has code that is not trusted.
    """
    is_trusted = is_code_trusted()
    if foreign and not is_trusted:
        raise ConfigError(
            f"{name}: contains code of its own, {foreign}; to run it, set {_TRUST_VARIABLE}=1 or --trust-remote-code"
        )
    return is_trusted


def first_missing(name: str, keys: Iterable[str]) -> None:
    """Refuse a model of which transformers drew weights that its folder lacks.

    Raises:
        ArtifactError: With the first one.
    """
    missing = sorted(key for key in keys if not any(part in key for part in _UNUSED))
    if missing:
        raise ArtifactError(
            f"{name}: must hold every weight; {missing[0]} is missing, of {len(missing)}"
        )


def first_code(folder: Path) -> str | None:
    """Return the first code of its own that a folder names, which its libraries would run; None if it names none.

    A script beside a model that nothing names, such as that of its training, is never run.
    """
    modules = [module for module in _json(folder / MODULES_FILE) if isinstance(module, dict)]
    for module in modules:
        name = str(module.get("type", ""))
        if not name.startswith(f"{_LIBRARY}."):
            return name
    inner_paths = ["", *(str(module.get("path") or "") for module in modules)]
    for inner_path in dict.fromkeys(inner_paths):
        for name in _CONFIG_FILES:
            config = _json(folder / inner_path / name)
            if not isinstance(config, dict):
                continue
            classes = config.get("auto_map")
            if isinstance(classes, dict) and classes:
                return str(next(iter(classes.values())))
    return None


def _json(path: Path) -> Any:
    """Return the dictionary or list of a file; an empty one where there is no file, or one of another value."""
    if not path.is_file():
        return {}
    content = read_json(path)
    return content if isinstance(content, dict | list) else {}


class PretrainedFolders:
    """What a scheme says of its names, where a name is that of a pretrained encoder; see `raysent.models.schemes`.

    Args:
        prefix: The scheme, such as ``st``.
        keys: What else the vectors depend on, beside the folder's files.
    """

    def __init__(self, prefix: str, *, keys: tuple[Any, ...] = ()) -> None:
        self._prefix = prefix
        self._keys = keys

    def files(self, rest: str) -> EncoderFiles:
        """Return where the files of an encoder are; those in a bucket or of the hub are downloaded first.

        Raises:
            ArtifactError: If there are none.
        """
        return find_encoder(rest, where=f"{self._prefix}:{rest}")

    def folder(self, rest: str) -> Path:
        """Return the local folder of an encoder; see `files`."""
        return self.files(rest).folder

    def label(self, rest: str) -> str:
        """Return the encoder's short name: of the hub without its owner, else the folder's as the user wrote it."""
        files = self.files(rest)
        return Path(files.name).name or files.folder.name

    def key(self, rest: str) -> str:
        """Return a key of what the vectors depend on, wherever the folder is."""
        return self._with_keys(folder_key(self.folder(rest)))

    def is_earlier_key(self, rest: str, key: str) -> bool:
        """Return whether earlier versions knew the folder by a key, which was one of all of its files."""
        return key == self._with_keys(_key_of_all(self.folder(rest)))

    def _with_keys(self, key: str) -> str:
        """Return a key of a folder and of what else its vectors depend on."""
        return content_key(*self._keys, key) if self._keys else key

    def num_bytes(self, rest: str) -> int:
        """Return the size of the files that the vectors depend on."""
        return sum(path.stat().st_size for path in model_files(self.folder(rest)))


def folder_key(folder: Path) -> str:
    """Return a key of the names and contents of what a folder's vectors depend on, wherever the folder is."""
    parts: list[tuple[str, Any]] = []
    for path in model_files(folder):
        if path.name == _SETTINGS_FILE:
            content = _json(path)
            settings = {name: content.get(name) for name in _SETTINGS_OF_VECTORS}
            if any(settings.values()):
                parts.append((path.name, settings))
        else:
            parts.append((path.relative_to(folder).as_posix(), file_sha256(path)))
    return content_key(*parts)


def model_files(folder: Path) -> list[Path]:
    """Return the files of a folder that its vectors depend on: settings, tokenizer, modules, weights and code."""
    suffixes = set(_MODEL_SUFFIXES)
    if first_code(folder) is not None:
        suffixes.add(_CODE_SUFFIX)
    paths = [path for path in _files(folder) if _is_of_model(path.relative_to(folder), suffixes)]
    # transformers reads the safetensors where a folder has both forms.
    in_safetensors = {path.parent for path in paths if path.suffix == ".safetensors"}
    return [path for path in paths if path.suffix != ".bin" or path.parent not in in_safetensors]


def _is_of_model(path: Path, suffixes: Collection[str]) -> bool:
    is_elsewhere = any(part.startswith(".") or part in _OTHER_FOLDERS for part in path.parts)
    return path.suffix in suffixes and path.name not in _RECORDS and not is_elsewhere


def _key_of_all(folder: Path) -> str:
    """Return the key by which earlier versions knew a folder: one of all of its files."""
    paths = _files(folder)
    return content_key(*((str(path.relative_to(folder)), file_sha256(path)) for path in paths))


@contextmanager
def reading(name: str, folder: Path, *, library: str) -> Iterator[None]:
    """Turn whatever a library raises inside the block into one line, and keep transformers from printing.

    A library reads a folder by others, of tensors, pickles and tokenizers, each of which has exceptions of its own.

    Args:
        name: The model's name, such as ``st:models/one``.
        folder: Its folder.
        library: What reads it.

    Raises:
        ArtifactError: In place of any other error.
    """
    try:
        with quiet():
            yield
    except RaysentError:
        raise
    except Exception as error:
        pointer = next((path.name for path in _files(folder) if _is_pointer(path)), None)
        if pointer is not None:
            reason = f"{pointer} is {LFS_REASON}"
        elif isinstance(error, UnpicklingError):
            reason = "its weights are a damaged pickle, or one with more than tensors; save them as safetensors"
        else:
            reason = " ".join(str(error).split()) or type(error).__name__
        raise ArtifactError(f"{name}: {library} cannot read it: {reason}") from None


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(LFS_POINTER)) == LFS_POINTER.encode()


def check_tokenizer(name: str, folder: Path, tokenizer: Any) -> None:
    """Refuse a tokenizer of special tokens alone, which transformers builds where a folder has no file of one.

    Args:
        name: The model's name.
        folder: Its folder.
        tokenizer: What was read; one of another library is not checked.

    Raises:
        ArtifactError: If that is so.
    """
    file_names = getattr(tokenizer, "vocab_files_names", {})
    if not file_names:
        # One of bytes needs no file.
        return
    files = sorted({"tokenizer.json", *file_names.values()})
    if not any(path.name in files for path in _files(folder)):
        raise ArtifactError(
            f"{name}: must hold a tokenizer; found none of {', '.join(files)}; save it by tokenizer.save_pretrained"
        )
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ArtifactError(
            f"{name}: its tokenizer must know words; it has special tokens alone; restore its files"
        )


def check_weights(name: str, model: nn.Module) -> None:
    """Refuse weights that are no numbers.

    Raises:
        ArtifactError: If a value is NaN or infinite.
    """
    for parameter_name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            raise ArtifactError(
                f"{name}: every weight must be finite; given NaN or infinity in {parameter_name}; restore it"
            )


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether no value is NaN or infinite, by their sum where that says so: it needs no memory."""
    if bool(torch.isfinite(tensor.detach().sum())):
        return True
    # A sum of finite values may be infinite.
    return bool(torch.isfinite(tensor).all())


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
