"""A follower says within a minute what it cannot read or what has died, and ends nothing because of one list of AWS's."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
from submissions import FakeLauncher, new_submission, run_on, store_run

from raysent.cluster import ConnectionLostError, following, signs, submission
from raysent.cluster.following import write_record
from raysent.cluster.launcher import stage_of
from raysent.cluster.signs import Signs
from raysent.errors import ArtifactError, CloudError

RUN = "s3://runs/raysent/first"


class _Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class _Jobs:
    """The jobs of a head: name -> whether it has ended."""

    def __init__(self, **jobs: bool) -> None:
        self.jobs = jobs

    def __call__(self, address: str, *, token: str) -> _Jobs:
        return self

    def of_run(self, run: str) -> dict[str, bool]:
        """Return the jobs of the run."""
        return self.jobs

    def why_ended(self, name: str) -> str:
        """Return the end of the log."""
        return "its command ended with exit code 137: Killed"


@contextmanager
def _no_tunnel():
    raise ConnectionLostError("raysent: the head cannot be reached over SSH")
    yield


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Signs on a clock, what they say, the head, and whether the stored sweep is alive."""
    alive, said, clock, head = [None], [], _Clock(), FakeLauncher(tmp_path)
    monkeypatch.setattr(signs, "is_alive", lambda _: alive[0])
    monkeypatch.setattr(signs, "renews_lease", lambda _: bool(alive[0]))
    watch = Signs(RUN, head, "job", say=said.append, clock=clock)
    return watch, said, clock, head, alive


def test_expired_credentials_are_one_line_within_a_minute(watched):
    """Of the storage and of EC2; one more line when it can be read again."""
    watch, said, clock, head, _ = watched
    head.trouble = "describe_instances: RequestExpired"
    head.is_running = lambda: None
    error = ArtifactError("s3://runs: the credentials that boto3 finds have expired; renew them")
    for second in range(0, 180, 5):
        clock.now = float(second)
        watch.look(has_begun=True)
        watch.cannot_read(error)
        if second < 60:
            assert said == []
    assert len(said) == 2
    assert "AWS does not say whether the head runs: describe_instances: RequestExpired" in said[0]
    assert (
        "has not been seen for 60 s: s3://runs: the credentials that boto3 finds have expired"
        in said[1]
    )
    watch.has_read()
    assert said[2].endswith("can be read again")


def test_a_stale_lease_is_one_line_and_a_dead_job_an_error(watched, monkeypatch):
    """The head is asked where it answers; the error has the end of the job's log."""
    watch, said, clock, head, alive = watched
    head.tunnel = _no_tunnel
    alive[0] = False
    for second in range(0, 60, 5):
        clock.now = float(second)
        watch.look(has_begun=True)
        watch.check()
    assert len(said) == 1
    assert "its process on the head does not answer" in said[0]
    monkeypatch.setattr(head, "tunnel", FakeLauncher.tunnel.__get__(head))
    monkeypatch.setattr(signs, "Jobs", _Jobs(job=True))
    clock.now = 120.0
    with pytest.raises(
        CloudError, match="its process has ended: .*exit code 137: Killed; 'raysent"
    ):
        watch.check()


def test_a_job_that_died_before_its_first_event_is_noticed_within_a_minute(watched, monkeypatch):
    """It has no lease and no journal: the head is asked for it."""
    watch, _, clock, _, _ = watched
    monkeypatch.setattr(signs, "Jobs", _Jobs(job=False))
    for second in (0.0, 61.0):
        clock.now = second
        watch.look(has_begun=False)
        watch.check()
    monkeypatch.setattr(signs, "Jobs", _Jobs(job=True))
    clock.now = 125.0
    with pytest.raises(CloudError, match="its process has ended"):
        watch.check()


def test_a_list_without_the_head_ends_nothing_while_the_job_runs(watched, monkeypatch):
    """Three looks in a row; then the job is asked, and the lease of its process."""
    watch, _, _, head, alive = watched
    monkeypatch.setattr(signs, "Jobs", _Jobs(job=False))
    answers = [True, False, False, True, False, False, False, False]
    head.is_running = lambda: answers.pop(0)
    while answers:
        watch.look(has_begun=True)
        watch.check()
    head.tunnel, alive[0] = _no_tunnel, True
    head.is_running = lambda: True
    watch.look(has_begun=True)
    head.is_running = lambda: False
    for _ in range(9):
        watch.look(has_begun=True)
        watch.check()
    alive[0] = None
    for _ in range(2):
        watch.look(has_begun=True)
        watch.check()
    watch.look(has_begun=True)
    with pytest.raises(CloudError, match="its cluster ended before the sweep did"):
        watch.check()


def test_one_stale_list_does_not_end_a_running_sweep(tmp_path, monkeypatch):
    """The head is missing once; the sweep goes on to its end, and the cluster ends after it."""
    launcher = FakeLauncher(tmp_path)
    answers, looks = [True, False, True], []

    class _Running(_Jobs):
        def submit(self, command, *, folder, environment, name, run) -> str:
            self.jobs[name] = False
            return name

        def failure_to_start(self, name) -> None:
            return None

        def other_runs(self, run) -> list[str]:
            return []

    def is_running() -> bool:
        looks.append("looked")
        if len(looks) == 3:
            record = following.read_record(str(tmp_path / "remote"))
            write_record(str(tmp_path / "remote"), replace(record, code=0))
        return answers.pop(0)

    monkeypatch.setattr(launcher, "is_running", is_running)
    monkeypatch.setattr(following, "POLL_S", 0.0)
    monkeypatch.setattr(submission, "Jobs", _Running())
    store_run(tmp_path)
    assert run_on(launcher, tmp_path).code == 0
    assert len(looks) == 3
    assert launcher.calls[-1] == "down"


def test_a_running_job_of_the_own_sweep_keeps_its_cluster(tmp_path, monkeypatch, capsys):
    """An error of this process after the submission ends nothing that the job still uses."""
    launcher = FakeLauncher(tmp_path)

    class _StillRunning(_Jobs):
        def other_runs(self, run) -> list[str]:
            return sorted({new_submission(tmp_path).remote} - {run})

    def fails(cluster, job, *, say):
        store_run(tmp_path)
        job.was_submitted = job.is_running = True
        raise CloudError("its cluster ended before the sweep did")

    monkeypatch.setattr(submission, "Jobs", _StillRunning())
    monkeypatch.setattr(submission, "submit", fails)
    with pytest.raises(CloudError, match="its cluster ended"):
        run_on(launcher, tmp_path)
    assert "down" not in launcher.calls
    assert "the sweep still runs" in capsys.readouterr().err


def test_a_launch_is_shown_by_its_stages():
    """Ray numbers them; its other lines go to its log alone."""
    assert stage_of("  [6/7] Running setup commands") == "stage 6 of 7: running setup commands"
    assert stage_of("    [1/7] Waiting for SSH to become available") == (
        "stage 1 of 7: waiting for ssh to become available"
    )
    assert stage_of("Launched a new head node") == "the head is launched; waiting for it"
    assert stage_of("2026-01-01 VINFO command_runner.py: Running `ssh -tt …`") == ""
