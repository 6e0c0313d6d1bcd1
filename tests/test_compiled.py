"""Compiled kernels: built once, shared by processes, and replaced by slower code with one warning."""

import ctypes
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raysent.errors import CompilerError
from raysent.kernels import native
from raysent.kernels.compiled import build
from raysent.kernels.native import load, try_load

SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A folder of kernels and an empty cache; results of earlier loads are cleared before and after."""
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_SOURCES", tmp_path)
    for cached in (build._outcome, native.try_load):
        cached.cache_clear()
    (tmp_path / "toy.cpp").write_text(SOURCE)
    yield tmp_path
    for cached in (build._outcome, native.try_load):
        cached.cache_clear()


@pytest.fixture
def compiler():
    """The machine's compiler; the test is skipped if there is none."""
    try:
        return build._compiler("toy")
    except CompilerError as error:
        pytest.skip(str(error))


def act_as_new_process():
    """Clear the results that a process keeps."""
    build._outcome.cache_clear()


def libraries(kernels):
    """Return the libraries in the cache."""
    return sorted((kernels / "cache" / "compiled").glob("*.so"))


def test_load_builds_once(kernels, compiler, monkeypatch):
    """A second process opens the library of the first."""
    assert load("toy").answer() == 42
    act_as_new_process()
    monkeypatch.setattr(build, "_built", lambda *_: pytest.fail("built twice"))
    assert load("toy").answer() == 42


def test_load_rebuilds_a_changed_source(kernels, compiler):
    """Another source has another key; the old library is kept for processes that use it."""
    load("toy")
    (kernels / "toy.cpp").write_text(SOURCE.replace("42", "43"))
    act_as_new_process()
    assert load("toy").answer() == 43
    assert len(libraries(kernels)) == 2


def test_load_rebuilds_a_damaged_library(kernels, compiler):
    """A truncated library is built again."""
    load("toy")
    library = libraries(kernels)[0]
    library.unlink()  # a library in use must not be overwritten
    library.write_bytes(b"\x7fELF")
    act_as_new_process()
    assert load("toy").answer() == 42


@pytest.mark.parametrize("damage", ["zeros", "cut", "flip", "digest"])
def test_no_process_loads_a_library_that_is_not_as_built(kernels, compiler, damage):
    """A library that the loader would map, and die of, is built again before it is loaded."""
    load("toy")
    library = libraries(kernels)[0]
    whole = library.read_bytes()
    middle, ended = whole[: len(whole) // 2], whole[len(whole) // 2 :]
    bad = {
        "zeros": middle + bytes(len(ended)),
        "cut": middle,
        "flip": whole[:138] + bytes([whole[138] ^ 4]) + whole[139:],
    }
    if damage == "digest":
        library.with_suffix(".sha256").write_bytes(b"\xff")
    else:
        library.unlink()  # this process has it mapped
        library.write_bytes(bad[damage])
    program = (
        "from pathlib import Path; from raysent.kernels.compiled import build; "
        f"build._SOURCES = Path({str(kernels)!r}); assert build.load('toy').answer() == 42"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert library.read_bytes() == whole


def test_load_runs_no_library_that_others_could_have_written(kernels, compiler):
    """One that is planted in a folder open to others is built again, and the folder closed."""
    load("toy")
    library = libraries(kernels)[0]
    planted = kernels / "planted.cpp"
    planted.write_text(SOURCE.replace("42", "666"))
    library.unlink()
    subprocess.run([*compiler, "-shared", "-fPIC", planted, "-o", library], check=True)
    library.chmod(0o666)
    library.parent.chmod(0o777)
    act_as_new_process()
    assert load("toy").answer() == 42
    assert stat.S_IMODE(library.stat().st_mode) & 0o022 == 0
    assert stat.S_IMODE(library.parent.stat().st_mode) & 0o022 == 0


def test_load_refuses_the_folder_of_another_user(kernels, compiler, monkeypatch):
    """Slower code runs instead, with one warning."""
    monkeypatch.setattr(build, "_is_owned", lambda path: path.name != "compiled")
    with pytest.raises(
        CompilerError, match="compiled: another user's; code is run from it, so set RAYSENT_CACHE"
    ):
        load("toy")
    assert try_load("toy") is None


def test_files_of_this_user_and_of_root_are_owned(tmp_path, monkeypatch):
    """Files of other users are not."""
    owner = tmp_path.stat().st_uid
    assert build._is_owned(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert build._is_owned(tmp_path) == (owner == 0)
    assert build._is_owned(Path("/"))


def test_load_is_safe_among_processes(kernels, compiler):
    """Several processes at once build one library, and none opens an incomplete one."""
    program = (
        "from pathlib import Path; from raysent.kernels.compiled import build; "
        f"build._SOURCES = Path({str(kernels)!r}); assert build.load('toy').answer() == 42"
    )
    paths = os.pathsep.join(
        [str(Path(build.__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths})
        for _ in range(3)
    ]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert len(libraries(kernels)) == 1
    assert [
        file.suffix
        for file in (kernels / "cache" / "compiled").iterdir()
        if file.name.startswith(".")
    ] == []


def test_load_reports_a_missing_compiler(kernels, monkeypatch):
    """The error says what to install."""
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(kernels))
    with pytest.raises(
        CompilerError,
        match=r"^compiled kernel 'toy': must have a C\+\+ compiler; given none on the PATH;",
    ):
        load("toy")


def test_load_reports_the_error_of_the_compiler(kernels, compiler):
    """The message includes the first error of the compiler."""
    (kernels / "toy.cpp").write_text("nonsense\n")
    with pytest.raises(
        CompilerError,
        match=r"^compiled kernel 'toy': .* must build it; given .*error.*; try g\+\+$",
    ):
        load("toy")


def test_load_reports_an_unwritable_cache(kernels, compiler, monkeypatch):
    """An unwritable cache is a CompilerError, so that a run continues without the kernel."""
    (kernels / "file").write_text("")
    monkeypatch.setenv("RAYSENT_CACHE", str(kernels / "file"))
    with pytest.raises(
        CompilerError,
        match="must be built in the cache; given .* a file exists where a folder is needed",
    ):
        load("toy")


def test_try_load_warns_once(kernels, monkeypatch, caplog):
    """Without a compiler it returns None, with one warning for any number of calls."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert [try_load("toy"), try_load("toy")] == [None, None]
    assert [record.message.split(";")[1] for record in caplog.records] == [
        " given CXX=no-such-compiler"
    ]


def test_load_stops_a_compiler_that_hangs(kernels, monkeypatch):
    """A build has a timeout."""
    slow = kernels / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build, "_TIMEOUT_S", 0.1)
    with pytest.raises(CompilerError, match="must finish within"):
        load("toy")


def test_every_kernel_builds(compiler):
    """All kernels build with the machine's compiler, into the user's cache."""
    found = [file.stem for file in Path(build.__file__).parent.glob("*.cpp")]
    assert all(isinstance(load(name), ctypes.CDLL) for name in found)
