"""Calls that not every system has. Each has a plain path for the others, so that nothing else asks for the system."""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

CPU_INFO = Path("/proc/cpuinfo")
# Files with the quota of a control group and its period, both in microseconds: of the second version, of the first.
_CGROUP = Path("/sys/fs/cgroup")
QUOTA_FILES = (
    (_CGROUP / "cpu.max", _CGROUP / "cpu.max"),
    (_CGROUP / "cpu/cpu.cfs_quota_us", _CGROUP / "cpu/cpu.cfs_period_us"),
)
# Whether a system can end a process with the one that has started it, which Ray asks for.
ENDS_WITH_ITS_PARENT = sys.platform == "linux"
_closed_streams: set[str] = set()
# The longest path of a socket, in bytes.
MAX_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107


def num_cores() -> int:
    """Return the cores that this process may use, at least 1: those of its CPU affinity, and of its container's quota.

    Where processes have no affinity, as on macOS, those of the machine count.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    num_allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, int(min(num_allowed, _quota_of_cores())))


def _quota_of_cores() -> float:
    """Return how many cores' time the control group of this process may use; infinity without a quota."""
    for quota_file, period_file in QUOTA_FILES:
        try:
            words = [*quota_file.read_text().split(), *period_file.read_text().split()]
            quota, period = float(words[0]), float(words[-1])
        except (OSError, ValueError, IndexError):  # no such file, or `max`
            continue
        if quota > 0 and period > 0:
            return quota / period
    return math.inf


def open_streams() -> None:
    """Open standard streams that are closed, so that they lead nowhere and no file gets their numbers.

    What an output's encoding cannot hold is written as an escape, as Python does on standard error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - as long as the process
            setattr(sys, name, stream)
            _closed_streams.add(name)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in (
        "strict",
        "surrogateescape",
    ):
        sys.stdout.reconfigure(errors="backslashreplace")


def is_closed(name: Literal["stdin", "stdout", "stderr"]) -> bool:
    """Return whether a standard stream was closed when the process began."""
    return getattr(sys, name) is None or name in _closed_streams


def cpu_info(field: str) -> str:
    """Return the line of a field of the first core in /proc/cpuinfo, or an empty string; only Linux has the file."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(field)), "")


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder of a user in the place of `~` or `~name`; a file called `~x.csv` is itself."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user
        return Path(path)


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
