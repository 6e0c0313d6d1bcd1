"""One function in several processes: order, errors, deaths, and a number that fits the machine."""

import operator
import os
from functools import partial

import psutil
import pytest

from raysent.errors import DataError, RaysentError
from raysent.parallel import map_in_processes, num_processes_for


class Counter:
    """Remembers how many items it met, and the last of them."""

    def __init__(self):
        self.met = []

    def __call__(self, item):
        """Return the items met so far."""
        self.met.append(item)
        return os.getpid(), list(self.met)


def complain(item):
    """Raise an error of ours."""
    raise DataError(f"{item}: must not be here")


@pytest.mark.parametrize("num_processes", [1, 3])
def test_mapped_keeps_the_order(num_processes):
    """Answers come in the order of the items, whoever gave them."""
    assert list(map_in_processes(partial(operator.mul, 2), range(50), num_processes=num_processes)) == list(
        range(0, 100, 2)
    )


def test_mapped_shows_every_process_its_items_in_order():
    """A function that remembers meets its items in their order, and every item is met once."""
    last = dict(map_in_processes(Counter(), range(40), num_processes=3))
    assert all(met == sorted(met) for met in last.values())
    assert sorted(item for met in last.values() for item in met) == list(range(40))


def test_mapped_reads_few_items_ahead():
    """Items are drawn as answers are taken, so that their number does not matter."""
    drawn = []
    answers = map_in_processes(abs, (drawn.append(i) or i for i in range(1000)), num_processes=2)
    assert [next(answers) for _ in range(5)] == list(range(5))
    assert len(drawn) < 15
    answers.close()


def test_mapped_passes_errors_on():
    """What the function raises is raised here, as it is."""
    with pytest.raises(DataError, match="^7: must not be here$"):
        list(map_in_processes(complain, [7], num_processes=2))


def test_mapped_says_when_a_process_dies():
    """A process that is killed is one line, not a wait without end."""
    with pytest.raises(RaysentError, match="processes: one of them ended before its work was done"):
        list(map_in_processes(os._exit, [3, 3, 3], num_processes=2))


def test_choose_num_processes_fits_the_machine(monkeypatch):
    """One for each core, fewer where memory is short, at least one; what the user says goes."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    available = psutil.virtual_memory().available
    assert num_processes_for(None, bytes_each=1) == 8
    assert num_processes_for(None, bytes_each=available // 2 - 2**28) in (2, 3)
    assert num_processes_for(None, bytes_each=2 * available) == 1
    assert num_processes_for(5, bytes_each=2 * available) == 5
