"""Many runs on Ray Tune: searched by samplers, stopped early by schedulers, within a budget, resumed from a journal.

- `space`: a search-space file, checked; its domains and a run for each trial
- `journal`: the append-only record that a sweep is resumed from
- `trial`, `ranking`: one trial, and which trial is best
- `samplers`, `schedulers`: what to try next, and which trials continue
- `budget_policy`: what the budget says to trials
- `controller`: these together, without Ray
- `cost_tracker`: the ledger of a running sweep
- `machines`, `gpu_sharing`: the machines of a sweep, and how trials share them
- `trainables`, `ray_tune`: one trial on Ray, and the controller on Ray Tune
- `record`: `sweep.json` and `trials.csv`
- `preparation`: the text that trials share, and the space checked against it
- `driver`: start and resume
- `journal_replay`: every decision derived again from the journal
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raysent.storage.layout import JOURNAL_FILE, LEDGER_FILE, SWEEP_FILE, TRIALS_FILE
from raysent.sweeps.cost_tracker import CheckBudget, metered, read_ledger, spent_usd
from raysent.sweeps.journal import Event, Listener, read_events
from raysent.sweeps.record import RecordedSweep, SweepRecord, load_record, read_sweep, trial_folder
from raysent.sweeps.trial import ENDED, Trial, TrialReport, derived_seed

if TYPE_CHECKING:
    from raysent.sweeps.controller import SweepController
    from raysent.sweeps.driver import SweepResult, evaluation_budget, resume, start
    from raysent.sweeps.journal_replay import Replayed, budget_values, replay
    from raysent.sweeps.machines import Workers, num_workers
    from raysent.sweeps.preparation import check_task_names, prepare_space
    from raysent.sweeps.samplers.optuna_samplers import Sampler
    from raysent.sweeps.samplers.random_draws import RandomSampler

# Imported at the first use: these need Ray or Optuna, which readers of a sweep do not wait for.
_MODULE_OF = {
    "RandomSampler": "samplers.random_draws",
    "Replayed": "journal_replay",
    "Sampler": "samplers.optuna_samplers",
    "SweepController": "controller",
    "SweepResult": "driver",
    "Workers": "machines",
    "budget_values": "journal_replay",
    "check_task_names": "preparation",
    "evaluation_budget": "driver",
    "num_workers": "machines",
    "prepare_space": "preparation",
    "replay": "journal_replay",
    "resume": "driver",
    "start": "driver",
}

__all__ = [
    "ENDED",
    "JOURNAL_FILE",
    "LEDGER_FILE",
    "SWEEP_FILE",
    "TRIALS_FILE",
    "CheckBudget",
    "Event",
    "Listener",
    "RandomSampler",
    "RecordedSweep",
    "Replayed",
    "Sampler",
    "SweepController",
    "SweepRecord",
    "SweepResult",
    "Trial",
    "TrialReport",
    "Workers",
    "budget_values",
    "check_task_names",
    "derived_seed",
    "evaluation_budget",
    "load_record",
    "metered",
    "num_workers",
    "prepare_space",
    "read_events",
    "read_ledger",
    "read_sweep",
    "replay",
    "resume",
    "spent_usd",
    "start",
    "trial_folder",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
