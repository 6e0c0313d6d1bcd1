"""Mapping over several processes: order, errors, dead workers, and the number of processes."""

import errno
import operator
import os
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from raysent import parallel
from raysent.errors import DataError, RaysentError, WorkerError
from raysent.parallel import map_in_processes, num_processes_for, shared_processes


class Counter:
    """A callable with state: it collects the items that it is called with."""

    def __init__(self):
        self.items = []

    def __call__(self, item):
        """Return the process id and all items so far."""
        self.items.append(item)
        return os.getpid(), list(self.items)


def fail(item):
    """Raise a DataError."""
    raise DataError(f"{item}: must not be here")


@pytest.mark.parametrize("num_processes", [1, 3])
def test_map_in_processes_keeps_the_order(num_processes):
    """Results have the order of the items, whichever process computed them."""
    results = map_in_processes(partial(operator.mul, 2), range(50), num_processes=num_processes)
    assert list(results) == list(range(0, 100, 2))


def test_map_in_processes_gives_every_process_its_items_in_order():
    """A function with state sees its items in order, and every item is processed once."""
    last = dict(map_in_processes(Counter(), range(40), num_processes=3))
    assert all(items == sorted(items) for items in last.values())
    assert sorted(item for items in last.values() for item in items) == list(range(40))


def test_map_in_processes_reads_few_items_ahead():
    """Items are read as results are consumed, so that any number of items fits in memory."""
    read = []
    results = map_in_processes(abs, (read.append(i) or i for i in range(1000)), num_processes=2)
    assert [next(results) for _ in range(5)] == list(range(5))
    assert len(read) < 15
    results.close()


def test_map_in_processes_raises_errors_of_the_function():
    """An exception of the function is raised unchanged in the caller."""
    with pytest.raises(DataError, match="^7: must not be here$"):
        list(map_in_processes(fail, [7], num_processes=2))


def test_map_in_processes_reports_a_dead_process():
    """A killed worker process raises one error instead of blocking forever."""
    with pytest.raises(
        RaysentError, match="processes: a worker process died before its work was done"
    ):
        list(map_in_processes(os._exit, [3, 3, 3], num_processes=2))


def pid_after(_item):
    """Return the process id, once another process has had the time to take an item too."""
    time.sleep(0.2)
    return os.getpid()


def test_maps_of_a_block_share_their_processes():
    """So that libraries are imported once; each map has its own function, and a failed one ends no other."""
    with shared_processes():
        first = set(map_in_processes(pid_after, range(8), num_processes=2))
        doubled = list(map_in_processes(partial(operator.mul, 2), range(9), num_processes=2))
        again = set(map_in_processes(pid_after, range(8), num_processes=2))
        other = set(map_in_processes(pid_after, range(8), num_processes=3))
        with pytest.raises(DataError, match="^7: must not be here$"):
            list(map_in_processes(fail, [7], num_processes=2))
        later = set(map_in_processes(pid_after, range(8), num_processes=2))
        assert doubled == list(range(0, 18, 2))
        assert len(first | again) == 2
        assert not first & (other | later)
        assert any(map(psutil.pid_exists, later))
    assert not any(map(psutil.pid_exists, first | other | later))
    outside = set(map_in_processes(pid_after, range(8), num_processes=2))
    assert not outside & (first | later)


def test_num_processes_for_fits_cores_and_memory(monkeypatch):
    """One process per core, fewer if memory is short, at least one; a configured number is kept."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    available = psutil.virtual_memory().available
    assert num_processes_for(bytes_each=1) == 8
    assert num_processes_for(bytes_each=available // 2 - 2**28) in (2, 3)
    assert num_processes_for(bytes_each=2 * available) == 1


class DiesWhenItIsRead:
    """Ends the process that reads it from a pickle."""

    def __reduce__(self) -> tuple:
        """Return what ends a process."""
        return os._exit, (1,)


def test_process_that_dies_before_it_has_read_a_large_function_is_an_error() -> None:
    """It does not leave the first process waiting for a pipe that it no longer reads."""
    function = partial(lambda *given: given, DiesWhenItIsRead(), b"x" * (8 << 20))
    with pytest.raises(WorkerError, match="a worker process died before its work was done"):
        list(map_in_processes(function, range(4), num_processes=2))


MAPS = """
import os, time
from raysent.parallel import map_in_processes
for pid in map_in_processes(lambda item: time.sleep(600 * (item > 1)) or os.getpid(), range(4), num_processes=2):
    print(pid, flush=True)
"""


def test_worker_processes_end_with_a_process_that_is_killed():
    """A process that is killed closes no pool; its worker processes, which wait for work or do some, end by themselves."""
    with subprocess.Popen(
        [sys.executable, "-c", MAPS], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline()
        workers = [
            child
            for child in psutil.Process(process.pid).children()
            if "popen_loky" in " ".join(child.cmdline())
        ]
        process.kill()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=600)
    for worker in alive:
        worker.kill()
    assert alive == []


def test_processes_that_may_not_be_started_are_an_error(monkeypatch):
    """A semaphore needs /dev/shm; no file of the caller's is at fault."""

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(parallel.loky, "ProcessPoolExecutor", refuse)
    line = (
        "^processes: the system refuses them: .*Permission denied; is /dev/shm writable, with room"
    )
    with pytest.raises(WorkerError, match=line):
        list(map_in_processes(abs, [1], num_processes=2))
