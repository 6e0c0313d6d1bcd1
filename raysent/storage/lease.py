"""Who is at work on a run: one process of one machine, and where the run is in a bucket, of all machines.

On a machine a file lock says so, which ends with its process. In a bucket a small object says so, which its holder
renews; one that was not renewed for long is anybody's. Ages are told by the object store's clock alone. A holder that
slept past its lease can still do no harm: the lines of `Lines` are created, never replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import uuid
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from raysent.errors import ArtifactError, RaysentError
from raysent.storage.disk import storage_errors
from raysent.storage.layout import LOCK_FILE
from raysent.storage.mirror import address_of, remote_address
from raysent.storage.object_store import ObjectContent, conditional_put, delete, get_content

LEASE_NAME = ".lease"

RENEWAL_S = 15.0
EXPIRY_S = 60.0


class Lease:
    """The right to work on a run's folder."""

    def __init__(self, folder: Path) -> None:
        """Take it.

        Raises:
            ArtifactError: If another process has it, or the folder cannot be written.
        """
        self._folder = folder
        self._lock = FileLock(folder / LOCK_FILE)
        with storage_errors(address_of(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise _taken(folder) from None
        run = remote_address(folder)
        self._address = None if run is None else f"{run}/{LEASE_NAME}"
        self._name = {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "born": _start_time(os.getpid()),
            "lease": uuid.uuid4().hex,
        }
        self._is_over = threading.Event()
        if self._address is not None:
            try:
                self._take(self._address)
            except BaseException:
                self._lock.release()
                raise
            threading.Thread(target=self._renew, args=(self._address,), daemon=True).start()

    def release(self) -> None:
        """Give it back."""
        self._is_over.set()
        if self._address is not None:
            with contextlib.suppress(RaysentError):  # it will run out
                held = get_content(self._address)
                if held is not None and _name(held) == self._name:
                    delete(self._address)
        self._lock.release()

    def _take(self, address: str) -> None:
        """Create the object, or replace one whose holder is gone."""
        held = get_content(address)
        if held is not None and not _is_gone(held):
            left_s = max(1, round(EXPIRY_S - held.age_s))
            raise _taken(self._folder, f"on {_name(held).get('host')}; if it was killed, try again in {left_s} s")
        if not conditional_put(address, self._data(), replaces=held.etag if held else ""):
            raise _taken(self._folder)

    def _renew(self, address: str) -> None:
        """Write the object again and again while it is ours; a store that does not answer is asked again later."""
        while not self._is_over.wait(RENEWAL_S):
            with contextlib.suppress(RaysentError):
                held = get_content(address)
                if held is None or _name(held) == self._name:
                    conditional_put(address, self._data(), replaces=held.etag if held else "")

    def _data(self) -> bytes:
        # An ETag must change with every renewal.
        return json.dumps({**self._name, "renewal": uuid.uuid4().hex}).encode()


def is_locked(folder: Path) -> bool:
    """Return whether a process of this machine has the right to work on a folder."""
    lock = FileLock(folder / LOCK_FILE)
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # no folder, no room: nobody can be at work
        return False


def _taken(folder: Path, told: str = "") -> ArtifactError:
    return ArtifactError(
        f"{address_of(folder)}: another process is at work on this run"
        + (f" {told}" if told else "; wait for it or stop it")
    )


def _name(held: ObjectContent) -> dict[str, object]:
    """Return whose object it is."""
    try:
        found = json.loads(held.data)
        return {key: found[key] for key in ("host", "process", "born", "lease")}
    except (ValueError, KeyError, TypeError):
        return {}


def _is_gone(held: ObjectContent) -> bool:
    """Whether the holder let it run out, or was a process of this machine that is no more."""
    name = _name(held)
    process = name.get("process")
    is_here = name.get("host") == socket.gethostname() and isinstance(process, int)
    return held.age_s > EXPIRY_S or (is_here and isinstance(process, int) and _start_time(process) != name.get("born"))


def _start_time(process: int) -> float | None:
    """Return when a process of this machine began; None where there is none. Numbers of processes are used again."""
    try:
        return round(float(psutil.Process(process).create_time()), 2)
    except psutil.NoSuchProcess:
        return None
