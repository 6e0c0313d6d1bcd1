"""Writes each trial's metrics for TensorBoard, by default into `tensorboard/` of the driver's run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from raysent.config import StrictModel
from raysent.errors import ConfigError
from raysent.storage.layout import TENSORBOARD_FOLDER
from raysent.sweeps.journal import Event
from raysent.sweeps.space.space import SearchSpace


class Settings(StrictModel):
    """Settings of the files.

    Attributes:
        folder: Where to write; by default ``tensorboard`` in the run folder.
    """

    folder: str | None = None


class TensorBoard:
    """A line for each metric of each trial, over its reports."""

    Config: ClassVar[type[StrictModel]] = Settings
    TARGET: ClassVar[str] = "folder"

    def __init__(self, space: SearchSpace, config: Settings, *, folder: Path) -> None:  # noqa: ARG002
        try:
            from tensorboardX import SummaryWriter  # type: ignore[import-untyped]  # noqa: PLC0415 - few sweeps need it
        except ImportError:
            raise ConfigError("tensorboard needs the package tensorboardX; pip install tensorboardX") from None
        self._make_writer = SummaryWriter
        self._folder = folder / TENSORBOARD_FOLDER if config.folder is None else Path(config.folder)
        self._writers: dict[str, Any] = {}

    def on_event(self, event: Event) -> None:
        """Add the metrics of a report; a trial that has ended is closed."""
        if event["event"] == "report":
            writer = self._writers.setdefault(event["trial"], self._writers.get(event["trial"]) or self._open(event))
            for name, value in event["metrics"].items():
                if value is not None:
                    writer.add_scalar(name, value, event["index"], walltime=event["time"])
        elif event["event"] == "ended" and event["trial"] in self._writers:
            self._writers.pop(event["trial"]).close()

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()

    def _open(self, event: Event) -> Any:
        return self._make_writer(logdir=str(self._folder / event["trial"]))


TRACKERS = {"tensorboard": TensorBoard}
