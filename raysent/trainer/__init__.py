"""The plain PyTorch loop: a `RunConfig` and a folder -> a trained model in that folder. No Ray in it.

- `outcome`: what a run tells, `Report` and `Outcome`
- `workers`: several processes with one loss: gather candidates, sum gradients
- `plan`: its model, its batches, its steps and when it reports
- `optimization`: clip, learning rate, dense and row-exact Adam
- `checkpoint`: everything needed to go on bit for bit
- `loop`: `fit`: step, validate, save, report
"""

from __future__ import annotations

from raysent.run import TrainingConfig
from raysent.trainer.checkpoint import drop_checkpoints
from raysent.trainer.loop import fit
from raysent.trainer.outcome import OnReport, Outcome, Report, go_on, load_outcome, load_reports
from raysent.trainer.workers import Workers

__all__ = [
    "OnReport",
    "Outcome",
    "Report",
    "TrainingConfig",
    "Workers",
    "drop_checkpoints",
    "fit",
    "go_on",
    "load_outcome",
    "load_reports",
]
