"""One queue and one owner of a model: texts of many requests are encoded together.

The owner takes what waits, up to a number of texts, and waits a moment for more. It is the only one that calls the
model, in one thread, so a model needs no lock. A request that does not fit into the queue is refused at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from raysent.models.sentence_encoder import Float32

T = TypeVar("T")


class QueueFullError(Exception):
    """As many texts wait as may wait."""


@dataclass
class _Waiting:
    """Texts of one request, and where their vectors go."""

    texts: list[str]
    result: asyncio.Future[Float32] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Encodes the texts of concurrent requests in batches.

    Attributes:
        num_waiting: Texts that wait or are being encoded.
        num_batches: Batches that were encoded.
        num_texts: Texts that were encoded.
    """

    def __init__(
        self, encode: Callable[[list[str]], Float32], *, max_batch: int, max_waiting: int, wait_s: float
    ) -> None:
        """Prepare; `start` begins to take texts.

        Args:
            encode: Texts -> vectors [texts, dim]; never called twice at once.
            max_batch: Texts encoded together; a request with more is encoded alone.
            max_waiting: Texts that may wait.
            wait_s: Seconds to wait for more texts after the first.
        """
        self._encode, self._max_batch, self._max_waiting, self._wait_s = encode, max_batch, max_waiting, wait_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self.num_waiting = self.num_batches = self.num_texts = 0

    def start(self) -> None:
        """Start the owner in the running event loop."""
        self._owner = asyncio.get_running_loop().create_task(self._own())

    async def stop(self) -> None:
        """Encode what waits, then stop the owner."""
        while self._queue and self._owner is not None and not self._owner.done():
            await asyncio.sleep(self._wait_s)
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.gather(self._owner, return_exceptions=True)
        self._thread.shutdown()

    async def encode(self, texts: list[str]) -> Float32:
        """Return the vectors of texts [texts, dim].

        Raises:
            QueueFullError: If they do not fit into the queue.
        """
        if self.num_waiting and self.num_waiting + len(texts) > self._max_waiting:
            raise QueueFullError
        waiting = _Waiting(texts)
        self._queue.append(waiting)
        self.num_waiting += len(texts)
        self._arrived.set()
        try:
            return await waiting.result
        finally:
            self.num_waiting -= len(texts)

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function that calls the model, run between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _own(self) -> None:
        """Encode batches until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if sum(len(waiting.texts) for waiting in self._queue) < self._max_batch:
                await asyncio.sleep(self._wait_s)
            batch = self._take()
            if not self._queue:
                self._arrived.clear()
            if not batch:
                continue
            texts = [text for waiting in batch for text in waiting.texts]
            try:
                vectors = await loop.run_in_executor(self._thread, self._encode, texts)
            except Exception as error:  # the requests get it; the owner continues
                _fail(batch, error)
                continue
            self.num_batches, self.num_texts = self.num_batches + 1, self.num_texts + len(texts)
            ends = np.cumsum([len(waiting.texts) for waiting in batch])
            for waiting, rows in zip(batch, np.split(vectors, ends[:-1]), strict=True):
                if not waiting.result.done():
                    waiting.result.set_result(rows)

    def _take(self) -> list[_Waiting]:
        """Return the next requests, at most `max_batch` texts; those that have no caller any more are dropped."""
        batch: list[_Waiting] = []
        size = 0
        while self._queue:
            if self._queue[0].result.done():
                self._queue.popleft()
                continue
            if batch and size + len(self._queue[0].texts) > self._max_batch:
                break
            batch.append(self._queue.popleft())
            size += len(batch[-1].texts)
        return batch


def _fail(batch: list[_Waiting], error: Any) -> None:
    for waiting in batch:
        if not waiting.result.done():
            waiting.result.set_exception(error)
