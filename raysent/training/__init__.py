"""One training run: a `RunConfig` and a folder -> a trained model in that folder.

- `run`: the settings of a run, and `run.json`
- `data`: its text and vocabulary
- `plan`: its model, batches, validation set and number of steps
- `duration`: how long it trains, guessed or measured
- `loop`: `fit`, the training loop in plain PyTorch: step, validate, save, report
- `optimization`: gradient clipping, learning rate, dense and row-exact Adam
- `workers`: several processes with one loss
- `allocator`, `memory`: the memory of a process that trains, and what a run needs
- `checkpoint`: everything that is needed to continue bit for bit
- `interruptions`: when to save between reports
- `targets`: what a teacher returns for each sentence of the text
- `students`: the run that distills a teacher
- `retraining`: a finished run trained again, from its weights or from scratch
- `outcome`: reports, and how a run ended
- `validation`: the fixed validation set that all trials share
- `ray_train`: the same loop on Ray Train workers
- `ray_session`: a connection to Ray, and independent jobs on a cluster
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysent.registry import import_name

if TYPE_CHECKING:
    from raysent.training.loop import fit
    from raysent.training.memory import show_bytes
    from raysent.training.outcome import Outcome, Report, load_outcome, load_reports
    from raysent.training.ray_train import train
    from raysent.training.run import RunConfig, describe, load_run

# Imported at the first use: some of these need libraries that readers of others do not wait for.
_MODULE_OF = {
    "Outcome": "outcome",
    "Report": "outcome",
    "RunConfig": "run",
    "describe": "run",
    "fit": "loop",
    "load_outcome": "outcome",
    "load_reports": "outcome",
    "load_run": "run",
    "show_bytes": "memory",
    "train": "ray_train",
}

__all__ = [
    "Outcome",
    "Report",
    "RunConfig",
    "describe",
    "fit",
    "load_outcome",
    "load_reports",
    "load_run",
    "show_bytes",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    return import_name(__name__, _MODULE_OF, name)
