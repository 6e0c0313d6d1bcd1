"""Folders of pretrained models that raysent did not write: their content's key, their size, and whose code may run.

Code in such a folder runs only where it is trusted: inside `trust_remote_code()`, with the command-line option
`--trust-remote-code`, or where the environment variable `RAYSENT_TRUST_REMOTE_CODE` is 1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from raysent.errors import ArtifactError, ConfigError, RaysentError
from raysent.reading import LFS_POINTER, LFS_REASON
from raysent.storage import content_key, file_sha256, open_folder

TRUST_VARIABLE = "RAYSENT_TRUST_REMOTE_CODE"

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_DESCRIPTIONS = ["*.json", "*.txt", "*.model", "README.md"]
_OTHER_WEIGHTS = ["*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.ot", "onnx/*", "openvino/*"]
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
    before = os.environ.get(TRUST_VARIABLE)
    if is_trusted:
        os.environ[TRUST_VARIABLE] = "1"
    try:
        yield
    finally:
        if is_trusted and before is None:
            os.environ.pop(TRUST_VARIABLE, None)
        elif is_trusted and before is not None:
            os.environ[TRUST_VARIABLE] = before


def is_code_trusted() -> bool:
    """Return whether code of models' folders may run."""
    return os.environ.get(TRUST_VARIABLE) == "1"


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
            f"{name}: contains code of its own, {foreign}; to run it, set {TRUST_VARIABLE}=1 or --trust-remote-code"
        )
    return is_trusted


def find_folder(
    path: str,
    revision: str | None = None,
    *,
    has_weights: bool = False,
    where: str = "encoder.path",
) -> tuple[Path, str | None]:
    """Return the local folder of a model, and its commit if it is one of the hub; None for a folder.

    Args:
        path: A folder, or the name of a model of the hub: `owner/name`.
        revision: Branch, tag or commit of the hub.
        has_weights: Whether its weights are needed, or only what describes it.
        where: The setting that names it, for messages.

    Raises:
        ArtifactError: If there is no such folder, and the hub's client does not find it either.
    """
    folder = (open_folder(path) if path else Path()).expanduser()
    if path and folder.is_dir():
        return folder.resolve(), None
    reason = "no such folder"
    if _HUB_NAME.fullmatch(path) and find_spec("huggingface_hub") is not None:
        hub = import_module("huggingface_hub")
        files = (
            {"ignore_patterns": _OTHER_WEIGHTS}
            if has_weights
            else {"allow_patterns": _DESCRIPTIONS}
        )
        for is_local in (
            False,
            True,
        ):  # without the network, versions below 2 ask the hub for the files of a commit
            try:
                with quiet():
                    folder = Path(
                        hub.snapshot_download(
                            path, revision=revision, local_files_only=is_local, **files
                        )
                    )
                return folder, folder.name
            except Exception as error:  # the client's errors, and those of its HTTP library
                said = " ".join(str(error).split()) or type(error).__name__
                reason = reason if is_local else f"no such folder, and the hub gives none: {said}"
    raise ArtifactError(
        f"{where}: must be a model's folder or its name on the hub; given {path}: {reason}"
    )


def _is_name(path: str) -> bool:
    return bool(_HUB_NAME.fullmatch(path)) and not Path(path).is_dir()


def is_on_hub(path: str) -> bool:
    """Return whether the hub's cache has a model of this name, and no folder here has it."""
    if not _is_name(path) or find_spec("huggingface_hub") is None:
        return False
    return isinstance(
        import_module("huggingface_hub").try_to_load_from_cache(path, "config.json"), str
    )


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


def first_script(folder: Path) -> str | None:
    """Return the name of a Python file in a folder; None if there is none."""
    return min((file.name for file in folder.rglob("*.py")), default=None)


class PretrainedFolders:
    """What a scheme says of its names, where a name is that of a folder; see `raysent.models.schemes`.

    Args:
        prefix: The scheme, such as ``st``.
        library: Whose folders they are, for messages.
        keys: What else the vectors depend on, beside the folder's files.
    """

    def __init__(self, prefix: str, library: str, *, keys: tuple[Any, ...] = ()) -> None:
        self._prefix, self._library, self._keys = prefix, library, keys

    def folder(self, rest: str) -> Path:
        """Return the local folder of a model; one in a bucket is downloaded first.

        Raises:
            ArtifactError: If there is no such folder.
        """
        if _is_name(rest):
            return find_folder(rest, has_weights=True, where=self._prefix)[0]
        folder = (open_folder(rest) if rest else Path()).expanduser()
        if not rest or not folder.is_dir():
            raise ArtifactError(
                f"{self._prefix}:{rest}: no such folder; name a folder of {self._library}"
            )
        return folder

    def label(self, rest: str) -> str:
        """Return the folder's name, or that on the hub."""
        return Path(rest).name if _is_name(rest) else self.folder(rest).resolve().name

    def key(self, rest: str) -> str:
        """Return a key of the names and contents of the folder's files, wherever the folder is."""
        folder = self.folder(rest)
        key = content_key(
            *((str(path.relative_to(folder)), file_sha256(path)) for path in _files(folder))
        )
        return content_key(*self._keys, key) if self._keys else key

    def num_bytes(self, rest: str) -> int:
        """Return the size of the folder's files."""
        return sum(path.stat().st_size for path in _files(self.folder(rest)))


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


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing while it reads or writes a model; missing weights are checked by the caller."""
    if find_spec("transformers") is None:
        yield
        return
    logging = import_module("transformers").utils.logging
    before, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shows_progress:
            logging.enable_progress_bar()


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
    known = getattr(
        tokenizer, "vocab_files_names", {}
    )  # empty for those of bytes, which need no file
    files = sorted({"tokenizer.json", *known.values()})
    if known and not any(path.name in files for path in _files(folder)):
        raise ArtifactError(
            f"{name}: must hold a tokenizer; found none of {', '.join(files)}; save it by tokenizer.save_pretrained"
        )
    if known and len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ArtifactError(
            f"{name}: its tokenizer must know words; it has special tokens alone; restore its files"
        )


def check_weights(name: str, model: nn.Module) -> None:
    """Refuse weights that are no numbers.

    Raises:
        ArtifactError: If a value is NaN or infinite.
    """
    odd = next(
        (key for key, values in model.named_parameters() if not torch.isfinite(values).all()), None
    )
    if odd is not None:
        raise ArtifactError(
            f"{name}: every weight must be finite; given NaN or infinity in {odd}; restore it"
        )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
