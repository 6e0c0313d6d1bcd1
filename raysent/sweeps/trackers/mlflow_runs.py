"""Writes each trial as a run of MLflow, with its parameters and metrics."""

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
from raysent.sweeps.trackers import FollowedTrials, sweep_title
from raysent.sweeps.trial import Trial

_DEFAULT_FILE = "mlflow.db"
_STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "nan": "FAILED"}
_MAX_RUNS = 50_000


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
    """An experiment with a run for each trial; a run that has ended is not written again."""

    Config: ClassVar[type[StrictModel]] = Settings
    TARGET: ClassVar[str] = "uri"

    def __init__(self, space: SearchSpace, config: Settings, *, folder: Path) -> None:
        if find_spec("mlflow") is None:
            raise ConfigError("mlflow needs the package mlflow-skinny; install raysent[mlflow]")
        self._folder = folder
        self._uri = config.uri or f"sqlite:///{folder / _DEFAULT_FILE}"
        self._experiment = config.experiment or sweep_title(space, folder)
        self._trials = FollowedTrials(folder)
        self._client: Any = None
        self._experiment_id = ""
        # Trial -> run, or None where the run has ended.
        self._runs: dict[str, str | None] = {}

    def on_event(self, event: Event) -> None:
        """Write a trial's parameters, a report or its end."""
        trial = self._trials.apply(event)
        if trial is None or event["event"] not in ("suggested", "report", "ended"):
            return
        self._open()
        run = self._run_of(trial)
        if run is None:
            return
        if event["event"] == "report":
            self._log(run, event)
        elif event["event"] == "ended":
            self._client.set_tag(run, "raysent.status", trial.status)
            if trial.error:
                self._client.set_tag(run, "raysent.error", trial.error)
            self._client.set_terminated(run, status=_STATUS[trial.status], end_time=_milliseconds(event))
            self._runs[trial.name] = None

    def close(self) -> None:
        """Do nothing: every event is written."""

    def _log(self, run: str, event: Event) -> None:
        metric = import_module("mlflow.entities").Metric
        values = {**event["metrics"], "seconds": event["seconds"], "usd": event.get("usd", 0.0)}
        self._client.log_batch(
            run,
            metrics=[
                metric(name, float(value), _milliseconds(event), event["index"])
                for name, value in values.items()
                if value is not None
            ],
        )

    def _run_of(self, trial: Trial) -> str | None:
        """Return the run of a trial, which is made if there is none; None if it has ended."""
        if trial.name not in self._runs:
            tags = {
                "mlflow.runName": trial.name,
                "raysent.trial": trial.name,
                "raysent.seed": str(trial.seed),
                "raysent.folder": address_of(self._folder / TRIALS_FOLDER / trial.name),
            }
            run = self._client.create_run(self._experiment_id, tags=tags).info.run_id
            for name, value in trial.params.items():
                self._client.log_param(run, name, value)
            self._runs[trial.name] = run
        return self._runs[trial.name]

    def _open(self) -> None:
        if self._client is not None:
            return
        self._client = import_module("mlflow").MlflowClient(tracking_uri=self._uri)
        known = self._client.get_experiment_by_name(self._experiment)
        self._experiment_id = known.experiment_id if known else self._client.create_experiment(self._experiment)
        for run in self._client.search_runs([self._experiment_id], max_results=_MAX_RUNS):
            trial = run.data.tags.get("raysent.trial")
            if trial is not None:
                self._runs[trial] = run.info.run_id if run.info.status == "RUNNING" else None


def _milliseconds(event: Event) -> int:
    return int(1000 * event["time"])


TRACKERS = {"mlflow": MlflowRuns}
