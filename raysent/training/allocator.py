"""The allocator of a process that trains: freed memory goes back to the system.

Trials of different sizes that follow each other in one process leave holes in glibc's heap, because glibc raises the
threshold above which an allocation is a mapping of its own. Here it is fixed, and oneDNN's cache of compiled products
is bounded, so that a process that has trained a large model is small again afterwards. Linux with glibc only; elsewhere
nothing changes.
"""

from __future__ import annotations

import ctypes
import os
import sys

import psutil

_THRESHOLD_BYTES = 1 << 20
# glibc's numbers of mallopt's parameters.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# For processes that are started from this one. The allocator and oneDNN read them once.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(_THRESHOLD_BYTES),
    "MALLOC_TRIM_THRESHOLD_": str(_THRESHOLD_BYTES),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
}


def limit_allocator() -> bool:
    """Set the allocator of this process, which may be running already; values of the environment win.

    Returns:
        Whether it has these settings.
    """
    was_set = all(name in os.environ for name in ENVIRONMENT)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # oneDNN reads its own at its first product
    if was_set or not sys.platform.startswith("linux"):
        return was_set
    try:
        mallopt = ctypes.CDLL(None).mallopt
        thresholds = [int(os.environ[name]) for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")]
    except (AttributeError, ValueError):  # another C library, such as musl; or a value that glibc ignored, too
        return False
    done = [mallopt(*pair) for pair in zip((_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD), thresholds, strict=True)]
    return done == [1, 1]


def resident_bytes() -> int:
    """Return the physical memory that this process holds, in bytes."""
    found: int = psutil.Process().memory_info().rss
    return found
