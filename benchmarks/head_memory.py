"""The memory that trials with workers of their own take on the head of a cluster.

Starts a head without cores and a node on this machine, sweeps with as many trials at once as are asked for, and prints
for each kind of process on the head the most memory that only it holds (USS) and its share of all memory (PSS), in MiB
a process.

    python -m benchmarks.head_memory [--trials 2] [--json]
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

from benchmarks.common import parsed, show

SPACE = """
base:
  corpus: {{path: text.txt, format: sentences, validation_fraction: 0.2}}
  encoder: {{type: gru, hidden_size: 8, embedding: {{dim: 6}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 24, epochs: 100, max_steps: 600, num_reports: 4}}
  validation: {{num_candidates: 20, num_sentences: 40}}
search: {{training.learning_rate: {{loguniform: [1e-3, 1e-1]}}}}
limits: {{trials: {trials}, scheduler: {{type: none}}, backend: train}}
evaluation: {{tasks: []}}
"""
# Workers train on the nodes; they run on this machine only here.
ON_NODES = ("RayTrainWorker", "execute")
# What Ray has on a head without any trial.
RAYS_OWN = ("IDLE", "AutoscalingCoordinator", "DecisionStore", "Agent", "missing")
_POLL_S = 0.5


def measure(num_trials: int, folder: Path) -> dict[str, dict[str, float]]:
    """Sweep, and return for each kind of process the most of them at once, and the most memory of one in MiB."""
    (folder / "text.txt").write_text("\n".join(f"w{i % 17} thing w{i % 5} is w{i % 11}." for i in range(400)))
    (folder / "space.yaml").write_text(SPACE.format(trials=num_trials))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "resources": {"raysent_driver": 64}})
    try:
        cluster.add_node(num_cpus=num_trials)
        command = [sys.executable, "-m", "raysent", "sweep", "space.yaml", "--run", "run", "--yes"]
        sweep = subprocess.Popen(
            [*command, "--address", cluster.address], cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ}
        )
        found: dict[str, dict[str, float]] = {}
        while sweep.poll() is None:
            _sample(found)
            time.sleep(_POLL_S)
        if sweep.returncode:
            raise SystemExit(f"the sweep ended with exit code {sweep.returncode}")
        return found
    finally:
        cluster.shutdown()


def _sample(found: dict[str, dict[str, float]]) -> None:
    """Add the processes that are there now."""
    counts: dict[str, int] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, IndexError):
            name = process.cmdline()[0]
            if not name.startswith("ray::") or any(one in name for one in (*ON_NODES, *RAYS_OWN)):
                continue
            kind = name.removeprefix("ray::").split(".")[0].split("(")[0].strip()
            memory = process.memory_full_info()
            counts[kind] = counts.get(kind, 0) + 1
            held = found.setdefault(kind, {"processes": 0, "uss_mib": 0.0, "pss_mib": 0.0, "rss_mib": 0.0})
            for key in ("uss", "pss", "rss"):
                held[f"{key}_mib"] = max(held[f"{key}_mib"], round(getattr(memory, key) / 2**20, 1))
    for kind, count in counts.items():
        found[kind]["processes"] = max(found[kind]["processes"], count)


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, trials=2)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.trials, Path(folder))
    total = sum(held["processes"] * held["pss_mib"] for held in found.values()) / options.trials
    show({**found, "pss_mib_a_trial": round(total)}, options)


if __name__ == "__main__":
    main()
