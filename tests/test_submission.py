"""What a submission sends to a cluster, how it launches one, and when it ends it."""

from __future__ import annotations

import json
import sys
import zipfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from command import SPACE
from moto import mock_aws
from ray._private.runtime_env.packaging import create_package
from submissions import (
    CANARY,
    FakeJobs,
    FakeLauncher,
    new_submission,
    run_on,
    store_run,
    submit_once,
    toy_space,
)

from raysent.cluster import Jobs, SubmittedSweep, download, ship, submission
from raysent.cluster.jobs import check_shipped_size
from raysent.cluster.submission import run_submission
from raysent.config import parse_yaml
from raysent.errors import ArtifactError, CloudError, ConfigError
from raysent.storage import write_json
from raysent.sweeps.space import (
    absolute_paths,
    named_files,
    parse_space,
    read_space,
    with_absolute_paths,
)


def test_run_submission_terminates_the_cluster_after_the_sweep(tmp_path, monkeypatch):
    """The cluster has the name of the run; the exit code is that of the sweep; it may read its inputs no longer."""
    monkeypatch.setattr(submission, "submit", lambda *_, **__: SubmittedSweep(5))
    launcher = FakeLauncher(tmp_path)
    assert run_on(launcher, tmp_path).code == 5
    assert launcher.calls == ["up remote", "forget remote", "tunnel", "down"]


@pytest.mark.parametrize(("is_new", "others"), [(True, ()), (True, ("theirs",)), (False, ())])
@pytest.mark.parametrize("error", [KeyboardInterrupt, CloudError("lost"), ZeroDivisionError])
def test_run_submission_terminates_what_it_launched_after_any_error(
    tmp_path, monkeypatch, error, is_new, others
):
    """Before the sweep is submitted: Ctrl-C, a cluster that no longer answers, a bug. What others use stays."""

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(submission, "submit", fail)
    launcher = FakeLauncher(tmp_path, is_new=is_new, others=others)
    if error is KeyboardInterrupt:
        assert run_on(launcher, tmp_path).code == 130
    else:
        with pytest.raises((CloudError, ZeroDivisionError)):
            run_on(launcher, tmp_path)
    assert ("down" in launcher.calls) == (is_new and not others)


@contextmanager
def unreachable():
    """A tunnel that cannot be made."""
    raise CloudError("no route")
    yield


def test_run_submission_leaves_a_cluster_that_another_sweep_uses(tmp_path, monkeypatch, capsys):
    """By the jobs of the head; one that cannot be reached any more ends itself after its last sweep."""
    jobs, launcher = FakeJobs(), FakeLauncher(tmp_path)
    monkeypatch.setattr(jobs, "other_runs", lambda run: ["s3://b/theirs"])
    monkeypatch.setattr(submission, "Jobs", jobs)
    assert run_on(launcher, tmp_path).code == 0
    assert (
        "the cluster stays for s3://b/theirs, and ends with the last sweep on it"
        in capsys.readouterr().err
    )
    tunnels = [launcher.tunnel()]
    monkeypatch.setattr(launcher, "tunnel", lambda: tunnels.pop() if tunnels else unreachable())
    jobs.known.clear()
    assert run_on(launcher, tmp_path).code == 0
    assert "the head terminates the cluster after the last sweep on it" in capsys.readouterr().err
    assert "down" not in launcher.calls


def test_run_submission_terminates_the_cluster_despite_one_more_ctrl_c(
    tmp_path, monkeypatch, capsys, ctrl_c
):
    """The first Ctrl-C during the cleanup prints a message; the second one aborts it."""
    monkeypatch.setattr(submission, "submit", lambda *_, **__: SubmittedSweep(0))
    launcher = FakeLauncher(tmp_path)
    monkeypatch.setattr(launcher, "down", lambda **_: [ctrl_c(), launcher.calls.append("down")])
    assert run_on(launcher, tmp_path).code == 0
    assert launcher.calls[-1] == "down"
    assert "still cleaning up" in capsys.readouterr().err
    monkeypatch.setattr(launcher, "down", lambda **_: [ctrl_c(), ctrl_c()])
    with pytest.raises(KeyboardInterrupt):
        run_on(launcher, tmp_path)


def test_run_submission_terminates_a_cluster_that_failed_to_start(tmp_path):
    """The head may be running although `ray up` failed; the run folder is empty, so that it may be named again."""
    launcher = FakeLauncher(tmp_path, fails=True)
    write_json(tmp_path / "run" / "remote.json", {"remote": "s3://b/run"})
    with pytest.raises(CloudError, match="no capacity"):
        run_on(launcher, tmp_path)
    assert list((tmp_path / "run").iterdir()) == []
    assert (launcher.calls[0], launcher.calls[-1]) == ("up remote", "down")


def test_run_submission_keeps_the_cluster_on_request(tmp_path, monkeypatch, capsys):
    """A message says that it is billed."""
    monkeypatch.setattr(submission, "submit", lambda *_, **__: SubmittedSweep(0))
    launcher = FakeLauncher(tmp_path)
    assert run_on(launcher, tmp_path, keep=True).code == 0
    assert "down" not in launcher.calls
    assert (
        "the cluster stays, and costs money, until 'raysent cluster down'"
        in capsys.readouterr().err
    )


def test_a_bug_after_the_submission_leaves_the_sweep_alone(tmp_path, monkeypatch, capsys):
    """The error is raised, the cluster stays, and a message says how to show the sweep."""
    monkeypatch.setattr(submission, "Jobs", FakeJobs({"event": "session"}))
    launcher = FakeLauncher(tmp_path)
    with pytest.raises(ZeroDivisionError):
        run_submission(
            launcher,
            new_submission(tmp_path),
            on_event=lambda _: 1 / 0,
            say=partial(print, file=sys.stderr),
        )
    assert "down" not in launcher.calls
    assert "'raysent attach" in capsys.readouterr().err


def test_a_head_that_cannot_be_reached_at_first_is_an_error(tmp_path, monkeypatch):
    """Nothing was submitted, so the cluster is terminated."""
    launcher = FakeLauncher(tmp_path)
    with pytest.raises(CloudError, match="no job API of Ray answers"):
        run_on(launcher, tmp_path)
    assert launcher.calls[-1] == "down"


def test_submit_rejects_a_run_that_another_job_works_on(tmp_path, monkeypatch):
    """No sweep runs twice; a job that has ended does not count."""
    jobs = FakeJobs()
    jobs.known = {"first": True, "second": False}
    monkeypatch.setattr(submission, "Jobs", jobs)
    with pytest.raises(
        CloudError, match=r"remote: a job of this cluster works on it; 'raysent attach .*remote'$"
    ):
        submit_once(new_submission(tmp_path), tmp_path)
    assert jobs.num_submitted == 0
    jobs.known = {"first": True}
    assert submit_once(new_submission(tmp_path), tmp_path).code == 0


def test_submit_waits_for_the_job_of_a_sweep_that_has_ended(tmp_path, monkeypatch):
    """What stopped a sweep may resume it at once, though Ray still lists its job as running."""
    jobs = FakeJobs()
    jobs.known = {"first": False}
    monkeypatch.setattr(submission, "Jobs", jobs)
    monkeypatch.setattr(
        "raysent.cluster.submission.time.sleep", lambda seconds: jobs.known.update(first=True)
    )
    store_run(tmp_path, code=130)
    assert submit_once(new_submission(tmp_path), tmp_path).code == 0
    assert jobs.num_submitted == 1


def test_submit_connects_again_and_submits_once(tmp_path, monkeypatch):
    """Also before the submission was answered; after a few attempts the error is raised."""
    monkeypatch.setattr(submission, "WAITS_S", (0.0,) * 4)
    jobs = FakeJobs(code=3, cuts=[True, False, False])
    monkeypatch.setattr(submission, "Jobs", jobs)
    assert (submit_once(new_submission(tmp_path), tmp_path).code, jobs.num_submitted) == (3, 1)
    jobs = FakeJobs(cuts=[True] * 9)
    monkeypatch.setattr(submission, "Jobs", jobs)
    with pytest.raises(CloudError, match="^cut True$"):
        submit_once(new_submission(tmp_path), tmp_path)


def test_submit_returns_why_a_job_did_not_start(tmp_path, monkeypatch):
    """Such as an environment that cannot be made: no run is waited for."""
    monkeypatch.setattr(submission, "Jobs", FakeJobs(failure="no such package"))
    ended = submit_once(new_submission(tmp_path), tmp_path)
    assert (ended.code, ended.message) == (1, "no such package")


@pytest.mark.parametrize(
    ("statuses", "code", "failure"),
    [
        (["PENDING", "RUNNING"], None, None),
        (["PENDING", "FAILED"], None, "no package"),
        (["FAILED"], 127, "its command ended with exit code 127: sh: python: not found"),
        (["RUNNING"], None, None),
    ],
)
def test_jobs_wait_until_a_command_runs(monkeypatch, statuses, code, failure):
    """A job that has ended is an error with the end of its log; one whose environment failed has a message."""
    from ray.job_submission import JobStatus

    class Client:
        def get_job_info(self, name):
            status = JobStatus(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            return SimpleNamespace(
                status=status, driver_exit_code=code, message="Traceback\nno package\n"
            )

        def get_job_logs(self, name):
            return "starting\nsh: python: not found\n"

    monkeypatch.setattr("raysent.cluster.jobs._POLL_S", 0.0)
    jobs = Jobs.__new__(Jobs)
    jobs._client = Client()
    assert jobs.failure_to_start("job") == failure
    assert len(statuses) == 1


def test_submit_waits_for_a_new_head(tmp_path, monkeypatch):
    """A new head answers before it accepts jobs; other errors are raised at once."""
    answers = [
        "500: No available agent to submit job, please try again later",
        None,
        "500: no such runtime",
    ]

    class Client:
        def submit_job(self, **_):
            answer = answers.pop(0)
            if answer:
                raise RuntimeError(answer)
            return "job"

    monkeypatch.setattr("raysent.cluster.jobs._POLL_S", 0.0)
    jobs = Jobs.__new__(Jobs)
    jobs._client = Client()
    assert jobs.submit(["true"], folder=tmp_path, environment={}) == "job"
    with pytest.raises(CloudError, match="the job was rejected: 500: no such runtime"):
        jobs.submit(["true"], folder=tmp_path, environment={})
    assert answers == []


def test_submit_returns_one_object_with_the_local_run(tmp_path, monkeypatch):
    """Events go to the listener, printed lines are kept, and the remote folder is replaced by the local one."""
    remote = str(tmp_path / "remote")
    event = {"event": "session", "trials": 4, "concurrent": 2}
    monkeypatch.setattr(
        submission, "Jobs", FakeJobs(event, lines=["chatter", "{", f'"run": "{remote}"', "}"])
    )
    heard = []
    ended = submit_once(new_submission(tmp_path), tmp_path, on_event=heard.append)
    assert (ended.code, ended.values, ended.lines[0]) == (
        0,
        {"run": str(tmp_path / "run")},
        "chatter",
    )
    assert heard == [event]


def test_values_are_the_object_alone():
    """Lines of standard error stand before and after it."""
    lines = (
        "warning: {",
        *json.dumps({"a": {"b": 1}}, indent=2).splitlines(),
        "nothing was trained: no budget",
        "}",
    )
    assert SubmittedSweep(4, lines).values == {"a": {"b": 1}}
    assert SubmittedSweep(4, ("error: {", "}")).values is None


def test_submit_sends_space_and_files_but_no_secrets(tmp_path, monkeypatch):
    """The space and its corpus, but neither the token nor keys of AWS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    space = read_space(toy_space(tmp_path))
    jobs = FakeJobs()
    monkeypatch.setattr(submission, "Jobs", jobs)
    submit_once(new_submission(tmp_path, space=space, options=["--seed", "3"]), tmp_path)
    assert jobs.command[:8] == [
        "python", "-m", "raysent.cluster.head", "--run", f"{tmp_path}/remote", "--", "sweep", "space/toy.yaml"
    ]  # fmt: skip
    assert jobs.command[-5:] == ["--address", "auto", "--yes", "--seed", "3"]
    assert json.loads(jobs.sent["space/toy.yaml"])["base"]["corpus"]["path"] == "shipped/0/text.txt"
    assert jobs.sent["shipped/0/text.txt"] == (tmp_path / "text.txt").read_bytes()
    everything = (
        repr((jobs.command, jobs.environment, jobs.sent))
        + (tmp_path / "remote" / "job.json").read_text()
    )
    assert (tmp_path / "token").read_text() not in everything
    assert CANARY not in everything
    assert jobs.environment["RAYSENT_WORKERS"] == '{"num": 2, "CPU": 1, "GPU": 0.0}'


def test_ship_keeps_values_that_are_no_local_files(tmp_path, monkeypatch):
    """Addresses, names of what is no path, and numbers stay; too large files are an error, in a folder too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    values = {"path": "s3://bucket/a.txt", "name": "docs", "rate": 0.5, "none": "missing/file.txt"}
    assert ship(values, tmp_path / "out") == values
    (tmp_path / "big.txt").write_text("x" * 100)
    monkeypatch.setattr("raysent.cluster.jobs.MAX_SHIPPED_BYTES", 50)
    for named in ({"path": "big.txt"}, [str(tmp_path)], "big.txt:text=a"):
        with pytest.raises(
            ConfigError, match="cluster: local files must be at most 0 MiB together"
        ):
            check_shipped_size(named)


def test_ship_sends_files_that_a_gitignore_names(tmp_path):
    """Ray's package of the folder holds all of them."""
    data, out = tmp_path / "data", tmp_path / "out"
    (data / "deep").mkdir(parents=True)
    for name, text in {
        "my.csv": "a",
        "deep/other.csv": "b",
        ".gitignore": "*",
        "deep/.rayignore": "*.csv",
    }.items():
        (data / name).write_text(text)
    assert ship(str(data), out) == "shipped/0/data"
    create_package(
        str(out), tmp_path / "a.zip", include_gitignore=True, include_parent_dir=False, excludes=[]
    )
    names = zipfile.ZipFile(tmp_path / "a.zip").namelist()
    assert {name for name in names if name.endswith(".csv")} == {
        "shipped/0/data/my.csv", "shipped/0/data/deep/other.csv"
    }  # fmt: skip


def test_ship_sends_the_files_of_a_glob(tmp_path, monkeypatch):
    """All files, in the order of their names."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "c.md"):
        Path(name).write_text(name)
    shipped = ship({"corpus": {"path": "*.txt"}}, tmp_path / "out")
    assert shipped == {"corpus": {"path": ["shipped/0/a.txt", "shipped/1/b.txt"]}}
    assert (tmp_path / "out" / "shipped" / "1" / "b.txt").read_text() == "b.txt"


@pytest.mark.parametrize(
    "setting", ["corpus.path", "pairs.validation_path", "labels.data", "initial", "encoder.path"]
)
def test_a_bare_name_is_a_folder_where_the_setting_is_a_path(tmp_path, monkeypatch, setting):
    """Also in a list and in what is searched; names of the embedded corpus and of counted vectors, and texts, stay."""
    monkeypatch.chdir(tmp_path)
    for name in ("books", "docs", "ppmi"):
        Path(name).mkdir()
    section, _, key = setting.rpartition(".")
    for values in (
        {key: "books"},
        {section: {key: ["books"]}},
        {setting: {"choice": ["docs", "books"]}},
    ):
        assert named_files(values) == [Path("books")]
        assert absolute_paths(values) == json.loads(
            json.dumps(values).replace("books", f"{tmp_path}/books")
        )
    assert (
        named_files(
            {
                "name": "books",
                "path": "docs",
                "vectors": "ppmi",
                "initial": "",
                "description": ["docs"],
            }
        )
        == []
    )


def test_paths_of_a_space_become_absolute_for_other_nodes(tmp_path, monkeypatch):
    """Files and globs become absolute; other values stay, also a text that is longer than any path."""
    monkeypatch.chdir(tmp_path)
    space = with_absolute_paths(read_space(toy_space(tmp_path)))
    assert space.document.values["base"]["corpus"]["path"] == str(tmp_path / "text.txt")
    text = SPACE.replace("text.txt", '"*.txt"') + f"description: {'Our reviews. ' * 30}\n"
    space = with_absolute_paths(parse_space(parse_yaml(text), name="toy"))
    assert space.document.values["base"]["corpus"] == {
        "path": str(tmp_path / "*.txt"),
        "validation_fraction": 0.2,
    }
    assert (
        with_absolute_paths(
            parse_space(parse_yaml(SPACE.replace("text.txt", "docs")), name="toy")
        ).document.values["base"]["corpus"]["path"]
        == "docs"
    )


def test_download_reads_a_bucket_and_stays_inside_the_folder(tmp_path, monkeypatch):
    """All objects below the address; a name with `..` is an error."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="runs")
        client.put_object(Bucket="runs", Key="mine/run/trials/0000/model.json", Body=b"{}")
        client.put_object(Bucket="runs", Key="mine/run-2/other.json", Body=b"{}")
        download("s3://runs/mine/run", tmp_path / "run")
        assert [path.name for path in (tmp_path / "run").rglob("*.json")] == ["model.json"]
        client.put_object(Bucket="runs", Key="mine/run/../../escaped", Body=b"")
        with pytest.raises(ArtifactError, match="its name leaves its folder"):
            download("s3://runs/mine/run", tmp_path / "run")
    assert not (tmp_path / "escaped").exists()
