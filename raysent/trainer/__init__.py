"""The plain PyTorch loop: a `RunConfig` and a folder -> a trained model in that folder. No Ray in it.

- `outcome`: what a run tells, `Report` and `Outcome`
- `workers`: several processes with one loss: gather candidates, sum gradients
- `check`: mistakes that the text and the files show, before any process is started
- `plan`: its model, its batches, its steps and when it reports
- `optimization`: clip, learning rate, dense and row-exact Adam
- `checkpoint`: everything needed to go on bit for bit
- `saving`: when to save between reports: now and then, at once after a notice, and just before its end
- `lookout`: how often a run looks out for interruptions, and on whose clock
- `shared_loss`: the loss of one step, over this worker's sentences or over all
- `loop`: `fit`: step, validate, save, report
"""

from __future__ import annotations

from raysent.run import TrainingConfig
from raysent.trainer.check import check_run
from raysent.trainer.checkpoint import drop_checkpoints
from raysent.trainer.loop import fit
from raysent.trainer.outcome import OnReport, Outcome, Report, go_on, load_outcome, load_reports
from raysent.trainer.saving import GiveNotice, Interruptions
from raysent.trainer.workers import Workers

__all__ = [
    "GiveNotice",
    "Interruptions",
    "OnReport",
    "Outcome",
    "Report",
    "TrainingConfig",
    "Workers",
    "check_run",
    "drop_checkpoints",
    "fit",
    "go_on",
    "load_outcome",
    "load_reports",
]
