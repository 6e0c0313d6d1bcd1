"""Many runs on Ray Tune, searched by Optuna, stopped early by ASHA.

journal.py     the append-only record that a sweep is resumed from
halving.py     who goes on (ASHA), in plain values
proposals.py   what to try next (Optuna, ask and tell)
trial.py       one trial as far as it is known
blind.py       proposals drawn blindly
frugal.py      proposals by expected improvement per dollar
searchers.py   which of these a space names
allowance.py   what the budget says to trials
conductor.py   these together: the sweep's mind, without Ray
metering.py    the ledger of a sweep, on its clock
trainables.py  what trains one trial: a reused Tune actor, or Ray Train workers
sharing.py     how many trials share one GPU
layout.py      how trials share a cluster's cores and GPUs
ray_tune.py    the conductor on Ray Tune
fallback.py    when a deadline needs machines on demand
fleet.py       the machines: which stand, which may come, how trials share them
replay.py      every decision derived again from the journal
record.py      sweep.json and trials.csv
preparation.py the text that trials share, and the space checked against it
driver.py      start and resume
"""

from raysent.storage.layout import JOURNAL_FILE, LEDGER_FILE, SWEEP_FILE, TRIALS_FILE
from raysent.sweeps.controller import SweepController
from raysent.sweeps.cost_tracker import CheckBudget, metered, read_ledger, spent_usd
from raysent.sweeps.driver import SweepResult, judged, resume, start
from raysent.sweeps.journal import Event, Listener, read_events
from raysent.sweeps.machines import Workers, num_workers
from raysent.sweeps.preparation import prepare_space
from raysent.sweeps.record import SweepRecord, load_record, trial_folder
from raysent.sweeps.replay import Replayed, budget_values, replay
from raysent.sweeps.samplers.optuna_samplers import Sampler, derived_seed
from raysent.sweeps.samplers.random_draws import RandomSampler
from raysent.sweeps.trial import ENDED, Trial

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
    "Replayed",
    "Sampler",
    "SweepController",
    "SweepRecord",
    "SweepResult",
    "Trial",
    "Workers",
    "budget_values",
    "derived_seed",
    "judged",
    "load_record",
    "metered",
    "num_workers",
    "prepare_space",
    "read_events",
    "read_ledger",
    "replay",
    "resume",
    "spent_usd",
    "start",
    "trial_folder",
]
