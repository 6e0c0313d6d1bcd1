"""`encode_corpus` with one process, with several and on Ray: speed, memory, and equal bits after a kill and a stop.

One worker is killed while it encodes; then the call is stopped by its time limit, and another call continues. Every
row has to be there once, with the bits of one process. Workers and this process share this machine's processors.

    python -m benchmarks.encode_corpus MODEL 'TEXTS/*.txt' [--workers 2] [--stop-after 50s] [--ways one processes ray]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from pyarrow import parquet

from raysent.exports.corpus import EncodedCorpus, Limits, encode_corpus
from raysent.training.ray_session import ray_session

# A worker is killed once so many files are complete.
_KILL_AFTER = 3


class Watcher:
    """Measures the memory of this process and of its workers, and kills one worker.

    Attributes:
        peaks: The most resident bytes of this process, and of any worker.
        killed: Process number of the worker that was killed; None if none was.
    """

    def __init__(self, output: Path, *, kills: bool) -> None:
        self.peaks = {"driver": 0, "worker": 0}
        self.killed: int | None = None
        self._output, self._kills, self._is_over = output, kills, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        me = psutil.Process()
        while not self._is_over.wait(0.3):
            workers = [one for one in me.children(recursive=True) if _is_worker(one)]
            with contextlib.suppress(psutil.Error):
                self.peaks["driver"] = max(self.peaks["driver"], me.memory_info().rss)
                self.peaks["worker"] = max([self.peaks["worker"], *(one.memory_info().rss for one in workers)])
                is_time = len(list(self._output.rglob("*.parquet"))) >= _KILL_AFTER
                if self._kills and self.killed is None and is_time and workers:
                    workers[0].kill()
                    self.killed = workers[0].pid


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return command.startswith("ray::_run_job") or "loky.backend.popen_loky_posix" in command
    return False


def digests(folder: Path) -> dict[str, str]:
    """Return the hash of each Parquet file."""
    files = sorted(folder.rglob("*.parquet"))
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def encode(way: str, output: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Encode a corpus in one way, and return what was measured."""
    calls: list[dict[str, Any]] = []
    limits = [Limits()] if way == "one" else [Limits(time=options.stop_after), Limits()]
    session = ray_session(None, num_cpus=options.workers) if way == "ray" else contextlib.nullcontext()
    with session, Watcher(output, kills=way != "one") as watcher:
        for limit in limits:
            start = time.perf_counter()
            done: EncodedCorpus = encode_corpus(
                options.model,
                options.texts,
                output,
                workers=1 if way == "one" else options.workers,
                address="auto" if way == "ray" else None,
                limits=limit,
            )
            seconds = time.perf_counter() - start
            rate = done.num_rows / seconds
            calls.append({"files": done.num_files, "rows": done.num_rows, "seconds": seconds, "rows_per_s": rate})
    num_rows = sum(parquet.read_metadata(file).num_rows for file in output.rglob("*.parquet"))
    mib = {name: value >> 20 for name, value in watcher.peaks.items()}
    return {"way": way, "calls": calls, "rows": num_rows, "peak_mib": mib, "killed": watcher.killed}


def main() -> None:
    """Print one JSON object for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stop-after", default="50s")
    parser.add_argument("--ways", nargs="+", choices=["one", "processes", "ray"], default=["one", "processes", "ray"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        expected: dict[str, str] | None = None
        for way in options.ways:
            found = encode(way, Path(scratch) / way, options)
            current = digests(Path(scratch) / way)
            expected = expected or current
            print(json.dumps({**found, "is_equal": current == expected}), flush=True)


if __name__ == "__main__":
    main()
