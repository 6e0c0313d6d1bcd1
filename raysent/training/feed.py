"""The batches of a run's steps, prepared ahead of them: drawn, changed by the objective, laid out, and copied.

On a GPU a thread is two steps ahead, so that a step finds its words on the device. On a CPU, where the thread would
only take the processor from the step, a batch is prepared when it is asked for; so it is where an objective changes in
the course of a run. Either way a batch is the same: all of it follows from the seed and the step.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raysent.data.batches import AnyBatch
from raysent.kernels.packing import PackedAhead
from raysent.kernels.recordings import RECORDING

# Steps that are prepared before they are asked for.
_AHEAD = 2


@dataclass(frozen=True)
class PreparedStep:
    """What a step reads.

    Attributes:
        batch: The batch, as the objective changed it.
        generator: Source of the step's randomness, after what the objective drew from it.
        words: Rows of the word tables that the step reads, on the device; None where they follow from `packed`.
        packed: Sentences of the batch that are laid out on the device.
    """

    batch: AnyBatch
    generator: torch.Generator
    words: Tensor | None = None
    packed: PackedAhead = field(default_factory=PackedAhead)


class StepFeed:
    """The prepared steps of a run, in any order; fastest one after another."""

    def __init__(
        self,
        prepare: Callable[[int], PreparedStep],
        *,
        device: torch.device,
        is_ahead: bool,
        mode: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Prepare nothing yet.

        Args:
            prepare: Returns what a step reads.
            device: Where the steps compute.
            is_ahead: Whether a thread prepares steps before they are asked for.
            mode: Returns the autocast that holds in a step, which other threads do not inherit.
        """
        self._prepare = prepare
        self._device = device
        self._mode = mode
        self._executor: ThreadPoolExecutor | None = None
        if is_ahead:
            self._executor = ThreadPoolExecutor(1, "raysent-feed", self._start)
        self._waiting: dict[int, Future[PreparedStep]] = {}

    def step(self, number: int) -> PreparedStep:
        """Return what a step reads.

        Raises:
            RaysentError: What preparing it raised, in whatever thread.
        """
        if self._executor is None:
            return self._prepare(number)
        next_steps = range(number, number + 1 + _AHEAD)
        # Steps that are asked for in another order leave some that nothing will ask for.
        for step in list(self._waiting):
            if step not in next_steps:
                self._waiting.pop(step).cancel()
        for step in next_steps:
            if step not in self._waiting:
                self._waiting[step] = self._executor.submit(self._prepare_apart, step)
        return self._waiting.pop(number).result()

    def close(self) -> None:
        """End the thread; a later step is prepared when it is asked for."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None
            self._waiting = {}

    def _start(self) -> None:
        """Choose the device in the thread, which does not inherit it."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def _prepare_apart(self, step: int) -> PreparedStep:
        # While launches are recorded, no other thread may copy to the device.
        with RECORDING, self._mode():
            return self._prepare(step)
