"""Ray's own processes beside signals and faults: a group of their own, SIGTERM while they start, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial

from raysent.errors import ExitCode, TrainingError

# Without these Ray cannot work; it would end this process without a word, a minute later.
_NEEDED = ("gcs_server", "raylet")
_POLL_S = 1.0
# Between the interrupt that asks a sweep to stop and the one that ends it; then until this process ends in any case.
_ASK_S, _END_S = 3.0, 20.0


@contextlib.contextmanager
def in_groups_of_their_own() -> Iterator[None]:
    """Start Ray's processes in process groups of their own inside the block.

    A closed terminal, `timeout` and batch systems send a signal to all processes of a command. This one stops its
    training in answer, for which it needs Ray's. On Linux these end with this process; elsewhere Ray ends
    them by their group, which they keep.
    """
    from ray._private import services, utils  # noqa: PLC0415 - late, as it takes seconds

    start = getattr(services, "ConsolePopen", None)
    if start is None or not utils.detect_fate_sharing_support():
        yield
        return
    services.ConsolePopen = partial(start, process_group=0)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        services.ConsolePopen = start  # type: ignore[misc]


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt the block as Ctrl-C does, and do afterwards what it did before.

    `ray.init` sets a handler that ends the process without a word.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        if error.code != signal.SIGTERM:
            raise
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def watching_ray(how_to_continue: str) -> Iterator[Callable[[], None]]:
    """End the block with one line when one of the processes that Ray needs has ended.

    Yields a function that ends the watch: to be called before Ray is shut down, which ends them too.

    The main thread, if it is this one, is interrupted, twice, as a first Ctrl-C only asks a sweep to stop. Calls of Ray
    may never return then; so if the block does not end, this process does, with the line. Nothing that was recorded is
    lost: what counts is on disk before it is reported.

    Raises:
        TrainingError: In that case.
    """
    lost: list[str] = []
    caller = threading.get_ident()
    is_main = threading.current_thread() is threading.main_thread()
    is_over, is_unwatched, looking = threading.Event(), threading.Event(), threading.Lock()

    def end_watch() -> None:
        with looking:
            is_unwatched.set()

    def line() -> str:
        return f"Ray's process {lost[0]} has ended, perhaps for lack of memory; to continue: {how_to_continue}"

    def watch() -> None:
        while not lost:
            is_unwatched.wait(_POLL_S)
            with looking:
                if is_unwatched.is_set():
                    return
                lost.extend(_ended())
        for _ in range(2 if is_main else 0):
            signal.pthread_kill(caller, signal.SIGINT)
            if is_over.wait(_ASK_S):
                return
        if not is_over.wait(_END_S):
            os.write(2, f"error: {line()}\n".encode())
            os._exit(ExitCode.MISTAKE)

    watcher = threading.Thread(target=watch, name="raysent-ray", daemon=True)
    watcher.start()
    try:
        yield end_watch
    except BaseException:
        if not lost:
            raise
    finally:
        end_watch()
        is_over.set()
        watcher.join()
    if lost:
        raise TrainingError(line())


def _ended() -> list[str]:
    """Return which of the needed processes of this session have ended."""
    from ray._private.worker import _global_node  # noqa: PLC0415 - as above

    return [] if _global_node is None else [name for name, _ in _global_node.dead_processes() if name in _NEEDED]
