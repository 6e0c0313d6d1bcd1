"""The file system: its errors as `ArtifactError`, temporary files, and the cache folder."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import safetensors

from raysent.errors import ArtifactError
from raysent.platforms import expanded, user_folder

# Also of a folder that is in use, or that another command filled, where one should be renamed to it.
_REFUSED = (
    errno.EACCES,
    errno.EBUSY,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTEMPTY,
    errno.EPERM,
    errno.EROFS,
)

# Of a disk, or of a server of files, that fails.
_BROKEN = (errno.EIO, errno.ENXIO, errno.ESTALE, errno.ETIMEDOUT)
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)

# Of a new file, before the user's mask.
_NEW_FILE_MODE = 0o666


@contextlib.contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turn errors of the operating system inside the block into one line about `path`.

    Raises:
        ArtifactError: If the disk is full, `path` is not writable, or a file is in the place of a folder.
    """
    try:
        yield
    except OSError as error:
        # NumPy reports a short write without an error number.
        is_short = error.errno is None and "requested and" in str(error)
        if is_short or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ArtifactError(
                f"{path}: the disk is full; free some space or name another folder"
            ) from error
        if error.errno in _REFUSED:
            if error.filename is None:  # no file of ours is at fault: a semaphore
                raise ArtifactError(
                    f"{path}: the system refused part of the work on it: {error}; let this user do it, or use "
                    "another machine"
                ) from error
            raise ArtifactError(f"{path}: cannot be written; name another folder") from error
        if error.errno in _BROKEN:
            raise ArtifactError(
                f"{path}: the disk does not answer as it should ({error.strerror}); check it, then give the same "
                "command again"
            ) from error
        if error.errno in _TOO_MANY_FILES:
            raise ArtifactError(
                f"{path}: too many files are open; raise the limit by 'ulimit -n' and give the same command again"
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            raise ArtifactError(
                f"{path}: a file exists where a folder is needed, or the reverse"
            ) from error
        raise
    except safetensors.SafetensorError as error:
        # The library keeps the number of the system's error in its text alone.
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        code = int(number[1])
        with storage_errors(path):
            raise OSError(code, os.strerror(code), str(path)) from error


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """Yield an empty temporary file in the folder of `path`; it is deleted after the block unless it was renamed.

    It may be read by those who may read the file that it replaces; of a new file, by those whom the user's mask allows.
    """
    temporary = _unused_name(path)
    mode = _mode_of(path)
    # Its owner writes it, whatever is allowed of the file that it replaces.
    if mode is None:
        allowed = _NEW_FILE_MODE
    else:
        allowed = mode | stat.S_IRUSR | stat.S_IWUSR
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    os.close(os.open(temporary, flags, allowed))
    if mode is not None:
        temporary.chmod(allowed)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_folder_beside(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`; it is removed after the block unless it was renamed.

    It may be entered by those whom the user's mask allows, or who may enter the folder that it replaces.
    """
    temporary = _unused_name(path)
    temporary.mkdir()
    keep_mode(temporary, path)
    try:
        yield temporary
    finally:
        remove_tree(temporary, below=path.parent)


def keep_mode(temporary: Path, path: Path) -> None:
    """Let a file or folder have the mode of the one that it replaces, if there is one."""
    mode = _mode_of(path)
    if mode is not None:
        temporary.chmod(mode)


def _mode_of(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def _unused_name(path: Path) -> Path:
    return path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"


def check_below(folder: Path, below: Path) -> None:
    """Refuse to remove a folder that is not inside another one, by its name or by links.

    Raises:
        ArtifactError: If it is not, or is that folder itself.
    """
    try:
        inside = folder.absolute().relative_to(below.absolute()).parts
    except ValueError:
        inside = ()
    is_inside = len(inside) > 0 and ".." not in inside
    if not is_inside or not folder.parent.resolve().is_relative_to(below.resolve()):
        raise ArtifactError(
            f"{folder}: must be inside {below} to be removed; it leads out of it, and nothing was removed"
        )


def remove_tree(folder: Path, *, below: Path) -> None:
    """Remove a folder of this machine with its content; of a link, the link. What cannot be removed is left.

    All folders are removed here, so that no name leads to what raysent did not make.

    Args:
        folder: The folder; it need not exist.
        below: The folder of raysent's that it is inside.

    Raises:
        ArtifactError: If it is not inside.
    """
    check_below(folder, below)
    if folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.unlink()
        return
    shutil.rmtree(folder, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until a file is on the disk, so that a rename after it is never seen with less than the whole file."""
    with path.open("r+b") as written:  # Windows flushes only files that are open for writing
        os.fsync(written.fileno())


def cache_folder(cache_dir: str | None = None) -> Path:
    """Return the folder of prepared corpora, compiled kernels and working copies of runs in a bucket.

    Args:
        cache_dir: The configured folder; None is ``$RAYSENT_CACHE``, else the user's cache folder.
    """
    name = cache_dir or os.environ.get("RAYSENT_CACHE")
    if name:
        return expanded(name).absolute()
    return user_folder("cache")
