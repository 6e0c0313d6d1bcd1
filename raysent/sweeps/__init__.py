"""Many runs on Ray Tune: searched by samplers, stopped early by schedulers, within a budget, resumed from a journal.

- `space`: a search-space file, checked; its domains and a run for each trial
- `journal`: the append-only record that a sweep is resumed from
- `trial`, `ranking`: one trial, and which trial is best
- `samplers`, `schedulers`, `trackers`: what to try next, which trials continue, who follows; `components` finds them
- `budget_policy`: what the budget says to trials
- `controller`: these together, without Ray
- `cost_tracker`: the ledger of a running sweep
- `machines`, `gpu_sharing`: the machines of a sweep, and how trials share them
- `trainables`, `ray_tune`: one trial on Ray, and the controller on Ray Tune
- `record`: `sweep.json` and `trials.csv`
- `fitting`: settings chosen for the text, the machine and the time
- `preparation`: the text that trials share, and the space checked against it
- `driver`: start and resume
- `optuna_study`: a sweep as an Optuna study
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
    from raysent.sweeps.driver import EvaluationMachines, SweepResult, evaluation_machines, resume, start
    from raysent.sweeps.journal_replay import Replayed, budget_values, replay
    from raysent.sweeps.machines import Layout, Workers, num_workers
    from raysent.sweeps.optuna_study import study_of
    from raysent.sweeps.preparation import check_task_names, prepare_space
    from raysent.sweeps.random_draws import RandomSampler
    from raysent.sweeps.samplers import Sampler, make_sampler
    from raysent.sweeps.schedulers import Scheduler, make_scheduler
    from raysent.sweeps.trackers import Tracker

# Imported at the first use: these need Ray or Optuna, which readers of a sweep do not wait for.
_MODULE_OF = {
    "Layout": "machines",
    "RandomSampler": "random_draws",
    "Replayed": "journal_replay",
    "Sampler": "samplers",
    "Scheduler": "schedulers",
    "SweepController": "controller",
    "SweepResult": "driver",
    "Tracker": "trackers",
    "Workers": "machines",
    "budget_values": "journal_replay",
    "check_task_names": "preparation",
    "EvaluationMachines": "driver",
    "evaluation_machines": "driver",
    "make_sampler": "samplers",
    "make_scheduler": "schedulers",
    "num_workers": "machines",
    "prepare_space": "preparation",
    "replay": "journal_replay",
    "resume": "driver",
    "start": "driver",
    "study_of": "optuna_study",
}

__all__ = [
    "ENDED",
    "JOURNAL_FILE",
    "LEDGER_FILE",
    "SWEEP_FILE",
    "TRIALS_FILE",
    "CheckBudget",
    "EvaluationMachines",
    "Event",
    "Layout",
    "Listener",
    "RandomSampler",
    "RecordedSweep",
    "Replayed",
    "Sampler",
    "Scheduler",
    "SweepController",
    "SweepRecord",
    "SweepResult",
    "Tracker",
    "Trial",
    "TrialReport",
    "Workers",
    "budget_values",
    "check_task_names",
    "derived_seed",
    "evaluation_machines",
    "load_record",
    "make_sampler",
    "make_scheduler",
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
    "study_of",
    "trial_folder",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
