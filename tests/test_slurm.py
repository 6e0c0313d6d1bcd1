"""The file for Slurm: it starts the sweep, saves and requeues it at the end of an allocation, and then resumes it."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from raysent.cluster.slurm import sbatch_text
from raysent.errors import ConfigError

# Each stands on the path of the file's shell; `ray` runs the command on the first of the nodes alone.
FAKES = {
    "scontrol": 'case "$1" in requeue) echo "$2" >> requeued;; esac',
    "srun": 'for SLURM_PROCID in 0 1; do export SLURM_PROCID; "$@" & done; wait %1; code=$?; wait; exit $code',
    # As on Debian, with an IPv6 address first and the bridge of a container engine last.
    "hostname": 'case "$1" in --ip-address) echo "fd00::5 127.0.1.1";; '
    '--all-ip-addresses) echo "fd00::5 10.0.0.7 172.17.0.1 ";; *) echo n1;; esac',
    "ray": 'test "$SLURM_PROCID" = 0 || exit 0; echo "$@" >> ray_arguments; while [ "$1" != -- ]; do shift; done; shift; "$@"',
    "raysent": 'echo "$@" >> raysent_arguments; trap "echo saved >> saved; exit 130" TERM; mkdir -p "my runs/one"; '
    'if [ "$1" = resume ]; then echo done > finished; exit 0; fi; '
    'touch "my runs/one/sweep.json"; while :; do sleep 0.1; done',
}


def _submit(folder, text: str) -> subprocess.Popen[bytes]:
    for name, script in FAKES.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "job.sbatch").write_text(text)
    env = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "7",
    }
    return subprocess.Popen(["bash", "job.sbatch"], cwd=folder, env=env)


def test_file_saves_requeues_and_resumes(tmp_path):
    """SIGUSR1 in mid-trial reaches the sweep as SIGTERM; the next allocation resumes it, and is not requeued."""
    text = sbatch_text(
        "my space.yaml", run="my runs/one", num_nodes=2, gpus=4, time="24:00:00", budget="40gpuh"
    )
    job = _submit(tmp_path, text)
    while not (tmp_path / "my runs/one/sweep.json").exists():
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(600) == 130
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert (tmp_path / "requeued").read_text() == "7\n"
    assert _submit(tmp_path, text).wait(600) == 0
    assert (tmp_path / "finished").exists()
    assert (tmp_path / "requeued").read_text() == "7\n"
    first, second = (tmp_path / "raysent_arguments").read_text().splitlines()
    assert first == (
        "sweep my space.yaml --address auto --yes --budget 40usd --set cost.usd_per_hour=4 --run my runs/one"
    )
    assert second == "resume my runs/one"
    arguments = (tmp_path / "ray_arguments").read_text()
    assert "--address 10.0.0.7:6379 --min-nodes 2 -- env RAY_ADDRESS=10.0.0.7:6379" in arguments


def test_node_without_an_address_for_others_is_named(tmp_path):
    """In one line, before Ray waits for nodes that cannot find it."""
    text = sbatch_text("quickstart", run="runs/one", num_nodes=1, gpus=0, time="1:00:00")
    (tmp_path / "hostname").write_text(
        '#!/bin/bash\ncase "$1" in --*) echo "127.0.1.1 fd00::5";; *) echo n1;; esac\n'
    )
    (tmp_path / "hostname").chmod(0o755)
    (tmp_path / "job.sbatch").write_text(text)
    ran = subprocess.run(
        ["bash", "job.sbatch"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr == (
        "error: n1: must have an IPv4 address that other nodes reach; given 127.0.1.1 fd00::5\n"
    )


def test_file_asks_slurm_for_the_signal_and_the_requeue():
    """Lines of #SBATCH stand before the first command."""
    text = sbatch_text("quickstart", run="runs/one", num_nodes=3, gpus=0, time="8:00:00")
    head = text.partition("\nset ")[0]
    for line in (
        "--nodes=3",
        "--requeue",
        "--signal=B:USR1@300",
        "--time=8:00:00",
        "--gpus-per-node=0",
    ):
        assert f"#SBATCH {line}\n" in head


def test_name_of_a_job_with_blanks_is_one_word():
    """A line of #SBATCH is split as by a shell."""
    text = sbatch_text("quickstart", run="my run/a b", num_nodes=1, gpus=0, time="1:00:00")
    assert "#SBATCH --job-name='a b'\n" in text


@pytest.mark.parametrize("budget", ["40usd", "0gpuh", "gpuh", "-1gpuh"])
def test_budget_is_in_gpu_hours(budget):
    """Dollars are no unit of a Slurm cluster; without GPUs there is nothing to count."""
    text = sbatch_text(
        "quickstart", run="runs/one", num_nodes=1, gpus=2, time="1:00:00", budget="1.5 gpuh"
    )
    assert "--budget 1.5usd --set cost.usd_per_hour=2" in text
    with pytest.raises(ConfigError, match="must look like 40gpuh and be above 0"):
        sbatch_text(
            "quickstart", run="runs/one", num_nodes=1, gpus=1, time="1:00:00", budget=budget
        )
    with pytest.raises(ConfigError, match="must be given with GPUs"):
        sbatch_text(
            "quickstart", run="runs/one", num_nodes=1, gpus=0, time="1:00:00", budget="4gpuh"
        )


def test_symmetric_run_has_the_options_of_the_file():
    """The installed Ray has the command."""
    from ray.scripts.symmetric_run import symmetric_run

    assert {"address", "min_nodes"} <= {option.name for option in symmetric_run.params}


def test_cluster_slurm_writes_one_file(raysent, tmp_path, monkeypatch):
    """It never replaces a file."""
    monkeypatch.chdir(tmp_path)
    arguments = (
        "cluster",
        "slurm",
        "quickstart",
        "--nodes",
        "2",
        "--gpus",
        "4",
        "--budget",
        "40gpuh",
        "--run",
        "runs/a",
    )
    ran = raysent(*arguments)
    assert ran.code == 0, ran.err
    assert "sbatch a.sbatch" in ran.out
    text = (tmp_path / "a.sbatch").read_text()
    assert "--budget 40usd --set cost.usd_per_hour=4" in text
    assert raysent(*arguments).code == 2
