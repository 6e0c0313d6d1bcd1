"""A sweep over pretrained encoders, as it is typed: killed in the middle, resumed, and derived again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from backbones import write_backbone, write_sentence_transformer
from caches import own_cache
from tiny_run import write_corpus
from typed import begin, typed, wait_for

import raysent
from raysent.sweeps import read_events
from raysent.sweeps.trial import trial_name
from raysent.training.run import load_run

SPACE = """
metric: context_accuracy
base:
  corpus: {path: text.txt, validation_fraction: 0.2, max_length: 20}
  encoder: {type: pretrained, path: plain, lora: {rank: 2}}
  objective: {type: context_prediction}
  training: {batch_size: 24, learning_rate: 0.01, epochs: 30.0, num_reports: 6}
  validation: {num_candidates: 20, num_sentences: 40}
search:
  encoder.path: {choice: [plain, own, owner/small]}
  training.learning_rate: {loguniform: [1e-3, 1e-2]}
  encoder.lora.rank: {choice: [2, 4]}
limits: {trials: 6, concurrent: 1}
evaluation: {tasks: []}
"""
REPLAYED = """
from pathlib import Path
from raysent.sweeps import load_record, read_events, replay
record = load_record(Path("run"))
found = replay(record.space, seed=6, events=list(read_events(Path("run"))))
print(record.device, repr(found.difference), found.num_sessions)
"""
COMMIT = "0123456789012345678901234567890123456789"
# What each trial's record names, and the numbers of a vector of two towers.
EXPECTED = {"plain": ("plain", None), "own": ("own", None), "owner/small": ("small", COMMIT)}
SIZES = {"plain": 32, "own": 16, "owner/small": 32}


def _write_backbones(folder: Path) -> None:
    """Write a folder of transformers, one of sentence-transformers, and a model in the hub's cache."""
    write_backbone(folder / "plain", "bert")
    write_sentence_transformer(folder / "own", write_backbone(folder / "of-own", "mpnet"), pooling="cls", dense=8)
    cache = folder / "hub/models--owner--small"
    write_backbone(cache / "snapshots" / COMMIT, "modernbert")
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(COMMIT)


def _num_events(run: Path, kind: str) -> int:
    return sum(event["event"] == kind for event in read_events(run)) if (run / "journal.jsonl").exists() else 0


@pytest.mark.journey
@pytest.mark.cluster
def test_sweep_over_backbones_rates_and_ranks_survives_a_kill(tmp_path, monkeypatch):
    """What was decided is decided again; every trial names its backbone, and its commit where it has one."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "HF_HUB_CACHE": tmp_path / "hub",
        "HF_HUB_OFFLINE": 1,
        "RAYSENT_CACHE": own_cache(tmp_path / "c"),
    }.items():
        monkeypatch.setenv(name, str(value))
    _write_backbones(tmp_path)
    write_corpus(tmp_path)
    run = tmp_path / "run"
    Path("space.yaml").write_text(SPACE)
    driver = begin("sweep", "space.yaml", "--run", run, "--yes", "--device", "cpu", "--seed", 6)
    try:
        wait_for(lambda: _num_events(run, "ended") >= 2 and _num_events(run, "report") >= 5, driver)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    resumed = typed("resume", run, "--json")
    assert resumed.returncode == 0, resumed.stderr
    trials = json.loads(resumed.stdout)["trials"]
    assert len(trials) == 6
    assert {trial["status"] for trial in trials} <= {"finished", "stopped"}
    assert {trial["params"]["encoder.path"] for trial in trials} == set(EXPECTED)
    assert {trial["params"]["encoder.lora.rank"] for trial in trials} == {2, 4}
    for trial in trials:
        config, name = load_run(run / "trials" / trial_name(trial["number"])), trial["params"]["encoder.path"]
        assert config.encoder.lora.rank == trial["params"]["encoder.lora.rank"]
        assert (Path(config.encoder.path).name, config.encoder.backbone.revision) == EXPECTED[name]
        model = raysent.load(run / "trials" / trial_name(trial["number"]))
        assert model.encode(["a cat"]).shape == (1, SIZES[name])
        adapters = (len(tensor) for key, tensor in model.tensors().items() if "lora_A" in key)
        assert set(adapters) == {config.encoder.lora.rank}
    # In a process that reads the hub's cache of this test, as each command is.
    ran = subprocess.run([sys.executable, "-c", REPLAYED], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "cpu '' 2\n"), ran.stderr
