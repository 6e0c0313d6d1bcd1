"""Sweeps through Ray: the table and the journal agree, a kill loses nothing, failures are recorded."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from typed import begin, typed, wait_for

import raysent
from benchmarks.simulation import replay
from raysent.config import parse_yaml
from raysent.errors import ConfigError
from raysent.sweeps import load_record, prepare_space, read_events, read_ledger
from raysent.sweeps.layout import Machines, layout
from raysent.sweeps.space import Limits, parse_space
from raysent.training.outcome import load_model_report, load_reports

SPACE = """
metric: context_accuracy
base:
  corpus: {{path: {corpus}, cache_dir: {cache}, validation_fraction: 0.2}}
  vocabulary: {{size: 100}}
  encoder: {{type: gru, hidden_size: 16, embedding: {{dim: 8}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 20, learning_rate: 5e-3, epochs: {epochs}, num_reports: {reports}}}
  validation: {{num_candidates: 50, num_sentences: 200}}
search:
  encoder.bidirectional: {{choice: [false, true]}}
  training.learning_rate: {{loguniform: [1e-3, 1e-2]}}
limits: {{trials: {trials}, concurrent: 1, scheduler: {{type: {scheduler}}}}}
evaluation: {{tasks: []}}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Forty short documents in each of which the subject of a sentence foretells that of the next."""
    rng = random.Random(0)
    subjects, verbs, objects = (
        ["cat", "dog", "king", "bird"],
        ["sees", "likes", "hears"],
        ["house", "river", "book", "song"],
    )
    documents = []
    for _ in range(40):
        subject, lines = rng.choice(subjects), []
        for _ in range(20):
            subject = rng.choice(subjects) if rng.random() < 0.2 else subject
            lines.append(f"The {subject} {rng.choice(verbs)} the {rng.choice(objects)} .")
        documents.append("\n".join(lines))
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join(documents) + "\n")
    return path


def _write_space(
    corpus: Path, *, epochs: float = 2, trials: int = 4, scheduler: str = "asha"
) -> Path:
    path = corpus.parent / f"toy-{epochs}-{trials}-{scheduler}.yaml"
    # What is to be stopped has reported after an epoch or two.
    values = {
        "epochs": epochs,
        "trials": trials,
        "scheduler": scheduler,
        "reports": 4 if epochs < 10 else 100,
    }
    path.write_text(SPACE.format(corpus=corpus, cache=corpus.parent / "cache", **values))
    return path


def _statuses(run: Path) -> dict[str, str]:
    return {
        event["trial"]: event["status"] for event in read_events(run) if event["event"] == "ended"
    }


def test_layout_fills_the_machine_and_refuses_what_does_not_fit():
    """One core a trial, more where cores are left; a trial that cannot fit is a mistake, not a wait."""
    assert layout(Limits(), Machines(cpus=4), num_trials=12).concurrent == 4
    assert layout(Limits(concurrent=2), Machines(cpus=8), num_trials=12).cpus_per_worker == 4
    assert layout(Limits(workers_per_trial=2), Machines(cpus=2), num_trials=9).is_nested
    assert (
        layout(Limits(gpus_per_worker=0.5), Machines(cpus=8, gpus=1), num_trials=9).concurrent == 2
    )
    assert not layout(Limits(), Machines(cpus=1), num_trials=1).is_nested
    with pytest.raises(ConfigError, match="one trial needs 3 cores and 0 GPUs; there are 2 cores"):
        layout(Limits(workers_per_trial=3), Machines(cpus=2), num_trials=1)


def test_layout_asks_for_no_more_cores_than_a_node_has():
    """One trial on four nodes of one core each takes one: it would wait for ever for the others."""
    assert layout(Limits(), Machines(cpus=4), num_trials=1).cpus_per_worker == 4
    assert layout(Limits(), Machines(cpus=4, cpus_per_node=1), num_trials=1).cpus_per_worker == 1


def test_layout_prefers_trials_to_threads():
    """One thread each while several trials are left; all cores for the last one."""
    for left, at_once, threads in ((9, 2, 1), (2, 2, 1), (1, 1, 2)):
        plan = layout(Limits(), Machines(cpus=2), num_trials=left)
        assert (plan.concurrent, plan.cpus_per_worker) == (at_once, threads)


def test_layout_shares_a_gpu_among_as_many_trials_as_it_has_room_for():
    """Shares of a GPU never add up to more than it; cores bound them too; what the user says counts."""
    plan = layout(Limits(), Machines(cpus=16, gpus=2, trials_per_gpu=3), num_trials=20)
    assert (plan.concurrent, plan.gpus_per_worker) == (6, 0.3333)
    assert (
        layout(Limits(), Machines(cpus=3, gpus=2, trials_per_gpu=4), num_trials=20).concurrent == 3
    )
    assert (
        layout(
            Limits(gpus_per_worker=1), Machines(cpus=9, gpus=2, trials_per_gpu=4), num_trials=9
        ).concurrent
        == 2
    )
    assert layout(Limits(), Machines(cpus=9, gpus=2), num_trials=9).gpus_per_worker == 1.0
    several = Limits(workers_per_trial=2)
    assert (
        layout(several, Machines(cpus=9, gpus=2, trials_per_gpu=4), num_trials=9).gpus_per_worker
        == 1.0
    )


def _press_ctrl_c(driver: subprocess.Popen[str]) -> None:
    driver.send_signal(signal.SIGINT)


def _close_terminal(driver: subprocess.Popen[str]) -> None:
    """Send what a terminal sends to all processes of its command, Ray's own among them."""
    os.killpg(driver.pid, signal.SIGHUP)


def _end_group(driver: subprocess.Popen[str]) -> None:
    """Send what `timeout` and batch systems send to all processes of a command."""
    os.killpg(driver.pid, signal.SIGTERM)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "strike",
    [
        _close_terminal,
        pytest.param(_press_ctrl_c, marks=pytest.mark.chaos),
        pytest.param(_end_group, marks=pytest.mark.chaos),
    ],
)
def test_sweep_interrupted_stops_cleanly_and_says_how_to_go_on(corpus, tmp_path, strike):
    """The first Ctrl-C, a closed terminal and SIGTERM end with exit code 130 and the command to resume with."""
    run = tmp_path / "run"
    space = _write_space(corpus, epochs=200, trials=3, scheduler="none")
    driver = begin("sweep", space, "--run", run, "--yes", stderr=subprocess.PIPE)
    wait_for(lambda: _num_reports_of_running(run) >= 1, driver)
    strike(driver)
    _, told = driver.communicate(timeout=600)
    assert driver.returncode == 130
    assert f"raysent resume {run}" in told
    assert [event["event"] for event in read_events(run)][-1] == "interrupted"
    assert _statuses(run) == {}


def _process_of_ray(driver: subprocess.Popen[str], name: str) -> psutil.Process | None:
    """Return one of Ray's own processes that a command has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return next(
            (one for one in psutil.Process(driver.pid).children() if name in one.name()), None
        )
    return None


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["gcs_server", pytest.param("agent", marks=pytest.mark.chaos)])
def test_sweep_whose_ray_ends_says_how_to_continue(corpus, tmp_path, monkeypatch, name):
    """Ray's control process or an agent is killed: one line with the command to resume with, exit code 2."""
    # As long as Ray waits for its control process, so long, in parts, does the sweep wait for calls of Ray that hang.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "20")
    run = tmp_path / "run"
    space = _write_space(corpus, epochs=200, trials=3, scheduler="none")
    driver = begin("sweep", space, "--run", run, "--yes", "-q", stderr=subprocess.PIPE)
    wait_for(lambda: _num_reports_of_running(run) >= 1, driver)
    agents = (
        one
        for one in psutil.Process(driver.pid).children(recursive=True)
        if "EnvAgent" in str(one.cmdline())
    )
    (next(agents) if name == "agent" else _process_of_ray(driver, name)).kill()
    _, told = driver.communicate(timeout=600)
    lines = [line for line in told.splitlines() if line.startswith("error:")]
    assert (driver.returncode, len(lines)) == (2, 1), told
    assert lines[0].startswith(
        f"error: Ray's process {name} has ended, perhaps for lack of memory; to continue: "
    )
    assert lines[0].endswith(f"raysent resume {run}")
    assert "Traceback" not in told


@pytest.mark.cluster
@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(one, marks=pytest.mark.chaos) for one in (signal.SIGHUP, signal.SIGINT)),
    ],
)
def test_sweep_that_is_stopped_while_ray_starts_is_one_line(corpus, tmp_path, number):
    """Whatever stops it: the command to resume with, exit code 130."""
    run = tmp_path / "run"
    space = _write_space(corpus, epochs=1, trials=2, scheduler="none")
    driver = begin("sweep", space, "--run", run, "--yes", "-q", stderr=subprocess.PIPE)
    wait_for(lambda: _process_of_ray(driver, "gcs_server") is not None, driver)
    driver.send_signal(number)
    _, told = driver.communicate(timeout=600)
    assert driver.returncode == 130, told
    assert f"raysent resume {run}" in told
    assert "Traceback" not in told
    assert len(told.strip().splitlines()) <= 2, told


def _check_models_of_halted(run, rows):
    """Every trial that has reported has a model, of a report whose metrics are the trial's."""
    ended = {event["trial"]: event for event in read_events(run) if event["event"] == "ended"}
    reported = [event["trial"] for event in read_events(run) if event["event"] == "report"]
    assert reported
    for name in set(reported):
        reports = load_reports(run / "trials" / name)
        # A trial that has finished has the model of its last report.
        is_halted = ended[name]["status"] == "stopped"
        report = load_model_report(run / "trials" / name) if is_halted else reports[-1]
        assert report in reports
        assert raysent.load(run / "trials" / name).encode(["a sentence"]).shape[0] == 1
        assert ended[name]["metrics"] == report.metrics
        row = next(row for row in rows if row["trial"] == name)
        assert float(row["context_accuracy"]) == pytest.approx(
            report.metrics["context_accuracy"], abs=1e-4
        )


@pytest.mark.journey
@pytest.mark.cluster
def test_sweep_keeps_its_budget_through_a_kill(corpus, tmp_path):
    """What a killed driver spent stays spent; the cap holds over both sittings, and every dollar is in the ledger."""
    run = tmp_path / "run"
    space = _write_space(corpus, epochs=200, trials=9, scheduler="none")
    # A dollar a second of this machine; stopping takes twenty at most.
    cost = "cost={usd_per_hour: 3600, poll: 1s, drain: 18s, terminate: 1s, reserve: 0.1}"
    driver = begin("sweep", space, "--run", run, "--yes", "--set", cost)
    try:
        wait_for(lambda: _num_reports_of_running(run) >= 1, driver)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    before_usd = _spent_usd(run)
    # The ledger charges the unobserved time at its upper bound, twenty dollars; twenty more are reserved for stopping.
    training_usd = before_usd + 20 + 20 + 15
    resumed = typed("resume", run, "--budget", f"{training_usd / 0.9:.2f}usd", "--json")
    assert resumed.returncode == 0, resumed.stderr
    told = json.loads(resumed.stdout)
    assert told["closed"].startswith("halted: ")
    assert told["spent_usd"] == pytest.approx(_spent_usd(run), abs=1e-4)
    assert training_usd - 20 <= told["spent_usd"] <= training_usd + 0.5
    # What ran was stopped; before that, a fast machine may have finished a trial.
    assert set(_statuses(run).values()) - {"finished"} == {"stopped"}
    with (run / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    _check_models_of_halted(run, rows)
    assert 0 < sum(float(row["usd"]) for row in rows) < told["spent_usd"]
    events = list(read_events(run))
    found = replay(load_record(run).space, seed=0, events=events)
    assert (found.difference, found.num_sessions) == ("", 2)


def _spent_usd(run: Path) -> float:
    return sum(entry["usd"] for entry in read_ledger(run) if entry["entry"] != "trial")


BREAKING_BAG = '''"""A bag of words of another package; it breaks where it is told to."""
from typing import Literal
from raysent.models.encoders import bag

class Config(bag.Config):
    """Settings."""
    type: Literal["breaking_bag"] = "breaking_bag"
    breaks: bool = False

class Encoder(bag.Encoder):
    """One tower."""
    def __init__(self, config, tables):
        super().__init__(config, tables)
        self._breaks = config.breaks

    def read(self, packed, projected):
        if self._breaks:
            raise RuntimeError("as it was told")
        return super().read(packed, projected)
'''


@pytest.mark.cluster
def test_sweep_records_a_trial_that_breaks_and_goes_on(corpus, tmp_path, monkeypatch):
    """An error of an encoder costs its trials; the others finish, and the exit code says so."""
    packages = tmp_path / "packages"
    (packages / "breaking-1.0.dist-info").mkdir(parents=True)
    (packages / "breaking_bag.py").write_text(BREAKING_BAG)
    about = {"METADATA": "Metadata-Version: 2.1\nName: breaking\nVersion: 1.0\n"}
    about["entry_points.txt"] = "[raysent.encoders]\nbreaking_bag = breaking_bag\n"
    for name, text in about.items():
        (packages / "breaking-1.0.dist-info" / name).write_text(text)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    )
    space = tmp_path / "space.yaml"
    text = _write_space(corpus, trials=4, scheduler="none").read_text()
    text = text.replace("{type: gru, hidden_size: 16,", "{type: breaking_bag,")
    space.write_text(text.replace("encoder.bidirectional", "encoder.breaks"))
    swept = typed("sweep", space, "--run", tmp_path / "run", "--json")
    assert swept.returncode == 5, swept.stderr
    outcome = json.loads(swept.stdout)
    statuses = {trial["params"]["encoder.breaks"]: trial["status"] for trial in outcome["trials"]}
    assert statuses == {False: "finished", True: "failed"}
    assert len(outcome["trials"]) == 4
    broken = [trial["error"] for trial in outcome["trials"] if trial["status"] == "failed"]
    assert all("RuntimeError: as it was told" in error for error in broken)


def _num_reports_of_running(run: Path) -> int:
    ended = _statuses(run)
    return sum(
        event["event"] == "report" and event["trial"] not in ended for event in read_events(run)
    )


def test_prepare_space_refuses_a_metric_that_a_trial_does_not_report(corpus):
    """The line of the metric, the objective, and what it reports."""
    text = _write_space(corpus, epochs=1, trials=2, scheduler="none").read_text()
    assert (
        prepare_space(parse_space(parse_yaml(text, source="space.yaml"), name="space"))["pool"][
            "num_sources"
        ]
        > 0
    )
    changed = text.replace("context_prediction", "sentence_decoding")
    with pytest.raises(
        ConfigError, match=r"metric: objective sentence_decoding does not report 'context_accuracy'"
    ):
        prepare_space(parse_space(parse_yaml(changed, source="space.yaml"), name="space"))
    changed = changed.replace("metric: context_accuracy", "metric: nll")
    ranked = parse_space(parse_yaml(changed, source="space.yaml"), name="space")
    assert (ranked.mode, set(prepare_space(ranked)["pool"])) == ("min", {"hash"})
