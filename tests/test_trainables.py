"""Processes in which one trial after the other trains."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from raysent.sweeps import trainables
from raysent.sweeps.trainables import ReusedActor, nested_train


@pytest.fixture
def trained(monkeypatch):
    """Return the names of trials that are trained, in turn, by nothing."""
    names: list[str] = []
    ended = {"status": "finished", "done": True}

    def train_trial(config, on_report, notice):
        names.append(config["trial"])
        return {**ended, "trial": config["trial"]}

    monkeypatch.setattr(trainables, "train_trial", train_trial)
    monkeypatch.setattr(trainables, "node_name", lambda: "here")
    monkeypatch.setattr(trainables, "node_notice", lambda: None)
    monkeypatch.setattr(trainables, "resident_bytes", lambda: 1000)
    return names


@pytest.fixture
def actor(trained):
    """Return a process between two trials."""
    actor = ReusedActor({"trial": "0000", "num_threads": 1, "working_folder": "."})
    actor.step()
    return actor


@pytest.mark.parametrize("limit", [None, 1000])
def test_process_within_its_memory_takes_the_next_trial(actor, limit):
    """The next trial trains in the same process."""
    config = {"trial": "0001", "num_threads": 1, "working_folder": ".", "memory_bytes": limit}
    assert actor.reset_config(config)
    assert actor.step()["trial"] == "0001"


def test_process_trains_no_trial_before_its_first_step(actor, trained):
    """Tune may make one for a trial that it then gives to another process, as one that has just become free."""
    given = {"trial": "0001", "num_threads": 1, "working_folder": "."}
    made = ReusedActor(given)
    made.stop()
    actor.reset_config(given)
    assert trained == ["0000"]
    actor.step()
    assert trained == ["0000", "0001"]


def test_process_above_its_memory_fails_at_the_next_step(actor):
    """Tune starts a trial again whose step fails; one whose process ends while it is reset is lost."""
    assert actor.reset_config({"trial": "0001", "num_threads": 1, "memory_bytes": 999})
    with pytest.raises(MemoryError, match="holds 1000 bytes; limits.memory is 999"):
        actor.step()


def test_trials_work_in_the_folder_of_the_sweep(actor, monkeypatch, tmp_path):
    """Ray may have been started in another one, as before `os.chdir` in a notebook; paths are relative to the new one."""
    (tmp_path / "now").mkdir()
    config = {"trial": "0001", "num_threads": 1, "working_folder": str(tmp_path / "now"), "folder": "run", "run": {}}
    seen = []
    ended = SimpleNamespace(status="finished", seconds=1.0, message="")
    monkeypatch.setattr(trainables, "open_folder", lambda *_, **__: seen.append(Path.cwd()))
    monkeypatch.setattr(trainables.RunConfig, "model_validate", lambda _: None)
    monkeypatch.setattr(trainables, "_interruptions", lambda _: None)
    monkeypatch.setattr(trainables, "make_trainer", lambda *_, **__: seen.append(Path.cwd()))
    monkeypatch.setattr(trainables, "training_outcome", lambda *_: ended)
    monkeypatch.setattr(trainables.tune, "report", lambda _: None)
    monkeypatch.chdir(tmp_path)
    nested_train(None, num_workers=2, gpus_per_worker=0)(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainables, "train_trial", lambda *_, **__: {"status": "finished", "in": Path.cwd()})
    actor.reset_config(config)
    assert {*seen, actor.step()["in"]} == {tmp_path / "now"}
