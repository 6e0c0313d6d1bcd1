"""A recorded sweep as an Optuna study, for Optuna's plots, importances and dashboard."""

from __future__ import annotations

import optuna
from optuna.trial import FrozenTrial, TrialState

from raysent.sweeps.record import RecordedSweep
from raysent.sweeps.samplers.optuna_samplers import direction_of, distribution_of
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
    found = optuna.create_study(study_name=sweep.space.name, direction=direction_of(sweep.space))
    for trial in sweep.trials:
        found.add_trial(_frozen_trial(sweep.space, trial))
    return found


def _frozen_trial(space: SearchSpace, trial: Trial) -> FrozenTrial:
    status = "finished" if trial.status == "stopped" and not trial.is_outranked else trial.status
    state, value = _STATES.get(status, TrialState.FAIL), trial.metrics.get(space.metric)
    if state == TrialState.COMPLETE and value is None:
        state = TrialState.FAIL
    scores = ((report.index, report.metrics.get(space.metric)) for report in trial.reports)
    attributes = {name: getattr(trial, name) for name in ("status", "seed", "seconds", "usd")}
    return optuna.trial.create_trial(
        state=state,
        value=value if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        params=dict(trial.params),
        distributions={name: distribution_of(space.domains[name], has_labels=True) for name in trial.params},
        intermediate_values={index: score for index, score in scores if score is not None},
        user_attrs={
            "trial": trial.name,
            **attributes,
            "metrics": dict(trial.metrics),
            **({"error": trial.error} if trial.error else {}),
        },
    )
