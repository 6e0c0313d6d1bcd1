"""The process on every worker node that hears of its end first, and drains the Ray node for it.

It asks the machine's metadata service every few seconds, and takes SIGTERM, which a machine sends that is shut down,
as a notice too. A service that does not answer is no reason to end: it is asked again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from raysent.errors import RaysentError
from raysent.preemption.metadata import InstanceMetadata, MetadataError, Notice

POLL_S = 5.0
# Of a shutdown: what systemd and containers leave between SIGTERM and SIGKILL at least.
SHUTDOWN_S = 25.0

# Drains the node of this machine: seconds left, why.
Drain = Callable[[float, str], None]
_log = logging.getLogger("raysent.node-agent")


@dataclass
class NodeAgent:
    """Waits for a notice and drains.

    Attributes:
        metadata: Of this machine.
        drain: Drains its Ray node.
        poll_s: How often to ask, in seconds.
    """

    metadata: InstanceMetadata
    drain: Drain
    poll_s: float = POLL_S

    def __post_init__(self) -> None:
        self._wake = threading.Event()
        self._ends = False
        self._drained: Notice | None = None
        self._is_answered = True
        self._refused = ""

    def shut_down(self) -> None:
        """Hear that the machine is being shut down: drain at once, and end. May be called from a signal handler."""
        self._ends = True
        self._wake.set()

    def run(self) -> None:
        """Ask until the machine is shut down."""
        while not self._ends:
            self.look()
            self._wake.wait(self.poll_s)
        if self._drained is None:
            self._tell(Notice("shutdown", time.time() + SHUTDOWN_S))

    def look(self) -> None:
        """Ask once; a new notice, or another deadline, is told to Ray, and told again while Ray does not take it."""
        try:
            notice = self.metadata.notice()
        except MetadataError as error:
            self._note_silence(error)
            return
        self._is_answered = True
        if notice is not None and notice != self._drained:
            self._tell(notice)

    def _tell(self, notice: Notice) -> None:
        left_s = notice.time_s - time.time()
        try:
            self.drain(left_s, f"{notice.action} in {left_s:.0f} s")
        except RaysentError as error:
            if str(error) != self._refused:
                _log.warning("%s; told again every %g s", error, self.poll_s)
            self._refused = str(error)
            return
        self._drained = notice
        _log.warning("drained for %s in %.0f s", notice.action, left_s)

    def _note_silence(self, error: MetadataError) -> None:
        """Log the first of a row of failures."""
        if self._is_answered:
            _log.warning("%s; asked again every %g s", error, self.poll_s)
        self._is_answered = False
