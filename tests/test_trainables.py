"""Processes in which one trial after the other trains, and what the driver makes of their messages."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError
from ray.train import WorkerGroupError
from ray.tune.error import TuneError
from tiny_run import tiny_run

from raysent.config import parse_yaml
from raysent.cost import Funds
from raysent.errors import ArtifactError
from raysent.sweeps import ray_tune, trainables
from raysent.sweeps.controller import SweepController
from raysent.sweeps.layout import Layout
from raysent.sweeps.space import parse_space
from raysent.sweeps.trainables import ReusedActor, nested_train


@pytest.fixture
def trained(monkeypatch):
    """Return the names of trials that are trained, in turn, by nothing."""
    names: list[str] = []
    ended = {"status": "finished", "done": True}

    def train_trial(config, on_report, notice):
        names.append(config["trial"])
        return {**ended, "trial": config["trial"]}

    monkeypatch.setattr(trainables, "train_trial", train_trial)
    monkeypatch.setattr(trainables, "node_name", lambda: "here")
    monkeypatch.setattr(trainables, "node_notice", lambda: None)
    monkeypatch.setattr(trainables, "resident_bytes", lambda: 1000)
    return names


@pytest.fixture
def actor(trained):
    """Return a process between two trials."""
    actor = ReusedActor({"trial": "0000", "num_threads": 1, "working_folder": "."})
    actor.step()
    return actor


@pytest.mark.parametrize("limit", [None, 1000])
def test_process_within_its_memory_takes_the_next_trial(actor, limit):
    """The next trial trains in the same process."""
    config = {"trial": "0001", "num_threads": 1, "working_folder": ".", "memory_bytes": limit}
    assert actor.reset_config(config)
    assert actor.step()["trial"] == "0001"


def test_process_trains_no_trial_before_its_first_step(actor, trained):
    """Tune may make one for a trial that it then gives to another process, as one that has just become free."""
    given = {"trial": "0001", "num_threads": 1, "working_folder": "."}
    made = ReusedActor(given)
    made.stop()
    actor.reset_config(given)
    assert trained == ["0000"]
    actor.step()
    assert trained == ["0000", "0001"]


def test_process_above_its_memory_fails_at_the_next_step(actor):
    """Tune starts a trial again whose step fails, and counts no failure; one that ends while it is reset is lost."""
    assert actor.reset_config({"trial": "0001", "num_threads": 1, "memory_bytes": 999})
    with pytest.raises(RayActorError, match="holds 1000 bytes; limits.memory is 999") as raised:
        actor.step()
    assert raised.value.preempted


def test_trials_work_in_the_folder_of_the_sweep(actor, monkeypatch, tmp_path):
    """Ray may have been started in another one, as before `os.chdir` in a notebook; paths are relative to the new one."""
    (tmp_path / "now").mkdir()
    config = {
        "trial": "0001",
        "num_threads": 1,
        "working_folder": str(tmp_path / "now"),
        "folder": "run",
        "run": {},
    }
    seen = []
    ended = SimpleNamespace(status="finished", seconds=1.0, message="")
    monkeypatch.setattr(trainables, "open_folder", lambda *_, **__: seen.append(Path.cwd()))
    monkeypatch.setattr(trainables.RunConfig, "model_validate", lambda _: None)
    monkeypatch.setattr(trainables, "_interruptions", lambda _: None)
    monkeypatch.setattr(trainables, "make_trainer", lambda *_, **__: seen.append(Path.cwd()))
    monkeypatch.setattr(trainables, "training_outcome", lambda *_: ended)
    monkeypatch.setattr(trainables.tune, "report", lambda _: None)
    monkeypatch.chdir(tmp_path)
    nested_train(None, num_workers=2, gpus_per_worker=0)(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        trainables, "train_trial", lambda *_, **__: {"status": "finished", "in": Path.cwd()}
    )
    actor.reset_config(config)
    assert {*seen, actor.step()["in"]} == {tmp_path / "now"}


@pytest.mark.parametrize(
    "refused", [ArtifactError("checkpoint: the disk is full"), OSError("no disk"), None]
)
def test_workers_that_a_full_disk_ends_cost_no_trial(monkeypatch, tmp_path, refused):
    """The disk has no room for their error either; Ray has it. Any other end of workers is the trial's failure."""
    sent = []

    def fit():
        raise WorkerGroupError("they failed", {0: refused or RuntimeError("a mistake")})

    monkeypatch.setattr(trainables, "make_trainer", lambda *_, **__: SimpleNamespace(fit=fit))
    monkeypatch.setattr(trainables, "_interruptions", lambda _: None)
    monkeypatch.setattr(trainables.tune, "report", sent.append)
    run = tiny_run(tmp_path).model_dump(mode="json")
    config = {
        "trial": "0000",
        "num_threads": 1,
        "working_folder": ".",
        "folder": str(tmp_path / "0000"),
        "run": run,
    }
    with pytest.raises(type(refused)) if refused else nullcontext():
        nested_train(None, num_workers=1, gpus_per_worker=0)(config)
    assert [set(message) & {"status", "storage_failure"} for message in sent] == [
        {"storage_failure" if refused else "status"}
    ]


SPACE = """
base: {encoder: {type: gru, hidden_size: 8}, objective: {type: context_prediction}}
search: {training.batch_size: {choice: [10, 20, 40]}}
limits: {trials: 3, scheduler: none, time: 5m}
"""
TRACKER = SimpleNamespace(funds=Funds, trial_usd=lambda *_: 0.0, note_share=lambda *_: None)


class Tuner:
    """Calls what it is given in the order in which Tune does; each trial makes two reports if it is not stopped."""

    def __init__(self, _, *, tune_config, run_config):
        self._search, self._scheduler = tune_config.search_alg, tune_config.scheduler
        self._stopper = run_config.stop

    def fit(self):
        """Run the sweep."""
        while not self._stopper.stop_all() and isinstance(
            config := self._search.suggest("0"), dict
        ):
            self._train(config)

    def _train(self, config):
        stopped = []
        actor = SimpleNamespace(stop_trial=SimpleNamespace(remote=lambda: stopped.append(True)))
        trial = SimpleNamespace(config=config, temporary_state=SimpleNamespace(ray_actor=actor))
        for index in (1, 2):
            message = {
                "index": index,
                "num_reports": 2,
                "seconds": 1.0,
                "metrics/context_accuracy": 0.5,
            }
            try:
                assert (
                    stopped or self._scheduler.on_trial_result(None, trial, message) == "CONTINUE"
                )
            except Exception as error:
                raise TuneError("a traceback") from error
        try:
            self._scheduler.on_trial_complete(
                None, trial, {"status": "stopped" if stopped else "finished"}
            )
        except Exception:  # Tune logs it, and starts the trial again until it gives it up
            self._search.on_trial_complete("0", error=True)


def _run_trials(monkeypatch, write, *, past=(), is_over=lambda: False):
    """Train three trials as far as the driver's process is concerned; returns their controller."""
    monkeypatch.setattr(ray_tune.tune, "Tuner", Tuner)
    controller = SweepController(
        parse_space(parse_yaml(SPACE), name="toy"), seed=1, write=write, past=past
    )
    plan = Layout(
        concurrent=1, workers_per_trial=1, cpus_per_worker=1, gpus_per_worker=0.0, is_nested=False
    )
    described = {
        "describe": lambda trial: {"trial": trial.name},
        "is_over": is_over,
        "cost_tracker": TRACKER,
    }
    ray_tune.run_trials(controller, plan, **described)
    return controller


@pytest.mark.parametrize("event", ["report", "ended"])
@pytest.mark.parametrize(
    "error", [ArtifactError("the disk is full"), KeyError("a listener's"), KeyboardInterrupt()]
)
def test_what_the_journal_raises_ends_the_sweep_and_no_trial(monkeypatch, event, error):
    """Tune would take it for a trial's failure, or wrap it in a traceback; nothing is written after it."""
    written = []

    def write(name, **_):
        written.append(name)
        if name == event:
            raise error

    with pytest.raises(type(error)) as raised:
        _run_trials(monkeypatch, write)
    assert raised.value is error
    assert written.count(event) == 1
    assert written[-1] == event


def test_trial_of_an_earlier_session_goes_on_when_time_is_over(monkeypatch):
    """It ends at its next report, with its model; no other trial begins."""
    past = []

    def write(name, **values):
        past.append({"event": name, **values})
        if name == "report":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run_trials(monkeypatch, write)
    controller = _run_trials(monkeypatch, lambda *_, **__: None, past=past, is_over=lambda: True)
    assert [(trial.name, trial.status) for trial in controller.trials.values()] == [
        ("0000", "stopped")
    ]
