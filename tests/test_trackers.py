"""Trackers: the contract of every one that is found, and one that breaks."""

from __future__ import annotations

import importlib
import json
import shutil
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_evaluation

import raysent
from raysent.config import parse_yaml
from raysent.ensembles.result import MeanOverTasks, read_result, write_result
from raysent.errors import ConfigError
from raysent.storage.layout import TENSORBOARD_FOLDER
from raysent.sweeps import read_events, read_sweep
from raysent.sweeps.space import SearchSpace, parse_space
from raysent.sweeps.space.limits import ComponentChoice
from raysent.sweeps.trackers import (
    TRACKERS,
    FollowedTrials,
    TrackingThread,
    check_targets,
    evaluated_event,
    flat_scores,
    track,
)

RUN = Path(__file__).parent / "data" / "version_2" / "finished"
EVENTS = list(read_events(RUN))
SCORES = {"validation": 70.0, "test": 60.0}
EVALUATED = evaluated_event(
    RUN,
    time=1.5e9,
    scores={
        name: {"MR": SCORES, "my task (2)": SCORES}
        for name in ("ensemble", "0001", "0002", "tfidf:chars")
    },
    members=["0001", "0002"],
    best_member="0001",
    method="pool",
    summary="It is better.",
)
SPACE = read_sweep(RUN).space
TEXT = "base: {encoder: {type: gru}, objective: {type: context_prediction}}\ntrackers: %s\n"


def _space(trackers: str) -> SearchSpace:
    return parse_space(parse_yaml(TEXT % trackers, source="s.yaml"), name="toy")


def _is_installed(tracker: str) -> bool:
    return tracker not in ("mlflow", "wandb") or find_spec(tracker) is not None


@pytest.mark.filterwarnings("ignore")  # of the trackers' libraries
@pytest.mark.parametrize("name", list(filter(_is_installed, TRACKERS)))
def test_tracker_takes_every_event_of_a_sweep(name, tmp_path):
    """It neither raises nor changes what it gets, and can be closed in the middle."""
    before = json.dumps(EVENTS)
    for events in ([*EVENTS, EVALUATED], EVENTS[:9]):
        tracker = TRACKERS[name](SPACE, TRACKERS[name].Config(), folder=tmp_path)
        for event in events:
            tracker.on_event(event)
        tracker.close()
    assert json.dumps(EVENTS) == before


def test_tensorboard_has_a_folder_for_each_trial(tmp_path):
    """One file of events for each trial that reported; one for the scores of each member, baseline and ensemble."""
    with TrackingThread(_space("[tensorboard]"), tmp_path, warn=pytest.fail) as tracking:
        for event in [*EVENTS, EVALUATED]:
            tracking(event)
    trials = [f"{number:04d}" for number in range(6)]
    found = sorted(path.parent.name for path in (tmp_path / TENSORBOARD_FOLDER).glob("*/events*"))
    assert found == sorted([*trials, "0001", "0002", "ensemble", "tfidf-chars"])


@pytest.mark.parametrize(
    ("status", "expected"),
    [("finished", "STATUS_SUCCESS"), ("stopped", "STATUS_SUCCESS"), ("nan", "STATUS_FAILURE")],
)
def test_tensorboard_has_parameters_and_the_end_of_a_trial(status, expected, tmp_path):
    """The messages of its tab of parameters; a second file replaces what the first has."""
    plugin = importlib.import_module("tensorboardX.proto.plugin_hparams_pb2").HParamsPluginData
    api = importlib.import_module("tensorboardX.proto.api_pb2")
    tracker = TRACKERS["tensorboard"](SPACE, TRACKERS["tensorboard"].Config(), folder=tmp_path)
    first = [event for event in EVENTS if event.get("trial") == "0000"]
    for event in [*first[:-1], {**first[-1], "status": status}]:
        tracker.on_event(event)
    [path] = (tmp_path / TENSORBOARD_FOLDER / "0000").glob("events*")
    records = list(_records(path))
    found = {
        value.tag.removeprefix("_hparams_/"): plugin.FromString(value.metadata.plugin_data.content)
        for record in records
        for value in record.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    }
    cells = found["session_start_info"].session_start_info.hparams
    assert {name: cell.WhichOneof("kind") for name, cell in cells.items()} == {
        "encoder.bidirectional": "bool_value",
        "training.learning_rate": "number_value",
    }
    assert (
        cells["training.learning_rate"].number_value == first[0]["params"]["training.learning_rate"]
    )
    assert found["session_end_info"].session_end_info.status == getattr(api, expected)
    assert [info.name.tag for info in found["experiment"].experiment.metric_infos] == [SPACE.metric]
    session = importlib.import_module("tensorboardX.proto.event_pb2").SessionLog
    assert [record.step for record in records if record.session_log.status == session.START] == [0]


def _records(path: Path) -> Iterator[Any]:
    """Yield the records of a file of events: a length, its checksum, the record and a checksum."""
    event = importlib.import_module("tensorboardX.proto.event_pb2").Event
    data = path.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        yield event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


class Recording:
    """A tracker of targets: keeps what it receives; `fails` and `blocks` are places where it does."""

    Config, TARGET, made = TRACKERS["tensorboard"].Config, "folder", []

    def __init__(self, space, config, *, folder) -> None:
        self.place, self.events, self.is_closed = config.folder, [], False
        Recording.made.append(self)

    def on_event(self, event: dict) -> None:
        """Keep the event, or fail, or wait."""
        if self.place == "exits":
            raise SystemExit(3)
        if self.place == "fails" and event["event"] == "report":
            raise OSError("no space left")
        if self.place == "blocks":
            time.sleep(60)
        self.events.append(event)
        event["event"] = "changed"

    def close(self) -> None:
        """Note the call."""
        self.is_closed = True


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> type[Recording]:
    """Return the class behind each target."""
    monkeypatch.setattr(Recording, "made", [])
    monkeypatch.setattr(TRACKERS, "find", lambda *_, **__: Recording)
    return Recording


def test_tracking_thread_passes_events_and_drops_a_tracker_that_fails(recording, tmp_path):
    """Each has its own copies, in order, named by a space or not; one line says what failed and how to send the rest."""
    lines = []
    failing = ComponentChoice.model_validate({"type": "x", "folder": "fails"})
    space = SPACE.model_copy(update={"trackers": [failing]})
    folder = tmp_path / "run"
    with TrackingThread(
        space, folder, targets=["x:works", "x:fails"], warn=lines.append
    ) as tracking:
        for event in EVENTS:
            tracking(event)
    bad, good, worse = recording.made
    assert [event["time"] for event in good.events] == [event["time"] for event in EVENTS]
    before = [event["event"] for event in EVENTS].index("report")
    assert [len(one.events) for one in (bad, worse)] == [before, before]
    assert (good.is_closed, bad.is_closed, worse.is_closed) == (True, False, False)
    assert lines == [
        f"{name}: OSError: no space left; the sweep continues; 'raysent track {folder} --to {target}' sends what is "
        "missing"
        for name, target in (("trackers.0: x", "TRACKER:TARGET"), ("--track x:fails", "x:fails"))
    ]


def test_a_tracker_that_exits_or_has_no_target_is_one_line_too(recording, monkeypatch, tmp_path):
    """The others go on; without a target there is no command that sends the rest."""
    lines = []
    with TrackingThread(
        SPACE, tmp_path, targets=["x:exits", "x:works"], warn=lines.append
    ) as tracking:
        monkeypatch.delattr(Recording, "TARGET")
        for event in EVENTS:
            tracking(event)
    assert lines == ["--track x:exits: SystemExit: 3; the sweep continues"]
    assert len(recording.made[1].events) == len(EVENTS)
    assert recording.made[1].is_closed


def test_a_tracker_that_cannot_be_made_is_one_line_before_anything_starts(monkeypatch):
    """Such as one that finds no server; the line names its place in the space."""

    def refused(*_: object, **__: object) -> None:
        raise ConnectionError("no server\nat all")

    monkeypatch.setattr(TRACKERS["tensorboard"], "__init__", refused)
    with pytest.raises(
        ConfigError, match=r"^s.yaml:2: trackers.0: ConnectionError: no server at all$"
    ):
        _space("[tensorboard]")


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a b#é"])
def test_mlflow_writes_into_the_run_folder_whatever_its_name_is(name, tmp_path):
    """An address of SQLAlchemy reads ? and % as signs."""
    pytest.importorskip("mlflow", reason="pip install raysent[mlflow]")
    tracker = TRACKERS["mlflow"](SPACE, TRACKERS["mlflow"].Config(), folder=tmp_path / name)
    address = importlib.import_module("sqlalchemy").make_url(tracker._uri)
    assert address.database == str(tmp_path / name / "mlflow.db")


def test_sweep_refuses_a_wrong_target_before_it_measures(monkeypatch, tmp_path):
    """The speed of the machine takes a minute to measure."""
    monkeypatch.setattr("raysent.pipeline.planning.fit_to_machine", None)
    with pytest.raises(ConfigError, match="track foo:bar: unknown tracker"):
        raysent.sweep("quickstart", run=tmp_path / "run", track=["foo:bar"], progress=False)
    with pytest.raises(ConfigError, match="track foo:bar: unknown tracker"):
        raysent.plan("quickstart", run=tmp_path / "run", track="foo:bar", progress=False)
    monkeypatch.setattr("raysent.integrations.mlflow_runs.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="mlflow needs the package"):
        raysent.plan("quickstart", run=tmp_path / "run", track=["mlflow:x"], progress=False)


def test_tracking_thread_waits_for_no_tracker(recording, tmp_path, monkeypatch):
    """One that blocks delays neither an event nor, for long, the end."""
    monkeypatch.setattr("raysent.sweeps.trackers._CLOSE_S", 0.5)
    lines = []
    with TrackingThread(SPACE, tmp_path, targets=["x:blocks"], warn=lines.append) as tracking:
        for event in EVENTS:
            tracking(event)
    assert [line.partition(";")[0] for line in lines] == ["--track x:blocks: does not keep up"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tensorbord:tb", "did you mean 'tensorboard'"),
        ("tensorboard", "must be a tracker and where it writes"),
    ],
)
def test_targets_refuse_a_wrong_one_before_the_sweep(target, message, tmp_path):
    """In one line that names the option."""
    with pytest.raises(ConfigError, match=f"track {target}: .*{message}"):
        check_targets([target], SPACE, tmp_path)
    with pytest.raises(ConfigError, match=message):
        TrackingThread(SPACE, tmp_path, targets=target, warn=print)


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        ("[tensorbord]", r"^s.yaml:2: trackers.0: unknown tracker; did you mean 'tensorboard'\?$"),
        ("[{type: tensorboard, port: 1}]", r"^s.yaml:2: trackers.0.port: unknown name"),
        ("tensorboard", r"^s.yaml:2: trackers: must be a valid list; given 'tensorboard'$"),
        ("[{project: x}]", r"^s.yaml:2: trackers.0.type: is required and is not given$"),
    ],
)
def test_a_wrong_tracker_is_one_line_before_anything_starts(trackers, message):
    """File, line, the setting and what it should be."""
    with pytest.raises(ConfigError, match=message):
        _space(trackers)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a finished sweep."""
    shutil.copytree(RUN, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def test_followed_trials_of_a_resumed_session_are_read_from_the_journal(run):
    """They are those of the whole journal, wherever the session begins."""
    expected = {trial.name: trial for trial in read_sweep(run).trials}
    lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    # A tracker in a thread may receive an event after later ones were written.
    for first in [
        place for place, event in enumerate(EVENTS) if event["event"] in ("suggested", "report")
    ]:
        (run / "journal.jsonl").write_text("".join(lines[: first + 1 + 3 * (first % 2)]))
        followed = FollowedTrials(run)
        last = {
            trial.name: trial for trial in map(followed.apply, EVENTS[first:]) if trial is not None
        }
        assert last == {name: expected[name] for name in last}
    assert FollowedTrials(run).apply({"event": "session"}) is None


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_a_run_for_each_trial_once(run, tmp_path):
    """With parameters, the history of metrics, and the end, below the sweep's run, which has the ensemble's scores."""
    mlflow = pytest.importorskip("mlflow", reason="pip install raysent[mlflow]")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for _ in range(2):
        track(run, f"mlflow:{uri}", evaluated=EVALUATED)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(f"{SPACE.name}-run")
    runs = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    trials = {trial.name: trial for trial in read_sweep(run).trials}
    sweep, baseline = runs.pop(f"{SPACE.name}-run"), runs.pop("tfidf:chars")
    assert runs.keys() == trials.keys()
    assert (
        sweep.data.metrics["test/MR"]
        == baseline.data.metrics["test/MR"]
        == runs["0001"].data.metrics["test/MR"]
    )
    assert sweep.data.metrics["validation/my task _2_"] == SCORES["validation"]
    for name, trial in trials.items():
        assert runs[name].data.params == {key: str(value) for key, value in trial.params.items()}
        assert runs[name].data.tags["mlflow.parentRunId"] == sweep.info.run_id
        assert runs[name].data.tags["raysent.folder"] == str(run / "trials" / name)
        assert runs[name].info.start_time < runs[name].info.end_time
        assert runs[name].info.status == (
            "FAILED" if trial.status in ("failed", "nan") else "FINISHED"
        )
        history = client.get_metric_history(runs[name].info.run_id, SPACE.metric)
        expected = [(one.index, one.metrics[SPACE.metric]) for one in trial.reports]
        assert [(one.step, one.value) for one in history] == [
            pair for pair in expected if pair[1] is not None
        ]


@pytest.mark.filterwarnings("ignore")
def wandb_records(path: Path) -> Iterator[Any]:
    """Yield what W&B wrote into an offline run."""
    from wandb.proto import wandb_internal_pb2

    # LevelDB's log after a header of 7 bytes: blocks of 32 KiB, records as crc (4), length (2), type (1), data.
    data, place, block, parts = path.read_bytes(), 7, 32768, b""
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@pytest.mark.filterwarnings("ignore")
def test_wandb_has_a_run_for_each_trial(run):
    """Offline, in a folder for each; one for the ensemble and for the baseline, under ids that stay."""
    pytest.importorskip("wandb", reason="pip install raysent[wandb]")

    def steps() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for path in sorted((run / "wandb").glob("offline-run-*/*.wandb")):
            own = found.setdefault(path.stem.removeprefix("run-"), [])
            records = [
                one for one in wandb_records(path) if one.WhichOneof("record_type") == "history"
            ]
            own += [one.history.step.num for one in records]
        return found

    track(run, "wandb:encoders", evaluated=EVALUATED)
    trials = {trial.name: trial for trial in read_sweep(run).trials}
    whole = steps()
    by_name = {run_id.rpartition("-")[2]: values for run_id, values in whole.items()}
    assert len(whole) == len(trials) + 2
    assert {name: by_name[name] for name in trials} == {
        name: [report.index for report in trial.reports] for name, trial in trials.items()
    }
    track(run, "wandb:other")
    assert steps().keys() == whole.keys()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_tracker_without_its_package_names_the_extra(name, run, monkeypatch):
    """Before anything is written."""
    monkeypatch.setattr(f"raysent.integrations.{name}_runs.find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=rf"^{name} needs the package {name}[a-z-]*; install raysent\[{name}\]$"
    ):
        track(run, f"{name}:x")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tensorbord:x", r"^to tensorbord:x: unknown tracker; did you mean 'tensorboard'\?$"),
        (
            "tensorboard",
            r"^to tensorboard: must be a tracker and where it writes; such as tensorboard:DIR$",
        ),
    ],
)
def test_track_refuses_a_wrong_target(run, target, message):
    """In one line."""
    with pytest.raises(ConfigError, match=message):
        track(run, target)


def test_track_says_in_one_line_what_a_tracker_raises(run, recording):
    """And closes it."""
    with pytest.raises(ConfigError, match=r"^to x:fails: OSError: no space left$"):
        track(run, "x:fails")
    assert recording.made[-1].is_closed


def test_scores_that_trackers_get_have_the_mean_of_the_ensemble(run, recording):
    """Not one of their own: correlations have no place in a mean of accuracies."""
    write_evaluation(run, ["0001", "0002"])
    result = read_result(run)
    mean = MeanOverTasks(scores=result.tasks["MR"].scores, difference=result.mean.difference)
    write_result(run, result.model_copy(update={"mean": mean}))
    raysent.track(run, "x:works")
    for name in ("ensemble", "0001", "0002"):
        found = flat_scores(recording.made[0].events[-1]["scores"][name])
        assert found["test/mean"] == found["test/MR"] == result.tasks["MR"].scores[name].test
        assert found["validation/mean"] == found["validation/MR"] != found["validation/TREC"]


def test_scores_that_are_sent_again_are_the_same_event(run, recording):
    """MLflow knows a point again by its time."""
    write_evaluation(run, ["0001", "0002"])
    for _ in range(2):
        raysent.track(run, "x:works")
    first, second = (one.events[-1] for one in recording.made)
    assert first == second
