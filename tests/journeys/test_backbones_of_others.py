"""From folders of pretrained encoders and a text: a sweep over them, killed in the middle, resumed, and derived again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from backbones import write_backbone, write_sentence_transformer

SPACE = """
metric: context_accuracy
base:
  corpus: {path: books/, validation_fraction: 0.2, max_length: 20, max_sentences: 300}
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
REPLAYED = f"""
import sys
from pathlib import Path
sys.path.append({str(Path(__file__).parents[2])!r})
from benchmarks.simulation import replay
from raysent.sweeps import load_record, read_events
record = load_record(Path("run"))
found = replay(record.space, seed=6, events=list(read_events(Path("run"))))
print(record.device, repr(found.difference), found.num_sessions)
"""
LOADED = """
import raysent
model = raysent.load({folder!r})
ranks = {{len(tensor) for name, tensor in model.tensors().items() if "lora_A" in name}}
print(*model.encode(["a cat"]).shape, *ranks)
"""
COMMIT = "0123456789012345678901234567890123456789"
# What each trial's record names, and the numbers of a vector of two towers.
EXPECTED = {"plain": ("plain", None), "own": ("own", None), "owner/small": ("small", COMMIT)}
SIZES = {"plain": 32, "own": 16, "owner/small": 32}


def _write_backbones(folder: Path) -> None:
    """Write a folder of transformers, one of sentence-transformers, and a model in the hub's cache."""
    write_backbone(folder / "plain", "bert")
    write_sentence_transformer(
        folder / "own", write_backbone(folder / "of-own", "mpnet"), pooling="cls", dense=8
    )
    cache = folder / "hub/models--owner--small"
    write_backbone(cache / "snapshots" / COMMIT, "modernbert")
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(COMMIT)


@pytest.mark.journey
@pytest.mark.cluster
def test_sweep_over_backbones_rates_and_ranks_survives_a_kill(user, until):
    """What was decided is decided again; every trial names its backbone, and its commit where it has one."""
    _write_backbones(user.folder)
    (user.folder / "space.yaml").write_text(SPACE)
    hub = {"HF_HUB_CACHE": str(user.folder / "hub"), "HF_HUB_OFFLINE": "1"}
    journal = user.folder / "run" / "journal.jsonl"

    def has_begun() -> bool:
        lines = journal.read_text() if journal.exists() else ""
        return lines.count('"event": "ended"') >= 2 and lines.count('"event": "report"') >= 5

    killed = user.start(
        "sweep", "space.yaml", "--run", "run", "--yes", "--device", "cpu", "--seed", "6", **hub
    )
    try:
        until(has_begun, killed)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()

    trials = json.loads(user("resume", "run", "--json", **hub))["trials"]
    assert len(trials) == 6
    assert {trial["status"] for trial in trials} <= {"finished", "stopped"}
    assert {trial["params"]["encoder.path"] for trial in trials} == set(EXPECTED)
    assert {trial["params"]["encoder.lora.rank"] for trial in trials} == {2, 4}
    for trial in trials:
        folder, name = f"run/trials/{trial['number']:04d}", trial["params"]["encoder.path"]
        encoder = json.loads((user.folder / folder / "run.json").read_text())["config"]["encoder"]
        rank = trial["params"]["encoder.lora.rank"]
        assert encoder["lora"]["rank"] == rank
        assert (Path(encoder["path"]).name, encoder["backbone"]["revision"]) == EXPECTED[name]
        assert user.python(LOADED.format(folder=folder), **hub) == f"1 {SIZES[name]} {rank}\n"
    assert user.python(REPLAYED, **hub) == "cpu '' 2\n"
