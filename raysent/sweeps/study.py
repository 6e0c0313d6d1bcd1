"""A sweep's trials as an Optuna study, for Optuna's plots, importances and dashboard."""

from __future__ import annotations

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from raysent.sweeps.record import RecordedSweep
from raysent.sweeps.space import Choice, Domain, SearchSpace
from raysent.sweeps.trial import Trial

_STATES = {
    "finished": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "nan": TrialState.FAIL,
    "running": TrialState.RUNNING,
    "waiting": TrialState.WAITING,
}


def study_of(sweep: RecordedSweep) -> optuna.Study:
    """Return an in-memory study with a sweep's trials.

    Parameters are searched names; a choice among mappings has their labels. Intermediate values are the metric at each
    report. A trial that was stopped early is pruned; one that failed, or whose loss was not finite, has failed.

    Args:
        sweep: The sweep.
    """
    space = sweep.space
    study = optuna.create_study(
        study_name=space.name, direction="maximize" if space.mode == "max" else "minimize", load_if_exists=False
    )
    for trial in sweep.trials:
        study.add_trial(_frozen(trial, space))
    return study


def _frozen(trial: Trial, space: SearchSpace) -> FrozenTrial:
    """Return a trial in Optuna's form."""
    state = _STATES[trial.status]
    value = trial.metrics.get(space.metric)
    if state == TrialState.COMPLETE and value is None:
        state = TrialState.FAIL
    values = {report.index: report.metrics.get(space.metric) for report in trial.reports}
    frozen = create_trial(
        state=state,
        value=value if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        params={name: _label(value) for name, value in trial.params.items()},
        distributions={name: _distribution(space.domains[name]) for name in trial.params},
        intermediate_values={index: found for index, found in values.items() if found is not None},
        user_attrs={"trial": trial.name, "seconds": trial.seconds, "usd": trial.usd, "seed": trial.seed},
    )
    if trial.error:
        frozen.set_user_attr("error", trial.error)
    return frozen


def _label(value: object) -> object:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _distribution(domain: Domain) -> BaseDistribution:
    """Return a domain in Optuna's form."""
    if isinstance(domain, Choice):
        return CategoricalDistribution([_label(option) for option in domain.options])  # type: ignore[misc]
    if domain.is_integer:
        return IntDistribution(int(domain.low), int(domain.high), step=int(domain.step) if domain.step else 1)
    return FloatDistribution(domain.low, domain.high, step=domain.step, log=domain.is_log)
