"""A recorded sweep as an Optuna study, for Optuna's plots, importances and dashboards."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from raysent.sweeps.record import RecordedSweep
from raysent.sweeps.samplers.optuna_samplers import distribution_of
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trial import Trial

_STATES = {
    "finished": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "running": TrialState.RUNNING,
    "waiting": TrialState.WAITING,
}


def study_of(sweep: RecordedSweep) -> optuna.Study:
    """Return an Optuna study with every trial of a sweep, rebuilt from its journal.

    Parameters have their labels, reports are intermediate values, and a trial's value is its last one. A trial that
    the scheduler stopped is pruned, one that a clock or a budget stopped is complete; one that failed or diverged has
    failed, and has no value. User attributes give the trial's `trial` (its name), `status`, `seed`, `seconds`, `usd`,
    all last `metrics`, and `error`, if it has one.
    """
    space = sweep.space
    found = optuna.create_study(study_name=space.name, direction="maximize" if space.mode == "max" else "minimize")
    for trial in sweep.trials:
        found.add_trial(frozen_trial(space, trial))
    return found


def frozen_trial(space: SearchSpace, trial: Trial) -> optuna.trial.FrozenTrial:
    """Return a trial as Optuna keeps it."""
    metric, domains = space.metric, space.domains
    status = "finished" if trial.status == "stopped" and not trial.is_outranked else trial.status
    state, value = _STATES.get(status, TrialState.FAIL), trial.metrics.get(metric)
    if state == TrialState.COMPLETE and value is None:
        state = TrialState.FAIL
    values = ((report.index, report.metrics.get(metric)) for report in trial.reports)
    return optuna.trial.create_trial(
        state=state,
        value=value if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        params=dict(trial.params),
        distributions={name: distribution_of(domains[name], has_labels=True) for name in trial.params},
        intermediate_values={index: score for index, score in values if score is not None},
        user_attrs={
            "trial": trial.name,
            "status": trial.status,
            "seed": trial.seed,
            "seconds": trial.seconds,
            "usd": trial.usd,
            "metrics": dict(trial.metrics),
            **({"error": trial.error} if trial.error else {}),
        },
    )
