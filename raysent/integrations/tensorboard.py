"""Writes each trial's parameters and metrics for TensorBoard, by default into `tensorboard/` of the run folder."""

from __future__ import annotations

import re
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.storage import safe_name
from raysent.storage.layout import TENSORBOARD_FOLDER
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace
from raysent.sweeps.trackers import EVALUATED, FollowedTrials, facts_of, flat_scores
from raysent.sweeps.trial import BROKEN, Trial

# A running sweep is seen with at most this delay.
_FLUSH_S = 5


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
        if find_spec("tensorboardX") is None:
            raise ConfigError(
                "tensorboard needs the package tensorboardX; pip install tensorboardX"
            )
        self._metric = space.metric
        if config.folder is None:
            self._folder = folder / TENSORBOARD_FOLDER
        else:
            self._folder = Path(config.folder)
        self._trials = FollowedTrials(folder)
        self._writers: dict[str, Any] = {}

    def on_event(self, event: Event) -> None:
        """Write a report, the end of a trial, or the scores of the evaluation."""
        kind = event["event"]
        trial = self._trials.apply(event)
        if kind == EVALUATED:
            self._write_scores(event)
        elif trial is not None and kind == "report":
            self._write_report(trial, event)
        if trial is not None and kind == "ended" and trial.name in self._writers:
            writer = self._writers.pop(trial.name)
            writer.file_writer.add_summary(_end(trial))
            writer.close()

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def _write_report(self, trial: Trial, event: Event) -> None:
        if trial.name not in self._writers:
            # A trial that is followed from a later report on keeps what an earlier process wrote.
            step = trial.index if trial.index > 1 else 0
            writer = self._open(trial.name, step=step)
            self._writers[trial.name] = writer
            for summary in _hparams(dict(trial.params), {self._metric: None})[:2]:
                writer.file_writer.add_summary(summary)
            writer.add_text(
                "folder", self._trials.address_of(trial.name), trial.index, walltime=event["time"]
            )
        for name, value in event["metrics"].items():
            if value is not None:
                self._writers[trial.name].add_scalar(
                    name, value, trial.index, walltime=event["time"]
                )

    def _write_scores(self, event: Event) -> None:
        for name, scores in event["scores"].items():
            is_member = name in event.get("members", ())  # its reports stay
            writer = self._open(
                safe_name(re.sub(r"[^\w\-.]", "-", name)), step=None if is_member else 0
            )
            for metric, value in flat_scores(scores).items():
                writer.add_scalar(metric, value, 0, walltime=event["time"])
            if name == "ensemble":
                for fact, text in facts_of(event).items():
                    writer.add_text(fact, text, 0, walltime=event["time"])
            writer.close()

    def _open(self, run: str, *, step: int | None = None) -> Any:
        """Return a new file of a run; TensorBoard then drops what earlier files have from `step` on."""
        return import_module("tensorboardX").SummaryWriter(
            logdir=str(self._folder / run),
            purge_step=step,
            flush_secs=_FLUSH_S,
            filename_suffix=f".{time.time_ns() % 10**9:09d}",
        )


def _hparams(params: dict[str, Any], metrics: dict[str, None]) -> Any:
    """Return the messages of the plugin that shows parameters: the columns, a trial's row, and its end."""
    return import_module("tensorboardX.summary").hparams(params, metrics)


def _end(trial: Trial) -> Any:
    *_, summary = _hparams({}, {})
    if trial.status in BROKEN:
        data = summary.value[0].metadata.plugin_data
        content = import_module(
            "tensorboardX.proto.plugin_hparams_pb2"
        ).HParamsPluginData.FromString(data.content)
        content.session_end_info.status = import_module("tensorboardX.proto.api_pb2").STATUS_FAILURE
        data.content = content.SerializeToString()
    return summary


TRACKERS = {"tensorboard": TensorBoard}
