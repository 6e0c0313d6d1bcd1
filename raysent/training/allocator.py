"""The memory of a process that trains one run after another: what a run has freed goes back to the system.

Runs of different sizes that follow each other in one process leave holes in glibc's heap, because glibc raises the
threshold above which an allocation is a mapping of its own. The heap is therefore trimmed after each run, and oneDNN's
cache of compiled products is bounded. Only glibc's heap is trimmed; with another C library nothing changes.
"""

from __future__ import annotations

import os

import psutil

from raysent.platforms import trim_heap

# For this process and those that are started from it. oneDNN reads it at its first product.
ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}


def limit_primitive_cache() -> None:
    """Bound the products that oneDNN keeps compiled; a value of the environment wins."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def release_memory() -> bool:
    """Give memory that is free inside this process back to the system.

    Returns:
        Whether the C library can do so.
    """
    return trim_heap()


def resident_bytes() -> int:
    """Return the physical memory that this process holds, in bytes."""
    found: int = psutil.Process().memory_info().rss
    return found
