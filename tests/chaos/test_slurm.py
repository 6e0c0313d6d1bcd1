"""The file for Slurm on two machines that are namespaces: Ray's own `symmetric-run`, a signal in mid-trial, a requeue."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_run import write_corpus

from chaos.namespaces import Machine, can_separate, two_machines
from chaos.verdict import check_events
from raysent.cluster.slurm import sbatch_text
from raysent.sweeps import Event, read_events, read_ledger

SPACE = """
base:
  corpus: {path: text.txt, validation_fraction: 0.2}
  vocabulary: {size: 100}
  encoder: {type: gru, hidden_size: 16, embedding: {dim: 8}}
  objective: {type: context_prediction}
  training: {batch_size: 24, epochs: 60, num_reports: 6}
  validation: {num_candidates: 20, num_sentences: 40}
search:
  training.learning_rate: {loguniform: [1e-3, 1e-1]}
limits: {trials: 3}
evaluation: {tasks: []}
"""
# What a node of Slurm has; `srun` runs the step here, and hands it to the other node.
PROGRAMS = {
    "scontrol": 'case "$1" in show) printf "n1\\nn2\\n";; requeue) echo "$2" >> requeued;; esac',
    "srun": 'printf "%s\\0" "$@" > step.part; mv step.part step; "$@"; code=$?; while [ ! -e done ]; do sleep 0.2; done; exit $code',
    "slurmd": 'while [ ! -e step ]; do sleep 0.1; done; mapfile -d "" words < step; rm step; "${words[@]}"; touch done',
}
_PATIENCE_S = 1200.0


@contextmanager
def _allocation(
    folder: Path, machines: tuple[Machine, Machine], env: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the file on the first machine of an allocation; yields its shell."""
    (folder / "done").unlink(missing_ok=True)
    first, second = machines
    node = second.popen(["bash", "programs/slurmd"], cwd=folder, env=env)
    yield first.popen(["sh", "-c", "echo $$ > shell && exec bash job.sbatch"], cwd=folder, env=env)
    assert node.wait(_PATIENCE_S) == 0


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.skipif(not can_separate(), reason="needs namespaces, which root has on Linux")
def test_sweep_is_saved_requeued_and_finished(tmp_path: Path) -> None:
    """SIGUSR1 comes in mid-trial; the second allocation goes on where the first has stopped."""
    write_corpus(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "programs").mkdir()
    for name, script in PROGRAMS.items():
        (tmp_path / "programs" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "programs" / name).chmod(0o755)
    (tmp_path / "job.sbatch").write_text(
        sbatch_text("space.yaml", run="runs/one", num_nodes=2, gpus=0, time="1:00:00")
    )
    env = {
        **os.environ,
        "PATH": f"{tmp_path / 'programs'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get(
            "PYTHONPATH", str(Path(__file__).resolve().parent.parent.parent)
        ),
        "HOME": str(tmp_path),
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "7",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # the second node ends so long after the head, not in a minute
    }

    def events() -> list[Event]:
        return list(read_events(tmp_path / "runs/one"))

    with two_machines() as machines:
        with _allocation(tmp_path, machines, env) as job:
            until_s = time.monotonic() + _PATIENCE_S
            while not any(event["event"] == "report" for event in events()):
                assert job.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.1)
            machines[0].popen(["sh", "-c", "kill -USR1 $(cat shell)"], cwd=tmp_path, env=env).wait()
            assert job.wait(_PATIENCE_S) == 130
        before = events()
        assert (tmp_path / "requeued").read_text() == "7\n"
        with _allocation(tmp_path, machines, env) as job:
            assert job.wait(_PATIENCE_S) == 0
    assert (tmp_path / "requeued").read_text() == "7\n"
    found = check_events(tmp_path / "runs/one", before=before)
    assert sum(event["event"] == "session" for event in found) == 2
    nodes = {
        line["node"] for line in read_ledger(tmp_path / "runs/one") if line["entry"] == "trial"
    }
    assert len(nodes) > 2, "both machines trained, each with another Ray node in each allocation"
