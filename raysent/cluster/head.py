"""What the head runs for a submitted sweep: the sweep, and what must not depend on the computer that submitted it.

    python -m raysent.cluster.head --run ADDRESS [--keep] -- sweep SPACE --run ADDRESS …

The arguments after `--` are those of `raysent`. A request to stop that is stored with the run stops the sweep. At the
end the exit code and the printed lines are stored with the run, and the cluster is terminated, unless it is kept or
another sweep uses it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TextIO, cast

from raysent.cluster.fleet import FleetSettings, cluster_held
from raysent.cluster.following import INTERRUPTED, read_record, stop_request, write_record
from raysent.errors import RaysentError
from raysent.progress import messages

# Seconds between two looks for a request to stop.
STOP_POLL_S = 10.0
# Printed lines that are stored with the run; of a sweep with --json all are.
NUM_LINES = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of raysent as the job of a run; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m raysent.cluster.head", description=__doc__)
    parser.add_argument("--run", required=True, help="address of the run")
    parser.add_argument(
        "--keep", action="store_true", help="do not terminate the cluster afterwards"
    )
    parser.add_argument("command", nargs="+", help="arguments of raysent")
    parsed = parser.parse_args(arguments)
    lines: deque[str] = deque(maxlen=None if "--json" in parsed.command else NUM_LINES)
    settings = FleetSettings.from_environment()
    held: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if settings is not None:
        held = cluster_held(settings, is_kept=parsed.keep)
    with held:
        with _stopped_by_request(parsed.run):
            code = _run(parsed.command, lines)
        _store(parsed.run, code, lines)
    return code


def _run(command: Sequence[str], lines: deque[str]) -> int:
    with (
        contextlib.redirect_stdout(cast(TextIO, _Copy(sys.stdout, lines))),
        contextlib.redirect_stderr(cast(TextIO, _Copy(sys.stderr, lines))),
    ):
        before = sys.argv
        sys.argv = ["raysent", *command]
        try:
            runpy.run_module("raysent", run_name="__main__")
        except SystemExit as error:
            # As Python itself does: a text is an error, and nothing is success.
            if isinstance(error.code, int):
                return error.code
            return int(error.code is not None)
        except KeyboardInterrupt:
            return INTERRUPTED
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.argv = before
        return 0


def _store(run: str, code: int, lines: Sequence[str]) -> None:
    """Store how the sweep ended; what cannot be stored is printed, so that the cluster is terminated all the same."""
    try:
        write_record(run, replace(read_record(run), code=code, lines=list(lines), waiting=""))
    except RaysentError as error:
        messages.print(f"error: {error}", soft_wrap=True)


@contextlib.contextmanager
def _stopped_by_request(run: str) -> Iterator[None]:
    """Send this process SIGTERM for every request to stop; the sweep handles it, and the rest is interrupted."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    has_ended = threading.Event()
    watcher = threading.Thread(
        target=watch,
        args=(run, has_ended, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        daemon=True,
    )
    watcher.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        has_ended.set()
        watcher.join()
        signal.signal(signal.SIGTERM, before)


def watch(run: str, has_ended: threading.Event, stop: Callable[[], object]) -> None:
    """Call `stop` once for every request to stop, until an event is set.

    Args:
        run: Address of the run.
        has_ended: Set when the sweep has ended.
        stop: Stops the sweep.
    """
    last_request = ""
    while not has_ended.wait(STOP_POLL_S):
        with contextlib.suppress(RaysentError):  # read again at the next poll
            request = stop_request(run)
            if request and request != last_request:
                last_request = request
                stop()


class _Copy:
    def __init__(self, stream: TextIO, lines: deque[str]) -> None:
        self._stream = stream
        self._lines = lines
        self._rest = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, and keep whole lines."""
        written = self._stream.write(text)
        *complete_lines, self._rest = (self._rest + text).split("\n")
        self._lines.extend(complete_lines)
        return written


if __name__ == "__main__":
    sys.exit(main())
