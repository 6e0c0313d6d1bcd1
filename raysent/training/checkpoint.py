"""Checkpoints: everything that is needed to continue a run bit for bit.

    checkpoint/<step>.safetensors   parameters, buffers and the optimizers' tensors, by name
    checkpoint/<step>.json          the keys of the run and its text, its progress and reports, the SHA-256 of the
                                    tensors, a hash of itself; written last
    checkpoint/.pulse.json          heartbeat: the current step, from which the steps lost by a kill are counted, and
                                    what a live view shows
    checkpoint/pulse.json           the same in a bucket, once a minute, as the other is lost with its machine

Random states are not stored: batches and dropout are functions of the seed and the step. The last two checkpoints are
kept, so that the older one is left if the newer one is damaged, and the last one that is not past the last report, from
which the model of that report can be made again.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from raysent.errors import ArtifactError
from raysent.storage import (
    address_of,
    file_sha256,
    load_tensors,
    read_json,
    remove,
    remove_folder,
    save_tensors,
    with_seal,
    write_json,
    write_text,
)
from raysent.storage.layout import CHECKPOINT_FOLDER

_FORMAT = "raysent checkpoint 3"
_NUM_KEPT = 2
# Hidden files are not uploaded to a bucket.
_HEARTBEAT_FILE = ".pulse.json"
_SHARED_HEARTBEAT_FILE = "pulse.json"
# Buckets charge by the request: 60 an hour and run cost 0.0003 usd, one a second would cost 0.018.
_SHARED_HEARTBEAT_S = 60.0


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        step: Steps done.
        sentences: Sentences trained on, over all workers.
        seconds: Duration of training and validation, over all sessions.
        reports: Every report so far, as plain values.
        loss_sum: Sum of the losses since the last report.
        num_losses: Number of these losses.
        steps_lost: Steps that were lost with their process and repeated.
        num_steps: Steps of the whole run, which can depend on the number of workers; 0 where that was not recorded.
    """

    step: int = 0
    sentences: int = 0
    seconds: float = 0.0
    reports: tuple[dict[str, Any], ...] = ()
    loss_sum: float = 0.0
    num_losses: int = 0
    steps_lost: int = 0
    num_steps: int = 0


def save_checkpoint(
    folder: Path,
    tensors: dict[str, Tensor],
    progress: Progress,
    *,
    key: str,
    text: str | None = None,
) -> None:
    """Write a checkpoint of the run that `key` identifies, on the text of key `text`, and remove those not needed.

    Raises:
        ArtifactError: If the disk is full or the folder cannot be written; earlier checkpoints are unchanged.
    """
    checkpoints = folder / CHECKPOINT_FOLDER
    path = _tensors_path(checkpoints, progress.step)
    save_tensors(path, tensors)
    record = {
        "format": _FORMAT,
        "run": key,
        "text": text,
        "tensor_sha256": file_sha256(path),
        **asdict(progress),
    }
    write_json(path.with_suffix(".json"), record)
    last_report_step = progress.reports[-1]["step"] if progress.reports else 0
    steps = _steps(checkpoints)
    up_to_report = [step for step in steps if step <= last_report_step]
    needed = {*steps[-_NUM_KEPT:], *up_to_report[-1:]}
    for step in set(steps) - needed:
        # The record first, because tensors without a record are no checkpoint.
        remove(_tensors_path(checkpoints, step).with_suffix(".json"))
        remove(_tensors_path(checkpoints, step))


def load_checkpoint(
    folder: Path, *, key: str, text: str | None = None, max_step: int | None = None
) -> tuple[dict[str, Tensor], Progress] | None:
    """Return the last complete checkpoint of a run's folder, or None if there is none.

    Args:
        folder: The run's folder.
        key: Key of the run's configuration; a checkpoint of another run is refused.
        text: Key of the run's text; a checkpoint of another text is refused, unless it has no key of its text.
        max_step: The last step that it may be of; None for any.

    Raises:
        ArtifactError: If the checkpoint is of another run or text, or all checkpoints are damaged.
    """
    checkpoints = folder / CHECKPOINT_FOLDER
    steps = _steps(checkpoints)
    if max_step is not None:
        steps = [step for step in steps if step <= max_step]
    damage: ArtifactError | None = None
    for step in reversed(steps):
        path = _tensors_path(checkpoints, step)
        try:
            progress, sha256 = _read_record(path.with_suffix(".json"), key=key, text=text)
            if path.is_file() and file_sha256(path) != sha256:
                raise ArtifactError(
                    f"{path}: truncated or changed; remove {checkpoints} to train again from the start"
                )
            return load_tensors(path), progress
        except _ForeignError:
            raise
        except ArtifactError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return None


@dataclass(frozen=True)
class LiveProgress:
    """The progress of a run between two reports, as its heartbeat has it.

    Attributes:
        step: Steps done.
        num_steps: Steps of the whole run.
        sentences: Sentences trained on, over all workers.
        seconds: Duration of training and validation, over all sessions.
        loss: Mean loss since the last report; None before the first step after it.
        memory_bytes: Physical memory of the process; None if unknown.
    """

    step: int
    num_steps: int
    sentences: int
    seconds: float
    loss: float | None = None
    memory_bytes: int | None = None


def read_progress(folder: Path) -> LiveProgress | None:
    """Return the progress of a run that trains on this machine, or on one that shares its folder; None if unknown."""
    try:
        return LiveProgress(**read_json(folder / CHECKPOINT_FOLDER / _HEARTBEAT_FILE)["progress"])
    except (ArtifactError, TypeError, KeyError):
        return None


class Heartbeat:
    """Writes a run's progress about once a second.

    It serves only the count of lost steps and the live view, so errors of disk or object store do not end the run.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to a run's folder, timed in seconds by `clock`."""
        self._folder = folder / CHECKPOINT_FOLDER
        self._clock = clock
        self._is_shared = address_of(folder) != str(folder)
        self._shared_s = -math.inf  # at once, to replace the heartbeat of an earlier machine

    def write(self, progress: Progress, live: LiveProgress | None = None) -> None:
        """Write the progress to this machine, and once a minute to the bucket of the folder."""
        beat: dict[str, Any] = {"step": progress.step, "steps_lost": progress.steps_lost}
        if live is not None:
            beat["progress"] = asdict(live)
        text = json.dumps(with_seal(beat))
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / _HEARTBEAT_FILE).write_text(text, encoding="utf-8")
        if self._is_shared and self._clock() - self._shared_s >= _SHARED_HEARTBEAT_S:
            self._shared_s = self._clock()
            with contextlib.suppress(OSError, ArtifactError):
                write_text(self._folder / _SHARED_HEARTBEAT_FILE, text)


def steps_lost(folder: Path, progress: Progress) -> int:
    """Return the steps of a run that must be repeated, over all sessions, if it continues from `progress`.

    The count comes from heartbeats: if this machine's are lost, from the last one in the bucket.
    """
    last_step = progress.step
    earlier_lost = progress.steps_lost
    for name in (_HEARTBEAT_FILE, _SHARED_HEARTBEAT_FILE):
        heartbeat = _read_heartbeat(folder / CHECKPOINT_FOLDER / name)
        if heartbeat is not None:
            step, lost = heartbeat
            last_step = max(last_step, step)
            earlier_lost = max(earlier_lost, lost)
    return earlier_lost + last_step - progress.step


def _read_heartbeat(path: Path) -> tuple[int, int] | None:
    """Return the step of a heartbeat, and the steps that were lost before it; None if there is none."""
    try:
        heartbeat = read_json(path)
        return int(heartbeat["step"]), int(heartbeat["steps_lost"])
    except (ArtifactError, ValueError, TypeError, KeyError):
        return None


def drop_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run; the model and the records stay."""
    remove_folder(folder / CHECKPOINT_FOLDER, below=folder)


class _ForeignError(ArtifactError):
    """The checkpoints are of another run."""


def _tensors_path(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"{step:09d}.safetensors"


def _steps(checkpoints: Path) -> list[int]:
    """Return the steps that have a complete checkpoint, ascending."""
    return sorted(int(path.stem) for path in checkpoints.glob("*.json") if path.stem.isdigit())


def _read_record(path: Path, *, key: str, text: str | None) -> tuple[Progress, str]:
    """Return the progress at a checkpoint, and the SHA-256 of its tensors."""
    record = read_json(path, sealed=True)
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise ArtifactError(
            f"{path}: not a checkpoint's record; remove {path.parent} to train again from the start"
        )
    del record["format"]
    if record.pop("run", None) != key:
        raise _ForeignError(
            f"{path}: of a run with another configuration; name another folder, or remove {path.parent} to train again"
        )
    if record.pop("text", None) not in (None, text):
        raise _ForeignError(
            f"{path}: its text has changed since; restore it, name another folder, or remove {path.parent}"
        )
    sha256 = record.pop("tensor_sha256", "")
    try:
        return Progress(**{**record, "reports": tuple(record["reports"])}), sha256
    except (TypeError, KeyError):
        raise ArtifactError(
            f"{path}: not a checkpoint's record; remove {path.parent} to train again"
        ) from None
