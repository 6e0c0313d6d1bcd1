"""Adds each trial that has ended to a study in Optuna's storage, which Optuna's dashboard and plots read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from raysent.config import StrictModel
from raysent.sweeps.journal import Event
from raysent.sweeps.optuna_study import frozen_trial
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import FollowedTrials, sweep_title
from raysent.sweeps.trial import Trial

_DEFAULT_FILE = "optuna.db"


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
    """A study with a trial for each one that has ended; a trial that the study has is not added again."""

    Config: ClassVar[type[StrictModel]] = Settings
    TARGET: ClassVar[str] = "storage"

    def __init__(self, space: SearchSpace, config: Settings, *, folder: Path) -> None:
        self._space, self._folder = space, folder
        self._storage = config.storage or f"sqlite:///{folder / _DEFAULT_FILE}"
        self._name = config.study or sweep_title(space, folder)
        self._trials = FollowedTrials(folder)
        self._study: Any = None
        self._known: set[str] = set()

    def on_event(self, event: Event) -> None:
        """Add a trial that has ended."""
        trial = self._trials.apply(event)
        if event["event"] == "ended" and trial is not None:
            self._add(trial)

    def close(self) -> None:
        """Do nothing: every trial is written."""

    def _add(self, trial: Trial) -> None:
        self._open()
        if trial.name not in self._known:
            self._study.add_trial(frozen_trial(self._space, trial))
            self._known.add(trial.name)

    def _open(self) -> None:
        if self._study is not None:
            return
        is_url = "://" in self._storage
        self._study = optuna.create_study(
            study_name=self._name,
            storage=self._storage if is_url else JournalStorage(JournalFileBackend(self._storage)),
            direction="maximize" if self._space.mode == "max" else "minimize",
            load_if_exists=True,
        )
        self._known = {str(trial.user_attrs.get("trial")) for trial in self._study.get_trials(deepcopy=False)}


TRACKERS = {"optuna": OptunaStorage}
