"""Runs in a bucket: uploads, downloads by another machine, exclusive access, errors."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from object_store import BUCKET, CREDENTIALS, keys
from urllib3.response import HTTPResponse

from raysent import storage
from raysent.cost import CostConfig
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
from raysent.sweeps.cost_tracker import CostTracker, read_ledger

RUN = f"s3://{BUCKET}/a/run"


@pytest.fixture
def store(monkeypatch, tmp_path, bucket):
    """A client of an empty bucket; the local cache is empty too."""
    _use_machine(monkeypatch, tmp_path / "here")
    yield bucket
    storage.object_store._client.cache_clear()  # with what a test has registered there


def _use_machine(monkeypatch, cache: Path) -> None:
    """Act as another machine: one with another cache."""
    monkeypatch.setenv("RAYSENT_CACHE", str(cache))


def test_open_folder_leaves_local_names_alone(tmp_path):
    """A local folder is returned as it is, whether it exists or not."""
    assert open_folder(str(tmp_path / "run")) == tmp_path / "run"
    assert address_of(tmp_path / "run") == str(tmp_path / "run")


def test_open_folder_downloads_files_of_another_machine(store, monkeypatch, tmp_path):
    """A written file is in the bucket at once, and on another machine once the folder is opened there."""
    folder = open_folder(RUN)
    write_json(folder / "sweep.json", {"a": 1})
    save_arrays(folder / "evaluation" / "x.npz", {"x": np.arange(3)})
    write_json(folder / "trials" / "0000" / "checkpoint" / "1.json", {})
    assert address_of(folder / "sweep.json") == f"{RUN}/sweep.json"
    _use_machine(monkeypatch, tmp_path / "there")
    there = open_folder(RUN)
    assert there != folder
    assert read_json(there / "sweep.json") == {"a": 1}
    assert load_arrays(there / "evaluation" / "x.npz")["x"].tolist() == [0, 1, 2]
    assert not (there / "trials" / "0000" / "checkpoint").exists()
    assert (
        open_folder(f"{RUN}/trials/0000", with_checkpoints=True) / "checkpoint" / "1.json"
    ).is_file()


def test_open_folder_restores_the_state_of_the_bucket(store, tmp_path):
    """A file that differs from its object is downloaded again, one without an object deleted, a hidden one kept."""
    folder = open_folder(RUN)
    write_json(folder / "a.json", 1)
    (folder / "a.json").write_text("2\n")
    (folder / "stale.json").write_text("{}")
    (folder / ".lock").write_text("")
    assert read_json(open_folder(RUN) / "a.json") == 1
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "a.json"]


def test_remove_deletes_files_and_folders_in_the_bucket(store):
    """Files and folders are removed both locally and in the bucket."""
    folder = open_folder(RUN)
    for name in ("a.json", "b.json", "below/c.json"):
        write_json(folder / name, {})
    remove(folder / "a.json")
    remove(folder / "never.json")
    remove_folder(folder / "below", below=folder)
    assert keys(store) == ["a/run/b.json"]
    assert [path.name for path in folder.iterdir()] == ["b.json"]


def test_lines_are_separate_objects(store, monkeypatch, tmp_path):
    """Each line is created once; another machine reads them in order and appends after the last."""
    folder = open_folder(RUN)
    folder.mkdir(parents=True)
    lines = Lines(folder / "journal.jsonl")
    for number in range(3):
        lines.append({"number": number})
    assert keys(store) == [f"a/run/journal.jsonl/{number:09d}.json" for number in range(3)]
    _use_machine(monkeypatch, tmp_path / "there")
    there = open_folder(RUN) / "journal.jsonl"
    Lines(there).append({"number": 3})
    assert read_json_lines(there) == [{"number": number} for number in range(4)]
    _use_machine(monkeypatch, tmp_path / "here")
    with pytest.raises(
        ArtifactError, match=rf"^{RUN}/journal.jsonl: another process has continued this run since"
    ):
        lines.append({"number": "mine"})
    assert read_json_lines(open_folder(RUN) / "journal.jsonl") == [
        {"number": number} for number in range(4)
    ]
    remove(folder / "journal.jsonl")
    assert keys(store) == []


def test_line_that_only_the_bucket_took_is_written_to_the_disk_with_the_next(store, monkeypatch):
    """It counts; while the disk still refuses, nothing more is sent, so that a caller may try the same again."""
    folder = open_folder(RUN)
    folder.mkdir(parents=True)
    lines = Lines(folder / "journal.jsonl")
    lines.append({"number": 0})

    def refuse(stream, line):
        stream.write(line[:20])
        stream.flush()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("raysent.storage.lines._write", refuse)
        lines.append({"number": 1})
        for _ in range(2):
            with pytest.raises(ArtifactError, match="the disk is full"):
                lines.append({"number": 2})
    assert len(keys(store)) == lines.num_lines == 2
    lines.append({"number": 2})
    assert len(keys(store)) == lines.num_lines == 3
    assert read_json_lines(folder / "journal.jsonl") == [{"number": number} for number in range(3)]
    assert read_json_lines(open_folder(RUN) / "journal.jsonl") == [
        {"number": number} for number in range(3)
    ]


def _write_without_an_answer(monkeypatch):
    """Let the bucket take an object, and its answer be lost, however often it is repeated."""
    put = storage.lines.conditional_put

    def lose(address, line, **options):
        assert put(address, line, **options)
        raise ArtifactError(f"{address}: the object store does not answer")

    monkeypatch.setattr(storage.lines, "conditional_put", lose)


def test_line_whose_answer_was_lost_is_completed_by_the_same_call(store, monkeypatch):
    """It is there once, also where the bucket took it only after the call had failed."""
    folder = open_folder(RUN)
    folder.mkdir(parents=True)
    lines = Lines(folder / "journal.jsonl")
    with monkeypatch.context() as silent:
        _write_without_an_answer(silent)
        with pytest.raises(ArtifactError, match="does not answer"):
            lines.append({"number": 0})
    with pytest.raises(ArtifactError, match="another process has continued"):
        lines.append({"number": "another"})
    lines.append({"number": 0})
    lines.append({"number": 1})
    assert read_json_lines(folder / "journal.jsonl") == [{"number": 0}, {"number": 1}]


def test_ledger_whose_answer_was_lost_goes_on_with_the_same_line(store, monkeypatch):
    """Machines are charged once, and the sweep is not taken for another process."""
    folder = open_folder(RUN)
    folder.mkdir(parents=True)
    now = [0.0]
    config = CostConfig(usd_per_hour=3600.0, poll="1s")
    with CostTracker(folder, config, nodes=lambda: {"one": {}}, clock=lambda: now[0]) as tracker:
        with monkeypatch.context() as silent:
            _write_without_an_answer(silent)
            for now[0] in (10.0, 20.0):
                with pytest.raises(ArtifactError, match="does not answer"):
                    tracker.funds()
        now[0] = 30.0
        assert tracker.funds().spent_usd == 30.0
    assert sum(entry["usd"] for entry in read_ledger(folder)) == 30.0


def test_open_folder_reports_a_missing_line(store):
    """A journal with a missing line in the middle is an error."""
    folder = open_folder(RUN)
    folder.mkdir(parents=True)
    lines = Lines(folder / "journal.jsonl")
    for number in range(3):
        lines.append({"number": number})
    store.delete_object(Bucket=BUCKET, Key="a/run/journal.jsonl/000000001.json")
    with pytest.raises(
        ArtifactError,
        match=f"^{RUN}/journal.jsonl/000000001.json: no such object, but later lines exist",
    ):
        open_folder(RUN)


def test_unchanged_files_are_not_downloaded_from_an_encrypted_bucket(store, monkeypatch):
    """ETags of objects that KMS encrypts are no MD5: their SHA-256 is compared, of a journal that of its last line."""
    folder, asked = open_folder(RUN), []
    write_json(folder / "a.json", 1)
    lines = Lines(folder / "journal.jsonl")
    for number in range(5):
        lines.append({"number": number})
    listed = storage.mirror.list_s3
    encrypted = [f"{number:032x}" for number in range(9)]
    monkeypatch.setattr(
        storage.mirror,
        "list_s3",
        lambda *given, **more: [
            item._replace(etag=etag)
            for item, etag in zip(listed(*given, **more), encrypted, strict=False)
        ],
    )
    for kind in ("GetObject", "HeadObject"):
        storage.object_store.s3_client().meta.events.register(
            f"before-call.s3.{kind}", lambda kind=kind, **_: asked.append(kind)
        )
    open_folder(RUN)
    assert sorted(asked) == ["HeadObject", "HeadObject"]
    store.put_object(Bucket=BUCKET, Key="a/run/a.json", Body=b"2\n")
    assert read_json(open_folder(RUN) / "a.json") == 2
    changed = (folder / "journal.jsonl").read_bytes()
    (folder / "journal.jsonl").write_bytes(changed.replace(b'"number": 4', b'"number": 5'))
    assert read_json_lines(open_folder(RUN) / "journal.jsonl") == [
        {"number": number} for number in range(5)
    ]


def test_a_request_that_another_one_is_in_the_way_of_is_repeated(store):
    """S3 answers 409 then, which does not mean that the object exists."""
    folder = open_folder(RUN)
    folder.mkdir(parents=True)
    error = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
    answers = [
        AWSResponse(RUN, 409, {}, HTTPResponse(io.BytesIO(error), preload_content=False))
        for _ in range(2)
    ]
    events = storage.object_store.s3_client().meta.events
    events.register("before-send.s3.PutObject", lambda **_: answers.pop() if answers else None)
    Lines(folder / "journal.jsonl").append({"number": 0})
    assert (answers, keys(store)) == ([], ["a/run/journal.jsonl/000000000.json"])


def test_open_folder_skips_the_marker_of_a_folder(store):
    """The console of S3 makes an empty object whose name ends with a slash."""
    for key in ("a/run/", "a/run/below/", "a/run/below/a.json"):
        store.put_object(Bucket=BUCKET, Key=key, Body=b"")
    folder = open_folder(RUN)
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.json")] == [
        "below/a.json"
    ]


def test_lease_has_one_holder_among_all_machines(store, monkeypatch, tmp_path):
    """A second machine gets an error with the holder's host; a released or expired lease can be acquired."""
    first = Lease(open_folder(RUN))
    _use_machine(monkeypatch, tmp_path / "there")
    with pytest.raises(
        ArtifactError,
        match=f"^{RUN}: another process is working on this run on .*try again in [0-9]+ s",
    ):
        Lease(open_folder(RUN))
    monkeypatch.setattr(leases, "EXPIRY_S", -5.0)
    second = Lease(open_folder(RUN))
    first.release()  # it no longer holds the lease
    assert keys(store) == ["a/run/.lease"]
    second.release()
    assert keys(store) == []


def test_lease_of_an_ended_process_can_be_acquired(store):
    """After a process of this machine was killed, its lease can be acquired at once."""
    mine = Lease(open_folder(RUN))
    held = json.loads(store.get_object(Bucket=BUCKET, Key="a/run/.lease")["Body"].read())
    mine.release()
    store.put_object(Bucket=BUCKET, Key="a/run/.lease", Body=json.dumps({**held, "born": 1.0}))
    Lease(open_folder(RUN)).release()
    assert keys(store) == []


def test_lease_is_renewed(store, monkeypatch):
    """The object is rewritten while the lease is held, so that it does not expire."""
    monkeypatch.setattr(leases, "RENEWAL_S", 0.01)
    lease = Lease(open_folder(RUN))
    tags = {store.head_object(Bucket=BUCKET, Key="a/run/.lease")["ETag"]}
    while len(tags) < 3:
        tags.add(store.head_object(Bucket=BUCKET, Key="a/run/.lease")["ETag"])
    lease.release()


def test_open_folder_refuses_a_damaged_object(store, monkeypatch, tmp_path):
    """An object with the wrong hash is an error, and the local file is kept."""
    folder = open_folder(RUN)
    write_json(folder / "a.json", {"a": 1})
    whole = store.head_object(Bucket=BUCKET, Key="a/run/a.json")
    store.put_object(Bucket=BUCKET, Key="a/run/a.json", Body=b'{"a"', Metadata=whole["Metadata"])
    with pytest.raises(
        ArtifactError, match=f"^{RUN}/a.json: damaged: its SHA-256 differs from what was written"
    ):
        open_folder(RUN)
    assert read_json(folder / "a.json") == {"a": 1}


def test_open_folder_refuses_an_object_outside_the_folder(store):
    """An object whose name contains `..` never becomes a file outside the folder."""
    store.put_object(Bucket=BUCKET, Key="a/run/../x.json", Body=b"{}")
    with pytest.raises(
        ArtifactError,
        match=r"/\.\./x\.json: an object exists where a folder is needed, or its name",
    ):
        open_folder(RUN)


@pytest.mark.parametrize("address", ["s3://", "s3://runs", "s3://runs/", "s3://runs/a/../b"])
def test_open_folder_refuses_an_incomplete_address(address):
    """The error shows a valid address."""
    with pytest.raises(
        ConfigError, match=r"must name a bucket and a folder in it, as in s3://bucket/runs/first"
    ):
        open_folder(address)


def test_open_folder_reports_a_missing_bucket(store):
    """The error says what to do."""
    with pytest.raises(
        ArtifactError, match="^s3://nowhere/run: no such bucket; create it first or name another$"
    ):
        open_folder("s3://nowhere/run")


def test_write_reports_a_missing_permission(store, monkeypatch):
    """The error says what to do, and no temporary file is left."""
    refusal = {"Error": {"Code": "AccessDenied", "Message": "Access Denied"}}

    def refuse(**_: object) -> None:
        raise ClientError(refusal, "PutObject")

    folder = open_folder(RUN)
    monkeypatch.setattr(storage.object_store.s3_client(), "put_object", refuse)
    with pytest.raises(
        ArtifactError, match=f"^{RUN}/a.json: the credentials that boto3 finds have no permission; "
    ):
        write_json(folder / "a.json", {})
    assert list(folder.iterdir()) == []


def test_open_folder_reports_missing_credentials(monkeypatch):
    """Without credentials in boto3's chain, the error names the variables to set."""
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
        ArtifactError,
        match=f"^{RUN}: boto3 finds no credentials; set AWS_PROFILE or AWS_ACCESS_KEY_ID$",
    ):
        open_folder(RUN)


def test_open_folder_reports_an_unreachable_endpoint(store, monkeypatch):
    """The error names the address that does not answer."""
    monkeypatch.setattr(storage.object_store, "MAX_ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(
        ArtifactError, match=f"^{RUN}: the object store does not answer: .*127.0.0.1:9.* see AWS_"
    ):
        open_folder(RUN)
