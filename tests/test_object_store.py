"""Runs in a bucket: committed there first, brought home by another machine, one at work at a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from botocore.exceptions import ClientError
from object_store import BUCKET, CREDENTIALS, empty_bucket, keys, moto_server

from raysent import storage
from raysent.errors import ArtifactError, ConfigError
from raysent.storage import (
    Lease,
    Lines,
    address_of,
    load_arrays,
    open_folder,
    read_json,
    read_json_lines,
    remove,
    remove_folder,
    save_arrays,
    write_json,
)
from raysent.storage import lease as leases

RUN = f"s3://{BUCKET}/a/run"


@pytest.fixture(scope="module")
def url():
    """An object store of this machine."""
    with moto_server() as url:
        yield url


@pytest.fixture
def store(monkeypatch, tmp_path, url):
    """A client of an empty bucket; this machine's cache is empty too."""
    _move(monkeypatch, tmp_path / "here")
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": url}.items():
        monkeypatch.setenv(name, value)
    with empty_bucket(url) as client:
        yield client


def _move(monkeypatch, cache: Path) -> None:
    """Stand on another machine: one with another cache."""
    monkeypatch.setenv("RAYSENT_CACHE", str(cache))


def test_open_folder_leaves_local_names_alone(tmp_path):
    """A local folder is itself, there or not, and is called by its own name."""
    assert open_folder(str(tmp_path / "run")) == tmp_path / "run"
    assert address_of(tmp_path / "run") == str(tmp_path / "run")


def test_files_come_home_to_another_machine(store, monkeypatch, tmp_path):
    """What was written whole is in the bucket at once, and elsewhere when the folder is opened there."""
    folder = open_folder(RUN)
    write_json(folder / "sweep.json", {"a": 1})
    save_arrays(folder / "evaluation" / "x.npz", {"x": np.arange(3)})
    write_json(folder / "trials" / "0000" / "checkpoint" / "1.json", {})
    assert address_of(folder / "sweep.json") == f"{RUN}/sweep.json"
    _move(monkeypatch, tmp_path / "there")
    there = open_folder(RUN)
    assert there != folder
    assert read_json(there / "sweep.json") == {"a": 1}
    assert load_arrays(there / "evaluation" / "x.npz")["x"].tolist() == [0, 1, 2]
    assert not (there / "trials" / "0000" / "checkpoint").exists()
    assert (open_folder(f"{RUN}/trials/0000", with_checkpoints=True) / "checkpoint" / "1.json").is_file()


def test_the_bucket_is_the_truth(store, tmp_path):
    """A file that differs from its object is fetched again, one without an object is removed, hidden ones stay."""
    folder = open_folder(RUN)
    write_json(folder / "a.json", 1)
    (folder / "a.json").write_text("2\n")
    (folder / "stale.json").write_text("{}")
    (folder / ".lock").write_text("")
    assert read_json(open_folder(RUN) / "a.json") == 1
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "a.json"]


def test_remove_reaches_the_bucket(store):
    """Files and folders that are removed here are removed there."""
    folder = open_folder(RUN)
    for name in ("a.json", "b.json", "below/c.json"):
        write_json(folder / name, {})
    remove(folder / "a.json")
    remove(folder / "never.json")
    remove_folder(folder / "below")
    assert keys(store) == ["a/run/b.json"]
    assert [path.name for path in folder.iterdir()] == ["b.json"]


def test_lines_are_objects_of_their_own(store, monkeypatch, tmp_path):
    """Each line is created once; another machine sees them in order and goes on after the last."""
    folder = open_folder(RUN)
    folder.mkdir(parents=True)
    lines = Lines(folder / "journal.jsonl")
    for number in range(3):
        lines.append({"number": number})
    assert keys(store) == [f"a/run/journal.jsonl/{number:09d}.json" for number in range(3)]
    _move(monkeypatch, tmp_path / "there")
    there = open_folder(RUN) / "journal.jsonl"
    Lines(there).append({"number": 3})
    assert read_json_lines(there) == [{"number": number} for number in range(4)]
    _move(monkeypatch, tmp_path / "here")
    with pytest.raises(ArtifactError, match=rf"^{RUN}/journal.jsonl: another process has gone on with this run since"):
        lines.append({"number": "mine"})
    assert read_json_lines(open_folder(RUN) / "journal.jsonl") == [{"number": number} for number in range(4)]
    remove(folder / "journal.jsonl")
    assert keys(store) == []


def test_lines_that_are_not_all_there_are_told(store):
    """A journal whose middle is gone is no journal."""
    folder = open_folder(RUN)
    folder.mkdir(parents=True)
    lines = Lines(folder / "journal.jsonl")
    for number in range(3):
        lines.append(number)
    store.delete_object(Bucket=BUCKET, Key="a/run/journal.jsonl/000000001.json")
    with pytest.raises(ArtifactError, match=f"^{RUN}/journal.jsonl/000000001.json: no such object, but later ones"):
        open_folder(RUN)


def test_lease_has_one_holder_among_all_machines(store, monkeypatch, tmp_path):
    """A second machine is told who has the run; it is free when it is given back, or was not renewed for long."""
    first = Lease(open_folder(RUN))
    _move(monkeypatch, tmp_path / "there")
    with pytest.raises(
        ArtifactError, match=f"^{RUN}: another process is at work on this run on .*try again in [0-9]+ s"
    ):
        Lease(open_folder(RUN))
    monkeypatch.setattr(leases, "EXPIRY_S", -5.0)
    second = Lease(open_folder(RUN))
    first.release()  # no longer its own to give back
    assert keys(store) == ["a/run/.lease"]
    second.release()
    assert keys(store) == []


def test_lease_of_a_process_that_is_gone_is_free(store):
    """After a kill on this machine nobody has to wait."""
    mine = Lease(open_folder(RUN))
    held = json.loads(store.get_object(Bucket=BUCKET, Key="a/run/.lease")["Body"].read())
    mine.release()
    store.put_object(Bucket=BUCKET, Key="a/run/.lease", Body=json.dumps({**held, "born": 1.0}))
    Lease(open_folder(RUN)).release()
    assert keys(store) == []


def test_lease_is_renewed(store, monkeypatch):
    """The object changes while it is held, so that its age stays small."""
    monkeypatch.setattr(leases, "RENEWAL_S", 0.01)
    lease = Lease(open_folder(RUN))
    tags = {store.head_object(Bucket=BUCKET, Key="a/run/.lease")["ETag"]}
    while len(tags) < 3:
        tags.add(store.head_object(Bucket=BUCKET, Key="a/run/.lease")["ETag"])
    lease.release()


def test_a_torn_object_is_told(store, monkeypatch, tmp_path):
    """Content that is not what was put is refused, and the file of before stays."""
    folder = open_folder(RUN)
    write_json(folder / "a.json", {"a": 1})
    whole = store.head_object(Bucket=BUCKET, Key="a/run/a.json")
    store.put_object(Bucket=BUCKET, Key="a/run/a.json", Body=b'{"a"', Metadata=whole["Metadata"])
    with pytest.raises(ArtifactError, match=f"^{RUN}/a.json: torn: its SHA-256 is not that of what was written"):
        open_folder(RUN)
    assert read_json(folder / "a.json") == {"a": 1}


def test_an_object_that_leaves_its_folder_is_refused(store):
    """A name with dots in it never becomes a file elsewhere."""
    store.put_object(Bucket=BUCKET, Key="a/run/../x.json", Body=b"{}")
    with pytest.raises(ArtifactError, match=r"/\.\./x\.json: an object stands where a folder is needed, or its name"):
        open_folder(RUN)


@pytest.mark.parametrize("address", ["s3://", "s3://runs", "s3://runs/", "s3://runs/a/../b"])
def test_an_address_names_a_bucket_and_a_folder(address):
    """Anything else is one line that shows the form."""
    with pytest.raises(ConfigError, match=r"must name a bucket and a folder in it, as in s3://bucket/runs/first"):
        open_folder(address)


def test_a_missing_bucket_is_told(store):
    """With what to do."""
    with pytest.raises(ArtifactError, match="^s3://nowhere/run: no such bucket; make it first or name another$"):
        open_folder("s3://nowhere/run")


def test_no_permission_is_told(store, monkeypatch):
    """Whatever the store says of it, one line says what to do."""
    refusal = {"Error": {"Code": "AccessDenied", "Message": "Access Denied"}}

    def refuse(**_: object) -> None:
        raise ClientError(refusal, "PutObject")

    folder = open_folder(RUN)
    monkeypatch.setattr(storage.object_store.s3_client(), "put_object", refuse)
    with pytest.raises(ArtifactError, match=f"^{RUN}/a.json: the credentials that boto3 finds may not do this here; "):
        write_json(folder / "a.json", {})
    assert list(folder.iterdir()) == []


def test_no_credentials_are_told(monkeypatch):
    """They come from boto3's own chain alone."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("CONFIG_FILE", "none"),
        ("SHARED_CREDENTIALS_FILE", "none"),
        ("EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:8")
    with pytest.raises(
        ArtifactError, match=f"^{RUN}: boto3 finds no credentials; set AWS_PROFILE or AWS_ACCESS_KEY_ID$"
    ):
        open_folder(RUN)


def test_no_endpoint_is_told(store, monkeypatch):
    """With the address that was tried."""
    monkeypatch.setattr(storage.object_store, "MAX_ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(ArtifactError, match=f"^{RUN}: the object store does not answer: .*127.0.0.1:9.* see AWS_"):
        open_folder(RUN)
