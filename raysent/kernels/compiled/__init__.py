"""Kernels in C++, built when they are first asked for with the machine's own compiler; all works without them too.

`<name>.cpp` of this folder exports plain C functions over pointers and sizes. It includes no header of Python, torch or
NumPy, so that it builds in about a second, from nothing but a compiler, and serves every version of them.

    library = load("gru")              # ctypes.CDLL; raises CompilerError where there is no compiler
    library = load_if_possible("gru")  # None there, said once

What several kernels need stands in `numbers.h`.

A library is kept in the cache under a key of its source, the headers, the compiler and the processor, so that a changed
file, another compiler or a home folder shared by several machines never meets an old one.

A C++ file of this folder -> a loaded library, built once per machine and shared by all its processes.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import filelock

from raysent.errors import ArtifactError, CompilerError
from raysent.storage import atomic_write, cache_folder, storage_errors

__all__ = [
    "load",
    "try_load",
]


_SOURCES = Path(__file__).parent
_CPU_DESCRIPTION = Path("/proc/cpuinfo")
_CPU_LINES = ("model name", "flags", "Features")
_TIMEOUT_S = 120
# Fast, but no -ffast-math: a NaN must stay one, and that flag changes how the whole process rounds small numbers.
_FLAGS = (
    "-O3 -std=c++17 -shared -fPIC -march=native -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-signed-zeros"
)
_MACHINE_FLAGS = {"x86_64": "-mprefer-vector-width=512"}

_log = logging.getLogger("raysent")


def load(name: str) -> ctypes.CDLL:
    """Return the library of `<name>.cpp`, built if need be.

    Args:
        name: Of the file, without its ending.

    Raises:
        CompilerError: If there is no C++ compiler, it fails, or the cache cannot be written; the same at every call.
    """
    found = _outcome(name)
    if isinstance(found, CompilerError):
        raise found
    return found


@lru_cache
def try_load(name: str) -> ctypes.CDLL | None:
    """Return the library of `<name>.cpp`, or None where it cannot be had, which one line says once."""
    try:
        return load(name)
    except CompilerError as error:
        _log.warning("%s; slower code without it gives the same results", error)
        return None


@lru_cache
def _outcome(name: str) -> ctypes.CDLL | CompilerError:
    """Return the library, or why there is none: whoever asks at every step must not build at every step."""
    source = _SOURCES / f"{name}.cpp"
    try:
        command = [*_compiler(name), *shlex.split(f"{_FLAGS} {_MACHINE_FLAGS.get(platform.machine(), '')}")]
        library = cache_folder() / "compiled" / f"{name}-{_key(source, command)}.so"
        with storage_errors(library.parent):
            library.parent.mkdir(parents=True, exist_ok=True)
            # Whoever waits here finds the library that another process has built.
            with filelock.FileLock(library.with_suffix(".lock")):
                return _opened(library) or _built(source, library, command)
    except CompilerError as error:
        return error
    except (ArtifactError, OSError, NotImplementedError) as error:  # also of a file system without locks
        return CompilerError(f"compiled kernel '{name}': must be built in the cache; given {error}")


def _compiler(name: str) -> list[str]:
    """Return the command of the C++ compiler: `$CXX`, else whichever there is."""
    named = shlex.split(os.environ.get("CXX", ""))
    for candidate in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(candidate[0]):
            return candidate
    given = f"CXX={shlex.join(named)}" if named else "none on the PATH"
    raise CompilerError(f"compiled kernel '{name}': must have a C++ compiler; given {given}; install g++")


def _key(source: Path, command: list[str]) -> str:
    """Return what a library depends on, as 16 hexadecimal digits."""
    version = _run([command[0], "--version"], name=source.stem).stdout
    texts = [path.read_text(encoding="utf-8") for path in (source, *sorted(source.parent.glob("*.h")))]
    parts = [*texts, shlex.join(command), version, _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return what tells this processor's instructions from another's."""
    try:
        lines = _CPU_DESCRIPTION.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    # The first core's lines; `flags` on x86, `Features` on ARM.
    return "".join(next((line for line in lines if line.startswith(word)), "") for word in _CPU_LINES)


def _opened(library: Path) -> ctypes.CDLL | None:
    """Return a library of the cache; None where there is none or it is damaged."""
    try:
        return ctypes.CDLL(str(library)) if library.exists() else None
    except OSError:
        return None


def _built(source: Path, library: Path, command: list[str]) -> ctypes.CDLL:
    """Build a library, put it in its place and open it."""
    with atomic_write(library) as unfinished:
        done = _run([*command, str(source), "-o", str(unfinished)], name=source.stem)
        if done.returncode:
            lines = done.stderr.splitlines()
            reason = next((line for line in lines if "error" in line), lines[0] if lines else "no word of it")
            raise CompilerError(f"compiled kernel '{source.stem}': {command[0]} must build it; given {reason}; try g++")
    return ctypes.CDLL(str(library))


def _run(command: list[str], *, name: str) -> subprocess.CompletedProcess[str]:
    """Run the compiler and return what it said."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"compiled kernel '{name}': {command[0]} must end within {_TIMEOUT_S} s; try g++") from None
