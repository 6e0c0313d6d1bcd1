"""The public API as a script or a notebook calls it: twice in one process, in threads, and on what it wrote before."""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pandas as pd
import psutil
import pytest
import ray.tune
import torch
from command import CommandLine, write_task
from tiny_run import tiny_run, write_corpus

import raysent
from raysent.models.objectives import OBJECTIVES, ObjectiveConfig, PairBatches
from raysent.pipeline import registries
from raysent.registry import Component
from raysent.reproduction import plan_reproduction, read_paper
from raysent.reproduction.tasks import senteval
from raysent.sweeps import read_events
from raysent.training.loop import fit

pytestmark = [
    pytest.mark.cluster,
    # Ray warns of its own defaults.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return the values of a search space of two trials; its folder holds the task MR too, of 80 rows."""
    folder = tmp_path_factory.mktemp("text")
    write_task(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(senteval, "NUM_ROWS", dict.fromkeys(senteval.NUM_ROWS, 40))
        yield {
            "name": "tiny",
            "base": {
                "corpus": {
                    "path": str(write_corpus(folder)),
                    "validation_fraction": 0.2,
                    "cache_dir": str(folder / "cache"),
                },
                "vocabulary": {"size": 200},
                "encoder": {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}},
                "objective": {"type": "context_prediction"},
                "training": {
                    "batch_size": 24,
                    "learning_rate": 0.01,
                    "epochs": 1.0,
                    "num_reports": 2,
                },
                "validation": {"num_candidates": 20, "num_sentences": 40},
            },
            "search": {"training.learning_rate": {"loguniform": [0.001, 0.01]}},
            "limits": {"trials": 2},
        }


@pytest.fixture(scope="module")
def data(space: dict[str, Any]) -> Path:
    """Return the folder of task files."""
    return Path(space["base"]["corpus"]["path"]).parent / "data"


def test_ray_listens_on_this_machine_alone(running_ray):
    """Its own processes and those of its nodes."""
    found = _listening()
    assert found
    assert found <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def _listening() -> set[str]:
    """Return the addresses on which this process and its children listen: Ray's own processes."""
    found = set()
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            connections = process.net_connections("inet")
            found |= {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    return found


def in_thread(function: Callable[[], Any]) -> Any:
    """Call a function outside the main thread, as a web application or a widget of a notebook does."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    assert results, "the thread raised"
    return results[0]


def process_state() -> dict[str, Any]:
    """Return what a library must leave as it was."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    return {
        "handlers": handlers,
        "folder": Path.cwd(),
        "stdout": sys.stdout,
        "ray": ray.is_initialized(),
        "torch": torch.get_rng_state().tolist(),
    }


@pytest.fixture(scope="module")
def swept(
    space: dict[str, Any], data: Path, running_ray: None, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Return a finished sweep, run outside the main thread, and the events that its listener received."""
    events: list[str] = []
    run, state = tmp_path_factory.mktemp("runs") / "swept", process_state()
    options = {
        "listeners": [lambda event: events.append(event["event"])],
        "track": [f"tensorboard:{run}-tensorboard"],
    }
    sweep = in_thread(
        lambda: raysent.sweep(space, run=run, data=data, tasks=["MR"], progress=False, **options)
    )
    assert process_state() == state
    return sweep, events


def test_sweep_calls_trackers(swept):
    """A folder of TensorBoard for each trial, beside them that of the ensemble."""
    sweep, _ = swept
    names = sorted(trial.name for trial in sweep.recorded.trials)
    folders = Path(f"{sweep.folder}-tensorboard").iterdir()
    found = {folder.name for folder in folders}
    assert {*names, "ensemble"} <= found


@pytest.fixture(scope="module")
def trained(
    space: dict[str, Any], running_ray: None, tmp_path_factory: pytest.TempPathFactory
) -> raysent.SentenceModel:
    """Return a model trained by `raysent.train`."""
    run = tmp_path_factory.mktemp("runs") / "one"
    return raysent.train(
        space, run=run, set={"training.learning_rate": 0.005}, seed=3, progress=False
    )


def test_sweep_in_a_thread_gives_trials_best_ensemble_and_report(swept):
    """What the README promises of a sweep; its listener received every kind of event."""
    sweep, events = swept
    assert (sweep.status, sweep.closed) == ("completed", "")
    assert sweep.recorded.record.command == []  # it is none of this process's command line
    for name in ("best", "7", "-1", "0000-again"):
        with pytest.raises(
            raysent.ArtifactError, match=rf": has no trial '{name}'.*; `trials` lists them"
        ):
            sweep.model(name)
    assert list(sweep.trials.index) == [trial.name for trial in sweep.recorded.ranked]
    assert sweep.trials[sweep.metric].is_monotonic_decreasing
    assert set(sweep.trials["status"]) <= {"finished", "stopped"}
    assert sweep.best.encode(["w1 w2 w3"]).shape == (1, 16)
    assert np.array_equal(
        sweep.best.encode(["w1 w2"]), sweep.model(sweep.recorded.best.name).encode(["w1 w2"])
    )
    assert sweep.ensemble.predict_proba("MR", ["a good film", "a bad film"]).sum(
        axis=1
    ) == pytest.approx([1, 1])
    assert list(sweep.scores["task"].unique()) == ["MR"]
    assert sweep.report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert {"session", "suggested", "started", "report", "ended", "completed"} <= set(events)


def test_sweep_study_has_the_trials_of_the_sweep(swept):
    """The study is rebuilt from the journal."""
    sweep, _ = swept
    assert len(sweep.study().trials) == len(sweep.trials)


def test_write_report_writes_into_the_run_folder(swept):
    """Its result is the path."""
    assert raysent.write_report(swept[0].folder) == swept[0].folder / "report.html"


def test_interrupted_sweep_resumes_in_the_same_process(space, running_ray, tmp_path, capsys):
    """The first Ctrl-C ends a sweep cleanly and raises nothing; progress names the command and method that resume."""
    handlers = process_state()["handlers"]

    def interrupt(event: Any) -> None:
        if event["event"] == "report":
            os.kill(os.getpid(), signal.SIGINT)
            interrupts.append(event["trial"])

    interrupts: list[str] = []
    sweep = raysent.sweep(
        space, run=tmp_path / "run", tasks=[], trials=3, concurrent=1, listeners=[interrupt]
    )
    shown = capsys.readouterr()
    assert sweep.status == "interrupted"
    assert process_state()["handlers"] == handlers
    assert f"raysent resume {tmp_path}/run" in shown.err
    assert "started" not in shown.err
    assert f"trial {interrupts[0]} started" in (tmp_path / "run/log.txt").read_text()
    assert shown.out == ""
    again = raysent.resume(sweep.folder, progress=False)
    assert again.status == "completed"
    assert len(again.trials) == 3
    assert capsys.readouterr() == ("", "")


def test_resume_of_a_finished_sweep_trains_nothing(swept):
    """It is evaluated and reported again; the journal is as it was."""
    journal = swept[0].folder / "journal.jsonl"
    before = journal.read_bytes()
    resumed = in_thread(lambda: raysent.resume(swept[0].folder, progress=False))
    assert resumed.trials.equals(swept[0].trials)
    assert journal.read_bytes() == before


def test_both_backends_give_the_same_numbers(space, swept, running_ray, tmp_path):
    """A trial inside a reused actor and one on Ray Train workers report the same scores for the same seed."""
    raysent.sweep(
        space,
        run=tmp_path / "train",
        set={"limits.backend": "train"},
        trials=1,
        tasks=[],
        progress=False,
    )
    of_actor, of_train = (
        [
            one["metrics"]
            for one in read_events(run)
            if one["event"] == "report" and one["trial"] == "0000"
        ]
        for run in (swept[0].folder, tmp_path / "train")
    )
    assert len(of_train) == 2
    assert of_actor
    for ours, theirs in zip(
        of_actor, of_train, strict=False
    ):  # the other trial may have stopped the actor's
        assert ours == pytest.approx(theirs, rel=1e-6)


def test_train_again_returns_the_same_model(space, trained, running_ray):
    """A second call on the folder of a finished run trains nothing, in a thread too."""
    again = in_thread(
        lambda: raysent.train(
            space, run=trained.source, set={"training.learning_rate": 0.005}, seed=3, progress=False
        )
    )
    assert np.array_equal(again.encode(["w1 w2"]), trained.encode(["w1 w2"]))


def test_evaluate_returns_a_table_with_intervals(trained, data, tmp_path):
    """Models in memory and by name; the second call reads the records of the first."""
    options: dict[str, Any] = {
        "tasks": ["MR"],
        "data": data,
        "output": tmp_path,
        "baselines": False,
        "progress": False,
    }
    scores = raysent.evaluate([trained, "hash:8"], **options)
    assert list(scores["model"]) == ["one", "hash:8"]
    assert (scores["low"] <= scores["test"]).all()
    assert (scores["test"] <= scores["high"]).all()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    pd.testing.assert_frame_equal(raysent.evaluate([trained, "hash:8"], **options), scores)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == times


def test_ensemble_is_saved_and_loaded(trained, data, tmp_path):
    """The ensemble that is returned predicts as the one that is loaded."""
    both = raysent.ensemble(
        [trained, "hash:8"],
        tasks=["MR"],
        data=data,
        method="pool",
        output=tmp_path / "both",
        baselines=False,
        progress=False,
    )
    loaded = raysent.load(tmp_path / "both")
    assert isinstance(loaded, raysent.Ensemble)
    sentences = ["a good film", "a bad film"]
    assert np.array_equal(
        loaded.predict_proba("MR", sentences), both.predict_proba("MR", sentences)
    )
    assert (
        repr(loaded)
        == f"Ensemble('{tmp_path / 'both'}', members: {', '.join(both.result.members)}; tasks: MR)"
    )


def test_export_writes_a_model_that_loads(trained, tmp_path):
    """For sentence-transformers, and as `load` reads it."""
    raysent.export(trained, tmp_path / "exported", to="sentence-transformers")
    loaded = raysent.load(f"st:{tmp_path / 'exported'}")
    assert np.allclose(loaded.encode(["w1 w2"]), trained.encode(["w1 w2"]), atol=1e-5)


def test_plan_trains_nothing(space, tmp_path):
    """It checks the space and returns what is known; the folder is not made."""
    plan = raysent.plan(space, run=tmp_path / "run", tasks=[], progress=False)
    assert plan.space.limits.trials == 2
    assert isinstance(plan.space, raysent.SearchSpace)
    assert plan.values()["num_train"] > 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes", [{"budget": "1usd"}, {"run": "elsewhere"}, {"tasks": []}, {"set": {"seed": 3}}]
)
def test_plan_that_is_swept_takes_no_other_settings(space, tmp_path, changes):
    """A budget beside it would be dropped."""
    planned = raysent.plan(space, run=tmp_path / "run", tasks=[], progress=False)
    with pytest.raises(raysent.ConfigError, match=r"give them to raysent\.plan"):
        raysent.sweep(planned, progress=False, **changes)
    assert not (tmp_path / "run").exists()


def test_sweep_names_an_unknown_argument(space):
    """A misspelt limit is an error with the nearest name, before anything starts."""
    with pytest.raises(
        raysent.ConfigError, match="trails: unknown argument; did you mean 'trials'"
    ):
        raysent.sweep(space, trails=3)


def test_load_returns_each_kind_of_folder(swept, trained, tmp_path, monkeypatch, capsys):
    """Trial, sweep, training, model made of words, code, and a scheme's name."""
    command = CommandLine(monkeypatch, capsys)
    np.save(
        tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(120, 8)).astype("float32")
    )
    (tmp_path / "words.txt").write_text("\n".join(f"w{n} {n} 1.0" for n in range(9)) + "\n")
    for words in (
        ("expand", trained.source, tmp_path / "words.txt", "-o", tmp_path / "expanded"),
        (
            "binarize",
            tmp_path / "vectors.npy",
            "-o",
            tmp_path / "bits.npy",
            "--keep",
            tmp_path / "code",
        ),
    ):
        assert command(*words).code == 0
    models = [swept[0].folder / "trials" / "0000", trained.source]
    raysent.average(tmp_path / "words.txt", output=tmp_path / "average")
    models += [tmp_path / name for name in ("average", "expanded")]
    assert [type(raysent.load(path)) for path in models] == [raysent.SentenceModel] * len(models)
    assert raysent.load(str(swept[0].folder)).tasks == ["MR"]
    assert raysent.Sweep(swept[0].folder).status == "completed"
    assert isinstance(raysent.load(tmp_path / "code"), raysent.VectorCode)
    assert isinstance(raysent.load("hash:8"), raysent.SentenceEncoder)


def test_load_of_a_sweep_without_ensemble(swept, tmp_path, monkeypatch):
    """The sweep is loaded; its ensemble is asked for in vain, in one line that says what to do."""
    folder = tmp_path / "run"
    folder.symlink_to(swept[0].folder)
    unfinished = raysent.Sweep(folder)
    monkeypatch.setattr("raysent.pipeline.results.ENSEMBLE_FILE", "missing.json")
    assert unfinished.best.encode(["w1"]).shape == (1, 16)
    with pytest.raises(
        raysent.ArtifactError, match="has no missing.json; finish the sweep with 'raysent resume"
    ):
        _ = unfinished.ensemble


def test_load_refuses_another_folder(tmp_path):
    """A folder of something else is an error that says what it holds."""
    with pytest.raises(raysent.ArtifactError, match="holds no"):
        raysent.load(tmp_path)


def test_components_list_what_fails_by_kind_and_objectives_with_a_setting_that_must_be_given(
    monkeypatch,
):
    """One entry point's name may stand in several groups; what an objective reads needs no value of its settings."""

    class Config(ObjectiveConfig):
        """Settings of an objective of another package."""

        type: Literal["far"] = "far"
        margin: float

        @property
        def batches(self) -> PairBatches:
            """Read pairs."""
            return PairBatches()

    module = SimpleNamespace(Config=Config, summary="Far from others.")
    component = Component("far", module, "mine 1.0", "mine.far")
    monkeypatch.setattr(OBJECTIVES, "_found", {**OBJECTIVES._components(), "far": component})
    for kind in ("samplers", "trackers"):
        monkeypatch.setattr(registries()[kind], "_broken", {"mine": f"no {kind}"})
    table = raysent.components()
    assert table.attrs["broken"] == {"samplers.mine": "no samplers", "trackers.mine": "no trackers"}
    assert table.set_index("name").summary["far"].startswith("Far from others; reads ")


def test_components_of_one_kind():
    """One row per component; an unknown kind is an error with the nearest."""
    table = raysent.components("encoders")
    assert "gru" in list(table["name"])
    assert set(table["kind"]) == {"encoders"}
    with pytest.raises(raysent.ConfigError, match="did you mean 'encoders'"):
        raysent.components("encoder")


def test_compose_puts_models_side_by_side(tmp_path):
    """The composition loads, and its vector is as long as the members' together."""
    for name in ("a", "b"):
        fit(tiny_run(tmp_path, training__max_steps=1, training__num_reports=1), tmp_path / name)
    made = raysent.compose([tmp_path / "a", tmp_path / "b"], output=tmp_path / "both")
    assert raysent.load(tmp_path / "both").encode(["w1"]).shape == (
        1,
        made.get_sentence_embedding_dimension(),
    )
    with pytest.raises(raysent.ConfigError, match="must be a trained model to be composed"):
        raysent.compose(["hash:4", tmp_path / "a"], output=tmp_path / "other")


def test_whiten_keeps_the_dimensions_that_are_named(tmp_path):
    """The new model has vectors of that size; the old one is unchanged."""
    fit(tiny_run(tmp_path, training__max_steps=1, training__num_reports=1), tmp_path / "run")
    found = raysent.whiten(
        tmp_path / "run", dimension=3, num_sentences=100, output=tmp_path / "new", progress=False
    )
    assert found.dimension == 3
    assert raysent.load(tmp_path / "new").encode(["w1"]).shape == (1, 3)
    assert raysent.load(tmp_path / "run").encode(["w1"]).shape == (1, 16)


def test_reproduce_skips_what_it_has_no_data_for(tmp_path):
    """Every row has its reason, and nothing is trained."""
    found = raysent.reproduce(
        "cse", tables=["1"], data=tmp_path, output=tmp_path / "out", progress=False
    )
    assert set(found.tables[0].skipped) == set(read_paper("cse").tables["1"].rows)
    assert plan_reproduction("cse", tables=["1"], data=tmp_path)[0].missing


def test_doctor_counts_what_it_read(swept):
    """A sound sweep has no problems, and spent what it said."""
    found = raysent.doctor(swept[0].folder)
    assert found.problems == ()
    assert found.facts["num_events"] == len(list(read_events(swept[0].folder)))
    assert found.facts["spent_usd"] == swept[0].spent_usd


def test_distill_of_a_sweep_in_memory(swept, tmp_path, monkeypatch):
    """The sweep's ensemble is the teacher; text and words are those of its members."""
    monkeypatch.setattr(
        "raysent.pipeline.training.train_run", lambda config, folder, **options: fit(config, folder)
    )
    changes = {"training.batch_size": 24, "training.num_reports": 2}
    student = {"type": "bag", "embedding": {"dim": 6}}
    made = raysent.distill(
        swept[0], into=student, set=changes, output=tmp_path / "student", progress=False
    )
    assert made.run.outcome.status == "finished"
    assert made.model.vocabulary.words == swept[0].best.vocabulary.words


def test_track_passes_every_event_on(swept, tmp_path):
    """TensorBoard has a folder for each trial that reported."""
    assert raysent.track(swept[0].folder, f"tensorboard:{tmp_path}") == len(
        list(read_events(swept[0].folder))
    )
    assert {path.parent.name for path in tmp_path.glob("*/events*")} >= set(swept[0].trials.index)


def test_a_corpus_is_encoded_into_a_folder_that_is_searched(tmp_path):
    """Each file has its Parquet file, and a search finds its rows."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("A sentence.\nAnother one.\n")
    done = raysent.encode_corpus(
        "hash:8", str(tmp_path / "*.txt"), tmp_path / "vectors", progress=False
    )
    assert (done.num_files, done.num_rows, done.width) == (2, 4, 8)
    pytest.importorskip("faiss")
    assert [hit.row for hit in raysent.search(tmp_path / "vectors", "Another one.", k=2)[0]] == [
        1,
        1,
    ]


def test_a_block_computes_on_the_cpu():
    """On a machine with GPUs too."""
    with raysent.on_device("cpu"):
        assert raysent.load("hash:8").encode(["one"]).shape == (1, 8)


def test_public_names_have_docstrings_and_types():
    """Every public function documents and annotates each argument."""
    for name in raysent.__all__:
        public = getattr(raysent, name)
        if name.startswith("__"):
            continue
        assert inspect.getdoc(public), name
        if inspect.isfunction(public):
            parameters = inspect.signature(public).parameters.values()
            assert [
                one.name for one in parameters if one.annotation is inspect.Parameter.empty
            ] == [], name
            listed = inspect.getdoc(public) or ""
            assert [one.name for one in parameters if f"\n    {one.name}: " not in listed] == [], (
                name
            )


def test_every_public_function_is_called_here_or_by_a_command():
    """A function that is added to the API is added to this file, or is what a command calls, which has tests."""
    files = [
        Path(__file__),
        Path(__file__).with_name("test_cli.py"),
        Path(__file__).with_name("test_launch_plan.py"),
        *(Path(raysent.__file__).parent / "cli").glob("*.py"),
        *Path(raysent.__file__).parent.rglob("commands.py"),
    ]
    nodes = [
        node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    ]
    called = {
        node.func.attr
        for node in nodes
        if isinstance(node, ast.Call) and hasattr(node.func, "attr")
    }
    functions = {name for name in raysent.__all__ if inspect.isfunction(getattr(raysent, name))}
    assert sorted(functions - called) == []
