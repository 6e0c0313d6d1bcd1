"""Writes each trial's parameters and metrics for TensorBoard, by default into `tensorboard/` of the run folder."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.storage.layout import TENSORBOARD_FOLDER
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import EVALUATED, FollowedTrials, flat_scores
from raysent.sweeps.trial import BROKEN, Trial

# A running sweep is seen with at most this delay.
_FLUSH_S = 5
_HPARAMS, _PLUGIN = "_hparams_/", "hparams"


class Settings(StrictModel):
    """Settings of the files.

    Attributes:
        folder: Where to write; by default ``tensorboard`` in the run folder.
    """

    folder: str | None = None


class TensorBoard:
    """A run for each trial: a line for each metric over its reports, and its parameters in the tab HPARAMS.

    The ensemble and each baseline have a run with their scores, as the members have theirs. A folder that has a trial
    already gets another file, and TensorBoard then shows the last one's values.
    """

    Config: ClassVar[type[StrictModel]] = Settings
    TARGET: ClassVar[str] = "folder"

    def __init__(self, space: SearchSpace, config: Settings, *, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter  # type: ignore[import-untyped]  # noqa: PLC0415 - few sweeps need it
        except ImportError:
            raise ConfigError("tensorboard needs the package tensorboardX; pip install tensorboardX") from None
        self._make_writer, self._metric = SummaryWriter, space.metric
        self._folder = folder / TENSORBOARD_FOLDER if config.folder is None else Path(config.folder)
        self._trials = FollowedTrials(folder)
        self._writers: dict[str, Any] = {}

    def on_event(self, event: Event) -> None:
        """Write a report, the end of a trial, or the scores of the evaluation."""
        kind, trial = event["event"], self._trials.apply(event)
        if kind == EVALUATED:
            self._write_scores(event)
        elif trial is not None and kind in ("report", "retrained"):
            self._write_report(trial, event)
        if trial is not None and kind in ("ended", "retrained") and trial.name in self._writers:
            writer = self._writers.pop(trial.name)
            _write_hparams(writer, "session_end_info", _end(trial, event))
            writer.close()

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write_report(self, trial: Trial, event: Event) -> None:
        if trial.name not in self._writers:
            self._writers[trial.name] = writer = self._open(trial.name, step=trial.index if trial.index > 1 else 0)
            experiment, start = _description(trial, metric=self._metric, time_s=event["time"])
            _write_hparams(writer, "experiment", experiment)
            _write_hparams(writer, "session_start_info", start)
            writer.add_text("folder", self._trials.address_of(trial.name), trial.index, walltime=event["time"])
        for name, value in event["metrics"].items():
            if value is not None:
                self._writers[trial.name].add_scalar(name, value, trial.index, walltime=event["time"])

    def _write_scores(self, event: Event) -> None:
        for name, scores in event["scores"].items():
            is_member = name in event.get("members", ())  # its reports stay
            writer = self._open(re.sub(r"[^\w\-.]", "-", name), step=None if is_member else 0)
            for metric, value in flat_scores(scores).items():
                writer.add_scalar(metric, value, 0, walltime=event["time"])
            if name == "ensemble":
                for fact in ("members", "method", "summary"):
                    given = event.get(fact, "")
                    text = given if isinstance(given, str) else ", ".join(given)
                    writer.add_text(fact, text, 0, walltime=event["time"])
            writer.close()

    def _open(self, run: str, *, step: int | None = None) -> Any:
        """Return a new file of a run; TensorBoard then drops what earlier files have from `step` on."""
        return self._make_writer(
            logdir=str(self._folder / run),
            purge_step=step,
            flush_secs=_FLUSH_S,
            filename_suffix=f".{time.time_ns() % 10**9:09d}",
        )


def _description(trial: Trial, *, metric: str, time_s: float) -> tuple[Any, Any]:
    """Return the table's columns and a trial's row of it, as the plugin's messages."""
    api, plugin = import_module("tensorboardX.proto.api_pb2"), import_module("tensorboardX.proto.plugin_hparams_pb2")
    start, columns = plugin.SessionStartInfo(group_name=trial.name, start_time_secs=time_s), []
    for name, value in trial.params.items():
        cell = start.hparams[name]
        if isinstance(value, bool):
            cell.bool_value, kind = value, api.DATA_TYPE_BOOL
        elif isinstance(value, int | float):
            cell.number_value, kind = value, api.DATA_TYPE_FLOAT64
        else:
            cell.string_value, kind = str(value), api.DATA_TYPE_STRING
        columns.append(api.HParamInfo(name=name, type=kind))
    shown = api.MetricInfo(name=api.MetricName(tag=metric))
    experiment = api.Experiment(hparam_infos=columns, metric_infos=[shown])
    content = plugin.HParamsPluginData
    return content(experiment=experiment, version=0), content(session_start_info=start, version=0)


def _end(trial: Trial, event: Mapping[str, Any]) -> Any:
    """Return how a trial ended, as the plugin's message."""
    api, plugin = import_module("tensorboardX.proto.api_pb2"), import_module("tensorboardX.proto.plugin_hparams_pb2")
    status = api.STATUS_FAILURE if trial.status in BROKEN else api.STATUS_SUCCESS
    ended = plugin.SessionEndInfo(status=status, end_time_secs=event["time"])
    return plugin.HParamsPluginData(session_end_info=ended, version=0)


def _write_hparams(writer: Any, name: str, content: Any) -> None:
    """Write one message of the plugin that shows parameters."""
    proto = import_module("tensorboardX.proto.summary_pb2")
    data = proto.SummaryMetadata.PluginData(plugin_name=_PLUGIN, content=content.SerializeToString())
    value = proto.Summary.Value(tag=_HPARAMS + name, metadata=proto.SummaryMetadata(plugin_data=data))
    writer.file_writer.add_summary(proto.Summary(value=[value]))


TRACKERS = {"tensorboard": TensorBoard}
