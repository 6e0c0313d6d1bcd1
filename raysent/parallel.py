"""Processes of this machine: a function mapped over many items in several of them, and locks that survive a fork.

Results are in order. Only a few items are read ahead, so memory stays bounded. Every process has its own copy of the
function, which may keep state between its items. With one process the function runs in the caller.

The pool is loky's: unlike `multiprocessing` with spawn, it does not import the user's main module again, so a script
needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import loky
import psutil
from loky.backend import reduction

from raysent.errors import WorkerError
from raysent.platforms import num_cores, same_import_path

Progress = Callable[[str, int, int | None], None]
"""Called with what is done, how much of it is done, and how much there is, None where that is not known."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_NUM_AHEAD = 2  # items submitted ahead, per process
_LOOK_S = 1.0  # how often a worker process looks whether the one that started it lives

# A worker that has read a large model is started again by the library, which is no user's concern.
warnings.filterwarnings("ignore", message="A worker was restarted", module="loky")

# The function of a worker process, set by `_initialize`.
_function: Callable[[Any], Any]


def lock_for_forks() -> threading.Lock:
    """Return a lock for what a forked process inherits; only for locks that exist as long as the process.

    A fork waits for the lock, so that the child finds what it guards whole, and the lock free.
    """
    lock = threading.Lock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock


def num_processes_for(*, bytes_each: int) -> int:
    """Return the number of processes to use, one per core as far as memory allows.

    Args:
        bytes_each: Memory that one process needs, in bytes.
    """
    available: int = psutil.virtual_memory().available
    return max(1, min(num_cores(), available // bytes_each))


def map_in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, num_processes: int
) -> Generator[Result]:
    """Yield `function(item)` for every item, in order.

    Args:
        function: Must be picklable if there are several processes.
        items: Items; a few are read ahead of the results.
        num_processes: At least 1.

    Raises:
        WorkerError: If a process dies, or none can be started. Exceptions of the function are raised unchanged.
    """
    if num_processes == 1:
        yield from map(function, items)
        return
    # By a file: a process that dies before it has read a pipe would let this one wait for it without end.
    with tempfile.TemporaryDirectory(prefix="raysent-") as folder, same_import_path():
        path = Path(folder) / "function"
        path.write_bytes(reduction.dumps(function))
        try:
            pool = loky.ProcessPoolExecutor(
                num_processes,
                initializer=_initialize,
                initargs=(path, os.getpid()),
                env={"OMP_NUM_THREADS": "1"},
            )
        except OSError as error:  # of semaphores
            raise WorkerError(
                f"processes: the system refuses them: {error}; is /dev/shm writable, with room?"
            ) from error
        yield from _map_in_pool(pool, items, num_ahead=_NUM_AHEAD * num_processes)


def _map_in_pool(pool: Any, items: Iterable[Any], *, num_ahead: int) -> Generator[Any]:
    pending: deque[Future[Any]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(_call, item))
            if len(pending) >= num_ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise WorkerError(
            "processes: a worker process died before its work was done, perhaps for lack of memory; use fewer processes"
        ) from error
    finally:
        pool.shutdown(kill_workers=True)


def _initialize(path: Path, parent: int) -> None:
    """Read the function of this worker process; warnings are those of the first process, `parent`."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    logging.getLogger("raysent").setLevel(logging.ERROR)
    global _function  # noqa: PLW0603  # a worker process runs one function only
    _function = reduction.loads(path.read_bytes())


def _end_with(parent: int) -> None:
    """End this worker process once the process that started it has: one that is killed ends no pool of loky's."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _call(item: object) -> Any:
    return _function(item)
