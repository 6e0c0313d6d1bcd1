"""Recordings: computations on fixed buffers whose launches are recorded once and replayed as one.

A GPU learns of each kernel by a launch, which takes longer than many a small kernel. CUDA graphs replay a recorded
list of launches as one. A recorded computation reads and writes the same memory each time, so its inputs are copied to
buffers before it runs, and its outputs are valid until it runs again.

On a CPU, and where CUDA refuses to record, the computation is called each time, with the same result.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, Self, TypeVar

import torch

_log = logging.getLogger("raysent")

# Held while launches are recorded; a copy to a GPU from another thread meanwhile would end the recording.
RECORDING = threading.RLock()
# Why this process records nothing; empty while it does.
_refusal = ""
# Computations of one shape that are kept between steps; an encoder reads at most a few batches before their backward.
_MOST_KEPT = 32


def records(device: torch.device) -> bool:
    """Return whether launches on a device are recorded."""
    return device.type == "cuda" and not _refusal


class Recording:
    """A computation without arguments and results, on fixed buffers.

    The first call runs it as it is, so that libraries prepare what they need; the second one records it.
    """

    def __init__(self, compute: Callable[[], None], device: torch.device, *, pool: Any) -> None:
        """Prepare a recording.

        Args:
            compute: Launches the same kernels on the same memory whenever it is called.
            device: Where it computes.
            pool: What `memory_pool` returned for all recordings that share temporary memory.
        """
        self._compute = compute
        self._device = device
        self._pool = pool
        self._num_calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run or replay the computation."""
        if self._graph is None and self._num_calls and records(self._device):
            self._record()
        self._num_calls += 1
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()

    def _record(self) -> None:
        global _refusal  # noqa: PLW0603 - of the whole process
        graph = torch.cuda.CUDAGraph()
        try:
            with (
                RECORDING,
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                self._compute()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _refusal = str(error).splitlines()[0]
            _log.warning(
                "CUDA graphs: must be recorded by this GPU and driver; given %s; kernels are launched one by one, "
                "which gives the same results",
                _refusal,
            )
            return
        self._graph = graph


def memory_pool(device: torch.device) -> Any:
    """Return a pool of temporary memory for recordings that never run at the same time."""
    if records(device):
        return torch.cuda.graph_pool_handle()
    return None


class Keyed(Protocol):
    """What `Kept` keeps."""

    @property
    def key(self) -> Hashable:
        """Equal for computations that can take each other's place."""


Run = TypeVar("Run", bound=Keyed)


class Kept(Generic[Run]):
    """Computations of one encoder with their buffers, kept between steps and freed with it.

    What was acquired and not released is not given to anyone else.
    """

    def __init__(self) -> None:
        """Keep none yet."""
        self._free: deque[Run] = deque(maxlen=_MOST_KEPT)
        self._lock = threading.Lock()

    def acquire(self, key: Hashable, make: Callable[[], Run]) -> Run:
        """Return a free computation with this key, or a new one."""
        with self._lock:
            for run in self._free:
                if run.key == key:
                    self._free.remove(run)
                    return run
        return make()

    def release(self, run: Run) -> None:
        """Keep a computation for the next use; of too many, the one that was free for the longest time is freed."""
        with self._lock:
            self._free.append(run)

    def clear(self) -> None:
        """Free the memory of all that are kept."""
        with self._lock:
            self._free.clear()

    def __len__(self) -> int:
        return len(self._free)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an empty object: a copied encoder has buffers of its own."""
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """Pickle without buffers."""
        return type(self), ()
