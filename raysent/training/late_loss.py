"""The sum of a run's losses on the host, without making a GPU wait for the steps that are under way."""

from __future__ import annotations

import torch
from torch import Tensor

from raysent.kernels.devices import is_gpu


class LateLoss:
    """The sum of losses: on a CPU as it is, on a GPU as it was when it was asked for before.

    What is returned depends on the calls alone, not on how fast a GPU is, so that all workers see the same.
    """

    def __init__(self, device: torch.device) -> None:
        """Know of no loss yet."""
        self._is_late = is_gpu(device)
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copy = torch.zeros((), dtype=torch.float64, pin_memory=device.type == "cuda")
        self._num_copied = 0

    def seen(self, total: Tensor, count: int) -> tuple[float, int]:
        """Return a sum of losses and their number: these, or on a GPU those of the call before.

        Args:
            total: The sum so far, a scalar.
            count: How many losses it has.
        """
        if not self._is_late:
            return float(total), count
        if self._event is not None:
            # The steps since then have taken longer than a copy.
            self._event.synchronize()
        earlier_total = float(self._copy)
        earlier_count = self._num_copied
        self._copy.copy_(total, non_blocking=True)
        self._num_copied = count
        if self._event is not None:
            self._event.record()
        return earlier_total, earlier_count
