"""How a decision reaches the workers of a trial that trains in processes of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import ray


@ray.remote(num_cpus=0)
class Answers:
    """Keeps what the conductor said to each report until the trial's worker asks; asking waits.

    A trial is never killed to be stopped: its workers hear the answer, end well and give their resources back.
    """

    def __init__(self) -> None:
        self._said: dict[tuple[str, int], asyncio.Future[bool]] = {}

    async def say(self, trial: str, index: int, goes_on: bool) -> None:
        """Keep the answer to a trial's report."""
        answer = self._answer(trial, index)
        if not answer.done():
            answer.set_result(goes_on)

    async def hear(self, trial: str, index: int) -> bool:
        """Return the answer to a trial's report, as soon as there is one."""
        return await asyncio.shield(self._answer(trial, index))

    def _answer(self, trial: str, index: int) -> asyncio.Future[bool]:
        return self._said.setdefault((trial, index), asyncio.get_running_loop().create_future())


def asker(answers: Any, trial: str) -> Any:
    """Return a function that a worker calls with a report's index, and that returns whether the trial goes on."""

    def ask(index: int) -> bool:
        return bool(ray.get(answers.hear.remote(trial, index)))

    return ask
