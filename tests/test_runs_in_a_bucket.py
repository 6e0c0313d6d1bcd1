"""Sweeps whose run folder is in a bucket: killed, resumed from the bucket alone, reported, loaded."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from caches import own_cache
from command import CommandLine
from object_store import BUCKET, keys
from tiny_run import write_corpus
from typed import begin, typed, wait_for

import raysent
from raysent.storage import open_folder
from raysent.sweeps import read_events, read_ledger

RUN = f"s3://{BUCKET}/sweeps/toy"
NUM_TRIALS = 4

SPACE = """
metric: context_accuracy
base:
  corpus: {{path: {corpus}, cache_dir: {cache}, validation_fraction: 0.2}}
  vocabulary: {{size: 100}}
  encoder: {{type: gru, hidden_size: 16, embedding: {{dim: 8}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 20, epochs: 30, num_reports: 3}}
  validation: {{num_candidates: 20, num_sentences: 40}}
search:
  training.learning_rate: {{loguniform: [1e-3, 1e-2]}}
limits: {{trials: {trials}, scheduler: {{type: none}}}}
cost: {{usd_per_hour: 1.0}}
evaluation: {{tasks: []}}
"""


@pytest.fixture
def store(monkeypatch, tmp_path, bucket):
    """A client of an empty bucket; the environment is that of a machine with an empty cache."""
    monkeypatch.setenv("RAYSENT_CACHE", own_cache(tmp_path / "here"))
    return bucket


def _space(folder: Path) -> Path:
    path = folder / "toy.yaml"
    path.write_text(
        SPACE.format(corpus=write_corpus(folder), cache=folder / "corpora", trials=NUM_TRIALS)
    )
    return path


def _events(client) -> list[dict]:
    """Return the events of the journal in the bucket, without what protects its lines."""
    names = sorted(name for name in keys(client) if "/journal.jsonl/" in name)
    lines = [
        json.loads(client.get_object(Bucket=BUCKET, Key=name)["Body"].read()) for name in names
    ]
    events = [event for line in lines for event in line.get("entries", [line])]
    return [{key: event[key] for key in event.keys() - {"line", "checksum"}} for event in events]


def _is_half_done(client) -> bool:
    time.sleep(
        0.5
    )  # the object store runs in this process: reading the journal all the time would slow the sweep down
    events = _events(client)
    ended = {event["trial"] for event in events if event["event"] == "ended"}
    return bool(ended) and any(
        event["event"] == "report" and event["trial"] not in ended for event in events
    )


@pytest.mark.journey
@pytest.mark.cluster
def test_sweep_in_a_bucket_survives_the_loss_of_its_machine(store, monkeypatch, capsys, tmp_path):
    """After kill -9 in mid-sweep, an empty cache and resume: every trial ends once, all is read from the bucket."""
    here = CommandLine(monkeypatch, capsys)
    driver = begin("sweep", _space(tmp_path), "--run", RUN, "--yes", stderr=subprocess.PIPE)
    try:
        wait_for(lambda: _is_half_done(store), driver)
        driver.send_signal(signal.SIGSTOP)  # it keeps the lease but cannot finish
        monkeypatch.setenv("RAYSENT_CACHE", own_cache(tmp_path / "there"))
        second = here("resume", RUN)
        assert (second.code, second.err.count("\n")) == (2, 1), second
        assert second.err.startswith(f"error: {RUN}: another process is working on this run on ")
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
    done = {event["trial"] for event in _events(store) if event["event"] == "ended"}
    assert 0 < len(done) < NUM_TRIALS
    spent_usd = sum(
        entry["usd"] for entry in read_ledger(open_folder(RUN)) if entry["entry"] != "trial"
    )

    resumed = typed("resume", RUN, "--json")
    assert resumed.returncode == 0, resumed.stderr
    result = json.loads(resumed.stdout)
    assert (result["run"], result["status"], result["report"]) == (
        RUN,
        "completed",
        f"{RUN}/report.html",
    )
    assert result["spent_usd"] > spent_usd  # unobserved time is charged at its upper bound
    events = _events(store)
    assert Counter(event["trial"] for event in events if event["event"] == "ended") == {
        f"{number:04d}": 1 for number in range(NUM_TRIALS)
    }
    reports = Counter(
        (event["trial"], event["index"]) for event in events if event["event"] == "report"
    )
    assert set(reports.values()) == {1}
    restarted = {
        event["trial"] for event in events[-len(events) // 2 :] if event["event"] == "started"
    } & done
    assert restarted == set()

    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "elsewhere"))
    reported = here("report", RUN)
    assert (reported.code, reported.out) == (0, f"{RUN}/report.html\n"), reported.err
    folder = open_folder(RUN)
    assert [dict(event) for event in read_events(folder)] == events
    with (folder / "trials.csv").open() as stream:
        assert [row["status"] for row in csv.DictReader(stream)] == ["finished"] * NUM_TRIALS
    assert raysent.load(f"{RUN}/trials/0003").encode(["w1 w2"]).shape == (1, 32)
