"""A process beside the server that does long jobs of JSON, of which each would hold up all clients of the server.

One job at a time, in the order of asking. The process is started by the first job, started again where it has ended,
and ends with this one. Its results are the same as those of this process, which does the jobs where no other can start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from raysent.serving import server_json
from raysent.serving.server_json import JOBS, Bytes

_SOURCES = str(Path(__file__).parents[2])
# The file alone, not the package that it is in: it needs none of the libraries of a model.
_START = (
    "import json, runpy, sys; sys.path.extend(json.loads(sys.argv[1])); "
    "runpy.run_path(sys.argv[2], run_name='__main__')"
)


class JsonProcessError(Exception):
    """The process ended twice in one job, or did not end a job in time."""


class JsonProcess:
    """Does jobs of `server_json` in another process."""

    def __init__(self, *, timeout_s: float) -> None:
        """Prepare; a job that takes longer than `timeout_s` with those before it ends the process."""
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="json")
        self._process: subprocess.Popen[bytes] | None = None

    async def do(self, name: str, content: Bytes, **arguments: Any) -> Any:
        """Return the result of a job.

        Args:
            name: Which of `server_json.JOBS`.
            content: Its bytes.
            arguments: Its other arguments.

        Raises:
            ValueError: As the job.
            JsonProcessError: If there is no result.
        """
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, self._do, name, content, arguments)
        try:
            return await asyncio.wait_for(work, self._timeout_s)
        except TimeoutError:
            if self._process is not None:
                self._process.kill()  # the thread waits for it no longer
            raise JsonProcessError from None

    def _do(self, name: str, content: Bytes, arguments: dict[str, Any]) -> Any:
        for _ in range(2):
            try:
                process = self._running()
            except OSError:  # no more processes, or none at all
                return JOBS[name](content, **arguments)
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                server_json.send(process.stdin, (name, arguments), content)  # type: ignore[arg-type]  # of bytes
                made, content_of_result = server_json.receive(process.stdout)  # type: ignore[arg-type]  # of bytes
            except (OSError, EOFError):
                _end(process)
                continue
            if made is None:
                return content_of_result
            reason, value = made
            if reason is not None:
                raise ValueError(reason)
            return value
        raise JsonProcessError

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process; start it where none is running."""
        if self._process is None or self._process.poll() is not None:
            paths = [path for path in sys.path if path]
            # Nothing of the folder or the environment that the server was started in is imported by this name.
            arguments = [json.dumps([*paths, _SOURCES]), server_json.__file__]
            command = [sys.executable, "-I", "-c", _START, *arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, which has no job."""
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            assert stream is not None
            stream.close()
    process.kill()
    process.wait()
