"""The disk: its refusals as our errors, temporary files, and the cache folder."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import safetensors

from raysent.errors import ArtifactError

if TYPE_CHECKING:
    pass


@contextlib.contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turn the operating system's refusals inside the block into one clear line about `path`."""
    try:
        yield
    except OSError as error:
        # NumPy tells a short write in words alone.
        is_short = error.errno is None and "requested and" in str(error)
        if is_short or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ArtifactError(f"{path}: the disk is full; free some space or name another folder") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOENT, errno.ENAMETOOLONG):
            raise ArtifactError(f"{path}: may not be written here; name another folder") from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
            raise ArtifactError(f"{path}: a file stands where a folder is needed, or the reverse") from error
        raise
    except safetensors.SafetensorError as error:
        if "No space left" in str(error):
            raise ArtifactError(f"{path}: the disk is full; free some space or name another folder") from error
        raise


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """Yield an empty file beside another; it is gone after the block, unless it was given a name."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def cache_folder(cache_dir: str | None = None) -> Path:
    """Return where prepared corpora, and working copies of runs in a bucket, are kept."""
    named = cache_dir or os.environ.get("RAYSENT_CACHE")
    return Path(named).expanduser().absolute() if named else Path(platformdirs.user_cache_dir("raysent"))
