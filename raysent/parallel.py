"""One function over many items in several processes of this machine, with the answers in the items' order.

In: a function that can be pickled, and items. Out: what it returns for each, in order, a few items ahead at most, so
that memory stays bounded whatever their number. Every process keeps a copy of the function of its own, which may
remember what it saw: it meets its items in their order. With one process all is done here, in plain sight.

A process of loky's is a fresh interpreter. Unlike `multiprocessing`'s, it does not import the user's main module again,
so a script needs no guard.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import loky
import psutil

from raysent.errors import RaysentError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # items under way or waiting, to each process

# In a process of the pool: what it does with items.
_function: Callable[[Any], Any]


def num_processes_for(wanted: int | None, *, bytes_each: int) -> int:
    """Return the number of processes to use: the wanted one, else one for each core that memory allows for.

    Args:
        wanted: What the user says; None leaves it to the machine.
        bytes_each: Memory that each will take.
    """
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    available: int = psutil.virtual_memory().available
    return max(1, min(cores, available // bytes_each))


def map_in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, num_processes: int
) -> Generator[Result]:
    """Yield `function(item)` for every item, in order.

    Args:
        function: Can be pickled, where there are several processes.
        items: Read a few ahead of what is yielded.
        num_processes: At least 1.

    Raises:
        RaysentError: If a process dies. What the function raises is raised here.
    """
    if num_processes == 1:
        yield from map(function, items)
        return
    pool = loky.ProcessPoolExecutor(
        num_processes, initializer=_keep, initargs=(function,), env={"OMP_NUM_THREADS": "1"}
    )
    under_way: deque[Future[Result]] = deque()
    try:
        for item in items:
            under_way.append(pool.submit(_answer, item))
            if len(under_way) >= _AHEAD * num_processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BrokenProcessPool as error:
        raise RaysentError(
            "processes: one of them ended before its work was done; is memory short? ask for fewer processes"
        ) from error
    finally:
        pool.shutdown(kill_workers=True)


def _keep(function: Callable[[Any], Any]) -> None:
    """Begin a process of the pool."""
    global _function  # noqa: PLW0603  # a process of the pool does nothing else
    _function = function


def _answer(item: object) -> Any:
    """Do one item's work, in a process of the pool."""
    return _function(item)
