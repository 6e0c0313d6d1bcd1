"""The driver's process of a stage: `raysent ...` as it is typed, waiting at a moment until it is struck."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import raysent.cli
import raysent.ensembles
import raysent.report
import raysent.storage.files
import raysent.sweeps
from chaos.moments import MOMENTS, Sight
from raysent.reproduction.tasks import senteval
from raysent.storage import Lines
from raysent.storage import files as artifact_files
from raysent.sweeps.cost_tracker import CostTracker

COME, GO = "moment.json", "go.json"
# The cache of the nodes of a cluster.
NODES_VARIABLE = "CHAOS_NODES"
_WAIT_S, _LOOK_S = 0.002, 0.05


@dataclass(frozen=True)
class Order:
    """What a driver is to do.

    Attributes:
        stage: The stage's folder.
        arguments: What is typed after `raysent`.
        env: Variables of its environment.
        moment: At which to wait; empty for none.
        nth: Which sight of that moment, from 1.
        num_rows: Rows of each class of the task.
        is_on_ray: Whether trials train on Ray, else on the machines of the stage.
    """

    stage: Path
    arguments: tuple[str, ...]
    env: dict[str, str]
    moment: str = ""
    nth: int = 1
    num_rows: int = 40
    is_on_ray: bool = False


def play(order: Order) -> None:
    """Run the command line with the stage's own machines, its output in the stage's folder."""
    os.environ.update(order.env)
    torch.set_num_threads(1)
    for name, number in (("out.txt", 1), ("err.txt", 2)):
        os.dup2(os.open(order.stage / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    watch = Watch(order)
    if order.is_on_ray:
        threading.Thread(target=_look_for_pulses, args=(order.stage, watch), daemon=True).start()
    else:
        from chaos import machines

        machines.install(order.stage, watch)
    for name in ("MR/rt-polarity.pos", "MR/rt-polarity.neg"):
        senteval.NUM_ROWS[name] = order.num_rows

    sys.argv = ["raysent", *order.arguments]
    raysent.cli.main()


class Watch:
    """Sees what the driver writes, waits at the moment, and then does to its own process what it is told."""

    def __init__(self, order: Order) -> None:
        self._stage, self._left = order.stage, order.nth
        self._moment = MOMENTS.get(order.moment)
        self._dies_in = 0
        self._times: list[float] = []
        self.machine = ""
        _before(CostTracker, "__exit__", lambda *_: self._note())
        _before(artifact_files, "commit", lambda _, path: self.see(Sight("file", path, {})))
        _after(Lines, "append", self._see_line)

    def see(self, sight: Sight) -> None:
        """Wait where the moment has come; note when a session begins and ends."""
        if sight.kind == "line" and sight.value.get("event") in ("session", "completed"):
            self._note()
        if self._dies_in:
            self._dies_in -= 1
            if not self._dies_in:
                os.kill(os.getpid(), signal.SIGKILL)
        if self._moment is None or not self._moment.has_come(sight):
            return
        self._left -= 1
        if self._left:
            return
        self._moment = None
        write_whole(self._stage / COME, {"machine": self.machine})
        go = self._stage / GO
        while not go.exists():
            time.sleep(_WAIT_S)
        orders = json.loads(go.read_text())
        self._dies_in = orders.pop("dies_in", 0)
        for name, value in orders.items():
            _ORDERS[name](value)

    def _see_line(self, lines: Lines, *entries: Any) -> None:
        """See each entry of a line."""
        for entry in entries:
            self.see(Sight("line", lines.path, entry))

    def _note(self) -> None:
        """Keep the time at which a session began, or ended."""
        self._times.append(time.monotonic())
        write_whole(self._stage / f"session-{os.getpid()}.json", self._times)


def _look_for_pulses(stage: Path, watch: Watch) -> None:
    """Look for trials in the middle of a share, where they train in processes of their own."""
    seen: dict[Path, float] = {}
    places = (stage, Path(os.environ[NODES_VARIABLE]))
    while True:
        # A folder may be removed while it is listed.
        with contextlib.suppress(OSError):
            for pulse in (
                path for place in places for path in place.glob("**/checkpoint/.pulse.json")
            ):
                at_s = pulse.stat().st_mtime
                if seen.setdefault(pulse, at_s) != at_s:
                    seen[pulse] = at_s
                    watch.see(Sight("look", pulse, {}))
        time.sleep(_LOOK_S)


def write_whole(path: Path, value: Any) -> None:
    """Write JSON in one step, without a word to whoever watches."""
    path.with_suffix(".part").write_text(json.dumps(value))
    path.with_suffix(".part").replace(path)


def _before(place: Any, name: str, tell: Callable[..., object]) -> None:
    plain = getattr(place, name)

    def told(*arguments: Any) -> Any:
        tell(*arguments)
        return plain(*arguments)

    setattr(place, name, told)


def _after(place: Any, name: str, tell: Callable[..., object]) -> None:
    plain = getattr(place, name)

    def told(*arguments: Any) -> Any:
        answer = plain(*arguments)
        tell(*arguments)
        return answer

    setattr(place, name, told)


def _jump(seconds: float) -> None:
    """Set the time of day of this process; what counts seconds alone does not notice."""
    plain = time.time
    time.time = lambda: plain() + seconds


def _fill_disk(_: object) -> None:
    """Let nothing be written any more, except what lies in the disk's own reserve: less than a line."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = tempfile.mkstemp = full


# What can only be done inside the process that is struck.
_ORDERS: dict[str, Callable[[Any], None]] = {"jump_s": _jump, "fill_disk": _fill_disk}
