"""The queue before a model: rows of many requests are computed together, and long requests take turns.

Of the requests that wait, the oldest computes its rows and those of others, up to a size, after a moment for more if
the batch before was of several. Only one does at a time, in one thread, so a model needs no lock. A long request waits
in parts, each behind what came before it, so it does not hold up others. A batch has as many rows as the model computes
in a fraction of a second, which is learned from the batches before. A request that does not fit into the queue is
refused at once; long requests have half of the queue, so that short ones always find room.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# Each so many characters of a row count as one more row.
_ROW_CHARACTERS = 256
# Rows of the first batch, and of the smallest to which slow batches lead.
_FIRST_BATCH, _LEAST_BATCH = 32, 8

Rows = Sequence[Sequence[str]]
Results = npt.NDArray[Any]


class QueueFullError(Exception):
    """As many rows wait as may wait."""


@dataclass(eq=False)
class _Part:
    """Rows of one request, and where their results go."""

    kind: Hashable
    rows: Rows
    size: int
    result: asyncio.Future[Results] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Computes the rows of concurrent requests in batches.

    Attributes:
        num_waiting: Rows that wait or are being computed.
    """

    def __init__(
        self,
        compute: Callable[[Any, Rows], Results],
        *,
        max_batch: int,
        max_waiting: int,
        wait_s: float,
        batch_s: float = 0.05,
    ) -> None:
        """Prepare.

        Args:
            compute: Kind and rows -> one result for each row [rows, …]; never called twice at once.
            max_batch: Rows computed together.
            max_waiting: Rows that may wait.
            wait_s: Seconds to wait for more rows after the first, where the batch before was of several requests.
            batch_s: Seconds that a batch may take; where one took more, the next are smaller.
        """
        self._compute = compute
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._batch_s = batch_s
        self._limit = min(max_batch, _FIRST_BATCH)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._queue: deque[_Part] = deque()
        # Those that wait for the lock get it in their order, which is that of the queue.
        self._turn = asyncio.Lock()
        self._is_shared = False  # whether the batch before was of several requests
        self.num_waiting = 0
        self._num_of_long = 0

    async def run(self, kind: Hashable, rows: Rows) -> Results:
        """Return the results of rows [rows, …]; those of one kind are computed together.

        Raises:
            QueueFullError: If they do not fit into the queue.
        """
        sizes = [1 + sum(map(len, row)) // _ROW_CHARACTERS for row in rows]
        is_long = sum(sizes) > self._max_batch
        self._check_room(len(rows), is_long=is_long)
        num_of_long = len(rows) if is_long else 0
        self.num_waiting += len(rows)
        self._num_of_long += num_of_long
        try:
            return await self._results(kind, rows, sizes)
        finally:
            self.num_waiting -= len(rows)
            self._num_of_long -= num_of_long

    def _check_room(self, num_rows: int, *, is_long: bool) -> None:
        # A request that is alone fits always.
        if self.num_waiting and self.num_waiting + num_rows > self._max_waiting:
            raise QueueFullError
        if is_long and self._num_of_long and self._num_of_long + num_rows > self._max_waiting // 2:
            raise QueueFullError

    async def _results(self, kind: Hashable, rows: Rows, sizes: Sequence[int]) -> Results:
        """Compute the rows part by part: how many the next part has is known when the one before is done."""
        results = []
        first = 0
        while first < len(rows):
            last = first + 1
            size = sizes[first]
            while last < len(rows) and size + sizes[last] <= self._limit:
                size += sizes[last]
                last += 1
            results.append(await self._result(_Part(kind, rows[first:last], size)))
            first = last
        return np.concatenate(results)

    async def _result(self, part: _Part) -> Results:
        self._queue.append(part)
        try:
            async with self._turn:
                # It is the oldest, unless a batch whose first request is gone has it.
                if part in self._queue:
                    if sum(waiting.size for waiting in self._queue) < self._limit:
                        # A client that is alone waits for no other.
                        await asyncio.sleep(self._wait_s if self._is_shared else 0)
                    # A request that is cancelled meanwhile does not end the work of the others.
                    await asyncio.shield(self._finish(self._take()))
            return await part.result
        finally:
            part.result.cancel()

    def _take(self) -> list[_Part]:
        """Return the next parts of one kind; those that have no caller any more are dropped."""
        batch: list[_Part] = []
        size = 0
        while self._queue:
            part = self._queue[0]
            if batch and (part.kind != batch[0].kind or size + part.size > self._limit):
                break
            self._queue.popleft()
            if not part.result.done():
                batch.append(part)
                size += part.size
        self._is_shared = len(batch) > 1
        return batch

    async def _finish(self, batch: list[_Part]) -> None:
        """Compute a batch; if that fails, compute its parts alone, so that no request harms another."""
        if not batch:
            return
        rows = [row for part in batch for row in part.rows]
        loop = asyncio.get_running_loop()
        try:
            computed = await loop.run_in_executor(self._thread, self._timed, batch, rows)
        except Exception as error:  # its request gets it
            if len(batch) == 1 and not batch[0].result.done():
                batch[0].result.set_exception(error)
            for part in batch if len(batch) > 1 else ():
                await self._finish([part])
            return
        first = 0
        for part in batch:
            last = first + len(part.rows)
            if not part.result.done():
                part.result.set_result(computed[first:last])
            first = last

    def _timed(self, batch: list[_Part], rows: Rows) -> Results:
        """Compute rows, and learn from the time how many rows the next batches may have."""
        started = time.perf_counter()
        computed = self._compute(batch[0].kind, rows)
        seconds = time.perf_counter() - started
        size = sum(part.size for part in batch)
        if seconds > self._batch_s:
            fitting = max(_LEAST_BATCH, int(size * self._batch_s / seconds))
            self._limit = min(self._limit, fitting)
        elif 2 * size > self._limit:
            self._limit = min(self._max_batch, 2 * self._limit)
        return computed
