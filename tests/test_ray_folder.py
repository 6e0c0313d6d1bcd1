"""The folder of Ray's files: nobody else's, short enough, and removed when its process has ended."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import filelock
import pytest
import ray

from raysent.errors import TrainingError
from raysent.training import ray_processes as module
from raysent.training.ray_processes import ray_folder, whose_folder
from raysent.training.ray_session import ray_session


@pytest.fixture
def short(monkeypatch):
    """An empty folder with a short path, where Ray's folders go."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="r") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        ray_folder.cache_clear()
        yield Path(folder)
        ray_folder.cache_clear()


def test_no_other_user_may_enter_the_folder_of_a_session(short):
    """Ray makes its own folders writable for everybody; one above them is closed."""
    with ray_session(None, num_cpus=1):
        session = Path(ray._private.worker._global_node.get_session_dir_path())
        assert short in session.parents
        (sockets,) = {path.parent for path in session.rglob("plasma_store*") if path.is_socket()}
        closed = [
            path
            for path in sockets.parents
            if short in path.parents and stat.S_IMODE(path.stat().st_mode) == 0o700
        ]
        assert [path.parent for path in closed] == [short]
        assert (
            whose_folder(session)
            == f"its files are in {session}, user {session.owner()}'s; no other user may write there"
        )
    assert not (Path("/tmp/ray") / session.name).exists()


def test_folder_that_is_open_to_all_is_said_to_be(tmp_path):
    """As Ray's own is."""
    open_folder = Path("/tmp", f"raysent-test-{os.getpid()}")
    open_folder.mkdir()
    try:
        open_folder.chmod(0o777)
        assert whose_folder(open_folder).endswith("other users of this machine may write there")
    finally:
        open_folder.rmdir()
    assert whose_folder(tmp_path / "none") == ""


def test_name_that_another_has_taken_is_not_used(short):
    """Neither another user's folder nor a link; the one that is made in its place is used again."""
    taken = short / f"raysent-{os.geteuid()}"
    (short / "elsewhere").mkdir()
    taken.symlink_to(short / "elsewhere")
    first = Path(ray_folder())
    ray_folder.cache_clear()
    assert first.parent == Path(ray_folder()).parent
    assert first.parent.name.startswith(f"raysent-{os.geteuid()}-")
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    assert list((short / "elsewhere").iterdir()) == []


def test_open_folder_of_this_user_is_closed(short):
    """It may be one that was copied or made by hand."""
    (short / f"raysent-{os.geteuid()}").mkdir(mode=0o777)
    assert stat.S_IMODE(Path(ray_folder()).parent.stat().st_mode) == 0o700


def test_path_is_short_enough_for_sockets(short, monkeypatch):
    """A long folder of temporary files is not used."""
    long = short / ("x" * 60)
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    folder = Path(ray_folder())
    assert long not in folder.parents
    assert len(f"{folder}{module._SOCKET}") <= 107
    ray_folder.cache_clear()
    monkeypatch.setattr(module, "_MAX_SOCKET_BYTES", 20)
    with pytest.raises(TrainingError, match="too long for Ray's sockets; name a folder of at most"):
        ray_folder()


def test_folders_of_ended_processes_are_removed_but_for_the_newest(short):
    """One that a living process holds stays, however old it is."""
    program = "from raysent.training.ray_processes import ray_folder; print(ray_folder(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as old:
        held = Path(old.stdout.readline().strip())
        users = held.parent
        for number in range(6):
            (users / f"ended{number}").mkdir()
            os.utime(users / f"ended{number}", (1000 + number,) * 2)
        own = Path(ray_folder())
        assert {path for path in users.iterdir() if path.is_dir()} == {
            own,
            held,
            *(users / f"ended{n}" for n in (3, 4, 5)),
        }
        with pytest.raises(filelock.Timeout):
            filelock.FileLock(held / "lock").acquire(timeout=0)
        old.kill()
    os.utime(held, (1, 1))
    ray_folder.cache_clear()
    ray_folder()
    assert not held.exists()
