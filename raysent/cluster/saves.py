"""What saving a checkpoint to the storage of runs takes: on spot machines it has to fit well into the notice."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

import numpy as np
import torch

from raysent.errors import ConfigError
from raysent.storage import address_of, open_folder, remove_folder, storage_errors
from raysent.training.checkpoint import Progress, save_checkpoint

# AWS's; a checkpoint may take half of it, for it is written twice and has to be heard of first.
NOTICE_S = 120.0
SHARE_OF_NOTICE = 0.5
NUM_SAVES = 20


@dataclass(frozen=True)
class Saves:
    """What saves took.

    Attributes:
        where: The storage.
        num_bytes: Of each checkpoint.
        seconds: Of each save, its upload included.
    """

    where: str
    num_bytes: int
    seconds: tuple[float, ...]

    @property
    def p99_s(self) -> float:
        """What 99 in 100 saves take at most; of few saves the longest."""
        return float(np.quantile(self.seconds, 0.99, method="higher"))

    @property
    def fit_into_notice(self) -> bool:
        """Whether that is safe on spot machines."""
        return self.p99_s <= SHARE_OF_NOTICE * NOTICE_S

    def __str__(self) -> str:
        """Return the finding in words."""
        limit_s = SHARE_OF_NOTICE * NOTICE_S
        text = (
            f"P99 of {len(self.seconds)} saves of {self.num_bytes / 2**20:.0f} MiB from here to {self.where}: "
            f"{self.p99_s:.2f} s; half of a notice is {limit_s:.0f} s"
        )
        return text if self.fit_into_notice else f"{text}; use --market on-demand, or smaller models"


def measure_saves(storage: str, *, num_bytes: int, num_saves: int = NUM_SAVES) -> Saves:
    """Save checkpoints below a storage as training does, and remove them again.

    Args:
        storage: A local folder, or ``s3://BUCKET/PREFIX``.
        num_bytes: Of each checkpoint, at least 4.
        num_saves: How many.

    Raises:
        RaysentError: If nothing can be written there.
    """
    if num_bytes < 4 or num_saves < 1:
        raise ConfigError("a checkpoint to measure must have 4 bytes at least, and be saved once at least")
    folder = open_folder(f"{storage.rstrip('/')}/doctor-{uuid.uuid4().hex[:8]}")
    tensors = {"state": torch.rand(num_bytes // 4)}
    seconds = []
    try:
        for step in range(num_saves):
            begun = time.perf_counter()
            with storage_errors(address_of(folder)):
                save_checkpoint(folder, tensors, Progress(step=step), key="doctor")
            seconds.append(time.perf_counter() - begun)
    finally:
        remove_folder(folder)
    return Saves(storage, num_bytes, tuple(seconds))
