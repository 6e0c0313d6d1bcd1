"""Processes of this machine: a function mapped over many items in several of them, and locks that survive a fork.

Results are in order. Only a few items are read ahead, so memory stays bounded. Every process has its own copy of the
function, which may keep state between its items. With one process the function runs in the caller. Maps inside
`shared_processes` use the same processes, which import what they need once.

The pool is loky's: unlike `multiprocessing` with spawn, it does not import the user's main module again, so a script
needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
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

# The function of a worker process, and the file that it was read from.
_function: Callable[[Any], Any]
_function_file: Path | None = None


def _compute_with_one_thread() -> None:
    """Let a forked process compute alone: the threads of OpenMP do not survive a fork, and it would wait for them."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_with_one_thread)


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


class _Shared:
    """The processes of a block of `shared_processes`, once a map has started them.

    Attributes:
        pool: The pool; None before the first map.
        num_processes: How many it has.
    """

    def __init__(self) -> None:
        """Begin without processes."""
        self.pool: Any = None
        self.num_processes = 0

    def close(self) -> None:
        """End the processes, if there are any."""
        if self.pool is not None:
            self.pool.shutdown(kill_workers=True)
        self.pool = None


_SHARED: ContextVar[_Shared | None] = ContextVar("shared processes", default=None)


@contextmanager
def shared_processes() -> Generator[None]:
    """Let maps of this block that need equally many processes use the same ones; they end with the block."""
    shared = _Shared()
    token = _SHARED.set(shared)
    try:
        yield
    finally:
        _SHARED.reset(token)
        shared.close()


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
        shared = _SHARED.get()
        if shared is None or shared.num_processes not in (0, num_processes):
            shared = _Shared()
        is_whole = False
        try:
            if shared.pool is None:
                shared.pool = _pool(num_processes)
                shared.num_processes = num_processes
            call = partial(_call, path)
            yield from _map_in_pool(shared.pool, call, items, num_ahead=_NUM_AHEAD * num_processes)
            is_whole = True
        finally:
            # Processes that still work on what this map has asked for are of no use to another one.
            if not is_whole or shared is not _SHARED.get():
                shared.close()


def _pool(num_processes: int) -> Any:
    try:
        return loky.ProcessPoolExecutor(
            num_processes,
            initializer=_initialize,
            initargs=(os.getpid(),),
            env={"OMP_NUM_THREADS": "1"},
        )
    except OSError as error:  # of semaphores
        raise WorkerError(
            f"processes: the system refuses them: {error}; is /dev/shm writable, with room?"
        ) from error


def _map_in_pool(
    pool: Any, call: Callable[[Any], Any], items: Iterable[Any], *, num_ahead: int
) -> Generator[Any]:
    pending: deque[Future[Any]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(call, item))
            if len(pending) >= num_ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise WorkerError(
            "processes: a worker process died before its work was done, perhaps for lack of memory; use fewer processes"
        ) from error


def _initialize(parent: int) -> None:
    """Prepare a worker process; warnings are those of the first process, `parent`."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    logging.getLogger("raysent").setLevel(logging.ERROR)


def _end_with(parent: int) -> None:
    """End this worker process once the process that started it has: one that is killed ends no pool of loky's."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def _call(path: Path, item: object) -> Any:
    """Call the function of a file, which is read where this process has another one, or none yet."""
    global _function, _function_file  # noqa: PLW0603  # a worker process has one function at a time
    if path != _function_file:
        _function = reduction.loads(path.read_bytes())
        _function_file = path
    return _function(item)
