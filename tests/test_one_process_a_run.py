"""One process works on a run, from the first file that it writes to the last: training, evaluation, answer and report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysent
from raysent.errors import ArtifactError, ConfigError
from raysent.pipeline import planning
from raysent.pipeline import sweeps as pipeline
from raysent.pipeline.results import SweepEvaluation
from raysent.storage import Lease, holding, read_json
from raysent.storage.layout import LOCK_FILE, SWEEP_FILE

DATA = Path(__file__).parent / "data" / "version_2"
HELD = "another process is working on this run; wait for it or stop it$"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a sweep whose training has ended, in which commands run."""
    shutil.copytree(DATA, tmp_path / "v2")
    monkeypatch.chdir(tmp_path / "v2")
    return tmp_path / "v2"


def _resume() -> Any:
    return raysent.resume("finished", accept_versions=True, progress=False)


def _refused(command: Callable[[], Any]) -> None:
    with pytest.raises(ArtifactError, match=HELD):
        command()


def test_a_second_resume_is_refused_while_the_first_evaluates(folder, monkeypatch):
    """And not after it."""
    calls = []

    def evaluate(*_: Any, **__: Any) -> SweepEvaluation:
        calls.append("evaluated")
        _refused(_resume)
        _refused(lambda: Lease(Path("finished")))
        return SweepEvaluation(None, Path("finished/report.html"), "", ())

    monkeypatch.setattr(pipeline, "evaluate_best", evaluate)
    _resume()
    _resume()
    assert calls == ["evaluated"] * 2


def test_the_run_is_free_after_an_evaluation_that_failed(folder, monkeypatch):
    """Whatever ended it."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(pipeline, "evaluate_best", fail)
    with pytest.raises(RuntimeError):
        _resume()
    Lease(Path("finished")).release()


def test_a_second_sweep_into_a_folder_is_refused_before_it_writes(folder, monkeypatch):
    """While the first one prepares, when its folder has no record yet."""
    space = read_json(Path("finished") / SWEEP_FILE)["space"]
    calls = []

    def fit(*_: Any, **__: Any) -> None:
        calls.append(sorted(path.name for path in Path("new").rglob("*")))
        if len(calls) == 1:
            _refused(lambda: raysent.sweep(space, run="new", tasks=[], progress=False))
        raise ConfigError("no settings fit")

    monkeypatch.setattr(planning, "fit_to_machine", fit)
    with pytest.raises(ConfigError, match="no settings fit"):
        raysent.sweep(space, run="new", tasks=[], progress=False)
    assert calls == [[LOCK_FILE]]
    assert not Path("new").exists()


def test_a_folder_that_is_no_run_gets_no_file(folder):
    """Nothing says that anyone works there."""
    Path("empty").mkdir()
    with pytest.raises(ArtifactError, match="not a sweep's folder"):
        raysent.resume("empty", progress=False)
    assert list(Path("empty").iterdir()) == []


def test_a_held_folder_stays_if_anything_is_in_it(tmp_path):
    """Only one with nothing else is removed."""
    with holding(tmp_path / "a"):
        assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / LOCK_FILE]
    with holding(tmp_path / "b"):
        (tmp_path / "b" / "file").touch()
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]
    Lease(tmp_path / "b").release()
