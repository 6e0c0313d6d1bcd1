"""Checkpoints: everything needed to go on bit for bit.

    checkpoint/<step>.safetensors   parameters, buffers and the optimisers' tensors, by name
    checkpoint/<step>.json          which run, how far, the reports so far, the SHA-256 of the tensors; written last
    checkpoint/.pulse.json          how far the process is: what it had done since its checkpoint is lost with it
    checkpoint/pulse.json           the same in a bucket, once a minute: the other goes with its machine

Random states need no place here: batches and dropout are functions of the seed and the step. The last two are kept,
so that one damaged by the disk still leaves the one before.

When to save between reports: now and then, at once after a notice, and just before its end.

Plain values in, plain values out: times come from the caller, and who gives notice is a callable of its own.
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
    write_json,
    write_text,
)
from raysent.storage.layout import CHECKPOINT_FOLDER

_FORMAT = "raysent checkpoint 2"
_NUM_KEPT = 2
# Hidden: it stays on the machine that it tells of.
_PULSE_FILE = ".pulse.json"
_SHARED_PULSE_FILE = "pulse.json"
# A bucket is paid by the request: 60 an hour and run are 0.0003 usd, one a second would be 0.018.
SHARED_PULSE_S = 60.0


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        step: Steps done.
        sentences: Sentences trained on, over all workers.
        seconds: Time spent in training and validation, over all resumes.
        reports: Every report so far, as plain values.
        loss_sum: Of the steps since the last report.
        num_losses: How many these are.
        steps_lost: Steps that were done, lost with their process and done again.
    """

    step: int = 0
    sentences: int = 0
    seconds: float = 0.0
    reports: tuple[dict[str, Any], ...] = ()
    loss_sum: float = 0.0
    num_losses: int = 0
    steps_lost: int = 0


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], progress: Progress, *, key: str) -> None:
    """Write a checkpoint of the run named by `key`, and remove the oldest beyond two.

    Raises:
        ArtifactError: If the disk is full or the folder cannot be written; the checkpoints before are untouched.
    """
    place = folder / CHECKPOINT_FOLDER
    path = _tensors_path(place, progress.step)
    save_tensors(path, tensors)
    record = {"format": _FORMAT, "run": key, "tensor_sha256": file_sha256(path), **asdict(progress)}
    write_json(path.with_suffix(".json"), record)
    for step in _steps(place)[:-_NUM_KEPT]:
        # The record goes first: tensors without one are no checkpoint.
        remove(_tensors_path(place, step).with_suffix(".json"))
        remove(_tensors_path(place, step))


def load_checkpoint(folder: Path, *, key: str) -> tuple[dict[str, Tensor], Progress] | None:
    """Read the last whole checkpoint of a run's folder; None where there is none.

    Args:
        folder: The run's folder.
        key: Name of the run's configuration; a checkpoint of another is refused.

    Raises:
        ArtifactError: If the checkpoint is of another run, or none of them is whole.
    """
    place = folder / CHECKPOINT_FOLDER
    damage: ArtifactError | None = None
    for step in reversed(_steps(place)):
        path = _tensors_path(place, step)
        try:
            progress, sha256 = _read_record(path.with_suffix(".json"), key=key)
            if path.is_file() and file_sha256(path) != sha256:
                raise _DamagedError(f"{path}: truncated or changed; remove {place} to train again from the start")
            return load_tensors(path), progress
        except _ForeignError:
            raise
        except ArtifactError as error:
            damage = damage or error
    if damage is not None:
        raise damage
    return None


class Heartbeat:
    """Leaves signs of life. They serve a figure alone, so that no error of disk or store ends the run."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Leave them in a run's folder, by the seconds of a clock."""
        self._place, self._clock = folder / CHECKPOINT_FOLDER, clock
        self._is_shared = address_of(folder) != str(folder)
        self._shared_s = -math.inf  # at once: what an earlier machine left there must not count twice

    def leave(self, progress: Progress) -> None:
        """Leave one here, and now and then one in the bucket that the folder is in."""
        text = json.dumps({"step": progress.step, "steps_lost": progress.steps_lost})
        with contextlib.suppress(OSError):
            self._place.mkdir(parents=True, exist_ok=True)
            (self._place / _PULSE_FILE).write_text(text, encoding="utf-8")
        if self._is_shared and self._clock() - self._shared_s >= SHARED_PULSE_S:
            self._shared_s = self._clock()
            with contextlib.suppress(OSError, ArtifactError):
                write_text(self._place / _SHARED_PULSE_FILE, text)


def steps_lost(folder: Path, progress: Progress) -> int:
    """Return the steps of a run that have to be done again, over all resumes, if it goes on from `progress`.

    As far as signs of life tell: of a machine that took its own along, up to the last one in the bucket.
    """
    pulses = [_read_pulse(folder / CHECKPOINT_FOLDER / name) for name in (_PULSE_FILE, _SHARED_PULSE_FILE)]
    found = [pulse for pulse in pulses if pulse is not None]
    step = max([progress.step, *(step for step, _ in found)])
    return max([progress.steps_lost, *(lost for _, lost in found)]) + step - progress.step


def _read_pulse(path: Path) -> tuple[int, int] | None:
    """Return step and steps lost of a sign of life; None where none was left, or half of one."""
    try:
        pulse = json.loads(path.read_text(encoding="utf-8"))
        return int(pulse["step"]), int(pulse["steps_lost"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def drop_checkpoints(folder: Path) -> None:
    """Remove what is only needed to go on training; the model and the records stay."""
    remove_folder(folder / CHECKPOINT_FOLDER)


class _DamagedError(ArtifactError):
    """One checkpoint is damaged; the one before may be whole."""


class _ForeignError(ArtifactError):
    """The checkpoint is of another run: no older one will do."""


def _tensors_path(place: Path, step: int) -> Path:
    return place / f"{step:09d}.safetensors"


def _steps(place: Path) -> list[int]:
    """Return the steps that have a record, ascending."""
    return sorted(int(path.stem) for path in place.glob("*.json") if path.stem.isdigit())


def _read_record(path: Path, *, key: str) -> tuple[Progress, str]:
    """Return a checkpoint's progress and the SHA-256 of its tensors' file."""
    record = read_json(path)
    if not isinstance(record, dict) or record.pop("format", None) != _FORMAT:
        raise _DamagedError(f"{path}: not a checkpoint's record; remove {path.parent} to train again from the start")
    if record.pop("run", None) != key:
        raise _ForeignError(
            f"{path}: of a run with another configuration; name another folder, or remove {path.parent} to train again"
        )
    sha256 = record.pop("tensor_sha256", "")
    try:
        return Progress(**{**record, "reports": tuple(record["reports"])}), sha256
    except (TypeError, KeyError):
        raise _DamagedError(f"{path}: not a checkpoint's record; remove {path.parent} to train again") from None


# Seconds until this machine is taken away; None while nobody has said so. Called equally often on every worker.
SecondsLeft = Callable[[], float | None]

# How often to look for a notice, and to leave a sign of life.
LOOK_S = 1.0
# What a save is thought to take before one has been measured.
_FIRST_GUESS_S = 1.0
# Two notices whose deadlines differ by less are the same one.
_SAME_DEADLINE_S = 5.0


def no_notice() -> float | None:
    """Say that nobody takes this machine away."""
    return None


@dataclass(frozen=True)
class Interruptions:
    """What a run has to expect of its machines.

    Attributes:
        notice: Says how many seconds are left on this machine, or on any that this run trains on.
        per_hour: Interruptions that come without notice, per hour of the run; 0 saves at reports and notices only.
    """

    notice: SecondsLeft = no_notice
    per_hour: float = 0.0


def best_interval_s(save_s: float, *, per_hour: float) -> float:
    """Return the seconds between two checkpoints that lose least: sqrt(2 C / lambda).

    Args:
        save_s: C, what a checkpoint takes.
        per_hour: lambda, interruptions per hour; 0 gives infinity.

    Source: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006 refines it.
    """
    return math.sqrt(2 * save_s * 3600 / per_hour) if per_hour > 0 else math.inf


class SaveTimer:
    """Says when a checkpoint between reports is due: now and then, at once after a notice, and just before its end.

    The second save after a notice keeps what was trained, and paid for, between the notice and the deadline.
    """

    def __init__(self, *, per_hour: float, now_s: float) -> None:
        """Begin at `now_s`, on the caller's clock, with nothing to lose."""
        self.save_s = _FIRST_GUESS_S
        self._per_hour = per_hour
        self._saved_s = now_s
        self._deadline_s: float | None = None
        self._saves_left = 0

    @property
    def margin_s(self) -> float:
        """How long before a deadline the last save begins: twice what it takes, and two looks."""
        return 2 * self.save_s + 2 * LOOK_S

    def is_due(self, *, now_s: float, left_s: float | None) -> bool:
        """Whether to save now.

        Args:
            now_s: On the caller's clock.
            left_s: Seconds until the machine goes; None where nobody has given notice.
        """
        self._hear(now_s, left_s)
        if self._saves_left == 2 or (self._saves_left == 1 and left_s is not None and left_s <= self.margin_s):
            return True
        return now_s - self._saved_s >= best_interval_s(self.save_s, per_hour=self._per_hour)

    def note_save(self, *, now_s: float, took_s: float, left_s: float | None = None) -> None:
        """Hear that a checkpoint has been written, and what it took."""
        is_last = left_s is not None and left_s <= self.margin_s
        self._saves_left = 0 if is_last else min(self._saves_left, 1)
        self._saved_s, self.save_s = now_s, took_s

    def _hear(self, now_s: float, left_s: float | None) -> None:
        """Begin anew with every notice; one that was taken back is forgotten."""
        if left_s is None:
            self._deadline_s, self._saves_left = None, 0
        elif self._deadline_s is None or abs(now_s + left_s - self._deadline_s) > _SAME_DEADLINE_S:
            self._deadline_s, self._saves_left = now_s + left_s, 2
