"""The signs of life of a sweep that is followed: what cannot be read, a process that ended, a cluster that is gone.

A follower reads the stored run. Where that says nothing new, these decide what is said and when the sweep has ended:

    nothing can be read for a minute     a line with the reason, and another one when it can be read again
    the lease of its process is stale    a line; and where its head answers, an error with the end of the job's log
    AWS lists no head, three times       an error, unless the job still runs or its process still renews its lease
"""

from __future__ import annotations

import time
from collections.abc import Callable

from raysent.cluster.jobs import Jobs
from raysent.cluster.launcher import Head, read_token
from raysent.cluster.stored_sweep import is_alive, renews_lease
from raysent.errors import ArtifactError, CloudError
from raysent.storage.lease import RENEWAL_S

Say = Callable[[str], object]

# AWS's lists are eventually consistent: so many in a row must lack the head.
_NUM_LOOKS = 3
# After this time without an answer, a line says so; and so often a silent job is asked for.
_SILENT_S = 60.0


class Signs:
    """What one follower has seen of a sweep. Call `look` at every poll, then `has_read` or `cannot_read`, `check`."""

    def __init__(
        self,
        remote: str,
        cluster: Head,
        job: str,
        *,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin; nothing is asked yet.

        Args:
            remote: The address of the run.
            cluster: The head of its cluster.
            job: Name of the sweep's job.
            say: Called with each line.
            clock: Returns seconds.
        """
        self._remote = remote
        self._cluster = cluster
        self._job = job
        self._say = say
        self._clock = clock
        self._num_missing = 0
        self._read_at = self._answered_at = self._asked_at = clock()
        self._has_begun = False
        self._unread = self._untold = ""
        self._is_stale = False
        self._alive: bool | None = None
        self._look_at = clock()

    def look(self, *, has_begun: bool) -> None:
        """Ask AWS whether the head runs.

        Args:
            has_begun: Whether the sweep has written an event.
        """
        self._has_begun = has_begun
        is_running = self._cluster.is_running()
        if is_running is False:
            self._num_missing += 1
        else:
            self._num_missing = 0
        if is_running is not None or not self._cluster.trouble:
            self._answered_at = self._clock()
            self._untold = ""
        elif self._clock() - self._answered_at >= _SILENT_S and not self._untold:
            self._untold = self._cluster.trouble
            self._say(f"AWS does not say whether the head runs: {self._untold}; asking on")

    def has_read(self) -> None:
        """Record that the stored run was read."""
        if self._unread:
            self._say(f"{self._remote}: can be read again")
        self._read_at = self._clock()
        self._unread = ""

    def cannot_read(self, error: ArtifactError) -> None:
        """Record that the stored run could not be read; after a minute a line says why."""
        silent_s = self._clock() - self._read_at
        if silent_s < _SILENT_S or self._unread:
            return
        self._unread = str(error)
        self._say(
            f"the sweep has not been seen for {silent_s:.0f} s: {error}; the sweep itself goes on; reading on"
        )

    def check(self) -> None:
        """Check that the sweep's process runs, if it has not ended.

        Raises:
            CloudError: If its process has ended, or its cluster is gone.
        """
        if self._num_missing >= _NUM_LOOKS:
            self._check_missing()
            return
        alive = self._is_alive()
        is_due = self._clock() - self._asked_at >= _SILENT_S
        if alive is False and not self._is_stale:
            self._is_stale = is_due = True
            self._say(
                f"{self._remote}: its process on the head does not answer: it was killed, or has no "
                "connection; without it the head ends itself within the hour"
            )
        elif alive:
            self._is_stale = False
        if is_due and (alive is False or not self._has_begun):
            self._asked_at = self._clock()
            reason = self._why_ended()
            if reason:
                raise CloudError(
                    f"{self._remote}: its process has ended: {reason}; {self._resume()}"
                )

    def _is_alive(self) -> bool | None:
        if self._clock() >= self._look_at:
            self._look_at = self._clock() + RENEWAL_S
            self._alive = is_alive(self._remote)
        return self._alive

    def _check_missing(self) -> None:
        """Raise that the cluster is gone, unless the sweep's job or its process shows that it is not."""
        if self._why_ended() == "" or renews_lease(self._remote):
            self._num_missing = 0
            return
        raise CloudError(
            f"{self._remote}: its cluster ended before the sweep did; {self._resume()}"
        )

    def _why_ended(self) -> str | None:
        """Return why the sweep's job has ended; empty if it runs, None if its head cannot be asked."""
        try:
            with self._cluster.tunnel() as address:
                jobs = Jobs(address, token=read_token(self._cluster.token_file))
                has_ended = jobs.of_run(self._remote).get(self._job)
                if has_ended is None:
                    return None
                if has_ended:
                    return jobs.why_ended(self._job)
                return ""
        except (CloudError, ArtifactError):
            return None

    def _resume(self) -> str:
        return f"'raysent resume {self._remote} --cluster FILE' continues it"
