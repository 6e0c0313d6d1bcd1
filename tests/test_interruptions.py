"""Training on several nodes of which some are interrupted, with notice and without."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
from ledgers import each_machine
from machines import metadata_service, node_agent
from tiny_run import tiny_run

from benchmarks.simulation import replay
from raysent.evaluation.records import read_record
from raysent.pipeline.evaluation import ClusterMap, EvaluationOptions, evaluate_models
from raysent.preemption import drain_node
from raysent.sweeps import load_record, read_events, read_ledger
from raysent.training.outcome import load_reports
from raysent.training.ray_session import ray_session
from raysent.training.ray_train import make_trainer, training_outcome

USD_PER_HOUR = 3.6
INTERRUPTIONS_PER_HOUR = 60
NUM_TRIALS, NUM_STEPS = 4, 600
NOTICE_S = 6.0
# Shortest notice of the drill, and notice by the time of a step: workers of a busy machine see it before there is time
# for one save only.
DRILL_NOTICE_S, DRILL_NOTICE_STEPS = 16.0, 60
NUM_REPORTS, STEPS_PER_REPORT = 10_000, 100
# The longest until Ray notices a node that has ended.
NOTICED_S = 240.0
# Lines of a ledger have times in milliseconds.
ROUNDING_S = 0.001

SPACE = f"""
metric: context_accuracy
base:
  corpus: {{path: docs}}
  vocabulary: {{size: 2000}}
  encoder: {{type: gru, hidden_size: 24, embedding: {{dim: 16}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 50, learning_rate: 5e-3, max_steps: {NUM_STEPS}, epochs: 100, num_reports: 2}}
  validation: {{num_candidates: 50, num_sentences: 200}}
search:
  training.learning_rate: {{loguniform: [1e-3, 1e-2]}}
limits: {{trials: {NUM_TRIALS}, scheduler: {{type: none}}}}
evaluation: {{tasks: []}}
cost: {{usd_per_hour: {USD_PER_HOUR}, poll: 1s, interruptions_per_hour: {INTERRUPTIONS_PER_HOUR}}}
"""


pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, of its imports and of its sockets


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A head without cores."""
    from ray.cluster_utils import Cluster

    quick = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 1000,
        "health_check_failure_threshold": 3,
    }
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def cluster(head: Any) -> Any:
    """The head with three nodes of one core each; ended nodes are replaced."""
    while len(head.worker_nodes) < 3:
        head.add_node(num_cpus=1)
    return head


@pytest.mark.journey
@pytest.mark.cluster
def test_ray_train_workers_save_twice_before_their_node_ends(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers receive the drain, save at once and again, and continue on other nodes, without a failure."""
    monkeypatch.setattr("raysent.training.ray_train._MAX_FAILURES", 0)
    run, enough = tmp_path / "run", tmp_path / "enough"
    config = tiny_run(
        tmp_path, training__epochs=1e6, training__max_steps=10**6, training__num_reports=NUM_REPORTS
    )
    drill = Drill(run, cluster)
    with ray_session(cluster.address), ThreadPoolExecutor(1) as pool:
        # Workers on other nodes see only files.
        trainer = make_trainer(
            config, run, num_workers=2, should_continue=lambda _: not enough.exists()
        )
        drilled = pool.submit(drill.interrupt_a_busy_node, enough)
        trainer.fit()
        drilled.result()
    outcome = training_outcome(config, run)
    first, *_, last = drill.saved
    assert first < last
    reports = load_reports(run)
    assert (outcome.status, [report.index for report in reports]) == (
        "stopped",
        list(range(1, len(reports) + 1)),
    )
    assert outcome.step > drill.furthest
    assert reports[-1].steps_lost <= max(drill.furthest - last, 0)


@pytest.mark.journey
@pytest.mark.cluster
def test_sweep_survives_a_killed_and_a_drained_node(cluster: Any, tmp_path: Path) -> None:
    """Trials continue on other nodes; the ledger has lost steps and the cost of all nodes."""
    run, space = tmp_path / "run", tmp_path / "space.yaml"
    space.write_text(SPACE)
    told_at: dict[str, float] = {}
    with metadata_service() as service, _sweep(space, run, cluster.address) as sweep:
        killed, drained = _two_nodes_at_work(run, cluster, sweep)
        with node_agent(service, address=cluster.address, node_id=drained.node_id):
            for node, notice_s in ((killed, 0.0), (drained, NOTICE_S)):
                told_at[node.node_id[:12]] = time.time()
                if notice_s:
                    service.arm(notice_s)
                    time.sleep(notice_s)
                cluster.remove_node(node, allow_graceful=False)
        printed, errors = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, errors
    outcome = json.loads(printed)
    assert [trial["status"] for trial in outcome["trials"]] == ["finished"] * NUM_TRIALS
    reports = Counter(
        (event["trial"], event["index"]) for event in read_events(run) if event["event"] == "report"
    )
    assert set(reports.values()) == {1}
    _check_trials(run, set(told_at))
    _check_nodes(run, told_at, spent_usd=outcome["spent_usd"])
    found = replay(load_record(run).space, seed=0, events=list(read_events(run)))
    assert found.difference == ""


@pytest.mark.cluster
def test_models_are_evaluated_on_all_nodes_also_if_one_is_killed(
    cluster: Any, tmp_path: Path
) -> None:
    """Five models give the same records as in one process; the lost node's jobs run again on the others."""
    models, table = [f"hash:{dim}" for dim in range(8, 18, 2)], tmp_path / "reviews.csv"
    rows = [f"{word} thing {number},{word}" for number in range(30) for word in ("good", "bad")]
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    here, there = tmp_path / "here", tmp_path / "there"
    busy: list[float] = []

    def look() -> None:
        busy.append(ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0))
        if busy[-1] >= 3 and len(cluster.worker_nodes) == 3:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    with ray_session(cluster.address), pytest.MonkeyPatch.context() as patched:
        mapped = ClusterMap(cluster.address, check=look)
        patched.setattr("raysent.pipeline.evaluation.map_jobs", lambda *_: mapped)
        options = EvaluationOptions([str(table)], output=there, baselines=False, progress=False)
        evaluate_models(models, options)
    # A process of its own with one thread, as the nodes' are: threads and what was trained before change the last bits.
    script = (
        "import sys; from pathlib import Path; from raysent.pipeline.evaluation import EvaluationOptions, evaluate_models; "
        "*models, table, output = sys.argv[1:]; "
        "options = EvaluationOptions([table], output=Path(output), baselines=False, progress=False); "
        "evaluate_models(models, options)"
    )
    own = {
        "OMP_NUM_THREADS": "1",
        "RAYSENT_CACHE": str(tmp_path / "cache"),
    }  # no score is read from the other evaluation
    subprocess.run(
        [sys.executable, "-c", script, *models, str(table), str(here)],
        env=os.environ | own,
        check=True,
    )
    assert max(busy) == 3
    for model in models:
        one, other = (
            read_record(folder / model.replace(":", "%3A"), "reviews") for folder in (here, there)
        )
        assert one is not None
        assert other is not None
        assert (one.validation, one.test, one.measures) == (
            other.validation,
            other.test,
            other.measures,
        )
        assert one.probe.weights.tobytes() == other.probe.weights.tobytes()
        for mine, theirs in zip(one.folds, other.folds, strict=True):
            assert mine.test_log_probabilities.tobytes() == theirs.test_log_probabilities.tobytes()


@dataclass
class Drill:
    """Interrupts a node under a run on Ray Train workers.

    Attributes:
        run: The run folder.
        cluster: The cluster.
        saved: Steps of the checkpoints that were written between notice and end.
        furthest: The last step that is known of before the run continued.
    """

    run: Path
    cluster: Any
    saved: list[int] = field(default_factory=list)
    furthest: int = 0

    def interrupt_a_busy_node(self, enough: Path) -> None:
        """Drain a busy node, end it at the deadline, and create the file `enough` once the run has continued."""
        self._wait_for(lambda: self.furthest > 0)
        began, began_s = self.furthest, time.monotonic()
        self._wait_for(lambda: self.furthest >= began + 10)
        step_s = (time.monotonic() - began_s) / (self.furthest - began)
        notice_s = max(DRILL_NOTICE_S, step_s * DRILL_NOTICE_STEPS)
        free = ray._private.state.available_resources_per_node()
        node = next(
            node for node in self.cluster.worker_nodes if free[node.node_id].get("CPU", 0) < 1
        )
        before, until_s = self.checkpoints(), time.monotonic() + notice_s
        drain_node(self.cluster.address, node.node_id, left_s=notice_s, why="drill")
        seen: set[int] = set()
        while time.monotonic() < until_s:
            seen |= self.checkpoints() - before
            time.sleep(0.02)
        self.cluster.remove_node(node, allow_graceful=False)
        self.saved = sorted(seen)
        # Workers train on for a moment after their node has ended, and heartbeats are a second behind them.
        self._wait_for(
            lambda: any(report.step > self.furthest for report in load_reports(self.run))
        )
        enough.touch()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + 900
        self._look()
        while not condition():
            assert time.monotonic() < until_s, (
                f"step {self.furthest}: what was waited for did not come"
            )
            time.sleep(0.05)
            self._look()

    def _look(self) -> None:
        """Read the run's last heartbeat; those of a run that has continued count steps that were lost."""
        with contextlib.suppress(OSError, ValueError):
            pulse = json.loads((self.run / "checkpoint" / ".pulse.json").read_text())
            if not pulse["steps_lost"]:
                self.furthest = max(self.furthest, pulse["step"])

    def checkpoints(self) -> set[int]:
        """Return the steps of all checkpoints except those of reports."""
        steps = {int(path.stem) for path in (self.run / "checkpoint").glob("[0-9]*.json")}
        return {step for step in steps if step % STEPS_PER_REPORT}


def _check_trials(run: Path, ended: set[str]) -> None:
    """Trials of ended nodes continued on other nodes, and no trial lost all steps since its last report."""
    trials: dict[str, list[dict[str, Any]]] = {}
    for line in read_ledger(run):
        if line["entry"] == "trial":
            trials.setdefault(line["trial"], []).append(line)
    started = [
        {line["node"] for line in lines} for lines in trials.values() if lines[0]["node"] in ended
    ]
    assert len(started) >= 2
    assert any(len(nodes) > 1 for nodes in started)
    for lines in trials.values():
        assert sum(line["steps"] for line in lines) == NUM_STEPS
        assert all(0 <= line["steps_lost"] < NUM_STEPS / len(lines) for line in lines)


def _check_nodes(run: Path, told_at: dict[str, float], *, spent_usd: float) -> None:
    """Every node is charged from its start to its end, and the sum is the spending.

    A node ends after it was killed or given notice, at `told_at`: an idle one leaves as soon as it is drained, and Ray
    may see the end of a killed one before the call that kills it returns.
    """
    nodes: dict[str, list[dict[str, Any]]] = {}
    for line in each_machine(read_ledger(run)):
        if line["entry"] == "node":
            nodes.setdefault(line["node"], []).append(line)
            assert line["usd"] == pytest.approx(line["seconds"] * USD_PER_HOUR / 3600, abs=1e-6)
    assert len(nodes) == 4  # the head and three workers, which evaluate too
    for lines in nodes.values():
        assert not lines[-1]["is_open"]
        assert sum(line["seconds"] for line in lines) == pytest.approx(
            lines[-1]["time"] - lines[0]["time"], abs=20
        )
    for name, at in told_at.items():
        assert -ROUNDING_S <= nodes[name][-1]["time"] - at < NOTICE_S + NOTICED_S
    assert sum(line["usd"] for lines in nodes.values() for line in lines) == pytest.approx(
        spent_usd, abs=1e-4
    )


def _sweep(space: Path, run: Path, address: str) -> subprocess.Popen[str]:
    """Start a sweep on the cluster."""
    command = [sys.executable, "-c", "from raysent.cli import main; main()"]
    return subprocess.Popen(
        [*command, "sweep", str(space), "--run", str(run), "--address", address, "--json", "--yes"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _two_nodes_at_work(run: Path, cluster: Any, sweep: subprocess.Popen[str]) -> list[Any]:
    """Wait until trials on three nodes have reported; return two of these nodes."""
    deadline = time.monotonic() + 900
    while True:
        assert sweep.poll() is None, sweep.communicate()
        assert time.monotonic() < deadline, "not all nodes trained in time"
        seen = {
            line["node"]
            for line in (read_ledger(run) if run.exists() else [])
            if line["entry"] == "trial"
        }
        if len(seen) == 3:
            return [node for node in cluster.worker_nodes if node.node_id[:12] in seen][:2]
        time.sleep(0.1)
