"""The watch of a worker machine: it ends the machine once no sweep renews the machine's permit.

A sweep that runs names its machines at every poll, in the control service of Ray on the head. If the sweep or the head
dies, no permit is renewed, and each machine ends itself: it costs no more than the sweep has set aside. Times are this
machine's own; no two clocks are compared.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raysent.errors import RaysentError

# Time for the first permit of a machine: a sweep names it at its next poll.
FIRST_PERMIT_S = 60.0

_log = logging.getLogger("raysent.node-agent")

Permits = Callable[[], Mapping[str, tuple[str, float]]]
"""Returns the permits that name this machine: name -> its renewal, and the seconds for which it is valid."""


@dataclass
class Watch:
    """Ends this machine when its permits have run out. Call `poll` regularly.

    Attributes:
        permits: Reads the permits; raises RaysentError if the head does not answer.
        end: Ends this machine.
        clock: Returns seconds of this machine.
    """

    permits: Permits
    end: Callable[[], object]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._renewals: dict[str, str] = {}
        self._valid_until_s = self.clock() + FIRST_PERMIT_S
        self.has_ended = False

    def poll(self) -> None:
        """End the machine if no permit is valid, else look for renewals."""
        if not self._is_over():
            try:
                self._read()
            except RaysentError as error:
                _log.warning("%s; this machine ends in %.0f s", error, self._valid_until_s - self.clock())
            self._is_over()

    def _read(self) -> None:
        at_s = self.clock()
        for name, (renewal, seconds) in self.permits().items():
            if self._renewals.get(name) != renewal:
                until_s = at_s + seconds
                self._valid_until_s = max(self._valid_until_s, until_s) if self._renewals else until_s
                self._renewals[name] = renewal

    def _is_over(self) -> bool:
        """Return whether the permits have run out; the machine is then ended, again if that has failed."""
        if self.clock() < self._valid_until_s:
            return False
        _log.warning("no sweep renews the permit of this machine; it ends now")
        self.has_ended = True
        self.end()
        return True


def shut_down_machine() -> None:
    """Shut this machine down, which terminates it; its processes get SIGTERM first."""
    command = ["sudo", "-n", "/sbin/shutdown", "-P", "now"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        _log.error("%s: exit code %d: %s", " ".join(command), result.returncode, result.stderr.strip()[:200])
