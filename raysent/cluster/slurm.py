"""A sweep as a Slurm job: one file for `sbatch` that starts Ray on all nodes and runs the sweep on the first.

Slurm sends SIGUSR1 to the file's shell some minutes before the allocation ends. The shell stops the sweep as Ctrl-C
does, so that its trials are saved, and puts the job back into the queue, where it resumes.

Ray's `symmetric-run` starts Ray on each node, runs the command on the head, and stops Ray (Ray 2.49 and later). The
first node of an allocation is the one that runs the file, so the process id of the sweep is valid there.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysent.errors import ConfigError
from raysent.redaction import without_secrets
from raysent.storage import safe_name

# Port of Ray's head; seconds before the end of an allocation at which the sweep saves.
PORT = 6379
_BEFORE_S = 300
_GPU_HOURS = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*gpuh")

_FILE = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={num_nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --time={time}
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@{before_s}
# Submit with: sbatch FILE. Add what your cluster needs: --partition, --account, and the environment of raysent.
# {unit}
set -u
run={run}
pid="$run.pid" exit_code="$run.code"
mkdir -p "$(dirname "$run")"
rm -f "$pid" "$exit_code"
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600  # seconds; shared disks are slow, and Ray's own 30 are short
# This is the head. Its own name may be 127.0.1.1 (Debian's default), or an IPv6 address first: its addresses are asked.
address=
for candidate in $(hostname --ip-address 2> /dev/null) $(hostname --all-ip-addresses); do
  case "$candidate" in
    127.* | *:*) ;;
    *) address="$candidate:{port}"; break ;;
  esac
done
if [ -z "$address" ]; then
  echo "error: $(hostname): must have an IPv4 address that other nodes reach; given $(hostname --all-ip-addresses)" >&2
  exit 2
fi

is_over=
stop() {{  # the allocation ends soon: the sweep saves its trials and ends
  is_over=1
  kill -TERM "$(cat "$pid")"
}}
trap stop USR1

if [ -e "$run/sweep.json" ]; then
  command="raysent resume $(printf %q "$run")"
else
  command={command}" --run $(printf %q "$run")"
fi
srun ray symmetric-run --address "$address" --min-nodes {num_nodes} -- \\
  env RAY_ADDRESS="$address" bash -c \\
  "(echo \\$BASHPID > $(printf %q "$pid"); exec $command); echo \\$? > $(printf %q "$exit_code")" &
job=$!
wait "$job"
code=$?
while kill -0 "$job" 2> /dev/null; do  # a signal ends `wait`, not the job
  wait "$job"
  code=$?
done
if [ -n "$is_over" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
# symmetric-run itself fails at its end: it is connected to the Ray that it stops.
[ ! -e "$exit_code" ] || code=$(cat "$exit_code")
exit "$code"
"""


def slurm_file(
    space: str | Path,
    *,
    nodes: int = 1,
    gpus: int = 1,
    time: str = "24:00:00",
    budget: str | None = None,
    run: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
) -> Path:
    """Write a file for sbatch that runs a sweep on the nodes of a Slurm cluster, and resumes it in later allocations.

    Args:
        space: A search-space file or the bare name of a shipped one.
        nodes: Nodes of the allocation.
        gpus: GPUs of each node; 0 for none.
        time: Limit of one allocation, as Slurm writes it; the job is queued again until the sweep is done.
        budget: Limit on GPU-hours of the whole sweep, such as ``40gpuh``.
        run: Run folder, on storage that all nodes share.
        set: As for `sweep`.

    Returns:
        The file.

    Raises:
        ConfigError: If the file exists, the budget is not in GPU-hours, the nodes have no GPU to count, or an option
            holds a secret of an address.
    """
    if run is None:
        folder = f"runs/{safe_name(Path(space).stem)}"
    else:
        folder = str(run)
    options = [
        word
        for name, value in (set or {}).items()
        for word in ("--set", f"{name}={json.dumps(value)}")
    ]
    if any(without_secrets(option) != option for option in options):
        raise ConfigError(
            "set: must hold no user, password or token of an address, which other users of the cluster could read in "
            "the file; set the environment variables of the tracker's library in the job"
        )
    text = sbatch_text(
        str(space),
        run=folder,
        num_nodes=nodes,
        gpus=gpus,
        time=time,
        budget=budget,
        options=options,
    )
    path = Path(f"{Path(folder).name}.sbatch")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ConfigError(f"{path}: exists; remove it, or name another run folder") from None
    return path


def sbatch_text(
    space: str,
    *,
    run: str,
    num_nodes: int,
    gpus: int,
    time: str,
    budget: str | None = None,
    options: Sequence[str] = (),
) -> str:
    """Return the content of the file; `options` are further options of `raysent sweep`."""
    words = ["raysent", "sweep", space, "--address", "auto", "--yes", *options]
    unit = "No budget: nothing is charged."
    if budget is not None:
        match = _GPU_HOURS.fullmatch(budget.strip())
        hours = float(match["number"]) if match else 0.0
        if not hours > 0:
            raise ConfigError(f"budget {budget}: must look like 40gpuh and be above 0")
        if not gpus:
            raise ConfigError(
                f"budget {budget}: must be given with GPUs, which are what it counts; name gpus"
            )
        words += ["--budget", f"{hours:g}usd", "--set", f"cost.usd_per_hour={gpus}"]
        unit = (
            "The price of a GPU-hour is 1: where raysent prints usd for this sweep, read GPU-hours."
        )
    return _FILE.format(
        name=shlex.quote(run.rstrip("/").rpartition("/")[2]),
        num_nodes=num_nodes,
        gpus=gpus,
        time=time,
        before_s=_BEFORE_S,
        port=PORT,
        unit=unit,
        run=shlex.quote(run),
        command=shlex.quote(shlex.join(words)),
    )
