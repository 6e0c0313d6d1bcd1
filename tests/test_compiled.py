"""Compiled kernels: built once, shared, and missed with one line only."""

import ctypes
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raysent.errors import CompilerError
from raysent.kernels import compiled as build
from raysent.kernels.compiled import load, try_load

SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A folder of kernels and an empty cache, with nothing remembered before or after."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_SOURCES", tmp_path)
    for remembered in (build._outcome, build.try_load):
        remembered.cache_clear()
    (tmp_path / "toy.cpp").write_text(SOURCE)
    yield tmp_path
    for remembered in (build._outcome, build.try_load):
        remembered.cache_clear()


@pytest.fixture
def compiler():
    """The machine's compiler; without one there is nothing to test."""
    try:
        return build._compiler("toy")
    except CompilerError as error:
        pytest.skip(str(error))


def forget():
    """Be a new process."""
    build._outcome.cache_clear()


def libraries(kernels):
    """What the cache holds."""
    return sorted((kernels / "cache" / "compiled").glob("*.so"))


def test_load_builds_once_and_finds_it_again(kernels, compiler, monkeypatch):
    """The second process opens the first one's library."""
    assert load("toy").answer() == 42
    forget()
    monkeypatch.setattr(build, "_built", lambda *_: pytest.fail("built twice"))
    assert load("toy").answer() == 42


def test_load_builds_anew_what_has_changed(kernels, compiler):
    """Another source has another key; the old library stays for those who run the old one."""
    load("toy")
    (kernels / "toy.cpp").write_text(SOURCE.replace("42", "43"))
    forget()
    assert load("toy").answer() == 43
    assert len(libraries(kernels)) == 2


def test_load_mends_a_damaged_library(kernels, compiler):
    """A cache that was cut off is built again."""
    load("toy")
    library = libraries(kernels)[0]
    library.unlink()  # a library in use must not be written over
    library.write_bytes(b"\x7fELF")
    forget()
    assert load("toy").answer() == 42


def test_load_is_safe_among_processes(kernels, compiler):
    """Several that ask at once build one library between them, and none reads half of it."""
    program = (
        "from pathlib import Path; from raysent.kernels import compiled as build; "
        f"build._SOURCES = Path({str(kernels)!r}); assert build.load('toy').answer() == 42"
    )
    paths = os.pathsep.join([str(Path(build.__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}) for _ in range(3)
    ]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert len(libraries(kernels)) == 1
    assert [file.suffix for file in (kernels / "cache" / "compiled").iterdir() if file.name.startswith(".")] == []


def test_load_says_that_there_is_no_compiler(kernels, monkeypatch):
    """One line, and what to install."""
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(kernels))
    with pytest.raises(
        CompilerError, match=r"^compiled kernel 'toy': must have a C\+\+ compiler; given none on the PATH;"
    ):
        load("toy")


def test_load_says_what_the_compiler_says(kernels, compiler):
    """The first error of the compiler is part of the line."""
    (kernels / "toy.cpp").write_text("nonsense\n")
    with pytest.raises(CompilerError, match=r"^compiled kernel 'toy': .* must build it; given .*error.*; try g\+\+$"):
        load("toy")


def test_load_without_a_cache_is_one_line(kernels, compiler, monkeypatch):
    """A cache that cannot be written is no reason to end a run."""
    (kernels / "file").write_text("")
    monkeypatch.setenv("RAYSENT_CACHE", str(kernels / "file"))
    with pytest.raises(
        CompilerError, match="must be built in the cache; given .* a file exists where a folder is needed"
    ):
        load("toy")


def test_load_if_possible_falls_back_with_one_line(kernels, monkeypatch, caplog):
    """None, said once however often it is asked for."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert [try_load("toy"), try_load("toy")] == [None, None]
    assert [record.message.split(";")[1] for record in caplog.records] == [" given CXX=no-such-compiler"]


def test_load_gives_up_on_a_compiler_that_hangs(kernels, monkeypatch):
    """A build has a limit."""
    slow = kernels / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build, "_TIMEOUT_S", 0.1)
    with pytest.raises(CompilerError, match="must end within"):
        load("toy")


def test_every_kernel_builds(compiler):
    """With the machine's own compiler, into the user's cache."""
    found = [file.stem for file in Path(build.__file__).parent.glob("*.cpp")]
    assert all(isinstance(load(name), ctypes.CDLL) for name in found)
