"""Writes each trial as a run of Weights & Biases, with its parameters and metrics.

`WANDB_MODE=offline` keeps the runs in the run folder, from where `wandb sync` sends them. The same trial has the same
id at each call, so that W&B adds to its run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import (
    EVALUATED,
    FollowedTrials,
    flat_scores,
    known_values,
    sweep_title,
)
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
    """A run for each trial, in a group for the sweep; the step is the number of the report.

    The ensemble and each baseline that was evaluated have a run whose summary is their scores.
    """

    Config: ClassVar[type[StrictModel]] = Settings
    TARGET: ClassVar[str] = "project"

    def __init__(self, space: SearchSpace, config: Settings, *, folder: Path) -> None:
        if find_spec("wandb") is None:
            raise ConfigError("wandb needs the package wandb; install raysent[wandb]")
        self._folder = folder
        self._group = sweep_title(space, folder)
        self._project = config.project or space.name
        self._entity = config.entity
        self._trials = FollowedTrials(folder)
        self._runs: dict[str, Any] = {}

    def on_event(self, event: Event) -> None:
        """Write a report, the end of a trial, or the scores of the evaluation."""
        kind = event["event"]
        trial = self._trials.apply(event)
        if kind == EVALUATED:
            self._write_scores(event)
        elif trial is not None and kind in ("report", "ended"):
            if kind != "ended":
                self._run_of(trial).log(known_values(event), step=trial.index)
            if kind != "report":
                self._end(trial)

    def close(self) -> None:
        """Finish the runs of trials that have not ended."""
        for run in self._runs.values():
            run.summary["status"] = "running"
            run.finish()
        self._runs = {}

    def _end(self, trial: Trial) -> None:
        run = self._run_of(trial)
        run.summary["status"] = trial.status
        if trial.error:
            run.summary["error"] = trial.error
        self._runs.pop(trial.name).finish(exit_code=1 if trial.status in BROKEN else 0)

    def _write_scores(self, event: Event) -> None:
        facts: dict[str, Any] = {
            name: event[name]
            for name in ("folder", "members", "best_member", "method")
            if name in event
        }
        members = event.get("members", ())
        for name, scores in event["scores"].items():
            if name in members:
                continue
            is_ensemble = name == "ensemble"
            run = self._start(
                name,
                job="ensemble" if is_ensemble else "baseline",
                config=facts if is_ensemble else {},
            )
            run.summary.update(flat_scores(scores))
            if is_ensemble:
                for member in members:
                    member_scores = flat_scores(event["scores"][member])
                    run.summary.update(
                        {
                            f"members/{member}/{metric}": member_scores[metric]
                            for metric in member_scores
                        }
                    )
                if event.get("summary"):
                    run.summary["summary"] = event["summary"]
            run.finish()

    def _run_of(self, trial: Trial) -> Any:
        if trial.name not in self._runs:
            config = {
                **trial.params,
                "seed": trial.seed,
                "folder": self._trials.address_of(trial.name),
            }
            self._runs[trial.name] = self._start(trial.name, job="trial", config=config)
        return self._runs[trial.name]

    def _start(self, name: str, *, job: str, config: Mapping[str, Any]) -> Any:
        wandb = import_module("wandb")
        return wandb.init(
            project=self._project,
            entity=self._entity,
            id=re.sub(r"[^\w\-]", "-", f"{self._trials.sweep_key or self._group}-{name}"),
            name=name,
            group=self._group,
            job_type=job,
            dir=str(self._folder),
            config=dict(config),
            reinit="create_new",
            resume="allow",
            # The sweep's own output stays as it is, and this process's load says nothing about a trial.
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )


TRACKERS = {"wandb": WandbRuns}
