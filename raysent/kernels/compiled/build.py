"""Kernels in C++, built on first use by the machine's compiler.

`<name>.cpp` in this folder exports C functions over pointers and sizes. It includes no headers of Python, torch or
NumPy, so it builds in about a second, needs only a compiler, and works with all their versions. `numbers.h` has what
several kernels share.

    library = load("gru")  # ctypes.CDLL; raises CompilerError if there is no compiler

A library is built once per machine. It is cached under a hash of its source, the headers, the compiler and the
processor, so that a changed file, another compiler or a home folder shared by several machines never uses an old one.
The folder of libraries belongs to one user, who alone may write it: another user's is refused, and a library that
another user owns or may change is built again, as is one that has not the SHA-256 of the file beside it: a damaged
library would end the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
from functools import lru_cache
from pathlib import Path

import filelock

from raysent.errors import ArtifactError, CompilerError
from raysent.platforms import cpu_info
from raysent.storage import atomic_write, cache_folder, file_sha256, storage_errors

_SOURCES = Path(__file__).parent
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_TIMEOUT_S = 120
# Not -ffast-math: NaN must be preserved, and that flag changes the rounding of denormal numbers in the whole process.
_FLAGS = (
    "-O3 -std=c++17 -shared -fPIC -march=native "
    "-ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-signed-zeros"
)
_MACHINE_FLAGS = {"x86_64": "-mprefer-vector-width=512"}


def load(name: str) -> ctypes.CDLL:
    """Return the library of `<name>.cpp`; it is built if necessary.

    Args:
        name: Name of the file without suffix.

    Raises:
        CompilerError: If there is no C++ compiler, it fails, or the cache cannot be written; the same at every call.
    """
    outcome = _outcome(name)
    if isinstance(outcome, CompilerError):
        raise outcome
    return outcome


# What `raysent.kernels.native` finds.
BUILDERS = {"c++": load}


@lru_cache
def _outcome(name: str) -> ctypes.CDLL | CompilerError:
    """Return the library, or the error; a failed build is not repeated."""
    source = _SOURCES / f"{name}.cpp"
    try:
        command = [
            *_compiler(name),
            *shlex.split(f"{_FLAGS} {_MACHINE_FLAGS.get(platform.machine(), '')}"),
        ]
        library = cache_folder() / "compiled" / f"{name}-{_key(source, command)}.so"
        with storage_errors(library.parent):
            library.parent.mkdir(parents=True, exist_ok=True)
            _make_private(library.parent)
            # A process that waits here finds the library that another process has built.
            with filelock.FileLock(library.with_suffix(".lock")):
                return _opened(library) or _built(source, library, command)
    except CompilerError as error:
        return error
    # A file system without locks raises NotImplementedError.
    except (ArtifactError, OSError, NotImplementedError) as error:
        return CompilerError(f"compiled kernel '{name}': must be built in the cache; given {error}")


def _compiler(name: str) -> list[str]:
    """Return the command of the C++ compiler: `$CXX`, else the first one found on the PATH."""
    named_compiler = shlex.split(os.environ.get("CXX", ""))
    candidates = [["c++"], ["g++"], ["clang++"]]
    if named_compiler:
        candidates = [named_compiler]
    for candidate in candidates:
        if shutil.which(candidate[0]):
            return candidate
    detail = "none on the PATH"
    if named_compiler:
        detail = f"CXX={shlex.join(named_compiler)}"
    raise CompilerError(
        f"compiled kernel '{name}': must have a C++ compiler; given {detail}; install g++"
    )


def _key(source: Path, command: list[str]) -> str:
    """Return the hash of everything that a library depends on, 16 hexadecimal digits."""
    version = _run([command[0], "--version"], name=source.stem).stdout
    texts = [
        path.read_text(encoding="utf-8") for path in (source, *sorted(source.parent.glob("*.h")))
    ]
    parts = [*texts, shlex.join(command), version, _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    # `flags` on x86, `Features` on ARM.
    description = "".join(cpu_info(field) for field in ("model name", "flags", "Features"))
    return description or platform.processor() or platform.machine()


def _opened(library: Path) -> ctypes.CDLL | None:
    try:
        # A folder that others could write once may hold what they wrote.
        if not _is_private(library):
            return None
        if _digest_file(library).read_text() != file_sha256(library):
            return None
        return ctypes.CDLL(str(library))
    except (OSError, ValueError, ArtifactError):
        return None


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _make_private(folder: Path) -> None:
    """Let no other user change a folder, which must belong to this one."""
    if not _is_owned(folder):
        raise ArtifactError(
            f"{folder}: another user's; code is run from it, so set RAYSENT_CACHE to your own folder"
        )
    if not _is_private(folder):
        folder.chmod(folder.stat().st_mode & ~_OTHERS_WRITE)


def _is_private(path: Path) -> bool:
    """Return whether this user or root owns a file, and no other user may change it."""
    return _is_owned(path) and not path.stat().st_mode & _OTHERS_WRITE


def _is_owned(path: Path) -> bool:
    """Return whether this user or root owns a file; Windows has other rights, which are not compared."""
    return not hasattr(os, "geteuid") or path.stat().st_uid in (0, os.geteuid())


def _built(source: Path, library: Path, command: list[str]) -> ctypes.CDLL:
    for path in (library, _digest_file(library)):
        # A file that is written again keeps its mode: one that others may write would stay open to them.
        if path.exists() and not _is_private(path):
            path.unlink(missing_ok=True)
    with atomic_write(library) as unfinished:
        done = _run([*command, str(source), "-o", str(unfinished)], name=source.stem)
        if done.returncode:
            lines = done.stderr.splitlines() or ["no message"]
            reason = next((line for line in lines if "error" in line), lines[0])
            raise CompilerError(
                f"compiled kernel '{source.stem}': {command[0]} must build it; given {reason}; try g++"
            )
    with atomic_write(_digest_file(library)) as unfinished:
        unfinished.write_text(file_sha256(library))
    return ctypes.CDLL(str(library))


def _run(command: list[str], *, name: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise CompilerError(
            f"compiled kernel '{name}': {command[0]} must finish within {_TIMEOUT_S} s; try g++"
        ) from None
