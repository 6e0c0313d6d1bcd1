"""Ray's files of a session that this machine starts: sockets, logs, packages, in a folder that only its user may enter.

Ray makes its own folders writable for everybody, so that another user of the machine could rename its sockets or put
packages in their place. Each process that starts Ray has a folder inside one with mode 0700. Those of ended processes
are removed when the next one starts, but for the newest, whose logs may be wanted; a running process holds its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from functools import lru_cache
from pathlib import Path

import filelock

from raysent.errors import TrainingError
from raysent.platforms import MAX_SOCKET_BYTES

# The length of a path of a socket is limited, and Ray's are session_<date>_<time>_<process>/sockets/plasma_store.
_MAX_SOCKET_BYTES = MAX_SOCKET_BYTES
_SOCKET = "/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_LOCK = "lock"
_NUM_KEPT = 3


_HELD: list[filelock.BaseFileLock] = []


@lru_cache
def ray_folder() -> str | None:
    """Return the folder for the files of the sessions of Ray that this process starts; it is held until its end.

    On a system without ids of users it is None: Ray's own folder.

    Raises:
        TrainingError: If there is no folder of this user's whose path is short enough.
        OSError: If no folder can be made.
    """
    if not hasattr(os, "geteuid"):
        return None
    users = _users_folder()
    with filelock.FileLock(users / _LOCK):  # no other process takes the folder for ended before it is held
        folder = Path(tempfile.mkdtemp(prefix="", dir=users))
        _HELD.append(filelock.FileLock(folder / _LOCK))
        _HELD[-1].acquire()
        _remove_ended(users)
    return str(folder)


def _users_folder() -> Path:
    """Return this user's folder, which no other user may enter."""
    name = f"raysent-{os.geteuid()}"
    for base in (os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "/tmp"):
        folder = Path(base, name)
        if len(os.fsencode(f"{folder}-12345678/12345678{_SOCKET}")) > _MAX_SOCKET_BYTES:
            continue
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        # Another user may have taken the name.
        owned = next(filter(_is_owned, [folder, *Path(base).glob(f"{name}-*")]), None)
        owned = owned or Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
        owned.chmod(0o700)
        return owned
    raise TrainingError(f"RAY_TMPDIR={base}: too long for Ray's sockets; name a folder of at most 20 characters")


def _is_owned(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _remove_ended(users: Path) -> None:
    ended = []
    for folder in sorted(users.iterdir(), key=lambda one: one.stat().st_mtime):
        lock = filelock.FileLock(folder / _LOCK)
        with contextlib.suppress(filelock.Timeout, OSError):
            if folder.is_dir():
                with lock.acquire(timeout=0):
                    ended.append(folder)
    for folder in ended[:-_NUM_KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def whose_folder(session: Path) -> str:
    """Return whose Ray's files of a running cluster are, and whether other users may write there; empty if not here."""
    try:
        found = session.stat()
        is_open = found.st_mode & stat.S_IWOTH and all(one.stat().st_mode & stat.S_IXOTH for one in session.parents)
        owner = session.owner()
    except (OSError, KeyError):
        return ""
    others = "other users of this machine may" if is_open else "no other user may"
    return f"its files are in {session}, user {owner}'s; {others} write there"
