"""One queue before a model: rows of many requests are computed together, and long requests take turns.

Of the requests that wait, the oldest computes its rows and those of others, up to a size, after a moment for more. Only
one does at a time, in one thread, so a model needs no lock. A long request waits in parts, each behind what came before
it, so it does not hold up others. A request that does not fit into the queue is refused at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

# Each so many characters of a row count as one more row.
_CHARACTERS = 256

Rows = Sequence[Sequence[str]]
Results = npt.NDArray[Any]


class QueueFullError(Exception):
    """As many rows wait as may wait."""


@dataclass
class _Part:
    """Rows of one request, and where their results go."""

    kind: Hashable
    rows: Rows
    size: int
    result: asyncio.Future[Results] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Computes the rows of concurrent requests in batches.

    Attributes:
        num_waiting: Rows that wait or are being computed.
    """

    def __init__(
        self, compute: Callable[[Any, Rows], Results], *, max_batch: int, max_waiting: int, wait_s: float
    ) -> None:
        """Prepare.

        Args:
            compute: Kind and rows -> one result for each row [rows, …]; never called twice at once.
            max_batch: Rows computed together.
            max_waiting: Rows that may wait.
            wait_s: Seconds to wait for more rows after the first.
        """
        self._compute, self._max_batch, self._max_waiting, self._wait_s = compute, max_batch, max_waiting, wait_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._queue: deque[_Part] = deque()
        self._turn = asyncio.Lock()  # those that wait get it in their order, which is that of the queue
        self.num_waiting = 0

    async def run(self, kind: Hashable, rows: Rows) -> Results:
        """Return the results of rows [rows, …]; those of one kind are computed together.

        Raises:
            QueueFullError: If they do not fit into the queue.
        """
        if self.num_waiting and self.num_waiting + len(rows) > self._max_waiting:
            raise QueueFullError
        self.num_waiting += len(rows)
        try:
            return np.concatenate([await self._result(part) for part in self._parts(kind, rows)])
        finally:
            self.num_waiting -= len(rows)

    def _parts(self, kind: Hashable, rows: Rows) -> Iterator[_Part]:
        """Yield rows in parts of at most a batch."""
        sizes = [1 + sum(map(len, row)) // _CHARACTERS for row in rows]
        numbers = (np.cumsum(sizes) - 1) // self._max_batch
        for _, found in groupby(zip(numbers, sizes, rows, strict=True), key=lambda one: one[0]):
            part = list(found)
            yield _Part(kind, [row for *_, row in part], sum(size for _, size, _ in part))

    async def _result(self, part: _Part) -> Results:
        self._queue.append(part)
        try:
            async with self._turn:
                if not part.result.done():  # it is the oldest
                    if sum(one.size for one in self._queue) < self._max_batch:
                        await asyncio.sleep(self._wait_s)
                    # A request that is cancelled meanwhile does not end the work of the others.
                    await asyncio.shield(self._finish(self._take()))
            return part.result.result()
        finally:
            part.result.cancel()

    def _take(self) -> list[_Part]:
        """Return the next parts of one kind; those that have no caller any more are dropped."""
        batch: list[_Part] = []
        size = 0
        while self._queue:
            part = self._queue[0]
            if batch and (part.kind != batch[0].kind or size + part.size > self._max_batch):
                break
            self._queue.popleft()
            if not part.result.done():
                batch.append(part)
                size += part.size
        return batch

    async def _finish(self, batch: list[_Part]) -> None:
        """Compute a batch; if that fails, compute its parts alone, so that no request harms another."""
        rows, loop = [row for part in batch for row in part.rows], asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._compute, batch[0].kind, rows)
        except Exception as error:  # its request gets it
            if len(batch) == 1 and not batch[0].result.done():
                batch[0].result.set_exception(error)
            for part in batch if len(batch) > 1 else ():
                await self._finish([part])
            return
        for part in batch:
            if not part.result.done():
                part.result.set_result(found[: len(part.rows)])
            found = found[len(part.rows) :]
