"""No file of a run, no printed line and no error holds the user, password or token of an address that was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysent.cluster.following import JobRecord, read_record, write_record
from raysent.errors import ConfigError
from raysent.sweeps.trackers import TRACKERS

SECRETS = ("Ann5ecret", "Pw5ecret", "Tok5ecret")
ADDRESS = "http://Ann5ecret:Pw5ecret@127.0.0.1:1/a?token=Tok5ecret"
SPACE = """
metric: context_accuracy
trackers: [{{type: tensorboard, folder: '{address}'}}]
base:
  corpus: {{path: text.txt, format: sentences, cache_dir: cache, validation_fraction: 0.2}}
  encoder: {{type: gru, hidden_size: 8, embedding: {{dim: 6}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 24, learning_rate: 0.01, epochs: 1.0, num_reports: 2}}
  validation: {{num_candidates: 20, num_sentences: 40}}
search: {{training.learning_rate: {{loguniform: [0.01, 0.03]}}}}
limits: {{trials: 1, sampler: random, scheduler: {{type: none}}}}
evaluation: {{tasks: []}}
"""


class Refused:
    """A tracker whose server names its own address in what it raises."""

    Config, TARGET = TRACKERS["tensorboard"].Config, "folder"

    def __init__(self, space, config, *, folder):
        self._address = config.folder

    def on_event(self, event):
        """Refuse it."""
        raise ConnectionError(f"no answer of {self._address}")

    def close(self):
        """Do nothing."""


@pytest.fixture
def tracked(monkeypatch, tmp_path) -> Path:
    """A folder with a space whose tracker's server refuses every event."""
    from tiny_run import write_corpus

    write_corpus(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE.format(address=ADDRESS))
    monkeypatch.setattr(TRACKERS, "find", lambda *_, **__: Refused)
    return tmp_path


def holding_secrets(folder: Path) -> list[str]:
    """Return the names of files that hold one of the secrets."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [file.name for file in files if any(s.encode() in file.read_bytes() for s in SECRETS)]


def shows_secrets(text: str) -> bool:
    """Return whether a text holds one of the secrets."""
    return any(secret in text for secret in SECRETS)


def test_no_file_of_a_sweep_and_no_line_of_it_has_a_secret(raysent, running_ray, tracked):
    """Given by the space and on the command line, and named by the tracker's own library."""
    options = ["--run", "run", "--set", f"track=['mlflow:{ADDRESS}']", "--yes"]
    ran = raysent("sweep", "space.yaml", *options)
    assert ran.code == 0, ran.err
    assert "no answer of http://127.0.0.1:1/a" in ran.err
    assert holding_secrets(tracked / "run") == []
    assert (tracked / "run/sweep.json").read_text().count("127.0.0.1") > 1
    assert not shows_secrets(ran.out + ran.err)
    for command in (("report", "run"), ("resume", "run"), ("track", "run", "--to", f"x:{ADDRESS}")):
        again = raysent(*command)
        assert not shows_secrets(again.out + again.err), command
        assert holding_secrets(tracked / "run") == []


def test_no_error_has_a_secret(tmp_path):
    """As Python raises it, in a notebook whose outputs are saved."""
    with pytest.raises(ConfigError) as caught:
        raise ConfigError(f"to {ADDRESS}: must answer")
    assert str(caught.value) == "to http://127.0.0.1:1/a: must answer"


def test_file_for_slurm_is_refused_with_a_secret(raysent, tmp_path):
    """It is read by others, and would need it."""
    (tmp_path / "space.yaml").write_text(SPACE.format(address="tb"))
    options = ["--nodes", "2", "--time", "1:00:00", "--set", f"track=['mlflow:{ADDRESS}']"]
    ran = raysent("cluster", "slurm", "space.yaml", *options)
    assert ran.code == 2
    assert "must hold no user, password or token of an address" in ran.err
    assert not shows_secrets(ran.err)
    assert list(tmp_path.glob("*.sbatch")) == []


def test_record_of_a_submitted_sweep_has_no_secret(tmp_path):
    """It lies in a bucket; the head has the space itself from the job."""
    values = {"trackers": [{"type": "mlflow", "uri": ADDRESS}]}
    record = JobRecord(job="job", cluster="", region="", space={"name": "toy", "values": values})
    write_record(str(tmp_path / "remote"), record)
    assert holding_secrets(tmp_path) == []
    stored = read_record(str(tmp_path / "remote")).space["values"]
    assert stored["trackers"][0]["uri"] == "http://127.0.0.1:1/a"
