"""Sweeps on machines that `ray start` starts: worker, driver and head killed at random moments; trials on two machines.

`CHAOS_KILLS` says how many kills there are, three to a sweep.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import boto3
import pytest
import torch
from caches import own_cache
from object_store import BUCKET, CREDENTIALS, moto_server
from safetensors.torch import load_file
from tiny_run import write_corpus

from chaos.driver import NODES_VARIABLE
from chaos.matrix import SEED
from chaos.ray_start import ENVIRONMENT, StartedCluster, started_cluster
from chaos.stage import Ending, Stage
from chaos.verdict import check_ending, look
from raysent.storage import open_folder
from raysent.sweeps import read_events

NUM_WORKERS = 2
NUM_SWEEPS = max(1, int(os.environ.get("CHAOS_KILLS", "3")) // 3)
# The machine, then the most seconds between a moment and a kill.
VICTIMS, WITHIN_S = ("worker", "driver", "head"), 4.0

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


@dataclass
class StartedStage(Stage):
    """A stage whose machines `ray start` starts."""

    machines: tuple[str, ...] = ()

    epochs: ClassVar[int] = 120
    is_on_ray: ClassVar[bool] = True
    cluster: ClassVar[StartedCluster]

    @property
    def env(self) -> dict[str, str]:
        """What the environment of the driver's machine says."""
        return {**super().env, **ENVIRONMENT, NODES_VARIABLE: os.environ[NODES_VARIABLE]}

    @property
    def options(self) -> tuple[str, ...]:
        """The cluster."""
        return ("--address", self.cluster.address)

    def go_on_with(self, moment: str) -> None:
        """Resume on the cluster as it is now; the driver waits at a moment."""
        self._start(("resume", self.run, *self.options), moment, 1)

    def has_come(self) -> bool:
        """Wait for the moment; returns whether the driver has not ended before."""
        try:
            self.wait()
        except AssertionError:
            return self._process.is_alive()
        return True

    def strike(self, victim: str, chance: random.Random) -> None:
        """Let the driver go on, and kill a machine or the driver a moment later."""
        self.go_on({})
        time.sleep(chance.uniform(0.0, WITHIN_S))
        if victim == "worker":
            self.cluster.kill_worker(chance.randrange(len(self.cluster.workers)))
            self.cluster.fill(NUM_WORKERS)
        elif victim == "head":
            self.cluster.kill_head()
        elif self._process.is_alive():
            self.kill_driver()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    """A head and two workers."""
    cache = own_cache(tmp_path_factory.mktemp("nodes"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NODES_VARIABLE, cache)
        patch.setenv("RAYSENT_CACHE", cache)
        with started_cluster() as cluster:
            patch.setattr(StartedStage, "cluster", cluster, raising=False)
            yield cluster


def _reports(stage: Stage) -> dict[tuple[str, int], Any]:
    """Return what every trial reported."""
    events = read_events(open_folder(stage.run))
    return {
        (event["trial"], event["index"]): event["metrics"]
        for event in events
        if event["event"] == "report"
    }


@pytest.fixture(scope="module")
def undisturbed(
    cluster: StartedCluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], Any]:
    """The reports of a sweep where nothing goes wrong."""
    cluster.fill(NUM_WORKERS)
    stage = StartedStage(tmp_path_factory.mktemp("undisturbed"), None)
    stage.sweep()
    ending = stage.ending()
    assert ending.code == 0, ending.errors
    look(stage)
    return _reports(stage)


@pytest.mark.parametrize("number", range(NUM_SWEEPS))
def test_three_kills(
    number: int, cluster: StartedCluster, undisturbed: dict[Any, Any], tmp_path: Path
) -> None:
    """Worker, driver and head, in any order; nothing is lost or there twice, and the journal can be replayed."""
    chance = random.Random(f"{SEED} {number}")
    stage = StartedStage(tmp_path / "stage", None)
    victims = list(VICTIMS)
    chance.shuffle(victims)
    before: list[Any] = []
    ending: Ending | None = None
    try:
        for victim in victims:
            cluster.fill(NUM_WORKERS)
            moment = chance.choice(
                ("start", "training", "rung") if ending is None else ("training", "rung")
            )
            if ending is None:
                stage.sweep(moment=moment)
            elif ending.code:
                stage.go_on_with(moment)
            struck = stage.has_come()
            print(f"sweep {number}: {victim} at {moment}: {'killed' if struck else 'had ended'}")
            if struck:
                stage.strike(victim, chance)
            ending = stage.ending()
            check_ending(ending)
            events = list(read_events(open_folder(stage.run)))
            assert events[: len(before)] == before, "events were lost"
            before = events
        assert ending is not None
        if ending.code:
            cluster.fill(NUM_WORKERS)
            stage.go_on_with("")
            ending = stage.ending()
            assert ending.code == 0, ending.errors
        look(stage, before=before)
        found = _reports(stage)
        shared = found.keys() & undisturbed.keys()
        assert shared
        assert {key: found[key] for key in shared} == {key: undisturbed[key] for key in shared}
    finally:
        stage.close()


PAIR = """
base:
  corpus: {path: text.txt, validation_fraction: 0.2}
  vocabulary: {size: 100}
  encoder: {type: gru, hidden_size: 16, embedding: {dim: 8}}
  objective: {type: context_prediction}
  training: {batch_size: 24, max_steps: 12, num_reports: 3}
  validation: {num_candidates: 20, num_sentences: 40}
search:
  training.learning_rate: {choice: [0.001]}
limits: {trials: 1}
evaluation: {tasks: []}
"""


def test_two_machines_train_as_one_process(cluster: StartedCluster, tmp_path: Path) -> None:
    """The two workers of a trial need a machine each; the weights are those of one process, up to rounding."""
    cluster.fill(NUM_WORKERS)
    write_corpus(tmp_path)
    (tmp_path / "space.yaml").write_text(PAIR)
    weights, metrics = [], []
    for workers in ("1", "2"):
        run = [
            "--run",
            workers,
            "--address",
            cluster.address,
            "--set",
            f"limits.workers_per_trial={workers}",
            "--yes",
        ]
        command = [sys.executable, "-m", "raysent", "sweep", "space.yaml", *run]
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        weights.append(load_file(next((tmp_path / workers).rglob("model.safetensors"))))
        metrics.append(
            [e["metrics"] for e in read_events(tmp_path / workers) if e["event"] == "report"]
        )
    one, two = weights
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-6, rtol=0)
    assert len(metrics[0]) == len(metrics[1]) == 3
    for alone, shared in zip(*metrics, strict=True):
        assert shared == pytest.approx(alone, rel=1e-4)


def test_a_bucket_that_nodes_cannot_read_is_found_before_training(
    cluster: StartedCluster, tmp_path: Path
) -> None:
    """The command has the endpoint and the keys, its nodes have not: one line, and no trial has started."""
    cluster.fill(NUM_WORKERS)
    write_corpus(tmp_path)
    (tmp_path / "space.yaml").write_text(PAIR)
    with moto_server() as url:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket=BUCKET)
        env = {**os.environ, **ENVIRONMENT, **CREDENTIALS, "AWS_ENDPOINT_URL": url}
        run = ["--run", f"s3://{BUCKET}/mine", "--address", cluster.address, "--yes"]
        command = [sys.executable, "-m", "raysent", "sweep", "space.yaml", *run]
        ran = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
    assert ran.returncode == 2, ran.stderr
    assert "cannot read the run folder" in ran.stderr.splitlines()[-1]
    assert "started" not in ran.stderr
