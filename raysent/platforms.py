"""Calls that not every system has. Each has a plain path for the others, so that nothing else asks for the system."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

CPU_INFO = Path("/proc/cpuinfo")
# The longest path of a socket, in bytes.
MAX_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107


def num_cores() -> int:
    """Return the cores that this process may use; of the machine where processes have no CPU affinity, as on macOS."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_info(field: str) -> str:
    """Return the line of a field of the first core in /proc/cpuinfo, or an empty string; only Linux has the file."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(field)), "")


def user_folder(kind: Literal["cache", "data"]) -> Path:
    """Return the user's folder of what raysent keeps, by the XDG variables, or inside the Library of macOS."""
    if sys.platform == "darwin":
        place = Path.home() / "Library" / ("Caches" if kind == "cache" else "Application Support")
    else:
        default = Path.home() / (".cache" if kind == "cache" else ".local/share")
        place = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", "").strip() or default)
    return place / "raysent"


def trim_heap() -> bool:
    """Give memory that is free inside this process back to the system; return whether the C library can do so."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (
        AttributeError,
        OSError,
        TypeError,
    ):  # another C library, such as musl or the one of macOS; or Windows
        return False
    trim(0)
    return True


@contextlib.contextmanager
def signals_handled(handlers: Mapping[str, Callable[..., Any] | signal.Handlers]) -> Iterator[None]:
    """Handle signals inside the block, by name, and afterwards as before.

    Those that the system does not have are left out, and outside the main thread, which alone receives them, all are.
    """
    is_main = threading.current_thread() is threading.main_thread()
    known = {
        name: handler for name, handler in handlers.items() if is_main and hasattr(signal, name)
    }
    before = {
        name: signal.signal(getattr(signal, name), handler) for name, handler in known.items()
    }
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def imports_from_working_folder() -> bool:
    """Return whether this process imports from the working folder, as the processes that it starts then may too.

    Else a file `torch.py` or `random.py` of the user's there would take the library's place in them.
    """
    return not {"", os.path.abspath(os.curdir)}.isdisjoint(sys.path)  # noqa: PTH100 - as `sys.path` has it


@contextlib.contextmanager
def same_import_path() -> Iterator[None]:
    """Let what Python starts inside the block import from the working folder only if this process does."""
    if imports_from_working_folder() or "PYTHONSAFEPATH" in os.environ:
        yield
        return
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
