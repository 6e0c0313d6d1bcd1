"""One run on Ray Train workers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tiny_run import check_weights, tiny_run

from raysent.errors import ArtifactError, DataError, TrainingError
from raysent.training.interruptions import Interruptions
from raysent.training.loop import fit
from raysent.training.outcome import Report, load_reports
from raysent.training.ray_train import train, train_worker, training_outcome


def test_train_reports_an_error_in_the_corpus_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start-up before the one clear line."""
    monkeypatch.setattr(
        "raysent.training.ray_train.ray_session", lambda _: pytest.fail("Ray was started")
    )
    with pytest.raises(DataError, match="nowhere"):
        train(tiny_run(tmp_path, corpus__path=str(tmp_path / "nowhere.txt")), tmp_path / "run")


def test_train_does_not_start_ray_for_a_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is read from the folder."""
    monkeypatch.setattr(
        "raysent.training.ray_train.ray_session", lambda _: pytest.fail("Ray was started")
    )
    outcome = fit(tiny_run(tmp_path), tmp_path / "run")
    assert train(tiny_run(tmp_path), tmp_path / "run") == outcome


def test_training_outcome_raises_the_user_error_of_a_worker(tmp_path: Path) -> None:
    """With the same type and text, and only once."""
    told = {"kind": "ArtifactError", "text": "x: the disk is full"}
    (tmp_path / "mistake.json").write_text(json.dumps(told))
    with pytest.raises(ArtifactError, match=r"^x: the disk is full$"):
        training_outcome(tiny_run(tmp_path), tmp_path)
    with pytest.raises(TrainingError, match="the workers ended before the run did; resume it"):
        training_outcome(tiny_run(tmp_path), tmp_path)


@pytest.mark.parametrize("has_room", [True, False])
def test_worker_says_what_the_disk_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    """In a file where there is room for one, so that Ray does not start it again; else to Ray."""
    ray_train = "raysent.training.ray_train"

    def refuse(*_: object, **__: object) -> None:
        raise ArtifactError("x: the disk is full")

    monkeypatch.setattr(f"{ray_train}.fit", refuse)
    monkeypatch.setattr(f"{ray_train}.worker_notice", lambda: None)
    monkeypatch.setattr("ray.train.torch.get_device", lambda: None)
    if not has_room:
        monkeypatch.setattr(f"{ray_train}.write_json", refuse)
    job: dict[str, Any] = {
        "config": tiny_run(tmp_path).model_dump_json(),
        "folder": str(tmp_path),
        "num_threads": 1,
    }
    job |= {"working_folder": ".", "interruptions": Interruptions(), "should_continue": None}
    with (
        contextlib.nullcontext()
        if has_room
        else pytest.raises(ArtifactError, match="the disk is full")
    ):
        train_worker(job)
    assert (tmp_path / "mistake.json").exists() == has_room


@pytest.mark.parametrize("has_ended", [True, False])
def test_what_fails_after_the_end_of_a_run_is_no_failure_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """Ray may lose an actor that has nothing left to do; before the end of the run it is one line."""
    config, folder = tiny_run(tmp_path), tmp_path / "run"

    def run() -> None:
        if has_ended:
            fit(config, folder)
        raise RuntimeError("The actor is dead.\nits placement group was removed")

    monkeypatch.setattr(
        "raysent.training.ray_train.ray_session", lambda *_, **__: contextlib.nullcontext()
    )
    monkeypatch.setattr("raysent.training.ray_train.resources_per_worker", lambda *_: (1, 0.0))
    monkeypatch.setattr(
        "raysent.training.ray_train.make_trainer", lambda *_, **__: SimpleNamespace(fit=run)
    )
    if has_ended:
        assert train(config, folder).status == "finished"
    else:
        with pytest.raises(
            TrainingError, match="workers failed: its placement group was removed; resume from the"
        ):
            train(config, folder)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")  # Ray's own, of its imports and of its sockets
def test_two_ray_workers_equal_one_process(tmp_path: Path, running_ray: None) -> None:
    """Reports are passed on as they are written, and the weights are those of one process."""
    config = tiny_run(
        tmp_path, training__learning_rate=0.001, training__max_steps=6, training__num_reports=3
    )
    seen: list[Report] = []
    outcome = train(config, tmp_path / "two", num_workers=2, on_report=seen.append)
    alone = fit(config, tmp_path / "one")
    assert dataclasses.replace(outcome, seconds=0, metrics={}) == dataclasses.replace(
        alone, seconds=0, metrics={}
    )
    assert outcome.metrics == pytest.approx(alone.metrics, rel=1e-4)
    assert seen == load_reports(tmp_path / "two")
    check_weights(tmp_path / "one", tmp_path / "two", atol=1e-6)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_killed_ray_worker_resumes_and_equals_the_plain_loop(
    tmp_path: Path, running_ray: None
) -> None:
    """A worker that dies is restarted from the last checkpoint; the weights are those of the plain loop."""
    config = tiny_run(tmp_path, training__epochs=25.0)

    def kill(report: Report) -> None:
        if report.index == 1:
            [worker] = [
                process
                for process in psutil.Process().children(recursive=True)
                if _is_worker(process)
            ]
            worker.kill()

    outcome = train(config, tmp_path / "ray", on_report=kill)
    assert outcome.metrics == fit(config, tmp_path / "plain").metrics
    check_weights(tmp_path / "plain", tmp_path / "ray", atol=0)
    assert not (tmp_path / "ray" / ".ray_train").exists()


def _is_worker(process: psutil.Process) -> bool:
    """Return whether a process is a Ray Train worker."""
    with contextlib.suppress(psutil.Error):
        return "RayTrainWorker" in " ".join(process.cmdline())
    return False
