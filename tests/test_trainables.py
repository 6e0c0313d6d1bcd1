"""Processes in which one trial after the other trains."""

import pytest

from raysent.sweeps import trainables
from raysent.sweeps.trainables import ReusedActor


@pytest.fixture
def actor(monkeypatch):
    """Return a process of trials that train nothing, between two trials."""
    ended = {"status": "finished", "done": True}
    monkeypatch.setattr(
        trainables, "train_trial", lambda config, on_report, notice: {**ended, "trial": config["trial"]}
    )
    monkeypatch.setattr(trainables, "node_name", lambda: "here")
    monkeypatch.setattr(trainables, "node_notice", lambda: None)
    monkeypatch.setattr(trainables, "resident_bytes", lambda: 1000)
    actor = ReusedActor({"trial": "0000", "num_threads": 1})
    actor.step()
    return actor


@pytest.mark.parametrize("limit", [None, 1000])
def test_process_within_its_memory_takes_the_next_trial(actor, limit):
    """The next trial trains in the same process."""
    assert actor.reset_config({"trial": "0001", "num_threads": 1, "memory_bytes": limit})
    assert actor.step()["trial"] == "0001"


def test_process_above_its_memory_fails_at_the_next_step(actor):
    """Tune starts a trial again whose step fails; one whose process ends while it is reset is lost."""
    assert actor.reset_config({"trial": "0001", "num_threads": 1, "memory_bytes": 999})
    with pytest.raises(MemoryError, match="holds 1000 bytes; limits.memory is 999"):
        actor.step()
