"""Sweeps on an autoscaling cluster: workers start for waiting trials, within a price limit, and end when idle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from autoscaled import AutoscalingCluster, autoscaling_cluster
from ledgers import each_machine
from tiny_run import write_corpus

from raysent.cluster.gate import REFUSED
from raysent.storage.layout import PREPARED_FOLDER
from raysent.sweeps import read_ledger

HEAD_USD, WORKER_USD, MAX_HOURLY_USD = 1.0, 2.0, 5.0
NUM_TRIALS, POLL_S = 4, 1
TYPES = {
    f"{market}-small": {
        "resources": {"CPU": 1, "object_store_memory": 80_000_000},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 4,
        "priority": priority,
        "labels": {"market": market, "instance-type": "small"},
    }
    for market, priority in (("spot", 10), ("on-demand", 0))
}
# What the cluster may grow to; it begins without a worker.
GROWS = ("--set", "cluster.workers={count: 4, cpu: 1}")
HEAD = {"market": "on-demand", "instance-type": "lead"}
SPACE = f"""
base:
  corpus: {{path: text.txt, format: sentences, validation_fraction: 0.2}}
  encoder: {{type: gru, hidden_size: 8, embedding: {{dim: 6}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 24, learning_rate: 0.01, epochs: 100, max_steps: 150, num_reports: 2}}
  validation: {{num_candidates: 20, num_sentences: 40}}
search:
  training.learning_rate: {{loguniform: [1e-3, 1e-1]}}
limits: {{trials: {NUM_TRIALS}, scheduler: {{type: none}}}}
evaluation: {{tasks: [reviews.csv], baselines: false}}
cost: {{machines: {{lead: {HEAD_USD}, small: {WORKER_USD}}}, max_hourly: {MAX_HOURLY_USD}usd, poll: {POLL_S}s}}
"""


def _sweep(cluster: AutoscalingCluster, folder: Path) -> dict[str, Any]:
    """Run a sweep on a cluster of at most four workers; return what it prints."""
    write_corpus(folder)
    (folder / "space.yaml").write_text(SPACE)
    rows = [f"{word} thing {number},{word}" for number in range(30) for word in ("w1", "w2")]
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    command = [
        sys.executable,
        "-c",
        "from raysent.cli import main; main()",
        "sweep",
        "space.yaml",
        "--run",
        "run",
    ]
    # As the cluster has it: Ray switches tokens on in a process that has once started it with a token.
    environment = {**os.environ, **cluster.settings.environment()}
    environment["RAY_AUTH_MODE"] = "disabled"
    ran = subprocess.run(
        [*command, "--address", cluster.address, "--json", "--yes", *GROWS],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "the evaluation continues on this machine" not in ran.stderr
    assert not (folder / "run" / PREPARED_FOLDER).exists()
    assert len(list((folder / "run" / "evaluation").glob("*/reviews.json"))) > 1
    return json.loads(ran.stdout)


def _most_at_once(lines: list[dict[str, Any]], *, for_s: float = 0.0) -> float:
    """Return the most dollars an hour of nodes that were charged together for at least `for_s` seconds."""
    prices: dict[str, float] = {}
    most = 0.0
    for line, following in pairwise(lines):
        prices[line["node"]] = line["worst_usd_per_hour"] if line["is_open"] else 0.0
        if following["time"] - line["time"] >= for_s:
            most = max(most, sum(prices.values()))
    return most


@pytest.mark.journey
@pytest.mark.cluster
def test_sweep_starts_workers_within_the_hourly_limit_that_end_when_idle(tmp_path: Path) -> None:
    """Two of four workers are within five dollars an hour beside the head; spot has the higher priority."""
    with autoscaling_cluster(TYPES, head=HEAD, max_workers=2, idle_s=60) as cluster:
        assert cluster.num_workers() == 0
        outcome = _sweep(cluster, tmp_path)
        assert [trial["status"] for trial in outcome["trials"]] == ["finished"] * NUM_TRIALS
        until = time.monotonic() + 900
        while cluster.num_workers() and time.monotonic() < until:
            time.sleep(0.5)
        assert cluster.num_workers() == 0
        refused = {line["type"] for line in cluster.record.lines() if line["event"] == REFUSED}
    entries = each_machine(read_ledger(tmp_path / "run"))
    lines = [line for line in entries if line["entry"] == "node"]
    kinds = {line["node"]: (line["instance_type"], line["market"]) for line in lines}
    # On a busy machine, a node may end as idle before its trial starts. Its replacement is seen beside it for a few polls.
    # And a node may not start in Ray's 30 seconds: a refusal, after which machines on demand come.
    fallback = {("small", "on-demand")} if "spot-small" in refused else set()
    assert set(kinds.values()) - fallback == {("lead", "on-demand"), ("small", "spot")}
    assert _most_at_once(lines, for_s=5 * POLL_S) <= MAX_HOURLY_USD <= _most_at_once(lines)
    # There is no source of spot prices for this cluster.
    assert {line["source"] for line in lines if line["market"] == "spot"} == {
        "unknown, counted as on-demand"
    }
    assert sum(line["usd"] for line in lines) == pytest.approx(outcome["spent_usd"], abs=1e-4)


@pytest.mark.journey
@pytest.mark.cluster
def test_sweep_starts_on_demand_machines_if_spot_is_unavailable(tmp_path: Path) -> None:
    """The launch fails as on AWS, and the type of the next priority starts instead."""
    with autoscaling_cluster(TYPES, head=HEAD, missing=("spot-small",), idle_s=120) as cluster:
        outcome = _sweep(cluster, tmp_path)
    assert [trial["status"] for trial in outcome["trials"]] == ["finished"] * NUM_TRIALS
    workers = [
        line for line in read_ledger(tmp_path / "run") if line.get("instance_type") == "small"
    ]
    assert {line["market"] for line in workers} == {"on-demand"}
