"""Files that machines share: in a folder that all of them have, or in a bucket. Names are paths or ``s3://`` addresses.

Unlike the files of a run, they have no working copy, and none is ever replaced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from raysent.storage.disk import storage_errors, temporary_beside
from raysent.storage.object_store import conditional_put, delete, get_content, get_file, is_remote, put_file


def read_shared(name: str) -> bytes | None:
    """Return the content of a small file, or None if there is none.

    Raises:
        ArtifactError: If it is damaged, or the object store refuses.
    """
    if is_remote(name):
        found = get_content(name)
        return None if found is None else found.data
    path = Path(name)
    return path.read_bytes() if path.is_file() else None


def create_shared(name: str, data: bytes) -> bool:
    """Write a small file that appears whole, and return True; return False if there is one already.

    Raises:
        ArtifactError: If the disk or the object store refuses.
    """
    if is_remote(name):
        return conditional_put(name, data)
    path = Path(name)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(path) as temporary:
            temporary.write_bytes(data)
            temporary.chmod(0o644)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
    return True


def copy_to_shared(file: Path, name: str) -> None:
    """Copy a file of this machine to a name that no other writer uses.

    Raises:
        ArtifactError: If the disk or the object store refuses.
    """
    if is_remote(name):
        put_file(name, file)
        return
    path = Path(name)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, path)


def copy_from_shared(name: str, file: Path) -> None:
    """Copy a shared file to this machine; a killed copy leaves a part of it.

    Raises:
        ArtifactError: If it is missing or damaged, or the disk or the object store refuses.
    """
    if is_remote(name):
        get_file(name, file)
        return
    with storage_errors(name):
        shutil.copyfile(name, file)


def remove_shared(name: str) -> None:
    """Remove a shared file, if it exists.

    Raises:
        ArtifactError: If the object store refuses.
    """
    if is_remote(name):
        delete(name)
        return
    with contextlib.suppress(FileNotFoundError):
        Path(name).unlink()
