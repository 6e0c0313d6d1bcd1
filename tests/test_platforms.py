"""Systems without Linux's calls: one module asks for them, and each has a plain path."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import pytest

from raysent import platforms
from raysent.parallel import num_processes_for
from raysent.platforms import trim_heap

PACKAGE = Path(platforms.__file__).parent
CALLS = re.compile(
    r"sched_getaffinity|malloc_trim|[\"']/proc|\bfcntl\b|prctl|renameat|sys\.platform"
)


@pytest.fixture
def _plain(monkeypatch, tmp_path) -> None:
    """A system without CPU affinity, /proc and glibc, such as macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(platforms, "CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())


@pytest.mark.usefixtures("_plain")
def test_other_systems_have_a_plain_path(monkeypatch):
    """All cores of the machine, no description of the processor, and a heap that stays as it is."""
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert platforms.num_cores() == 6
    assert num_processes_for(bytes_each=1) == 6
    assert platforms.cpu_info("model name") == ""
    assert not trim_heap()


def test_folders_of_the_user_are_those_of_the_system(monkeypatch):
    """By the XDG variables where they say something; in the Library of macOS."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/big")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setattr(platforms.sys, "platform", "linux")
    assert platforms.user_folder("cache") == Path("/big/raysent")
    assert platforms.user_folder("data") == Path("/home/me/.local/share/raysent")
    monkeypatch.setattr(platforms.sys, "platform", "darwin")
    assert platforms.user_folder("cache") == Path("/home/me/Library/Caches/raysent")
    assert platforms.user_folder("data") == Path("/home/me/Library/Application Support/raysent")


def test_one_module_asks_for_what_not_every_system_has():
    """The start script of machines on AWS is for Linux, and is a text."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if CALLS.search(path.read_text())
    }
    assert found == {"platforms.py"}
