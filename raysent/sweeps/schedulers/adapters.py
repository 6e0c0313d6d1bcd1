"""Schedulers of other libraries by name: Optuna's pruners, and Ray Tune's schedulers that decide on results alone.

    limits: {scheduler: {type: optuna, name: MedianPruner, options: {n_startup_trials: 5}}}
    limits: {scheduler: {type: tune, name: MedianStoppingRule, options: {time_attr: training_iteration, grace_period:
    2}}}

Both see each report at its index (`training_iteration` in Ray Tune, where `time_total_s` is the seconds of training).
Whatever they draw from NumPy's or Python's global generators is seeded for each call, so that a journal replays.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import optuna

from raysent.config import StrictModel
from raysent.errors import ConfigError, TrainingError
from raysent.sweeps.components import NamedClass, find, make
from raysent.sweeps.samplers.optuna_samplers import direction_of
from raysent.sweeps.schedulers import CONTINUE, Decision
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trial import Trial, derived_seed

_NAN = Decision(False, "its score is not a number")
_STATES = {"finished": optuna.trial.TrialState.COMPLETE, "stopped": optuna.trial.TrialState.PRUNED}


class _EveryReport:
    """What both adapters share: a trial may be stopped at every report, and global random state is seeded."""

    Config: ClassVar[type[StrictModel]] = NamedClass

    def __init__(self, space: SearchSpace, config: NamedClass, *, seed: int) -> None:
        self._space, self._name, self._seed = space, config.name, seed

    def next_rung(self, index: int) -> int:
        """Return the next report."""
        return index + 1

    @contextlib.contextmanager
    def _seeded(self, trial: Trial) -> Iterator[None]:
        seed = derived_seed(self._seed, "scheduler", trial.number, trial.index)
        python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the library's code draws from it
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


class OptunaPruner(_EveryReport):
    """Any pruner of Optuna's by its class name."""

    def __init__(self, space: SearchSpace, config: NamedClass, *, seed: int) -> None:
        super().__init__(space, config, seed=seed)
        pruner = make(config, optuna.pruners)
        if not isinstance(pruner, optuna.pruners.BasePruner):
            raise ConfigError(f"{config.name}: must be a pruner of Optuna's; see optuna.pruners")
        self._study = optuna.create_study(
            study_name=space.name,  # Hyperband assigns trials to brackets by it
            direction=direction_of(space),
            sampler=optuna.samplers.RandomSampler(seed=0),
            pruner=pruner,
        )
        self._trials: dict[str, optuna.trial.Trial] = {}

    def on_report(self, trial: Trial, *, score: float) -> Decision:
        """Report the score to the pruner's study, and stop what it prunes."""
        known = self._trials.setdefault(trial.name, self._trials.get(trial.name) or self._study.ask())
        known.report(score, trial.index)
        if trial.index >= trial.num_reports:
            return CONTINUE
        if math.isnan(score):
            return _NAN
        with self._seeded(trial):
            is_pruned = known.should_prune()
        return Decision(False, f"pruned by {self._name} after report {trial.index}") if is_pruned else CONTINUE

    def complete(self, trial: Trial) -> None:
        """End the trial in the pruner's study."""
        known = self._trials.pop(trial.name, None)
        if known is None:
            return
        score = trial.metrics.get(self._space.metric)
        state = _STATES.get(trial.status, optuna.trial.TrialState.FAIL)
        if state == optuna.trial.TrialState.COMPLETE and score is None:
            state = optuna.trial.TrialState.FAIL
        self._study.tell(known, score if state == optuna.trial.TrialState.COMPLETE else None, state=state)


@dataclass(eq=False)
class _TuneTrial:
    """A trial as Ray Tune's schedulers see it."""

    trial_id: str
    config: Mapping[str, Any]
    status: str = "RUNNING"


class TuneScheduler(_EveryReport):
    """A scheduler of Ray Tune's by its class name, if it decides on results alone."""

    def __init__(self, space: SearchSpace, config: NamedClass, *, seed: int) -> None:
        super().__init__(space, config, seed=seed)
        from ray.tune import schedulers  # noqa: PLC0415 - takes seconds, and most spaces do without

        others = (
            schedulers.HyperBandScheduler,
            schedulers.PopulationBasedTraining,
            schedulers.PopulationBasedTrainingReplay,
            schedulers.ResourceChangingScheduler,
        )
        kind = find(config.name, schedulers)
        if not issubclass(kind, schedulers.TrialScheduler) or issubclass(kind, others):
            raise ConfigError(
                f"{config.name}: must decide on results alone, as ASHAScheduler and MedianStoppingRule do; other "
                "schedulers pause trials, copy their weights or change their resources"
            )
        if config.options.get("hard_stop") is False:
            raise ConfigError("options.hard_stop: must be true; trials are not paused")
        scheduler = make(config, schedulers)
        if not scheduler.set_search_properties(space.metric, space.mode):
            raise ConfigError("options: must not give metric or mode; the space's metric is used")
        self._scheduler = scheduler
        self._trials: dict[str, _TuneTrial] = {}
        # All that such a scheduler may ask of Tune: which trials wait. None does, so none gives its place to another.
        self._tune: Any = SimpleNamespace(get_live_trials=list, get_trials=list)

    def on_report(self, trial: Trial, *, score: float) -> Decision:
        """Pass the report on as Tune does, and stop what the scheduler stops."""
        result = {
            self._space.metric: score,
            "training_iteration": trial.index,
            "time_total_s": trial.seconds,
            "usd": trial.usd,
        }
        with self._seeded(trial):
            known = self._known(trial)
            if trial.index >= trial.num_reports:
                self._scheduler.on_trial_complete(self._tune, known, result)
                return CONTINUE
            if math.isnan(score):
                return _NAN
            action = str(self._scheduler.on_trial_result(self._tune, known, result))
        if action not in ("CONTINUE", "STOP"):
            raise TrainingError(f"limits.scheduler: {self._name} decided {action}; it must decide CONTINUE or STOP")
        return (
            CONTINUE if action == "CONTINUE" else Decision(False, f"stopped by {self._name} after report {trial.index}")
        )

    def complete(self, trial: Trial) -> None:
        """Report a failure; of other ends a scheduler knows."""
        known = self._trials.pop(trial.name, None)
        if known is not None and trial.status in ("failed", "nan"):
            with self._seeded(trial):
                self._scheduler.on_trial_error(self._tune, known)

    def _known(self, trial: Trial) -> _TuneTrial:
        if trial.name not in self._trials:
            self._trials[trial.name] = _TuneTrial(trial.name, trial.params)
            self._scheduler.on_trial_add(self._tune, self._trials[trial.name])
        return self._trials[trial.name]


SCHEDULERS = {"optuna": OptunaPruner, "tune": TuneScheduler}
