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

from raysent.sweep.blind import BlindProposals
from raysent.sweep.conductor import Conductor
from raysent.sweep.driver import SweepResult, judged, resume, start
from raysent.sweep.fleet import Workers, num_workers
from raysent.sweep.journal import JOURNAL_FILE, Event, Listener, read_events
from raysent.sweep.metering import LEDGER_FILE, Afford, metered, read_ledger, spent_usd
from raysent.sweep.preparation import prepare_space
from raysent.sweep.proposals import Searcher, derived_seed
from raysent.sweep.record import SWEEP_FILE, TRIALS_FILE, SweepRecord, load_record, trial_folder
from raysent.sweep.replay import Replayed, budget_values, replay
from raysent.sweep.trial import ENDED, Trial

__all__ = [
    "ENDED",
    "JOURNAL_FILE",
    "LEDGER_FILE",
    "SWEEP_FILE",
    "TRIALS_FILE",
    "Afford",
    "BlindProposals",
    "Conductor",
    "Event",
    "Listener",
    "Replayed",
    "Searcher",
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
