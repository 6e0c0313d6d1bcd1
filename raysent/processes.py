"""One function over many items in several processes of this machine, with the answers in the items' order.

In: a function that can be pickled, and items. Out: what it returns for each, in order, a few items ahead at most, so
that memory stays bounded whatever their number. Every process keeps a copy of the function of its own, which may
remember what it saw: it meets its items in their order. With one process all is done here, in plain sight.

A process is a fresh interpreter that speaks over pipes. Unlike `multiprocessing`'s, it does not import the user's main
module again, so a script needs no guard, and it inherits no threads.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any, BinaryIO, Self, TypeVar, cast

import psutil

from raysent.errors import RaysentError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2  # items under way or waiting, to each process


def choose_num_processes(wanted: int | None, *, bytes_each: int) -> int:
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


def mapped(function: Callable[[Item], Result], items: Iterable[Item], *, num_processes: int) -> Generator[Result]:
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
    with ExitStack() as stack:
        # Pickled once, and before any process is started: what cannot be is the caller's mistake.
        task = pickle.dumps(function, protocol=pickle.HIGHEST_PROTOCOL)
        threads = ThreadPoolExecutor(num_processes)
        stack.callback(threads.shutdown, cancel_futures=True)
        workers = [stack.enter_context(closing(_Worker(task))) for _ in range(num_processes)]
        # A worker belongs to a thread, and threads take items in order: so every worker meets its own in order.
        own, unclaimed = threading.local(), deque(workers)

        def run(item: Item) -> Any:
            if not hasattr(own, "worker"):
                own.worker = unclaimed.popleft()
            return own.worker(item)

        under_way: deque[Future[Any]] = deque()
        for item in items:
            under_way.append(threads.submit(run, item))
            if len(under_way) >= _AHEAD * num_processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


class _Worker:
    """A process that answers one item after another.

    Args:
        task: The pickled function.
    """

    def __init__(self, task: bytes) -> None:
        places = [place or os.getcwd() for place in sys.path]  # noqa: PTH109  # an empty place is where we stand
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._input, self._output = (
            cast(BinaryIO, self._process.stdin),
            cast(BinaryIO, self._process.stdout),
        )
        self._task = task

    def __enter__(self) -> Self:
        return self

    def __call__(self, item: object) -> object:
        """Return the function's answer, or raise its error."""
        try:
            if self._task:
                self._input.write(self._task)
                self._task = b""
            pickle.dump(item, self._input, protocol=pickle.HIGHEST_PROTOCOL)
            self._input.flush()
            answer, error = pickle.load(self._output)
        except (OSError, EOFError, pickle.UnpicklingError) as failure:
            status = self._process.wait()
            raise RaysentError(
                f"processes: one of them ended with status {status} before its work was done; "
                "is memory short? ask for fewer processes"
            ) from failure
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._input, self._output):
            with suppress(OSError):
                stream.close()


def _serve() -> None:
    """Answer what comes in, until there is no more: the other end of `_Worker`."""
    # Whatever the function prints must not get between the answers.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    source = sys.stdin.buffer
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        function = pickle.load(source)
        while True:
            pickle.dump(_answer(function, pickle.load(source)), output, protocol=pickle.HIGHEST_PROTOCOL)
            output.flush()


def _answer(function: Callable[[Any], Any], item: object) -> tuple[Any, Exception | None]:
    """Return what the function says, or its error with the place where it happened."""
    try:
        return function(item), None
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error of a library's own that does not survive the way
            return None, RuntimeError(f"{type(error).__name__}: {error}")
        return None, error
