"""Another package adds one component of each kind by entry points: installed, found, listed, used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent / "toy_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that pip has installed the package into."""
    target = tmp_path_factory.mktemp("packages")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        target,
    ]
    ran = subprocess.run([*pip, FOLDER], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return target


def run_checks(installed: Path, *options: str) -> None:
    """Run `checks.py` in a process whose path has the package."""
    paths = [str(FOLDER.parent.parent), str(installed)]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(FOLDER / "checks.py"),
            *options,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_installed_package_adds_components(installed):
    """Each is listed and works."""
    run_checks(installed, "-k", "not sweep")


IMPORTED_FIRST = """
from toy_components import attention, hinge, signs
from raysent.models.codes import CODES
from raysent.models.config import ModelConfig
config = ModelConfig.model_validate({"encoder": {"type": "toy_attention"}, "objective": {"type": "toy_hinge"}})
assert type(config.encoder) is attention.Config, config.encoder
assert type(config.objective) is hinge.Config, config.objective
assert CODES["toy_signs"] is signs
"""


def test_modules_of_the_package_may_be_imported_before_raysent(installed):
    """As its author's own tests do: what they import of raysent does not load them in turn."""
    paths = os.pathsep.join([str(FOLDER.parent.parent), str(installed)])
    command, environment = (
        [sys.executable, "-c", IMPORTED_FIRST],
        {**os.environ, "PYTHONPATH": paths},
    )
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.cluster
def test_installed_package_directs_a_sweep(installed):
    """Sampler, scheduler and tracker, in a sweep on Ray whose workers find the package too."""
    run_checks(installed, "-k", "sweep")
