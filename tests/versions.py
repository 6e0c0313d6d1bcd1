"""Tests with both ends of the ranges of versions that pyproject.toml allows; `make versions` runs it.

A list of dependencies is installed twice beside .venv, with its lowest and with its newest versions, and put before the
environment's own packages; what the list's libraries do for raysent is then tested. torch is left out: it stays that of
.venv, as its builds are of several gigabytes.

    python tests/versions.py [LIST …]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "versions"
CORE = "dependencies"
# As uv calls them.
ENDS = ("lowest-direct", "highest")
# What .venv keeps beside the libraries of an extra: these are tried with the core, but for torch.
_COMPUTES = ("torch", "numpy", "scipy", "scikit-learn")

# List of pyproject.toml -> the tests of what its libraries do.
TESTS: dict[str, tuple[str, ...]] = {
    CORE: (
        *("test_config", "test_search_space", "test_cli", "test_screen", "test_printing"),
        *(
            "test_corpus",
            "test_vocabulary",
            "test_languages",
            "test_delimited",
            "test_tables_in_memory",
        ),
        *(
            "test_table_output",
            "test_storage",
            "test_object_store",
            "test_checkpoint",
            "test_model_files",
        ),
        *(
            "test_memory",
            "test_parallel",
            "test_probes",
            "test_ensemble_methods",
            "test_predictions",
        ),
        *("test_samplers", "test_schedulers", "test_report", "test_names"),
        *("test_ray_folder", "test_preemption", "test_exit_codes", "test_ray_train"),
    ),
    "markup": ("test_corpus",),
    "cluster": ("test_cluster_file", "test_admission", "test_cluster"),
    "sentence-transformers": ("test_exports",),
    "pretrained": ("test_backbones", "test_pretrained", "test_exports"),
    "static": ("test_static",),
    "onnx": ("test_exports",),
    "search": ("test_nearest", "test_retrieval", "test_search"),
    "serve": ("test_server", "test_server_limits"),
    "mteb": ("test_mteb",),
    "mlflow": ("test_trackers",),
    "wandb": ("test_trackers",),
}
# Libraries of other ages warn of what they will change, which fails only the tests with .venv's versions, and these.
WARNINGS: dict[str, tuple[str, ...]] = {
    "cluster": (),
    "pretrained": ("ignore:`torch.jit.script_method`",),
}
# Lists and packages whose ranges are not tried, and why.
LEFT_OUT = {
    "torch": "it stays that of .venv, as a build has several gigabytes",
    "triton": "it belongs to torch's builds for CUDA",
    "bench": "the benchmarks name the versions that they ran with",
    "dev": "the tests run with constraints.txt",
    "docs": "the site is built with constraints.txt",
    "mutation": "the mutants run with constraints.txt",
}


def lists() -> dict[str, list[str]]:
    """Return the requirements of the core and of each extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {CORE: project["dependencies"], **project["optional-dependencies"]}


def kept(name: str) -> tuple[str, ...]:
    """Return the packages that stay those of .venv while a list is tried."""
    return ("torch",) if name == CORE else _COMPUTES


def install(name: str, end: str) -> Path:
    """Install a list of requirements at one end of their ranges, and return the folder.

    Only wheels are taken: a version that would have to be compiled is none that users get.
    """
    folder = FOLDER / f"{name}-{end}"
    folder.mkdir(parents=True, exist_ok=True)
    overrides = folder.with_suffix(".txt")
    overrides.write_text("".join(f"{package}; sys_platform == 'never'\n" for package in kept(name)))
    command = [
        *(str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--upgrade"),
        *(
            "--python",
            sys.executable,
            "--target",
            str(folder),
            "--resolution",
            end,
            "--only-binary",
            ":all:",
        ),
        *("--override", str(overrides), *lists()[name]),
    ]
    subprocess.run(command, check=True)
    return folder


def run_tests(name: str, folder: Path) -> int:
    """Run the tests of a list with what a folder holds, and return pytest's exit code."""
    files = [f"tests/{test}.py" for test in TESTS[name]]
    options = [option for warning in WARNINGS.get(name, ("default",)) for option in ("-W", warning)]
    if name not in (CORE, "cluster"):  # what these do for sweeps on Ray is the same
        options += ["-m", "not cluster"]
    command = [sys.executable, "-m", "pytest", "--quiet", *options, *files]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main(names: Sequence[str], tests: Mapping[str, Sequence[str]] = TESTS) -> int:
    """Try both ends of the lists that are named, by default of all, and return an exit code."""
    unknown = [name for name in names if name not in tests]
    if unknown:
        print(f"{unknown[0]}: no such list; known: {', '.join(tests)}", file=sys.stderr)
        return 2
    for package, reason in LEFT_OUT.items():
        print(f"left out: {package}, as {reason}", flush=True)
    failed = []
    for name in names or tests:
        for end in ENDS:
            print(f"\n{name}, {end}: {', '.join(lists()[name])}", flush=True)
            if run_tests(name, install(name, end)) != 0:
                failed.append(f"{name}, {end}")
    print(f"failed: {'; '.join(failed)}" if failed else "both ends of every range but torch's pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
