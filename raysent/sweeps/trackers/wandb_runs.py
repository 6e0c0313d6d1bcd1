"""Writes each trial as a run of Weights & Biases, with its parameters and metrics.

`WANDB_MODE=offline` keeps the runs in the run folder, from where `wandb sync` sends them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.storage import address_of
from raysent.storage.layout import TRIALS_FOLDER
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import FollowedTrials
from raysent.sweeps.trial import BROKEN, Trial


class Settings(StrictModel):
    """Settings of the runs.

    Attributes:
        project: The project's name; by default that of the space.
        entity: The user or team; by default that of the login.
    """

    project: str | None = None
    entity: str | None = None


class WandbRuns:
    """A run for each trial, in a group for the sweep; the step is the number of the report."""

    Config: ClassVar[type[StrictModel]] = Settings
    TARGET: ClassVar[str] = "project"

    def __init__(self, space: SearchSpace, config: Settings, *, folder: Path) -> None:
        if find_spec("wandb") is None:
            raise ConfigError("wandb needs the package wandb; install raysent[wandb]")
        self._folder, self._group = folder, folder.resolve().name
        self._project, self._entity = config.project or space.name, config.entity
        self._trials = FollowedTrials(folder)
        self._runs: dict[str, Any] = {}

    def on_event(self, event: Event) -> None:
        """Write a report or the end of a trial."""
        trial = self._trials.apply(event)
        if trial is None:
            return
        if event["event"] == "report":
            values = {**event["metrics"], "seconds": event["seconds"], "usd": event.get("usd", 0.0)}
            known = {name: value for name, value in values.items() if value is not None}
            self._run_of(trial).log(known, step=event["index"])
        elif event["event"] == "ended":
            run = self._run_of(trial)
            run.summary["status"] = trial.status
            if trial.error:
                run.summary["error"] = trial.error
            self._runs.pop(trial.name).finish(exit_code=1 if trial.status in BROKEN else 0)

    def close(self) -> None:
        """Finish the runs of trials that have not ended."""
        for run in self._runs.values():
            run.finish()
        self._runs = {}

    def _run_of(self, trial: Trial) -> Any:
        if trial.name not in self._runs:
            self._runs[trial.name] = import_module("wandb").init(
                project=self._project,
                entity=self._entity,
                id=f"{self._group}-{trial.name}",
                name=trial.name,
                group=self._group,
                dir=str(self._folder),
                config={
                    **trial.params,
                    "seed": trial.seed,
                    "folder": address_of(self._folder / TRIALS_FOLDER / trial.name),
                },
                reinit="create_new",
                resume="allow",
            )
        return self._runs[trial.name]


TRACKERS = {"wandb": WandbRuns}
