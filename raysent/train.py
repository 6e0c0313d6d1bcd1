"""One run on Ray Train workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raysent.run import RunConfig
from raysent.trainer import OnReport, Outcome, go_on


def train(
    config: RunConfig,
    folder: Path,
    *,
    num_workers: int = 1,
    gpus_per_worker: float = 0,
    address: str | None = None,
    on_report: OnReport = go_on,
    resume: bool = True,
) -> Outcome:
    """Train one run on Ray Train workers."""
    raise NotImplementedError


def make_trainer(
    config: RunConfig,
    folder: Path,
    *,
    num_workers: int = 1,
    gpus_per_worker: float = 0,
    max_failures: int = 3,
    callbacks: list[Any] | None = None,
) -> Any:
    """Return the TorchTrainer of one run, to be fitted here or inside a Tune function trainable."""
    raise NotImplementedError
