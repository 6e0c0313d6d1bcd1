"""Many runs on Ray Tune, searched by Optuna, stopped early by ASHA.

journal.py     the append-only record that a sweep is resumed from
halving.py     who goes on (ASHA), in plain values
proposals.py   what to try next (Optuna, ask and tell)
conductor.py   the three together: the sweep's mind, without Ray
trainables.py  what trains one trial: a reused Tune actor, or Ray Train workers
ray_tune.py    the conductor on Ray Tune
record.py      sweep.json and trials.csv
preparation.py the text that trials share, and the space checked against it
driver.py      start and resume
"""

from raysent.sweep.conductor import ENDED, Conductor, Trial
from raysent.sweep.driver import SweepResult, resume, start
from raysent.sweep.journal import JOURNAL_FILE, Event, Listener, read_events
from raysent.sweep.preparation import prepare_space
from raysent.sweep.record import SWEEP_FILE, TRIALS_FILE, SweepRecord, load_record, trial_folder

__all__ = [
    "ENDED",
    "JOURNAL_FILE",
    "SWEEP_FILE",
    "TRIALS_FILE",
    "Conductor",
    "Event",
    "Listener",
    "SweepRecord",
    "SweepResult",
    "Trial",
    "load_record",
    "prepare_space",
    "read_events",
    "resume",
    "start",
    "trial_folder",
]
