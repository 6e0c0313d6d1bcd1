"""What a release must pass beside the tests and `make journeys`; `make release-check` runs it.

    python tests/release.py [PYTHON …]

A PYTHON is a version such as 3.12, or the path of an interpreter. The wheel and the sdist are built once, read by twine,
and the wheel is installed from an index for each Python; then tests/test_packaging.py runs there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The versions that are looked for: the lowest, those that followed, and the one that no classifier names yet.
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def classified() -> list[str]:
    """Return the versions of Python that the classifiers name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [found[1] for found in map(_CLASSIFIER.fullmatch, project["classifiers"]) if found]


def version_of(interpreter: str) -> str | None:
    """Return an interpreter's version, such as 3.12; None if it cannot be run."""
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    try:
        ended = subprocess.run(
            [interpreter, "-I", "-c", code], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout.strip()


def _candidates(version: str) -> Iterator[str]:
    """Yield interpreters that may have a version: of this process, of the path, of pyenv, and one that uv fetches."""
    yield getattr(sys, "_base_executable", sys.executable)
    yield from filter(None, [shutil.which(f"python{version}")])
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))
    uv = str(Path(sys.executable).with_name("uv"))
    fetched = subprocess.run([uv, "python", "install", version], capture_output=True, check=False)
    if fetched.returncode == 0:
        found = subprocess.run(
            [uv, "python", "find", version], capture_output=True, text=True, check=False
        )
        yield found.stdout.strip()


def interpreter(python: str) -> str | None:
    """Return the path of a Python, which is named by its version or its path; None if there is none."""
    if not re.fullmatch(r"3\.\d+", python):
        return python if version_of(python) else None
    return next((path for path in _candidates(python) if version_of(path) == python), None)


def main(pythons: Sequence[str]) -> int:
    """Check the archives and each Python that can be had, and return an exit code."""
    interpreters = []
    for python in pythons or VERSIONS:
        path = interpreter(python)
        if path is None:
            print(f"Python {python}: not on this machine, and uv cannot fetch it; it is not tried")
        else:
            interpreters.append(path)
    versions = [version_of(path) for path in interpreters]
    tried = ", ".join(map(str, versions))
    print(f"Python {tried}: the wheel is installed from an index, and tried", flush=True)
    # A build of torch has gigabytes, which the limit of a test knows nothing of.
    options = ["--durations", "12", "--timeout", "7200"]
    command = [sys.executable, "-m", "pytest", *options, "tests/test_packaging.py"]
    for path in interpreters:
        command += ["--install-with", path]
    ended = subprocess.run(command, cwd=ROOT, check=False)
    untried = [version for version in classified() if version not in versions]
    for version in untried:
        print(f"pyproject.toml: a classifier names Python {version}, which was not tried")
    return 1 if ended.returncode or untried or not interpreters else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
