"""What happens, in order of time; nothing waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Holds what will happen, and stands at the time of what happened last.

    Attributes:
        now_s: Seconds since the sweep's beginning.
    """

    def __init__(self) -> None:
        """Stand at zero, with nothing to come."""
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, seconds: float, happens: Callable[..., None], *arguments: Any) -> None:
        """Let something happen in so many seconds; of what comes at once, what was said first is first."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + seconds, self._count, happens, arguments))

    def has_more(self) -> bool:
        """Whether anything will happen."""
        return bool(self._heap)

    def step(self) -> None:
        """Go to what comes next, and let it happen."""
        self.now_s, _, happens, arguments = heapq.heappop(self._heap)
        happens(*arguments)

    def clear(self) -> None:
        """Forget all that was to come."""
        self._heap.clear()
