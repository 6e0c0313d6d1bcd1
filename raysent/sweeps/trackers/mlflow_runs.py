"""Writes each trial as a run of MLflow, with its parameters and metrics, below a run for the sweep."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.storage import to_uri
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import EVALUATED, FollowedTrials, flat_scores, known_values, sweep_title
from raysent.sweeps.trial import Trial

_DEFAULT_FILE = "mlflow.db"
_STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "nan": "FAILED"}
_MAX_RUNS = 50_000
# Its pages are those for runs of training.
_TAGS = {"mlflow.experimentKind": "custom_model_development"}
# What MLflow does not take in the name of a metric or a parameter.
_REFUSED = re.compile(r"[^\w\-. /]")


class Settings(StrictModel):
    """Settings of the tracking server.

    Attributes:
        uri: Address of a tracking server, or a URL of SQLAlchemy, such as ``sqlite:///mlflow.db``; by default
            ``mlflow.db`` in the run folder.
        experiment: The experiment's name; by default that of the space and the run folder.
    """

    uri: str | None = None
    experiment: str | None = None


class MlflowRuns:
    """An experiment with a run for the sweep, which has the ensemble's scores, and below it one for each trial.

    Each baseline that was evaluated has one too. A run of a trial that has ended is not written again.
    """

    Config: ClassVar[type[StrictModel]] = Settings
    TARGET: ClassVar[str] = "uri"

    def __init__(self, space: SearchSpace, config: Settings, *, folder: Path) -> None:
        if find_spec("mlflow") is None:
            raise ConfigError("mlflow needs the package mlflow-skinny; install raysent[mlflow]")
        self._space, self._folder = space, folder
        self._uri = config.uri or f"sqlite:///{folder / _DEFAULT_FILE}"
        self._title = sweep_title(space, folder)
        self._experiment = config.experiment or self._title
        self._trials = FollowedTrials(folder)
        self._client: Any = None
        self._experiment_id = ""
        # Name of a trial, of a baseline or of the sweep -> run; and the trials whose runs have ended.
        self._runs: dict[str, str] = {}
        self._ended: set[str] = set()

    def on_event(self, event: Event) -> None:
        """Write a trial's parameters, a report or its end; the sweep's state; the scores of the evaluation."""
        kind, trial = event["event"], self._trials.apply(event)
        if kind in ("session", "interrupted", "completed", EVALUATED):
            self._open()
            self._write_sweep(event)
        elif trial is not None and kind in ("suggested", "report", "ended", "retrained"):
            self._open()
            self._write_trial(trial, event)

    def close(self) -> None:
        """Do nothing: every event is written."""

    def _write_trial(self, trial: Trial, event: Event) -> None:
        run = self._run_of_trial(trial, event)
        if trial.name in self._ended:
            return
        if event["event"] in ("report", "retrained"):
            values = known_values(event["metrics"], seconds=event["seconds"], usd=event.get("usd", 0.0))
            self._log(run, values, event, step=trial.index)
        if event["event"] in ("ended", "retrained"):
            self._client.set_tag(run, "raysent.status", trial.status)
            if trial.error:
                self._client.set_tag(run, "raysent.error", trial.error)
            self._client.set_terminated(run, status=_STATUS[trial.status], end_time=_milliseconds(event))
            self._ended.add(trial.name)

    def _write_sweep(self, event: Event) -> None:
        run = self._run_of_sweep(event)
        match event["event"]:
            case "session":
                self._client.update_run(run, status="RUNNING")
            case "interrupted":
                self._client.set_terminated(run, status="KILLED", end_time=_milliseconds(event))
            case "completed":
                self._client.set_terminated(run, status="FINISHED", end_time=_milliseconds(event))
            case _:
                self._write_scores(run, event)

    def _write_scores(self, run: str, event: Event) -> None:
        """Write the ensemble's scores into the sweep's run, a member's into its trial's, a baseline's into its own."""
        for name in ("members", "best_member", "method", "summary"):
            if event.get(name):
                value = event[name]
                self._client.set_tag(run, f"raysent.{name}", value if isinstance(value, str) else ", ".join(value))
        for name, scores in event["scores"].items():
            is_sweep, is_new = name == "ensemble", name not in self._runs
            one = run if is_sweep else self._run_of(name, {"raysent.kind": "baseline"}, event)
            self._log(one, flat_scores(scores), event)
            if is_new and not is_sweep:
                self._client.set_terminated(one, status="FINISHED", end_time=_milliseconds(event))

    def _log(self, run: str, values: Mapping[str, float], event: Event, *, step: int = 0) -> None:
        metric = import_module("mlflow.entities").Metric
        time = _milliseconds(event)
        self._client.log_batch(
            run, metrics=[metric(_REFUSED.sub("_", name), value, time, step) for name, value in values.items()]
        )

    def _run_of_trial(self, trial: Trial, event: Event) -> str:
        """Return the run of a trial, which is made if there is none."""
        if trial.name in self._runs:
            return self._runs[trial.name]
        tags = {
            "raysent.kind": "trial",
            "raysent.trial": trial.name,
            "raysent.seed": str(trial.seed),
            "raysent.folder": self._trials.address_of(trial.name),
        }
        run = self._run_of(trial.name, tags, event)
        parameter = import_module("mlflow.entities").Param
        given = [parameter(_REFUSED.sub("_", name), str(value)) for name, value in trial.params.items()]
        self._client.log_batch(run, params=given)
        return run

    def _run_of_sweep(self, event: Event) -> str:
        facts = {"raysent.kind": "sweep", "raysent.folder": to_uri(self._folder), "raysent.metric": self._space.metric}
        return self._run_of(self._title, facts, event)

    def _run_of(self, name: str, tags: Mapping[str, str], event: Event) -> str:
        """Return the run of a name, which is made if there is none."""
        if name not in self._runs:
            given = {**tags, "raysent.sweep": self._trials.sweep_key}
            if name != self._title:
                given["mlflow.parentRunId"] = self._run_of_sweep(event)
            suggested = self._trials.suggested(name)
            time = _milliseconds(event if suggested is None else {"time": suggested})
            made = self._client.create_run(self._experiment_id, start_time=time, tags=given, run_name=name)
            self._runs[name] = made.info.run_id
        return self._runs[name]

    def _open(self) -> None:
        if self._client is not None:
            return
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # what is printed there is raysent's
        self._client = import_module("mlflow").MlflowClient(tracking_uri=self._uri)
        known = self._client.get_experiment_by_name(self._experiment)
        self._experiment_id = (
            known.experiment_id if known else self._client.create_experiment(self._experiment, tags=dict(_TAGS))
        )
        for run in self._client.search_runs([self._experiment_id], max_results=_MAX_RUNS):
            if run.data.tags.get("raysent.sweep") == self._trials.sweep_key:
                self._runs[run.info.run_name] = run.info.run_id
                if run.info.status in _STATUS.values():
                    self._ended.add(run.info.run_name)


def _milliseconds(event: Mapping[str, Any]) -> int:
    return int(event["time"] * 1000)


TRACKERS = {"mlflow": MlflowRuns}
