"""Files that were made of an index and are kept beside it, so that a search need not make them: sealed, or made again.

    about.json    what they were made of, and the SHA-256 of each of them; written last

A file that differs from its hash, or is missing, is never read. The folder is then written again as a whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raysent.errors import ArtifactError
from raysent.storage import (
    file_sha256,
    read_json,
    remove,
    remove_tree,
    storage_errors,
    write_json,
)

_ABOUT = "about.json"
_FILES = "files"


class DerivedFiles:
    """A folder of files that were made of others.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path, *, made_of: Mapping[str, Any]) -> None:
        """Name the folder, which need not be there.

        Args:
            folder: The folder.
            made_of: What files must have been made of to be read: JSON values, `files` not among them.
        """
        self.folder = folder
        self._made_of = dict(made_of)

    def exist(self) -> bool:
        """Return whether files of whatever was there before are kept."""
        return self.folder.is_dir()

    def are_current(self) -> bool:
        """Return whether they are said to be made of what is there now; no file is read."""
        about = self._about()
        return {name: about[name] for name in about if name != _FILES} == self._made_of

    def recorded(self, key: str) -> Any:
        """Return a value of what they were made of; None where it is not known."""
        return self._about().get(key)

    def damaged(self) -> str | None:
        """Return the name of a file that is not as it was written; None where all are."""
        hashes = self._about().get(_FILES)
        if not isinstance(hashes, dict):
            return _ABOUT
        names = {path.name for path in self.folder.iterdir()} - {_ABOUT}
        for name in sorted(names | hashes.keys()):
            if name not in names or file_sha256(self.folder / name) != hashes.get(name):
                return name
        return None

    def write(self, write_files: Callable[[Path], None], *, below: Path) -> None:
        """Write the folder again.

        Args:
            write_files: Writes the files into the folder.
            below: The folder that this one must be in.

        Raises:
            ArtifactError: If it cannot be written.
        """
        remove(self.folder / _ABOUT)
        remove_tree(self.folder, below=below)
        with storage_errors(self.folder):
            self.folder.mkdir()
            write_files(self.folder)
            hashes = {path.name: file_sha256(path) for path in sorted(self.folder.iterdir())}
        write_json(self.folder / _ABOUT, {**self._made_of, _FILES: hashes})

    def _about(self) -> dict[str, Any]:
        with contextlib.suppress(ArtifactError):
            about = read_json(self.folder / _ABOUT)
            if isinstance(about, dict):
                return about
        return {}
