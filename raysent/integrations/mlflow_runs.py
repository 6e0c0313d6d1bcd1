"""Writes each trial as a run of MLflow, with its parameters and metrics, below a run for the sweep."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.storage import to_uri
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import (
    EVALUATED,
    FollowedTrials,
    facts_of,
    flat_scores,
    known_values,
    sweep_title,
)
from raysent.sweeps.trial import Trial

_DEFAULT_FILE = "mlflow.db"
# How a trial ends; and the sweep.
_STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "nan": "FAILED"}
_SWEEP_STATUS = {"session": "RUNNING", "interrupted": "KILLED", "completed": "FINISHED"}
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
        self._space = space
        self._folder = folder
        # As SQLAlchemy reads an address.
        file = str(folder / _DEFAULT_FILE).replace("%", "%25").replace("?", "%3F")
        self._uri = config.uri or f"sqlite:///{file}"
        self._title = sweep_title(space, folder)
        self._experiment = config.experiment or self._title
        self._experiment_id = ""
        self._trials = FollowedTrials(folder)
        # Name of a trial, of a baseline or of the sweep -> run; and the trials whose runs have ended.
        self._runs: dict[str, str] = {}
        self._ended: set[str] = set()

    def on_event(self, event: Event) -> None:
        """Write a trial's parameters, a report or its end; the sweep's state; the scores of the evaluation."""
        kind = event["event"]
        trial = self._trials.apply(event)
        if kind == EVALUATED:
            self._write_scores(event)
        elif kind == "session":
            self._client.update_run(self._run_of_sweep(event), status=_SWEEP_STATUS[kind])
        elif kind in _SWEEP_STATUS:
            self._end(self._run_of_sweep(event), _SWEEP_STATUS[kind], event)
        elif trial is not None and kind in ("suggested", "report", "ended"):
            self._write_trial(trial, event)

    def close(self) -> None:
        """Do nothing: every event is written."""

    def _write_trial(self, trial: Trial, event: Event) -> None:
        tags = {
            "raysent.kind": "trial",
            "raysent.trial": trial.name,
            "raysent.seed": str(trial.seed),
            "raysent.folder": self._trials.address_of(trial.name),
        }
        run = self._run_of(trial.name, tags, event, params=trial.params)
        # A sweep that is resumed shows its tracker the events of trials that ended before.
        if trial.name in self._ended:
            return
        if event["event"] == "report":
            self._log(run, known_values(event), event, step=trial.index)
        if event["event"] == "ended":
            for name, value in (("status", trial.status), ("error", trial.error)):
                if value:
                    self._client.set_tag(run, f"raysent.{name}", value)
            self._end(run, _STATUS[trial.status], event)
            self._ended.add(trial.name)

    def _write_scores(self, event: Event) -> None:
        """Write the ensemble's scores into the sweep's run, a member's into its trial's, a baseline's into its own."""
        sweep = self._run_of_sweep(event)
        for name, value in facts_of(event).items():
            self._client.set_tag(sweep, f"raysent.{name}", value)
        for name, scores in event["scores"].items():
            is_new = name != "ensemble" and name not in self._runs
            if name == "ensemble":
                run = sweep
            else:
                run = self._run_of(name, {"raysent.kind": "baseline"}, event)
            self._log(run, flat_scores(scores), event)
            if is_new:
                self._end(run, "FINISHED", event)

    def _log(self, run: str, values: Mapping[str, float], event: Event, *, step: int = 0) -> None:
        metric = import_module("mlflow.entities").Metric
        time = int(1000 * event["time"])
        metrics = [
            metric(_REFUSED.sub("_", name), value, time, step) for name, value in values.items()
        ]
        self._client.log_batch(run, metrics=metrics)

    def _end(self, run: str, status: str, event: Event) -> None:
        self._client.set_terminated(run, status=status, end_time=int(1000 * event["time"]))

    def _run_of_sweep(self, event: Event) -> str:
        facts = {
            "raysent.kind": "sweep",
            "raysent.folder": to_uri(self._folder),
            "raysent.metric": self._space.metric,
        }
        return self._run_of(self._title, facts, event)

    def _run_of(
        self,
        name: str,
        tags: dict[str, str],
        event: Event,
        *,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        client = self._client
        if name not in self._runs:
            tags["raysent.sweep"] = self._trials.sweep_key
            if name != self._title:
                tags["mlflow.parentRunId"] = self._run_of_sweep(event)
            started = self._trials.suggested(name)
            if started is None:
                started = event["time"]
            time = int(1000 * started)
            created = client.create_run(
                self._experiment_id, start_time=time, tags=tags, run_name=name
            )
            self._runs[name] = created.info.run_id
            parameter = import_module("mlflow.entities").Param
            parameters = [
                parameter(_REFUSED.sub("_", key), str(value))
                for key, value in (params or {}).items()
            ]
            client.log_batch(self._runs[name], params=parameters)
        return self._runs[name]

    @cached_property
    def _client(self) -> Any:
        # What is printed to standard output is raysent's.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        client = import_module("mlflow").MlflowClient(tracking_uri=self._uri)
        experiment = client.get_experiment_by_name(self._experiment)
        if experiment:
            experiment_id = experiment.experiment_id
        else:
            experiment_id = client.create_experiment(self._experiment, tags=dict(_TAGS))
        self._experiment_id = experiment_id
        for run in client.search_runs([experiment_id], max_results=_MAX_RUNS):
            if run.data.tags.get("raysent.sweep") == self._trials.sweep_key:
                self._runs[run.info.run_name] = run.info.run_id
                if run.info.status in _STATUS.values():
                    self._ended.add(run.info.run_name)
        return client


TRACKERS = {"mlflow": MlflowRuns}
