"""Permits of machines, renewed by a thread of their own that asks no cloud.

A machine ends itself when the permit of its sweep has run out: the permit proves that the sweep's process lives. A
poll of the sweep may wait for a cloud that does not answer, longer than a permit is valid. So the polls name the
machines, and until when they may live without another poll; a thread renews the permit meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable

import ray

from raysent.errors import RaysentError
from raysent.preemption import renew_permit

# A permit is renewed so many times while it is valid.
_RENEWALS = 3


class Permits:
    """The permit of one process of a sweep."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is renewed yet.

        Args:
            clock: Returns seconds.
        """
        self._name = uuid.uuid4().hex  # each process of a sweep has a permit of its own
        self._clock = clock
        self._turn = threading.Lock()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._machines: list[str] = []
        self._seconds = 0.0
        self._until = 0.0

    def grant(self, machines: Iterable[str], *, seconds: float, for_s: float) -> None:
        """Renew the permit of machines now, and again and again for a while.

        Args:
            machines: Their ids.
            seconds: How long each renewal is valid.
            for_s: How long the thread renews it without another call.
        """
        with self._turn:
            self._machines = list(machines)
            self._seconds = seconds
            self._until = self._clock() + for_s
        self.renew(self._machines, seconds=seconds)
        if self._thread is None and not self._is_closed.is_set() and ray.is_initialized():
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def renew(self, machines: Iterable[str], *, seconds: float) -> None:
        """Renew the permit of machines once; each ends itself without one, as where its head does not answer."""
        if ray.is_initialized():
            with contextlib.suppress(RaysentError):
                address = ray.get_runtime_context().gcs_address
                renew_permit(address, self._name, list(machines), seconds=seconds)

    def close(self) -> None:
        """Renew nothing more by the thread."""
        self._is_closed.set()

    def _run(self) -> None:
        while not self._is_closed.wait(self._seconds / _RENEWALS):
            with self._turn:
                machines = self._machines
                seconds = self._seconds
                is_due = self._clock() < self._until
            if is_due and machines:
                self.renew(machines, seconds=seconds)
