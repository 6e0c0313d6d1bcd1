"""Exclusive access to a run: one process of one machine; for a run in a bucket, one process of all machines.

On a machine a file lock is held, which ends with its process. In a bucket the holder renews a small object; an object
that is not renewed expires. Ages are measured by the clock of the object store. A holder that was suspended past its
expiry can still do no harm: `Lines` creates objects and never replaces one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from raysent.errors import ArtifactError, RaysentError
from raysent.reading import parse_json
from raysent.storage.disk import storage_errors
from raysent.storage.layout import LOCK_FILE
from raysent.storage.mirror import address_of, remote_address
from raysent.storage.object_store import ObjectContent, conditional_put, delete, get_content

_LEASE_NAME = ".lease"

RENEWAL_S = 15.0
EXPIRY_S = 60.0


class Lease:
    """Exclusive access to a run's folder."""

    def __init__(self, folder: Path) -> None:
        """Acquire the lease.

        Raises:
            ArtifactError: If another process holds it, or the folder cannot be written.
        """
        self._folder = folder
        self._lock = FileLock(folder / LOCK_FILE)
        with storage_errors(address_of(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise _held_error(folder) from None
        run = remote_address(folder)
        self._address = None if run is None else f"{run}/{_LEASE_NAME}"
        self._holder = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "born": _start_time(os.getpid()),
            "lease": uuid.uuid4().hex,
        }
        self._is_released = threading.Event()
        if self._address is not None:
            try:
                self._acquire(self._address)
            except BaseException:
                self._lock.release()
                raise
            threading.Thread(target=self._renew, args=(self._address,), daemon=True).start()

    def release(self) -> None:
        """Release the lease."""
        self._is_released.set()
        if self._address is not None:
            with contextlib.suppress(RaysentError):  # it expires
                held = get_content(self._address)
                if held is not None and _holder(held) == self._holder:
                    delete(self._address)
        self._lock.release()

    def _acquire(self, address: str) -> None:
        held = get_content(address)
        if held is not None and not _is_expired(held):
            host = _holder(held).get("host")
            left_s = max(1, round(EXPIRY_S - held.age_s))
            raise _held_error(self._folder, f"on {host}; if it was killed, try again in {left_s} s")
        if not conditional_put(address, self._data(), replaces=held.etag if held else ""):
            raise _held_error(self._folder)

    def _renew(self, address: str) -> None:
        """Rewrite the object at intervals while this process holds it; a failed request is repeated at the next one."""
        while not self._is_released.wait(RENEWAL_S):
            with contextlib.suppress(RaysentError):
                held = get_content(address)
                if held is None or _holder(held) == self._holder:
                    conditional_put(address, self._data(), replaces=held.etag if held else "")

    def _data(self) -> bytes:
        # The ETag must change with every renewal.
        return json.dumps({**self._holder, "renewal": uuid.uuid4().hex}).encode()


def lease_age_s(run: str) -> float | None:
    """Return the seconds since the process that works on a run in a bucket renewed its lease; None without a lease.

    Raises:
        ArtifactError: If the object store refuses.
    """
    held = get_content(f"{run}/{_LEASE_NAME}")
    if held is None:
        return None
    return held.age_s


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[Lease]:
    """Hold the lease of a run's folder during the block; a folder that has nothing else after it is removed.

    Raises:
        ArtifactError: As `Lease`.
    """
    lease = Lease(folder)
    try:
        yield lease
    finally:
        with contextlib.suppress(OSError):
            if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
                (folder / LOCK_FILE).unlink()  # refused by a system on which the file is locked
                folder.rmdir()
        lease.release()


def is_locked(folder: Path) -> bool:
    """Return whether a process of this machine holds the lease of a folder."""
    lock = FileLock(folder / LOCK_FILE)
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # no such folder, or no space: no process can hold the lease
        return False


def _held_error(folder: Path, details: str = "") -> ArtifactError:
    end = f" {details}" if details else "; wait for it or stop it"
    return ArtifactError(f"{address_of(folder)}: another process is working on this run{end}")


def _holder(held: ObjectContent) -> dict[str, object]:
    try:
        values = parse_json(held.data)
        return {key: values[key] for key in ("host", "process", "born", "lease")}
    except (ValueError, KeyError, TypeError):
        return {}


def _is_expired(held: ObjectContent) -> bool:
    """Return whether the lease has expired, or its holder was a process of this machine that has ended."""
    holder = _holder(held)
    process = holder.get("process")
    is_local = holder.get("host") == socket.gethostname()
    has_ended = is_local and isinstance(process, int) and _start_time(process) != holder.get("born")
    return held.age_s > EXPIRY_S or has_ended


def _start_time(process: int) -> float | None:
    """Return the start time of a process of this machine, or None if there is none; process ids are reused."""
    try:
        return round(float(psutil.Process(process).create_time()), 2)
    except psutil.NoSuchProcess:
        return None
