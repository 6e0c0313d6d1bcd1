"""`fit`: the training loop."""

from __future__ import annotations

from pathlib import Path

import torch

from raysent.run import RunConfig
from raysent.trainer.outcome import OnReport, Outcome, go_on
from raysent.trainer.workers import Workers


def fit(
    config: RunConfig,
    folder: Path,
    *,
    report: OnReport = go_on,
    device: torch.device | None = None,
    workers: Workers | None = None,
) -> Outcome:
    """Train one run in its folder."""
    raise NotImplementedError
