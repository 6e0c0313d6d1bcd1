"""Safety: files cannot run code or exhaust the memory, and an open dashboard is found."""

from __future__ import annotations

import ast
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysent.config import parse_yaml, read_yaml
from raysent.errors import ConfigError
from raysent.sweeps.ray_tune import Session, _signals_caught
from raysent.training.ray_session import _protect_token

ROOT = Path(__file__).resolve().parent.parent
# Modules and calls that run code from a file, or write where an archive says.
FORBIDDEN_IMPORTS = {
    "pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "loky",
    "shelve",
    "marshal",
    "tarfile",
    "yaml",
}
# What these modules have that runs nothing.
_HARMLESS = {("pickle", "UnpicklingError")}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "torch.load",
    "extractall",
    "unpack_archive",
    "os.system",
    "os.popen",
}


def _forbidden(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every forbidden import and call of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                names = [] if {(module, name) for name in names} <= _HARMLESS else [module]
            yield from (
                (node.lineno, name) for name in names if name.split(".")[0] in FORBIDDEN_IMPORTS
            )
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_CALLS or called.rsplit(".", maxsplit=1)[-1] in (
                "extractall",
                "unpack_archive",
            ):
                yield node.lineno, called
            if any(
                word.arg in ("allow_pickle", "shell") and ast.unparse(word.value) != "False"
                for word in node.keywords
            ):
                yield node.lineno, ast.unparse(node)[:60]


OWN_WORKERS = {
    ("parallel.py", "loky"),
    ("server_json.py", "marshal"),
    ("server_json_process.py", "marshal"),
}


def test_no_module_runs_code_from_files() -> None:
    """Models, checkpoints and journals are safetensors, npz without objects, and JSON.

    Only a function that a process hands to its own workers is pickled, in a temporary folder that is the user's alone;
    and the server hands plain values to processes of its own through pipes that no one else has.
    """
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in sorted((ROOT / "raysent").rglob("*.py"))
        for line, name in _forbidden(ast.parse(path.read_text(encoding="utf-8")))
        if (path.name, name.split(".")[0]) not in OWN_WORKERS
    ]
    assert found == []


@pytest.mark.parametrize(
    "code", ["import pickle", "from pickle import loads", "from pickle import UnpicklingError, loads", "torch.load('a')",
             "torch.load('a', weights_only=False)", "eval('1')", "archive.extractall()",
             "np.load('a', allow_pickle=True)", "subprocess.run('a', shell=True)"],
)  # fmt: skip
def test_forbidden_finds_each_kind(code: str) -> None:
    """Imports, calls and arguments are found."""
    assert list(_forbidden(ast.parse(code)))


def test_yaml_creates_no_objects() -> None:
    """Python tags have no effect, or are refused."""
    assert parse_yaml("a: !!python/object/apply:os.system ['true']\n").values["a"] == ["true"]
    with pytest.raises(ConfigError, match="a: must be text, a number, true, false or null"):
        parse_yaml("a: !!python/name:os.system ''\n")


def test_yaml_is_read_up_to_a_size(tmp_path: Path) -> None:
    """A huge file is refused, and a small one whose anchors expand to a thousand million values."""
    (tmp_path / "big.yaml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(ConfigError, match="must be at most 1,000,000 bytes; is this another file"):
        read_yaml(tmp_path / "big.yaml")
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
    )
    with pytest.raises(
        ConfigError, match="must hold at most 100,000 values; its anchors expand to more"
    ):
        parse_yaml(bomb, source="bomb.yaml")


def test_torch_has_no_known_vulnerability_in_load() -> None:
    """A dependency may call `torch.load`; 2.10 is the first version without the second bypass."""
    assert '"torch>=2.10"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_token_of_ray_is_readable_by_its_owner_alone(tmp_path, monkeypatch):
    """Ray writes it for everyone to read."""
    path = tmp_path / "token"
    path.write_text("secret")
    path.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    _protect_token()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    _protect_token()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_stops_a_sweep_cleanly_and_the_second_at_once(number):
    """A closed terminal is a signal as Ctrl-C is; handlers are as before afterwards."""
    nothing: Any = None
    session, before = Session(nothing, nothing, nothing), signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), _signals_caught(session):
        os.kill(os.getpid(), number)
        assert session.is_interrupted
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
