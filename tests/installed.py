"""The built wheel in an environment of its own, and a user who has nothing else: for tests of packaging and journeys."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from caches import own_cache
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import raysent

ROOT = Path(__file__).resolve().parent.parent
VERSION = raysent.__version__
# What a user's shell has. Everything else of the tests' environment is left out.
_KEPT = ("LANG", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "RAY_worker_niceness")


def run(
    *command: str | Path, cwd: Path, env: dict[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command, which must end with an exit code, and return what it printed."""
    ran = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, f"{' '.join(map(str, command))}\n{ran.stdout}\n{ran.stderr}"
    return ran


def build(folder: Path) -> tuple[Path, Path]:
    """Build an sdist of this checkout, and the wheel from that sdist, and return both."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder / f"raysent-{VERSION}.tar.gz", folder / f"raysent-{VERSION}-py3-none-any.whl"


def _required(
    package: Distribution, installed: dict[str, Distribution], extras: tuple[str, ...]
) -> set[str]:
    """Return the names of the packages that a package needs, directly or not, as their own metadata declare it."""
    found: set[str] = set()
    waiting: list[tuple[Distribution, frozenset[str]]] = [(package, frozenset(extras))]
    seen = set()
    while waiting:
        current, extras_of = waiting.pop()
        for requirement in map(Requirement, current.requires or ()):
            marker, name = requirement.marker, canonicalize_name(requirement.name)
            is_needed = marker is None or any(
                marker.evaluate({"extra": extra}) for extra in ("", *extras_of)
            )
            entry = (name, frozenset(requirement.extras))
            if is_needed and entry not in seen:
                assert name in installed, (
                    f"{current.name} needs {requirement}, which is not installed here"
                )
                seen.add(entry)
                found.add(name)
                waiting.append((installed[name], entry[1]))
    return found


def install(wheel: Path, folder: Path, *, extras: tuple[str, ...] = ()) -> Path:
    """Make a virtual environment with the wheel and the dependencies that it declares, and nothing else.

    The dependencies are links to the packages that the tests run with: what is not declared is not there.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python, pip = folder / "bin" / "python", [sys.executable, "-m", "pip", "--python"]
    run(
        *pip,
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        wheel,
        cwd=folder,
    )
    site = Path(
        run(
            python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder
        ).stdout.strip()
    )
    [made] = distributions(path=[str(site)])
    installed = {canonicalize_name(found.name): found for found in distributions()}
    for name in _required(made, installed, extras):
        package = installed[name]
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))))
    return folder


def install_with(python: str, wheel: Path, folder: Path) -> Path:
    """Make a virtual environment of an interpreter with the wheel and its dependencies, as `make setup` makes .venv.

    torch comes by pip, which finds a build for CPUs where this machine has one; all else by uv.
    """
    run(python, "-m", "venv", folder, cwd=folder.parent)
    made = folder / "bin" / "python"
    constraints = ("--quiet", "--constraint", ROOT / "constraints.txt")
    run(made, "-m", "pip", "install", *constraints, "torch", cwd=folder)
    uv = Path(sys.executable).with_name("uv")
    run(uv, "pip", "install", "--python", made, *constraints, wheel, cwd=folder)
    return folder


class User:
    """Somebody with the installed `raysent`, an empty folder, and no files or credentials."""

    def __init__(self, environment: Path, folder: Path, **variables: str) -> None:
        """Make the folder and a home."""
        self.folder, self._bin = folder / "empty", environment / "bin"
        for made in (folder / "home", self.folder):
            made.mkdir(parents=True, exist_ok=True)
        self.env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self.env |= {"HOME": str(folder / "home"), "PATH": f"{self._bin}:{os.environ['PATH']}"}
        self.env |= {"AWS_EC2_METADATA_DISABLED": "true"} | variables
        if "RAYSENT_CACHE" in variables:
            own_cache(Path(variables["RAYSENT_CACHE"]))

    def __call__(self, *arguments: str, code: int = 0, **variables: str) -> str:
        """Run a command of raysent, with more variables of the environment, and return its standard output."""
        return self.run(self._bin / "raysent", *arguments, code=code, **variables).stdout

    def run(
        self, *command: str | Path, code: int = 0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run any command, and return what it printed."""
        return run(*command, cwd=self.folder, env=self.env | variables, code=code)

    def python(self, lines: str, **variables: str) -> str:
        """Run lines of Python in a fresh process, and return what they print."""
        return self.run(self._bin / "python", "-c", lines, **variables).stdout

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command of raysent in a process group of its own; its output goes to `started.txt`."""
        with (self.folder / "started.txt").open("a") as output:
            return subprocess.Popen(
                [str(self._bin / "raysent"), *arguments],
                cwd=self.folder,
                env=self.env | variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
