"""Trials per hour on this machine, without Ray: cores as threads of one trial, or as concurrent trials.

The same trials with the same seeds are trained in these ways, alternating round by round:

- `one thread`, `two threads`: one process, one trial after another
- `two processes`: a one-thread trial in each of two processes, one after another in each; this is what a sweep does
- `packed by 2`, `packed by 8`: one process, that many one-thread trials in as many threads

Other work on the machine is excluded as far as Linux reports it: the time that a trial's thread spent in the queue for
a core does not count. Where that cannot be distinguished from threads that wait for each other, the lowest possible
time of the way is used instead: for `two threads`, whose idle thread sleeps here instead of spinning, the time of the
first thread on its core; for more concurrent trials than cores, the processor time. Every way except `two threads` must
give bit-identical weights. Wall-clock figures are shown beside, for a machine without other work.

    python -m benchmarks.sweep_throughput [--size small|middle] [--rounds 3] [--ways NAMES] [--json]
    python -m benchmarks.sweep_throughput --gaps RUN...    the time in which a sweep's cores had no trial, by its
        journal
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 64, "dim": 64, "batch_size": 64, "max_steps": 20},
    "middle": {"hidden_size": 300, "dim": 200, "batch_size": 200, "max_steps": 6},
}
NUM_CORES = 2
LOOK_S = 0.5


@dataclass(frozen=True)
class Way:
    """How trials share the machine.

    Attributes:
        processes: Number of processes.
        at_once: Concurrent trials in each process.
        threads: torch threads of each trial.
    """

    processes: int
    at_once: int = 1
    threads: int = 1


WAYS = {
    "one thread": Way(1),
    "two threads": Way(1, threads=2),
    "two processes": Way(2),
    "packed by 2": Way(1, at_once=2),
    "packed by 8": Way(1, at_once=8),
}


@dataclass(frozen=True)
class Timing:
    """Seconds of one trial: wall-clock, on a core, and in the queue for one; and the digest of its weights."""

    wall_s: float
    cpu_s: float
    queue_s: float
    weights: str


# -- in a worker ----------------------------------------------------------------------------------------------------


def work() -> None:
    """Train the trials that each line of standard input names, and print their times."""
    way = Way(**json.loads(sys.stdin.readline()))
    import torch  # noqa: PLC0415 - the cost of a process is measured, imports included

    from raysent.training.loop import fit  # noqa: PLC0415, F401 - as above

    torch.set_num_threads(way.threads)
    print(json.dumps({"start_s": time.process_time()}), flush=True)
    with ThreadPoolExecutor(way.at_once) as pool:
        for line in sys.stdin:
            job = json.loads(line)
            before = time.process_time()
            timings = list(pool.map(lambda seed, job=job: train(job, seed), job["seeds"]))
            cpu_s = time.process_time() - before
            print(json.dumps({"cpu_s": cpu_s, "trials": [asdict(timing) for timing in timings]}), flush=True)


def train(job: dict[str, Any], seed: int) -> Timing:
    """Train one trial in this thread."""
    from raysent.storage import file_sha256  # noqa: PLC0415 - as above
    from raysent.training.loop import fit  # noqa: PLC0415 - as above
    from raysent.training.run import RunConfig  # noqa: PLC0415 - as above

    folder = Path(job["folder"]) / f"{threading.get_ident()}-{seed}"
    config = RunConfig.model_validate({**job["run"], "seed": seed})
    wall_s, (cpu_s, queue_s) = time.perf_counter(), on_core()
    fit(config, folder)
    cpu_after_s, queue_after_s = on_core()
    return Timing(
        time.perf_counter() - wall_s,
        cpu_after_s - cpu_s,
        queue_after_s - queue_s,
        file_sha256(folder / "model.safetensors"),
    )


def on_core() -> tuple[float, float]:
    """Return the seconds that this thread has spent on a core, and in the queue for one."""
    run_ns, queue_ns, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    return int(run_ns) / 1e9, int(queue_ns) / 1e9


# -- in the measuring process -----------------------------------------------------------------------------------------


class Crew:
    """The processes of one way, which wait between rounds."""

    def __init__(self, way: Way) -> None:
        self.way = way
        command = [sys.executable, "-m", "benchmarks.sweep_throughput", "--worker"]
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_WAIT_POLICY": "passive"},
            )
            for _ in range(way.processes)
        ]
        for process in self._processes:
            self._tell(process, asdict(way))
        self.start_s = sum(self._receive(process)["start_s"] for process in self._processes)
        self.memory_bytes = 0
        self.rounds_s: list[float] = []

    def round(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Train all trials of a job once; return the output of each process."""
        begun, share = time.perf_counter(), self.way.processes
        for place, process in enumerate(self._processes):
            self._tell(process, {**job, "seeds": job["seeds"][place::share]})
        is_over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(is_over,))
        watch.start()
        results = [self._receive(process) for process in self._processes]
        self.rounds_s.append(time.perf_counter() - begun)
        is_over.set()
        watch.join()
        return results

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def _watch(self, is_over: threading.Event) -> None:
        while not is_over.wait(LOOK_S):
            self.memory_bytes = max(self.memory_bytes, sum(own_bytes(process.pid) for process in self._processes))

    @staticmethod
    def _tell(process: subprocess.Popen[str], message: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()

    @staticmethod
    def _receive(process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        return json.loads(process.stdout.readline())


def own_bytes(pid: int) -> int:
    """Return the memory of a process that is not backed by files: its part of shared memory, and all private memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon"))


def hours_of_machine(way: Way, results: list[dict[str, Any]]) -> float:
    """Return the hours that an idle machine would need for a round."""
    trials = [one for process in results for one in process["trials"]]
    at_once = way.processes * way.at_once
    if way.threads > 1:
        return sum(one["cpu_s"] for one in trials) / 3600
    if at_once > NUM_CORES:
        return sum(process["cpu_s"] for process in results) / NUM_CORES / 3600
    return sum(one["wall_s"] - one["queue_s"] for one in trials) / at_once / 3600


def measure(size: str, names: list[str], *, num_rounds: int, num_trials: int) -> dict[str, dict[str, float]]:
    """Return the figures of each way by its name; ratios are relative to the first.

    Raises:
        RuntimeError: If the weights of a trial depend on the way.
    """
    with tempfile.TemporaryDirectory(prefix="raysent-throughput-") as scratch:
        job = {"run": run_values(SIZES[size]), "seeds": list(range(num_trials))}
        crews = {name: Crew(WAYS[name]) for name in names}
        rounds: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in names}
        for name, crew in crews.items():  # warms up libraries and caches
            crew.round({**job, "seeds": job["seeds"][:NUM_CORES], "folder": f"{scratch}/{name}"})
        for number in range(num_rounds):
            for name, crew in crews.items():
                rounds[name].append(crew.round({**job, "folder": f"{scratch}/{name}/{number}"}))
        for crew in crews.values():
            crew.close()
    check_weights(rounds)
    found = {name: summary(crews[name], results, num_trials) for name, results in rounds.items()}
    for values in found.values():
        values["ratio"] = round(values["trials_per_hour"] / found[names[0]]["trials_per_hour"], 2)
    return found


def summary(crew: Crew, rounds: list[list[dict[str, Any]]], num_trials: int) -> dict[str, float]:
    """Return the medians of one way over rounds."""
    hours = [hours_of_machine(crew.way, results) for results in rounds]
    cpu_s = [sum(process["cpu_s"] for process in results) / num_trials for results in rounds]
    return {
        "trials_per_hour": round(num_trials / median(hours)),
        "by_the_clock": round(3600 * num_trials / median(crew.rounds_s[1:])),  # the first one warms up
        "cpu_s_per_trial": round(median(cpu_s), 3),
        "start_cpu_s": round(crew.start_s, 1),
        "memory_mib": round(crew.memory_bytes / 2**20),
    }


def check_weights(rounds: dict[str, list[list[dict[str, Any]]]]) -> None:
    """Compare the weights of every trial over all ways with one thread per trial."""
    names = {
        tuple(sorted(one["weights"] for process in results for one in process["trials"]))
        for name, all_results in rounds.items()
        if WAYS[name].threads == 1
        for results in all_results
    }
    if len(names) != 1:
        raise RuntimeError("the same seed gave different weights in different ways")


def run_values(size: dict[str, Any]) -> dict[str, Any]:
    """Return a run on the embedded corpus, as plain values."""
    return {
        "corpus": {"path": "docs"},
        "vocabulary": {"size": 5000},
        "encoder": {"type": "gru", "hidden_size": size["hidden_size"], "embedding": {"dim": size["dim"]}},
        "objective": {"type": "context_prediction"},
        "training": {"batch_size": size["batch_size"], "max_steps": size["max_steps"], "num_reports": 2},
        "validation": {"num_sentences": 1000, "num_candidates": 500},
    }


def gaps(run: Path) -> list[float]:
    """Return the seconds from the end of each trial to the first step of its successor.

    The validation of a report comes after the seconds that it reports, so the first validation counts as part of the
    gap.
    """
    from raysent.sweeps import read_events  # noqa: PLC0415 - workers, whose start is measured, need no Ray

    ended: list[float] = []
    begun: dict[str, float] = {}
    found = []
    for event in read_events(run):
        match event["event"]:
            case "session":
                ended.clear()
            case "ended":
                ended.append(event["time"])
            case "started" if ended:
                begun[event["trial"]] = ended.pop(0)
            case "report" if event["trial"] in begun:
                found.append(event["time"] - event["seconds"] - begun.pop(event["trial"]))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="small", help="of the trials' encoder")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are measured")
    parser.add_argument("--trials", type=int, default=8, help="trials of a round")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--ways", default=",".join(WAYS), help="the ways to compare, over the first")
    parser.add_argument("--gaps", nargs="+", type=Path, metavar="RUN", help="folders of sweeps to read instead")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    if options.gaps:
        seconds = [gap for run in options.gaps for gap in gaps(run)]
        print(
            json.dumps({"gaps": len(seconds), "median_s": round(median(seconds), 2), "most_s": round(max(seconds), 2)})
        )
        return
    found = measure(options.size, options.ways.split(","), num_rounds=options.rounds, num_trials=options.trials)
    if options.json:
        print(json.dumps({"size": options.size, "ways": found}))
        return
    print(f"| {options.size}, {options.trials} trials | " + " | ".join(next(iter(found.values()))) + " |")
    print("|---|" + "---|" * len(next(iter(found.values()))))
    for name, values in found.items():
        print(f"| {name} | " + " | ".join(f"{value:,}" for value in values.values()) + " |")


if __name__ == "__main__":
    main()
