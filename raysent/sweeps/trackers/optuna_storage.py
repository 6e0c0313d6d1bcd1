"""A recorded sweep as an Optuna study, and a tracker that writes trials into Optuna's storage while they run.

Optuna's plots, importances and dashboard read both.
"""

from __future__ import annotations

import time
import warnings
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from raysent.config import StrictModel
from raysent.storage import to_uri
from raysent.sweeps.journal import Event
from raysent.sweeps.record import RecordedSweep
from raysent.sweeps.samplers.optuna_samplers import direction_of, distribution_of
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import EVALUATED, FollowedTrials, sweep_title
from raysent.sweeps.trial import ENDED, Trial

_STATES = {
    "finished": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "running": TrialState.RUNNING,
    "waiting": TrialState.WAITING,
}
_DEFAULT_FILE = "optuna.db"
# A trial is written as running if its events are no older; what is older may have ended, and is written with its times.
_LIVE_S = 60.0


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


class Settings(StrictModel):
    """Settings of the storage.

    Attributes:
        storage: A URL of SQLAlchemy, such as ``sqlite:///optuna.db``, or a file of Optuna's journal storage; by default
            ``optuna.db`` in the run folder.
        study: The study's name; by default that of the space and the run folder.
    """

    storage: str | None = None
    study: str | None = None


class OptunaStorage:
    """A study with each trial and its reports; what the study has is not added again.

    The study's user attributes are the run folder and, after the evaluation, the scores of the ensemble.
    """

    Config: ClassVar[type[StrictModel]] = Settings
    TARGET: ClassVar[str] = "storage"

    def __init__(self, space: SearchSpace, config: Settings, *, folder: Path) -> None:
        self._space, self._folder = space, folder
        self._address = config.storage or f"sqlite:///{folder / _DEFAULT_FILE}"
        self._name, self._is_named = config.study or sweep_title(space, folder), config.study is not None
        self._trials = FollowedTrials(folder)
        # Trial -> its number in the storage; the trials of those that have ended; trials that are not written yet.
        self._ids: dict[str, int] = {}
        self._ended: set[str] = set()
        self._unwritten: dict[str, Trial] = {}

    def on_event(self, event: Event) -> None:
        """Write a trial, a report, the end of a trial, or the scores of the evaluation."""
        kind, trial = event["event"], self._trials.apply(event)
        if kind not in ("started", "report", "ended", EVALUATED):
            return
        study = self._study
        if kind == EVALUATED:
            shown = {name: value for name, value in event.items() if name not in ("event", "time", "folder")}
            study.set_user_attr("evaluation", shown)
        elif trial is not None:
            self._unwritten[trial.name] = trial
            if kind == "ended" or time.time() - event["time"] < _LIVE_S:
                self._write(trial, event["time"])

    def close(self) -> None:
        """Write the trials that run."""
        for trial in list(self._unwritten.values()):
            self._write(trial, time.time())

    def _write(self, trial: Trial, time_s: float) -> None:
        """Add a trial, or what is new of one that the study has as running, with the times of the sweep."""
        study = self._study
        del self._unwritten[trial.name]
        if trial.name in self._ended:
            return
        frozen, suggested = _frozen_trial(self._space, trial), self._trials.suggested(trial.name)
        frozen.datetime_start = datetime.fromtimestamp(time_s if suggested is None else suggested)
        frozen.datetime_complete = datetime.fromtimestamp(time_s) if frozen.state.is_finished() else None
        frozen.user_attrs |= {"sweep": self._trials.sweep_key, "folder": self._trials.address_of(trial.name)}
        if trial.name in self._ids:
            self._update(self._ids[trial.name], frozen)
        else:
            self._ids[trial.name] = self._storage.create_new_trial(study._study_id, template_trial=frozen)
        if trial.status in ENDED:
            self._ended.add(trial.name)

    def _update(self, number: int, frozen: FrozenTrial) -> None:
        known = self._storage.get_trial(number)
        for step, value in frozen.intermediate_values.items():
            if step not in known.intermediate_values:
                self._storage.set_trial_intermediate_value(number, step, value)
        for name, value in frozen.user_attrs.items():
            if known.user_attrs.get(name) != value:
                self._storage.set_trial_user_attr(number, name, value)
        if frozen.state != known.state:
            values = None if frozen.value is None else [frozen.value]
            self._storage.set_trial_state_values(number, frozen.state, values)

    @cached_property
    def _storage(self) -> BaseStorage:
        if "://" in self._address:
            return optuna.storages.get_storage(self._address)
        return JournalStorage(JournalFileBackend(self._address))

    @cached_property
    def _study(self) -> optuna.Study:
        """The study, at the first event that is written; the trials that it has then."""
        study, key = self._create(self._name), self._trials.sweep_key
        if not self._is_named and study.user_attrs.get("sweep", key) != key:
            study = self._create(f"{self._name}-{key}")  # that name is taken by another sweep
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([self._space.metric])
        study.set_user_attr("sweep", key)
        study.set_user_attr("folder", to_uri(self._folder))
        for trial in study.get_trials(deepcopy=False):
            if trial.user_attrs.get("sweep", key) == key:
                name = str(trial.user_attrs.get("trial"))
                self._ids[name] = trial._trial_id
                if trial.state.is_finished():
                    self._ended.add(name)
        return study

    def _create(self, name: str) -> optuna.Study:
        direction = direction_of(self._space)
        return optuna.create_study(study_name=name, storage=self._storage, direction=direction, load_if_exists=True)


TRACKERS = {"optuna": OptunaStorage}
