"""The queue before a model: rows of many requests are computed together, and long requests are computed between them.

The requests that have waited longest are computed together, up to a size, after a moment for more if the batch before
was of several. Only one batch is computed at a time, in one thread, so a model needs no lock. A batch has as many rows
as the model computes in a fraction of a second, which is learned from the batches before.

A long request is cut into parts, of which each is computed alone. Where others ask too, a part takes a few
milliseconds, and the next one lets those go first that come in as much time as the request has been computed for. A
request that does not fit into the queue is refused at once; long requests have half of the queue, so that short ones
always find room.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import statistics
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
_FIRST_BATCH = 32
_LEAST_BATCH = 8
# Seconds of a part of a long request where others ask too, or twice as many as most of the last batches of whole
# requests took, if that is more.
_PART_S = 0.004
_LAST_BATCHES = 64
# Seconds after a short request during which others are expected.
_OTHERS_S = 1.0
# Seconds for which a part lets others go first, at most: however many they are, a long request ends.
_MOST_BEHIND_S = 0.25

Rows = Sequence[Sequence[str]]
Results = npt.NDArray[Any]


class QueueFullError(Exception):
    """As many rows wait as may wait."""


@dataclass(eq=False)
class _Part:
    """Rows of one request, and where their results go.

    Attributes:
        kind: What is computed.
        rows: The rows.
        size: How many, long rows counted as several.
        is_cut: Whether the request has other rows too; such a part is computed alone.
        seconds: How long it was computed, its share of the batch.
    """

    kind: Hashable
    rows: Rows
    size: int
    is_cut: bool
    seconds: float = 0.0
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
        # Sizes of a batch, and of the last part of a long request where others ask too.
        self._limit = self._part_limit = min(max_batch, _FIRST_BATCH)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        # By the time at which each is due; of one time in the order in which they came.
        self._queue: list[tuple[float, int, _Part]] = []
        self._numbers = itertools.count()
        self._working: asyncio.Task[None] | None = None
        self._last_seconds: deque[float] = deque(maxlen=_LAST_BATCHES)
        self._last_short = -_OTHERS_S  # when a request of one part was done
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
        seconds = 0.0
        # Rows of one request are alike, and those of another one may take far longer.
        part_limit = min(self._part_limit, _FIRST_BATCH)
        while first < len(rows):
            limit = self._limit
            if not self._is_alone():
                limit = min(self._limit, part_limit)
            last = first + 1
            size = sizes[first]
            while last < len(rows) and size + sizes[last] <= limit:
                size += sizes[last]
                last += 1
            part = _Part(kind, rows[first:last], size, is_cut=last - first < len(rows))
            results.append(await self._result(part, behind_s=min(seconds, _MOST_BEHIND_S)))
            seconds += part.seconds
            first = last
            if part.is_cut:
                speed = self._part_s() / part.seconds
                part_limit = self._part_limit = self._learned(part_limit, part.size, speed=speed)
        if len(results) == 1:
            self._last_short = time.perf_counter()
        return np.concatenate(results)

    def _is_alone(self) -> bool:
        """Return whether no short request was there lately."""
        return time.perf_counter() - self._last_short > _OTHERS_S

    def _part_s(self) -> float:
        """Return the seconds of a part of a long request where others ask too."""
        if not self._last_seconds:
            return _PART_S
        return max(_PART_S, 2 * statistics.median_low(self._last_seconds))

    async def _result(self, part: _Part, *, behind_s: float) -> Results:
        due = time.perf_counter() + behind_s
        heapq.heappush(self._queue, (due, next(self._numbers), part))
        if self._working is None or self._working.done():
            # A task of its own: a request that is cancelled does not end the work of the others.
            self._working = asyncio.ensure_future(self._work())
        try:
            return await part.result
        finally:
            part.result.cancel()

    async def _work(self) -> None:
        """Compute what waits, until nothing does."""
        while self._queue:
            if sum(part.size for _, _, part in self._queue) < self._limit:
                # A client that is alone waits for no other.
                await asyncio.sleep(self._wait_s if self._is_shared else 0)
            await self._finish(self._take())

    def _take(self) -> list[_Part]:
        """Return the next parts of one kind; those that have no caller any more are dropped."""
        batch: list[_Part] = []
        size = 0
        while self._queue:
            part = self._queue[0][-1]
            is_other = batch and (part.is_cut or batch[0].is_cut or part.kind != batch[0].kind)
            if is_other or (batch and size + part.size > self._limit):
                break
            heapq.heappop(self._queue)
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
            if len(batch) > 1:
                for part in batch:
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
        seconds = max(time.perf_counter() - started, 1e-9)
        size = sum(part.size for part in batch)
        for part in batch:
            part.seconds = seconds * part.size / size
        if not batch[0].is_cut:
            self._last_seconds.append(seconds)
        self._limit = self._learned(self._limit, size, speed=self._batch_s / seconds)
        return computed

    def _learned(self, limit: int, size: int, *, speed: float) -> int:
        """Return a limit by a batch's size, and by how many times quicker it was computed than it may be."""
        fitting = int(size * speed)
        if speed < 1:
            return min(limit, max(_LEAST_BATCH, fitting))
        if 2 * size > limit:
            return min(self._max_batch, max(limit, min(2 * limit, fitting)))
        return limit
