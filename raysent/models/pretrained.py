"""Folders of pretrained models that raysent did not write: their content's key, their size, and whose code may run.

Code in such a folder runs only where it is trusted: inside `trust_remote_code()`, with the command-line option
`--trust-remote-code`, or where the environment variable `RAYSENT_TRUST_REMOTE_CODE` is 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysent.errors import ArtifactError, ConfigError
from raysent.storage import content_key, file_sha256, open_folder

TRUST_VARIABLE = "RAYSENT_TRUST_REMOTE_CODE"


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


def first_script(folder: Path) -> str | None:
    """Return the name of a Python file in a folder; None if there is none."""
    return min((file.name for file in folder.rglob("*.py")), default=None)


def open_pretrained(name: str, rest: str, *, library: str) -> Path:
    """Return the local folder of a model; one in a bucket is downloaded first.

    Args:
        name: The model's name, such as ``st:models/one``.
        rest: The path in it, also an address in ``s3://``.
        library: Whose folder it should be, for messages.

    Raises:
        ArtifactError: If there is no such folder.
    """
    folder = open_folder(rest) if rest else Path()
    folder = folder.expanduser()
    if not rest or not folder.is_dir():
        raise ArtifactError(f"{name}: no such folder; name a folder of {library}")
    return folder


def folder_key(folder: Path) -> str:
    """Return a key of the names and contents of a folder's files, wherever the folder is."""
    return content_key(*((str(path.relative_to(folder)), file_sha256(path)) for path in _files(folder)))


def folder_bytes(folder: Path) -> int:
    """Return the size of a folder's files."""
    return sum(path.stat().st_size for path in _files(folder))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
