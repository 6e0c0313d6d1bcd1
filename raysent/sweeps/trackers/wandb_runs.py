"""Writes each trial as a run of Weights & Biases, with its parameters and metrics.

`WANDB_MODE=offline` keeps the runs in the run folder, from where `wandb sync` sends them. W&B writes an offline run
that is resumed into a new folder, and does not read the others. So `wandb/written.jsonl` has what was written, and
another call adds only what is new, under the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.storage import Lines, content_key, read_json_lines
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import EVALUATED, FollowedTrials, flat_scores, known_values, sweep_title
from raysent.sweeps.trial import BROKEN, Trial

_WRITTEN_FILE = "wandb/written.jsonl"


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
        self._folder, self._group = folder, sweep_title(space, folder)
        self._project, self._entity = config.project or space.name, config.entity
        self._trials = FollowedTrials(folder)
        self._runs: dict[str, Any] = {}
        is_offline = import_module("wandb").setup().settings.mode == "offline"
        self._written: set[tuple[str, str]] | None = None  # of offline runs: the run, and which of its events
        if is_offline:
            path = folder / _WRITTEN_FILE
            self._written = {(line["run"], line["what"]) for line in (read_json_lines(path) if path.is_file() else ())}

    def on_event(self, event: Event) -> None:
        """Write a report, the end of a trial, or the scores of the evaluation."""
        kind, trial = event["event"], self._trials.apply(event)
        if kind == EVALUATED:
            self._write_scores(event)
        elif trial is not None and kind in ("report", "ended"):
            what = f"{kind} {trial.index} {trial.status}"
            if self._has(trial.name, what):
                return
            if kind != "ended":
                self._run_of(trial).log(known_values(event), step=trial.index)
            if kind != "report":
                self._end(trial)
            self._note(trial.name, what)

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
            name: event[name] for name in ("folder", "members", "best_member", "method") if name in event
        }
        members = event.get("members", ())
        for name, scores in event["scores"].items():
            what = f"{EVALUATED} {content_key(facts, scores, event.get('summary'))}"
            if name in members or self._has(name, what):
                continue
            is_ensemble = name == "ensemble"
            run = self._start(name, job="ensemble" if is_ensemble else "baseline", config=facts if is_ensemble else {})
            run.summary.update(flat_scores(scores))
            for member in members if is_ensemble else ():
                own = flat_scores(event["scores"][member])
                run.summary.update({f"members/{member}/{metric}": value for metric, value in own.items()})
            if is_ensemble and event.get("summary"):
                run.summary["summary"] = event["summary"]
            run.finish()
            self._note(name, what)

    def _has(self, name: str, what: str) -> bool:
        return self._written is not None and (f"{self._project}/{self._id_of(name)}", what) in self._written

    def _note(self, name: str, what: str) -> None:
        if self._written is not None:
            run = f"{self._project}/{self._id_of(name)}"
            self._lines.append({"run": run, "what": what})
            self._written.add((run, what))

    @cached_property
    def _lines(self) -> Lines:
        path = self._folder / _WRITTEN_FILE
        path.parent.mkdir(exist_ok=True)
        return Lines(path)

    def _id_of(self, name: str) -> str:
        return re.sub(r"[^\w\-]", "-", f"{self._trials.sweep_key or self._group}-{name}")

    def _run_of(self, trial: Trial) -> Any:
        if trial.name not in self._runs:
            config = {**trial.params, "seed": trial.seed, "folder": self._trials.address_of(trial.name)}
            self._runs[trial.name] = self._start(trial.name, job="trial", config=config)
        return self._runs[trial.name]

    def _start(self, name: str, *, job: str, config: Mapping[str, Any]) -> Any:
        wandb = import_module("wandb")
        return wandb.init(
            project=self._project,
            entity=self._entity,
            id=self._id_of(name),
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
