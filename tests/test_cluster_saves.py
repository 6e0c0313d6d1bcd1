"""Whether a checkpoint is saved well within the notice of a spot interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
from object_store import BUCKET, CREDENTIALS, empty_bucket, keys, moto_server

import raysent.cluster.doctor as measuring
from raysent.cluster import check_save_time, read_cluster
from raysent.cluster.doctor import Saves, measure_save_time
from raysent.errors import ConfigError

SHIPPED = Path(__file__).resolve().parent.parent / "cluster.yaml"


@pytest.fixture
def store(monkeypatch, tmp_path):
    """A local bucket."""
    with moto_server() as url:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": url, "RAYSENT_CACHE": str(tmp_path / "c")}.items():
            monkeypatch.setenv(name, value)
        with empty_bucket(url) as client:
            yield client


def test_saves_to_a_bucket_are_measured_and_removed(store):
    """Twenty timed uploads; other objects stay."""
    store.put_object(Bucket=BUCKET, Key="mine/run/model.json", Body=b"{}")
    found = check_save_time(read_cluster(SHIPPED), num_bytes=4000, storage=f"s3://{BUCKET}/mine")
    assert (found.check, found.verdict) == ("checkpoint", "ok")
    assert found.text.startswith(f"P99 of 20 saves of 0 MiB from here to s3://{BUCKET}/mine: ")
    assert found.text.endswith(" s; half of a notice is 60 s")
    assert keys(store) == ["mine/run/model.json"]


def test_saves_to_a_folder_are_measured_and_removed(tmp_path):
    """The folder is empty afterwards."""
    found = measure_save_time(str(tmp_path), num_bytes=400, num_saves=3)
    assert len(found.seconds) == 3
    assert min(found.seconds) > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="must have at least 4 bytes"):
        measure_save_time(str(tmp_path), num_bytes=0)


def test_check_save_time_fails_if_saves_take_more_than_half_the_notice(monkeypatch):
    """One slow save in a hundred is enough, and the finding names the fix; on demand it does not matter."""
    slow = Saves("s3://b", 2**28, (1.0,) * 19 + (60.5,))
    assert (slow.p99_s, slow.fit_into_notice) == (60.5, False)
    monkeypatch.setattr("raysent.cluster.doctor.measure_save_time", lambda *_, **__: slow)
    cluster = read_cluster(SHIPPED)
    found = check_save_time(cluster, num_bytes=2**28)
    assert found.verdict == "failed"
    assert found.text.endswith("60.50 s; half of a notice is 60 s; use --market on-demand, or smaller models")
    monkeypatch.setattr(type(cluster), "markets", {})
    assert check_save_time(cluster, num_bytes=2**28).verdict == "ok"


def test_storage_that_cannot_be_written_is_a_finding(tmp_path):
    """A finding of one line, no traceback."""
    (tmp_path / "file").write_text("")
    found = check_save_time(read_cluster(SHIPPED), num_bytes=400, storage=str(tmp_path / "file"))
    assert found.verdict == "failed"
    assert "\n" not in found.text
    assert measuring.NUM_SAVES == 20
