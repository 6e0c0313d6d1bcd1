"""The command line: help, versions, one JSON object, tables, files and exit codes; nothing here starts Ray."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial, wraps
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import typer
from command import SPACE, CommandLine, stand_in
from rich.console import Console
from tiny_run import tiny_run

import raysent
from raysent import live
from raysent.cli import main
from raysent.cli.evaluate import evaluate
from raysent.cli.sweep import sweep
from raysent.config import parse_yaml
from raysent.errors import ConfigError
from raysent.evaluation.members import expand
from raysent.evaluation.records import Score
from raysent.pipeline.sweeps import _where
from raysent.reproduction import commands as reproduction_commands
from raysent.screen import run_log
from raysent.storage import read_json, write_json
from raysent.sweeps import trial_folder
from raysent.sweeps.space import parse_space
from raysent.training.checkpoint import Heartbeat, LiveProgress, Progress
from raysent.training.loop import fit
from raysent.training.outcome import Report
from raysent.training.run import RunConfig, load_run

COMMANDS = [
    "sweep",
    "resume",
    "attach",
    "stop",
    "train",
    "evaluate",
    "ensemble",
    "report",
    "encode",
    "expand",
    "retrain",
    "doctor",
    "encode-corpus",
    "cluster up",
    "schema",
]


@pytest.fixture
def raysent_(monkeypatch, capsys) -> CommandLine:
    """Types a command line in this process."""
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder to stand in, with a search space, its text, and a task of forty rows a class."""
    return stand_in(tmp_path, monkeypatch)


def _train_here(config: RunConfig, folder: Path, **_: object):
    """Train without Ray, in place of `raysent.training.ray_train.train`."""
    return fit(config, folder)


# -- help, version ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_describes_every_command_and_option(raysent_, command):
    """Each command says what it does, and every option of it has a text."""
    ran = raysent_(*command.split(), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"Usage: raysent {command}".rstrip() in ran.out
    node = typer.main.get_command(raysent.cli.app.app)
    for name in command.split():
        node = node.commands[name]
    assert node.help
    for parameter in node.params:
        assert parameter.help, parameter.name


@pytest.mark.parametrize("command", ["", "cluster"])
def test_command_without_arguments_shows_its_help(raysent_, command):
    """Who types the bare name is told what there is."""
    ran = raysent_(*command.split())
    assert (ran.code, ran.err) == (0, "")
    assert ("Start here" if not command else "Commands") in ran.out


def test_version_is_the_package_s(raysent_):
    """--version prints name and number."""
    ran = raysent_("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"raysent {raysent.__version__}\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP is that of torch for Linux")
@pytest.mark.parametrize(
    ("code", "given", "spins"),
    [
        ("import raysent, torch", {}, "1000"),
        ("import raysent.cli, torch", {}, "1000"),
        ("import raysent, sklearn.svm", {}, "1000"),
        ("import raysent, torch", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("import raysent, torch", {"OMP_WAIT_POLICY": "PASSIVE"}, "0"),
    ],
)
def test_threads_spin_briefly_unless_the_user_has_chosen(code, given, spins):
    """As OpenMP itself reports what it has read; spinning for long stalls training on a machine that is not idle."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    environment = {**kept, **given, "OMP_DISPLAY_ENV": "VERBOSE"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{spins}'" in ran.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["sweep", "--help"], ["--version"], ["nonsense"]]
)
def test_help_imports_neither_torch_nor_ray(arguments):
    """Help, the version and a mistyped command come at once."""
    code = (
        "import sys\nfrom raysent.cli import main\n"
        f"sys.argv = ['raysent', *{arguments!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'ray', 'optuna', 'sklearn', 'numpy'} & sys.modules.keys()), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.splitlines()[-1] == "[]"


# -- search spaces ------------------------------------------------------------------------------------------------


def test_doctor_says_what_a_space_searches(raysent_, place):
    """One line, or one object."""
    ran = raysent_("doctor", "space.yaml")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[0] == "space.yaml: ok, searches 2 names in 4 trials"
    assert ran.out.splitlines()[-1] == "  sweep      raysent sweep space.yaml"
    assert json.loads(raysent_("doctor", "quickstart", "--json").out)["problems"] == []


def test_schema_is_one_json_object_that_knows_the_models(raysent_):
    """An editor can complete encoders and training from it."""
    ran = raysent_("schema")
    schema = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert {"base", "search", "limits", "evaluation"} <= schema["properties"].keys()
    assert "encoder" in schema["properties"]["base"]["properties"]


# -- sweep --dry-run ----------------------------------------------------------------------------------------------


def test_sweep_dry_run_says_what_would_be_done_and_makes_no_run(raysent_, place):
    """Trials, corpus, tasks and domains; the run folder is not made."""
    ran = raysent_(
        "sweep",
        "space.yaml",
        "--dry-run",
        "--run",
        "out",
        "--tasks",
        "docs-neighbours",
        "--time",
        "30m",
    )
    assert (ran.code, ran.err) == (0, "")
    for text in (
        "4 trials, at most 30m",
        "into out",
        "text.txt: 270 sentences",
        "tasks: docs-neighbours",
        "false, true",
    ):
        assert text in ran.out
    assert not (place / "out").exists()


def test_sweep_dry_run_json_is_one_object(raysent_, place):
    """Options have taken their places in it."""
    ran = raysent_(
        "sweep",
        "space.yaml",
        "--dry-run",
        "--json",
        "--trials",
        "1",
        "--set",
        "training.batch_size=30",
    )
    plan = json.loads(ran.out)
    assert (ran.code, ran.err, plan["trials"], plan["corpus"]) == (0, "", 1, "text.txt")
    assert list(plan["searched"]) == ["encoder.bidirectional"]


# -- train --------------------------------------------------------------------------------------------------------


def test_train_json_is_one_object_and_leaves_a_model_and_a_page(raysent_, place, monkeypatch):
    """The base run is trained into the folder named."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    ran = raysent_(
        "train",
        "space.yaml",
        "--run",
        "out",
        "--json",
        "--seed",
        "3",
        "--set",
        "training.max_steps=2",
    )
    said = json.loads(ran.out)
    assert (ran.code, ran.err, said["status"], said["step"]) == (0, "", "finished", 2)
    assert json.loads((place / "out" / "run.json").read_text())["config"]["seed"] == 3
    assert (place / "out" / "report.html").is_file()
    assert raysent.load("out").encode(["w1 w2"]).shape == (1, 16)


def test_train_whose_loss_is_not_finite_exits_5(raysent_, place, monkeypatch):
    """A run that broke is told, and is not called done."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    text = SPACE.replace("type: gru, hidden_size: 8", "type: bag").replace(
        "encoder.bidirectional: {choice: [false, true]}", ""
    )
    (place / "bag.yaml").write_text(text)
    ran = raysent_("train", "bag.yaml", "--run", "out", "--set", "training.learning_rate=1e30")
    assert ran.code == 5
    assert "no longer finite" in ran.err
    assert ran.out.startswith("nan: out")


def test_train_again_says_that_nothing_is_left_and_refuses_another_run(
    raysent_, place, monkeypatch
):
    """The same run is done; another one needs a folder of its own."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    raysent_("train", "space.yaml", "--run", "out")
    again = raysent_("train", "space.yaml", "--run", "out")
    assert (again.code, again.out) == (0, "finished: out  report: out/report.html\n")
    assert again.err.splitlines()[1:] == ["the run is finished; nothing is trained again"]
    other = raysent_("train", "space.yaml", "--run", "out", "--seed", "3")
    assert (other.code, other.err) == (
        2,
        "error: out: holds a run with another configuration; name another run folder\n",
    )


@pytest.mark.parametrize("name", ["vocabulary.txt", "model.json", "model.safetensors"])
@pytest.mark.parametrize("is_removed", [False, True])
def test_train_of_a_finished_run_whose_model_is_damaged_is_refused(
    raysent_, place, monkeypatch, name, is_removed
):
    """One line names the file and how to make it again; nothing is changed."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    arguments = ("train", "space.yaml", "--set", "training.max_steps=2", "--run")
    raysent_(*arguments, "out")
    path = place / "out" / name
    if is_removed:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    before = {file: file.read_bytes() for file in (place / "out").rglob("*") if file.is_file()}
    for quiet in ([], ["--json"]):
        ran = raysent_(*arguments, "out", *quiet)
        assert (ran.code, ran.out) == (2, "")
        line = ran.err.splitlines()[-1]
        assert line.startswith(f"error: out: a finished run must have its model: out/{name}: ")
        assert line.endswith("; the same command with another run folder makes it again")
        assert "is finished; nothing" not in ran.err
    assert before == {
        file: file.read_bytes() for file in (place / "out").rglob("*") if file.is_file()
    }


@pytest.mark.parametrize("damaged", [None, b"", b'{"index": 1}\n', b"\0" * 40])
def test_train_of_a_finished_run_whose_reports_are_damaged_is_refused(
    raysent_, place, monkeypatch, damaged
):
    """Removed, emptied, of another run, and zeros: one line, and nothing is changed."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    arguments = ("train", "space.yaml", "--set", "training.max_steps=2", "--run", "out")
    raysent_(*arguments)
    path = place / "out" / "reports.jsonl"
    path.unlink()
    if damaged is not None:
        path.write_bytes(damaged)
    before = {file: file.read_bytes() for file in (place / "out").rglob("*") if file.is_file()}
    ran = raysent_(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1] == (
        "error: out/reports.jsonl: changed since the run ended; restore it; the same command with another run folder "
        "makes it again"
    )
    assert before == {
        file: file.read_bytes() for file in (place / "out").rglob("*") if file.is_file()
    }


def test_train_that_is_interrupted_says_how_to_go_on(raysent_, place, monkeypatch):
    """A run's folder has a date in its name where none was given."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", Mock(side_effect=KeyboardInterrupt))
    ran = raysent_("train", "space.yaml", "--run", "my runs/out")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.splitlines()[-1] == (
        "interrupted; the same command with --run 'my runs/out' continues from its last checkpoint"
    )


@pytest.fixture
def trained(raysent_, place, monkeypatch) -> CommandLine:
    """A command line beside the folder `out` of a training."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    raysent_("train", "space.yaml", "--run", "out", "--set", "training.max_steps=4")
    return raysent_


def test_train_continues_a_trial_from_its_weights_on_other_text(trained, place):
    """Its words and weights are the start, other words are unknown, other epochs lift the limit on steps."""
    (place / "more.txt").write_text((place / "text.txt").read_text().replace("w1 ", "new "))
    ran = trained("retrain", "out", "--epochs", "2", "--corpus", "more.txt", "--run", "more")
    config = load_run(place / "more")
    assert (config.initial, config.seed, config.training.epochs) == (str(place / "out"), 1, 2.0)
    assert config.training.max_steps is None
    assert "keeps the 42 words of" in ran.err
    assert re.search(
        r"; \d\.\d\d% of this text are other words, which are read as unknown\n", ran.err
    )
    assert re.search(
        r"context_accuracy \S+; the trial had \S+ on another validation set\n", ran.out
    )
    before, after = (raysent.load(name) for name in ("out", "more"))
    assert before.vocabulary.words == after.vocabulary.words
    trained(
        "retrain",
        "out",
        "--run",
        "still",
        "--set",
        "training.learning_rate=1e-9",
        "--epochs",
        "0.1",
    )
    np.testing.assert_allclose(
        before.encode(["w1 w2"]), raysent.load("still").encode(["w1 w2"]), atol=1e-5
    )


def test_train_from_scratch_repeats_a_trial_to_the_last_bit(trained, place):
    """Without changes the configuration and the seed are the trial's own."""
    ran = trained("retrain", "out", "--set", "from_scratch=true", "--run", "same")
    assert load_run(place / "same") == load_run(place / "out")
    assert np.array_equal(
        raysent.load("out").encode(["w1 w2"]), raysent.load("same").encode(["w1 w2"])
    )
    [score] = re.findall(r"context_accuracy (\S+); the trial had (\S+)\n", ran.out)
    assert score[0] == score[1]


def test_train_with_several_seeds_gives_each_a_folder(trained, place, monkeypatch):
    """They are evaluated as one name, and the API returns them all; one session of Ray has all of a call."""
    sessions: list[str | None] = []
    monkeypatch.setattr(
        "raysent.pipeline.training.ray_session",
        lambda address: sessions.append(address) or contextlib.nullcontext(),
    )
    ran = trained("retrain", "out", "--set", "seeds=2", "--run", "both", "--json")
    assert [one["run"] for one in json.loads(ran.out)["runs"]] == ["both/seed-1", "both/seed-2"]
    assert [member.name for member in expand(["both"])] == ["seed-1", "seed-2"]
    again = raysent.retrain(raysent.load("out"), seeds=2, run="both", progress=False)
    assert [model.source for model in again] == ["both/seed-1", "both/seed-2"]
    table = trained(
        "train",
        "space.yaml",
        "--set",
        "seeds=2",
        "--seed",
        "5",
        "--run",
        "spaces",
        "--set",
        "training.max_steps=2",
    )
    assert re.search(r"context_accuracy \S+ ± \S+ over 2 seeds\n", table.out)
    assert load_run(place / "spaces" / "seed-6").seed == 6
    assert sessions == [None] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["nowhere/0001"],
            "nowhere/0001: no such folder; name the folder of a training or a trial",
        ),
        (["./data"], "data: must be a training; given a folder without one; name"),
        (["sweep"], "sweep: is a sweep; name one of its trials, such as sweep/trials/0000"),
        (
            ["code"],
            "code: must be a training; given a code, which has no training of its own; name",
        ),
        (
            ["words"],
            "words: must be a training; given a model without a record of a training, such as",
        ),
        (["open"], "open: has not ended; resume its sweep or training first"),
        (["bad"], "bad: ended without a model (it broke); name"),
        (
            ["out", "--set", "encoder.hidden_size=9"],
            "--set encoder.hidden_size=9: must be as in out, whose weights",
        ),
        (
            ["out", "--set", "training.batch=9"],
            "--set training.batch=9: unknown name; did you mean 'batch_size'?",
        ),
        (["out", "--corpus", "no.txt"], "corpus.path: no.txt: no such file"),
        (
            ["out", "--run", "out"],
            "out: holds a run with another configuration; name another run folder",
        ),
    ],
)
def test_train_refuses_what_it_cannot_train_again(trained, place, arguments, message):
    """One line each, exit code 2, nothing is started."""
    for name, file in (("sweep", "sweep.json"), ("code", "code.json"), ("words", "model.json")):
        (place / name).mkdir()
        (place / name / file).write_text("{}")
    for name in ("open", "bad"):
        (place / name).mkdir()
        shutil.copy(place / "out" / "run.json", place / name / "run.json")
    shutil.copy(place / "out" / "reports.jsonl", place / "bad" / "reports.jsonl")
    failed = {**read_json(place / "out" / "outcome.json"), "status": "nan", "message": "it broke"}
    write_json(place / "bad" / "outcome.json", failed, sealed=True)
    ran = trained("retrain", *arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"error: {message}")


# -- evaluate, ensemble, report -----------------------------------------------------------------------------------


def test_evaluate_json_holds_one_result_per_model_and_task(raysent_, place):
    """Exactly one object, with the names that are promised."""
    ran = raysent_(
        "evaluate", "hash:16", "hash:8", "--data", "data", "--set", "baselines=false", "--json"
    )
    results = json.loads(ran.out)["results"]
    assert (ran.code, ran.err) == (0, "")
    assert [(result["model"], result["task"]) for result in results] == [
        ("hash:16", "MR"),
        ("hash:8", "MR"),
    ]
    assert {"model", "task", "protocol", "validation", "test"} <= results[0].keys()
    assert all(50 < result["test"] <= 100 for result in results)
    assert (place / "runs" / "evaluated" / "evaluation" / "hash%3A16" / "MR.json").is_file()


def test_evaluate_prints_a_table_and_names_what_is_absent(raysent_, place):
    """A row a model, baselines too; the tasks whose files are not there are named on standard error."""
    ran = raysent_("evaluate", "hash:16", "--data", "data")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == [
        "test,",
        "hash:16",
        "tfidf",
        "tfidf:chars",
    ]
    assert (
        "not in data: CR, SUBJ, MPQA, SST-2, TREC, SST-5, MRPC, SICK-E, SICK-R, STS-B, STS12"
        in ran.err
    )


def test_evaluate_refuses_numbers_of_labels_before_it_evaluates(raysent_, place):
    """What would be refused at the end costs no evaluation."""
    ran = raysent_("evaluate", "hash:16", "--data", "data", "--labels", "32,x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: --labels x: must be a number of at least 8, or all\n"
    assert not (place / "runs").exists()


def test_ensemble_json_is_one_object_and_the_ensemble_encodes(raysent_, place):
    """It has a folder of its own, which `raysent.load` takes; the model's folder stays the model's."""
    fit(tiny_run(place), place / "model")
    ran = raysent_(
        "ensemble",
        "model",
        "hash:8",
        "--data",
        "data",
        "--json",
        "--set",
        "top=2",
        "--set",
        "baselines=false",
    )
    said = json.loads(ran.out)
    assert (ran.code, ran.err, sorted(said["members"])) == (0, "", ["hash:8", "model"])
    (path,) = (place / "runs").glob("ensemble-*/ensemble.json")
    assert said["path"] == str(path.parent.relative_to(place))
    assert raysent.load(path.parent).tasks == ["MR"]
    assert not (place / "model/ensemble.json").exists()
    assert {result["model"] for result in said["results"]} == {
        "hash:8",
        "model",
        "answer",
        "best",
        "uniform",
        "ensemble",
    }


def test_report_of_a_training_says_where_it_is(raysent_, place):
    """One line on standard output, which a script can use."""
    fit(tiny_run(place), place / "model")
    ran = raysent_("report", "model")
    assert (ran.code, ran.out, ran.err) == (0, "model/report.html\n", "")


# -- encode -------------------------------------------------------------------------------------------------------


def test_encode_reads_a_file_or_standard_input_alike(raysent_, place):
    """A row a line, empty lines too; standard output stays empty."""
    text = "A cat sat .\n\nA dog ran .\r\n"
    (place / "in.txt").write_bytes(text.encode())
    ran = raysent_("encode", "hash:16", "in.txt", "-o", "a.npy")
    assert (ran.code, ran.out, ran.err) == (0, "", "a.npy: 3 sentences, 16 dimensions\n")
    assert raysent_("encode", "hash:16", "-o", "b.npy", stdin=text.encode()).code == 0
    vectors = np.load("a.npy")
    np.testing.assert_array_equal(
        vectors, raysent.load("hash:16").encode(["A cat sat .", "", "A dog ran ."])
    )
    np.testing.assert_array_equal(vectors, np.load("b.npy"))


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl", "in.parquet"])
def test_encode_reads_a_column_and_writes_what_the_name_ends_in(raysent_, place, name):
    """A row a vector, empty text too; .npz and .parquet have the values of .npy, and .parquet the texts."""
    texts = ["A cat sat.", "", 'She said, "No".']
    frame = pd.DataFrame({"id": [1, 2, 3], "body": texts})
    if name == "in.jsonl":
        frame.to_json(name, orient="records", lines=True)
    else:
        writers = {
            ".csv": frame.to_csv,
            ".tsv": partial(frame.to_csv, sep="\t"),
            ".parquet": frame.to_parquet,
        }
        writers[Path(name).suffix](name, index=False)
    for output in ("a.npy", "a.npz", "a.parquet"):
        ran = raysent_("encode", "hash:16", name, "--column", "body", "-o", output)
        assert (ran.code, ran.out, ran.err) == (0, "", f"{output}: 3 sentences, 16 dimensions\n")
    expected = raysent.load("hash:16").encode(texts)
    written = pd.read_parquet("a.parquet")
    np.testing.assert_array_equal(np.load("a.npy"), expected)
    np.testing.assert_array_equal(np.load("a.npz")["vectors"], expected)
    np.testing.assert_array_equal(np.stack(written["vector"]), expected)
    assert written["text"].tolist() == texts


def test_encode_reports_a_column_found_by_name(raysent_, place):
    """What was not asked for is reported."""
    Path("in.csv").write_text("id,sentence\n1,A cat sat.\n")
    ran = raysent_("encode", "hash:16", "in.csv", "-o", "a")
    assert (ran.code, ran.err) == (
        0,
        "in.csv: text = 'sentence' (found by name)\na: 1 sentences, 16 dimensions\n",
    )


def test_encode_reads_a_table_without_a_header(raysent_, place):
    """The only column is the text; of several one is named by its number from 0."""
    Path("in.csv").write_text("A cat sat.\nA dog.\n")
    assert (
        raysent_("encode", "hash:16", "in.csv", "-o", "a.parquet", "--set", "header=false").code
        == 0
    )
    Path("in.tsv").write_text("1\tA cat sat.\n2\tA dog.\n")
    assert (
        raysent_(
            "encode",
            "hash:16",
            "in.tsv",
            "-o",
            "b.parquet",
            "--set",
            "header=false",
            "--column",
            "1",
        ).code
        == 0
    )
    for name in ("a.parquet", "b.parquet"):
        assert pd.read_parquet(name)["text"].tolist() == ["A cat sat.", "A dog."]


def test_encode_reads_the_sentences_of_markdown(raysent_, place):
    """Each sentence is a row, and .parquet shows which."""
    Path("in.md").write_text("# A heading\n\nOne is here. Two is there.\n")
    assert raysent_("encode", "hash:16", "in.md", "-o", "a.parquet").code == 0
    assert pd.read_parquet("a.parquet")["text"].tolist() == [
        "A heading",
        "One is here.",
        "Two is there.",
    ]


def test_encode_normalize_gives_every_vector_length_one(raysent_, place):
    """Whatever is asked beside it."""
    ran = raysent_(
        "encode",
        "hash:16",
        "-o",
        "a.npy",
        "--normalize",
        "--set",
        "batch_size=1",
        stdin=b"A cat\nA dog\n",
    )
    assert ran.code == 0
    np.testing.assert_allclose(np.linalg.norm(np.load("a.npy"), axis=1), 1, atol=1e-6)


def test_encode_in_processes_writes_the_same_file(raysent_, place, monkeypatch):
    """The number of processes is not seen in the file."""
    monkeypatch.setattr("raysent.pipeline.vectors.BLOCK_SENTENCES", 3)
    text = "".join(f"Line {number}\n" for number in range(10)).encode()
    assert (
        raysent_("encode", "hash:16", "-o", "a.npy", "--set", "processes=2", stdin=text).code == 0
    )
    assert (
        raysent_("encode", "hash:16", "-o", "b.npy", "--set", "processes=1", stdin=text).code == 0
    )
    assert Path("a.npy").read_bytes() == Path("b.npy").read_bytes()


def test_encode_in_bfloat16_is_of_trained_models(raysent_, place):
    """What multiplies nothing is told so."""
    ran = raysent_("encode", "hash:16", "-o", "a.npy", "--set", "bfloat16=true", stdin=b"one\n")
    assert (ran.code, ran.err) == (
        2,
        "error: bfloat16: must be used with a trained model; given hash:16; leave it out\n",
    )


def test_encode_leaves_the_old_file_and_a_device_alone(raysent_, place):
    """A file is replaced whole; a device is never replaced by a file."""
    raysent_("encode", "hash:16", "-o", "a.npy", stdin=b"one\n")
    assert raysent_("encode", "hash:16", "-o", "a.npy", stdin=b"\xff\n").code == 2
    assert np.load("a.npy").shape == (1, 16)
    assert raysent_("encode", "hash:16", "-o", "/dev/null", stdin=b"one\n").code == 2
    assert Path("/dev/null").is_char_device()


# -- what is seen -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [["--version"], ["schema"], ["components", "--json"]])
def test_output_that_takes_nothing_is_one_line(arguments, monkeypatch, capsys):
    """A full disk behind `> file`: exit code 2, and no traceback at the end of the process."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "argv", ["raysent", *arguments])
        with pytest.raises(SystemExit) as exited:
            main()
    assert exited.value.code == 2
    expected = "error: standard output: cannot be written (No space left on device); send it"
    assert capsys.readouterr().err.startswith(expected)


def test_output_whose_reader_is_gone_is_no_error(place):
    """`raysent ... | head` ends quietly."""
    command = f"{sys.executable} -c 'from raysent.cli import main; main()' schema | head -n 1"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "{\n", "")


TOY = parse_space(parse_yaml(SPACE), name="toy")


def _view(*, width: int) -> tuple[live.SweepView, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=False, markup=False)
    return live.SweepView(console, TOY), stream


def _events(view: live.SweepView) -> None:
    """Tell the view of a trial that ends, a trial that is stopped and one that fails."""
    trial = {
        "params": {"encoder.bidirectional": True, "training.batch_size": 24},
        "seed": 1,
    }
    view.on_event({"event": "session", "trials": 3, "concurrent": 2})
    for name, status, error in (
        ("0000", "finished", None),
        ("0001", "stopped", None),
        ("0002", "failed", "it broke"),
    ):
        view.on_event({"event": "suggested", "trial": name, "number": int(name), **trial})
        view.on_event({"event": "started", "trial": name})
        metrics = {"context_accuracy": 0.25, "context_nll": 2.0}
        view.on_event(
            {
                "event": "report",
                "trial": name,
                "index": 1,
                "num_reports": 2,
                "metrics": metrics,
                "seconds": 61.0,
            }
        )
        view.on_event(
            {"event": "ended", "trial": name, "status": status, "seconds": 61.0, "error": error}
        )


def test_sweep_view_off_a_terminal_prints_one_line_a_model(place):
    """Lines are never wrapped, however narrow the window, nor longer than a screen; the log has every event."""
    view, stream = _view(width=30)
    with run_log() as log:
        log.open(place)
        with view:
            _events(view)
    lines = stream.getvalue().splitlines()
    assert [line.partition("  [")[0] for line in lines] == [
        "model 1 of 3: context accuracy 0.25, GRU both ways, 8 numbers, trial 0, 1m01s",
        "model 2 of 3: context accuracy 0.25, GRU both ways, 8 numbers, trial 1, cut short, 1m01s",
        "model 3 of 3: GRU both ways, 8 numbers, trial 2 failed: it broke",
    ]
    assert max(map(len, lines)) <= 100
    noted = [line[21:] for line in (place / "log.txt").read_text().splitlines()]
    assert noted[0] == "training 3 trials, 2 at a time"
    drawn = "encoder.bidirectional=True training.batch_size=24"
    assert noted[1] == f"trial 0000 started  {drawn}"
    assert noted[2] == "trial 0000 1/2  context_accuracy 0.25  1m01s"
    assert (
        "trial 0002 failed  [best 0.25 (trial 0) | 1 finished, 1 stopped, 1 failed of 3"
        in (place / "log.txt").read_text()
    )


def test_sweep_view_on_a_terminal_is_one_line(place):
    """It says how many models are trained, the best score, and the time; trials that failed are said above it."""
    console = Console(file=io.StringIO(), width=100, force_terminal=True, record=True)
    view = live.SweepView(console, TOY)
    _events(view)
    printed = console.export_text().splitlines()
    assert printed == ["model 3 of 3: GRU both ways, 8 numbers, trial 2 failed: it broke"]
    console.print(view._render())
    (line,) = console.export_text().splitlines()
    assert line.startswith("3 of 3 models trained, best context accuracy 0.25 (trial 0), 0s so far")


def test_sweep_view_in_a_narrow_window_keeps_scores_whole(place):
    """What was drawn gives way; nothing is cut to dots."""
    console = Console(file=io.StringIO(), width=60, force_terminal=True, record=True)
    view = live.SweepView(console, TOY, is_quiet=True)
    _events(view)
    console.print(view._all_trials())
    text = console.export_text()
    assert "context_accuracy" in text
    assert "0.25" in text
    assert "…" not in text
    assert "batch_size" not in text


def test_time_left_counts_running_trials_to_their_end(place):
    """Trials stopped early say little about one that goes on."""
    view, _ = _view(width=80)
    _events(view)
    for index in (1, 2):
        view.on_event({"event": "suggested", "trial": "0003", "number": 3, "params": {}, "seed": 1})
        view.on_event(
            {
                "event": "report",
                "trial": "0003",
                "index": index,
                "num_reports": 9,
                "metrics": {},
                "seconds": 1.0,
            }
        )
    # Three trials made one report of 61 s each; the fourth has made 2 of 9 in 1 s; two train at the same time.
    assert view._time_left() == pytest.approx((3 * 61 + 1) / 5 * 7 / 2)


def _beat(folder: Path, *, step: int, seconds: float) -> None:
    """Write a heartbeat of a run of 100 steps of 20 sentences."""
    now = LiveProgress(step, 100, 20 * step, seconds, loss=4.25, memory_bytes=300 << 20)
    Heartbeat(folder).write(Progress(step=step), now)


def test_sweep_view_shows_the_progress_between_reports(place, monkeypatch):
    """Step, loss, speed, time left and memory come from the heartbeat; before the first one a trial starts."""
    monkeypatch.setattr(live, "LINE_INTERVAL_S", 0.0)
    monkeypatch.setattr(live, "_LOOK_INTERVAL_S", 0.0)
    console = Console(file=io.StringIO(), width=150, force_terminal=False, record=True)
    view = live.SweepView(console, TOY, folder=place, is_quiet=True)
    view.on_event({"event": "session", "trials": 1, "concurrent": 1})
    view.on_event({"event": "suggested", "trial": "0000", "number": 0, "params": {}, "seed": 1})
    view.on_event({"event": "started", "trial": "0000"})
    assert view._text_line().startswith(
        "0 of 1 models trained, 1 starting, no score yet, 0s so far"
    )
    console.print(view._all_trials())
    assert re.search(r"0000 +running +starting", console.export_text())
    for step, seconds in ((0, 5.0), (10, 10.0), (20, 12.0)):
        _beat(trial_folder(place, 0), step=step, seconds=seconds)
        console.print(view._all_trials())
    assert re.search(r"0000 +running +20% +– +12s +4.25 +57 +28s +300 MiB", console.export_text())
    assert view._time_left() == pytest.approx(12 / 0.2 * 0.8)
    with run_log() as log:
        log.open(place)
        view.print_progress()
    assert re.match(
        r"0 of 1 models trained, 1 running, no score yet, \ds so far, about \d+s left\n",
        console.export_text(),
    )
    paces = "trial 0000: step 20 of 100 (20%), loss 4.25, 57 sentences/s, 28s left, 300 MiB\n"
    assert paces in (place / "log.txt").read_text()


def test_pace_of_a_resumed_run_starts_over(tmp_path, monkeypatch):
    """Steps that were lost with their process are no speed; a heartbeat that is being written is passed over."""
    monkeypatch.setattr(live, "_LOOK_INTERVAL_S", 0.0)
    reader = live.PaceReader(tmp_path)
    assert reader.read() is None
    _beat(tmp_path, step=50, seconds=10.0)
    assert reader.read().sentences_per_s == pytest.approx(100.0)
    _beat(tmp_path, step=40, seconds=8.0)
    assert (reader.read().now.step, reader.read().sentences_per_s) == (40, pytest.approx(100.0))
    (tmp_path / "checkpoint" / ".pulse.json").write_text("")
    assert reader.read().now.step == 40


def test_training_view_prints_reports_and_progress(tmp_path, monkeypatch):
    """Off a terminal both are lines."""
    monkeypatch.setattr(live, "LINE_INTERVAL_S", 0.0)
    stream = io.StringIO()
    view = live.TrainingView(Console(file=stream, width=20), tmp_path, prefix="0003: ")
    _beat(tmp_path, step=25, seconds=5.0)
    view.on_report(Report(1, 4, 25, 100, 500, 5.0, {"loss": 4.5}))
    view.print_progress()
    assert stream.getvalue().splitlines() == [
        "0003: 1/4  loss 4.5  500 sentences  5s",
        "0003: step 25 of 100 (25%), loss 4.25, 100 sentences/s, 15s left, 300 MiB",
    ]


def test_plan_lines_say_what_will_run(place):
    """Trials, cores, text, and limits are known before anything takes time."""
    facts = {"corpus": {"num_train": 1000, "num_validation": 50}}
    lines = live.plan_lines(TOY, run="runs/toy", where=_where(TOY, None), data=["MR"])
    assert lines[0] == "MR"
    assert re.match(
        r"\d+ models to train, \d+ at a time on the \d+ cores of this machine, beside TF-IDF$",
        lines[1],
    )
    assert lines[2:] == ["no limit on time or money; results: runs/toy"]
    timed = TOY.model_copy(update={"limits": TOY.limits.model_copy(update={"time": "10m"})})
    first, *_, last = live.plan_lines(timed, run="runs/toy", where="")
    assert first == "text: text.txt"
    assert last == "at most 10m of training; results: runs/toy"
    assert live.size_line(TOY, facts) == "1,000 sentences for training, 50 for validation"
    assert _where(TOY, "auto") == "on the Ray cluster at auto, as many at a time as fit"


def test_ranking_line_offers_probes_on_tasks():
    """Only where the metric is known to say little of them."""
    assert live.ranking_line(TOY).startswith(
        "trials are ranked by context_accuracy, which orders kinds of encoders as "
    )
    assert live.ranking_line(TOY).endswith(
        "with a task as metric, or without labels by document_accuracy"
    )
    ranked = TOY.model_copy(update={"metric": "downstream"})
    assert (
        live.ranking_line(ranked)
        == "trials are ranked by downstream, the mean validation score on the tasks"
    )


def test_chance_line_compares_the_best_trial_with_chance():
    """There is no line where it is unknown, and no ratio where less is better."""
    pool = {"chance_accuracy": 0.005, "chance_nll": 5.3}
    assert live.chance_line("context_accuracy", pool) == "context_accuracy of chance: 0.005"
    assert (
        live.chance_line("context_accuracy", pool, best=0.1)
        == "context_accuracy 0.1, 20 times chance (0.005)"
    )
    assert live.chance_line("context_nll", pool, best=4.0) == "context_nll of chance: 5.3"
    assert live.chance_line("pearson", pool, best=0.4) == ""


def test_print_table_is_never_squeezed(raysent_, place, monkeypatch):
    """A name is whole in any window."""
    monkeypatch.setattr("raysent.cli.console.results", Console(width=20, markup=False))
    ran = raysent_("sweep", "space.yaml", "--dry-run")
    assert "encoder.bidirectional  false, true" in ran.out


def test_doctor_says_which_task_files_are_there(raysent_, place):
    """Whole, missing and wrong files are told apart; a wrong one is exit code 1, with the line that evaluate gives."""
    ran = raysent_("doctor", "data")
    assert ran.code == 0
    assert re.search(r"^  MR +complete, 80 rows$", ran.out, re.MULTILINE)
    assert (
        "  no TREC/train_5500.label and 1 more; published at https://github.com/facebookresearch"
        in ran.out
    )
    with (place / "data/MR/rt-polarity.pos").open("a") as stream:
        stream.write("one more\n")
    ran = raysent_("doctor", "data", "--json")
    (found,) = [one for one in json.loads(ran.out)["tasks"] if one["task"] == "MR"]
    assert (ran.code, found["status"], found["num_rows"]) == (1, "wrong", 0)
    assert "must have 40 lines as published; given 41" in found["problem"]


def test_doctor_of_a_folder_of_data_says_which_spaces_have_their_files(raysent_, place):
    """In the layout that shipped spaces and papers share; the tasks in it are checked as in their own folder."""
    (place / "data").rename(place / "senteval")
    (place / "data/pairs").mkdir(parents=True)
    (place / "senteval").rename(place / "data/senteval")
    (place / "data/senteval/SICK").mkdir(exist_ok=True)
    (place / "data/pairs/ppdb-2.0-xl-phrasal.gz").write_text("")
    ran = raysent_("doctor", "data")
    assert ran.code == 0, ran.err
    named = dict(line.split(maxsplit=1) for line in ran.out.splitlines()[1:])
    assert named["pairs/ppdb-2.0-xl-phrasal.gz"].startswith("there; read by cse, everything")
    assert named["nli/allnli_train.jsonl"].startswith("missing; read by ")
    assert named["MR"] == "complete, 80 rows"
    assert named["spaces"] == "have all their files: none"
    values = json.loads(raysent_("doctor", "data", "--json").out)
    assert {file["file"] for file in values["files"] if file["is_there"]} >= {
        "pairs/ppdb-2.0-xl-phrasal.gz"
    }


def test_evaluate_takes_a_protocol(raysent_, place):
    """The object names protocol and configuration; records of two protocols stand side by side."""
    arguments = ("evaluate", "hash:16", "--data", "data", "--tasks", "MR")
    values = json.loads(raysent_(*arguments, "--protocol", "senteval/prototyping", "--json").out)
    assert (values["protocol"], values["config"]) == ("senteval", "prototyping")
    assert values["settings"]["optimizer"] == "rmsprop"
    by_set = (*arguments, "--protocol", "senteval", "--set", "config=prototyping", "--json")
    assert json.loads(raysent_(*by_set).out) == values
    (found,) = values["results"]
    assert found["protocol"] == "senteval/prototyping"
    assert raysent_(*arguments).out.startswith("test, protocol fast")
    folder = place / "runs/evaluated/evaluation/hash%3A16"
    assert (folder / "MR.json").is_file()
    assert (folder / "senteval-prototyping/MR.json").is_file()
    assert raysent_(*arguments, "--protocol", "sentevel").code == 2


def test_evaluate_in_processes_gives_the_same_figures(raysent_, place):
    """Models and tasks judged at once have the scores of those judged in turn; a mistake is one line all the same."""
    arguments = (
        "evaluate",
        "hash:16",
        "hash:8",
        "--data",
        "data",
        "--tasks",
        "MR",
        "--set",
        "baselines=false",
        "--json",
    )
    at_once = json.loads(raysent_(*arguments, "--set", "processes=2").out)["results"]
    shutil.rmtree(place / "runs")
    assert json.loads(raysent_(*arguments).out)["results"] == at_once
    ran = raysent_(*arguments, "--set", "processes=2", "--set", "address=auto")
    assert (ran.code, ran.err) == (
        2,
        "error: processes and address: must not both be given; a cluster has its own cores\n",
    )


def test_plan_of_a_claim_is_of_what_the_run_would_make(monkeypatch):
    """A claim alone plans no table."""
    seen = []
    monkeypatch.setattr(
        "raysent.reproduction.plan_reproduction",
        lambda *_, **given: seen.append(given["tables"]) or [],
    )
    for tables, claims in ((None, ["expansion"]), (["1"], ["expansion"]), (None, None)):
        reproduction_commands.reproduce(
            "quick_thoughts", tables=tables, claims=claims, dry_run=True, as_json=True
        )
    assert seen == [[], ["1"], None]


def test_curves_of_evaluate_take_what_they_share_with_scores(monkeypatch, capsys):
    """What --set names is for the scores and for the curves."""
    seen = {}
    monkeypatch.setattr("raysent.pipeline.evaluate_models", lambda *_, **__: [])
    monkeypatch.setattr("raysent.label_curves", lambda *_, **given: seen.update(given) or [])
    given = ["output=here", "baselines=false", "processes=1", "address=head:6379"]
    evaluate(["hash:16"], labels="32", overrides=given, as_json=True)
    assert json.loads(capsys.readouterr().out)["labels"] == []
    assert (str(seen["output"]), seen["baselines"]) == ("here", False)
    assert (seen["processes"], seen["address"]) == (1, "head:6379")


@pytest.mark.parametrize(
    ("table", "file"),
    [
        ("s3://bucket/new.csv", "new-next.csv"),
        ("name=new.csv:text=body", "new-next.csv"),
        ("a/b.csv", "b-next.csv"),
    ],
)
def test_rows_to_label_have_the_name_of_their_table(raysent_, monkeypatch, table, file):
    """Without its place and its settings."""
    seen = {}
    monkeypatch.setattr(
        "raysent.label", lambda *_, **given: seen.update(given) or Mock(rows=[], num_first=0)
    )
    assert raysent_("label", "hash:8", table, "--json").code == 0
    assert seen["output"] == Path(file)


def test_resume_tracks_into_the_folder_that_was_typed(raysent_, tmp_path, monkeypatch):
    """Although the sweep goes on in the folder that its paths start from; other trackers keep their names."""
    monkeypatch.chdir(tmp_path)
    Path("other").mkdir()
    monkeypatch.setattr("raysent.pipeline.origin_of", lambda _: tmp_path / "other")
    monkeypatch.setattr("raysent.cli.sweep._print_sweep", lambda *_, **__: 0)
    seen = []
    resume = wraps(raysent.resume)(lambda *_, **given: seen.append(given["track"]))
    monkeypatch.setattr("raysent.resume", resume)
    for track in (
        "tensorboard:tb",
        "[tensorboard:tb, tensorboard:/tb, 'tensorboard:', wandb:tb, 'mlflow:sqlite:///a.db', 'mlflow:sqlite:////a.db']",
    ):
        assert raysent_("resume", "run", "--set", f"track={track}").code == 0
    [[one], several] = seen
    assert one == f"tensorboard:{tmp_path}/tb"
    files = [f"mlflow:sqlite:///{tmp_path}/a.db", "mlflow:sqlite:////a.db"]
    assert several == [one, "tensorboard:/tb", "tensorboard:", "wandb:tb", *files]


def test_scores_are_printed_before_the_curves_are_made(monkeypatch, capsys):
    """A wrong number of labels does not lose them."""
    score = Score(model="hash:16", task="own", protocol="fast", validation=50.0, test=61.25)
    monkeypatch.setattr("raysent.pipeline.evaluate_models", lambda *_, **__: [score])
    monkeypatch.setattr(
        "raysent.label_curves", Mock(side_effect=ConfigError("labels: own has 9 rows"))
    )
    with pytest.raises(ConfigError, match="^labels: own has 9 rows$"):
        evaluate(["hash:16"], labels="32")
    assert "61.25" in capsys.readouterr().out


def test_confirmed_sweep_goes_into_the_folder_that_was_shown(monkeypatch):
    """The plan's own folder, not one of a later second."""
    seen = {}
    monkeypatch.setattr("raysent.plan", lambda *_, **__: Mock(folder=Path("runs/shown")))
    monkeypatch.setattr("raysent.sweep", lambda plan, **_: seen.update(plan=plan))
    monkeypatch.setattr("raysent.cli.sweep._print_plan", lambda _: None)
    monkeypatch.setattr("raysent.cli.sweep._print_sweep", lambda *_, **__: 0)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    with pytest.raises(typer.Exit):
        sweep(
            space="everything", trials=None, time=None, budget=None, deadline=None, learn_from=None
        )
    assert seen["plan"].folder == Path("runs/shown")


def test_doctor_of_a_table_says_what_a_sweep_would_read(raysent_, place):
    """Columns, rows and the rows of each class; a folder without a task's files is a fault."""
    rows = [f"text {number},{'good' if number % 3 else 'bad'}" for number in range(60)]
    (place / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    ran = raysent_("doctor", "reviews.csv")
    assert ran.code == 0, ran.err
    assert "60 rows; 2 classes of 'label'" in ran.out
    first, *facts = ran.out.splitlines()
    assert first == "reviews: 60 rows of 'text', 2 classes of 'label'; 20 rows are held out"
    named = dict(line.strip().split("  ", 1) for line in facts)
    assert named["classes"].strip() == "good 40, bad 20"
    assert named["lengths"].strip() == "2 words in the median, 2 in the longest tenth, 2 at most"
    assert named["copies"].strip() == "0 rows have the text of another one"
    assert list(named)[-1] == "sweep"
    assert "raysent sweep --task reviews.csv" in named["sweep"]
    (task,) = json.loads(raysent_("doctor", "reviews.csv", "--json").out)["tasks"]
    assert task["classes"] == {"bad": 20, "good": 40}
    ran = raysent_("doctor", "text.txt")
    first, *facts = ran.out.splitlines()
    assert ran.code == 0, ran.err
    assert re.fullmatch(r"text\.txt: [\d,]+ sentences in [\d,]+ documents", first)
    assert facts[-1].split(maxsplit=1) == [
        "sweep",
        "raysent sweep quick_thoughts --corpus text.txt",
    ]
    (place / "novels").mkdir()
    (place / "novels/one.txt").write_text((place / "text.txt").read_text())
    assert raysent_("doctor", "novels").out.splitlines()[0].startswith("novels: ")
    (place / "none").mkdir()
    ran = raysent_("doctor", "none")
    assert (ran.code, "must hold the files of a task at least; found none" in ran.err) == (1, True)


def test_doctor_of_a_folder_of_passages_is_that_of_their_queries(raysent_, place):
    """A folder in BEIR's form is a task, and not running text."""
    (place / "asked/qrels").mkdir(parents=True)
    passages = [{"_id": f"p{n}", "title": "", "text": f"passage {n}"} for n in range(8)]
    queries = [{"_id": f"q{n}", "text": f"query {n}"} for n in range(8)]
    for name, rows in (("corpus", passages), ("queries", queries)):
        (place / f"asked/{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    marks = "".join(f"q{n}\tp{n}\t1\n" for n in range(8))
    (place / "asked/qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{marks}")
    ran = raysent_("doctor", "asked")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0].startswith("asked: 8 passages")
    assert "raysent sweep --task asked" in ran.out


@pytest.mark.parametrize(
    ("file", "kind"),
    [("model.json", "a model"), ("ensemble.json", "an ensemble"), ("run.json", "a training")],
)
def test_doctor_does_not_take_a_model_for_text(raysent_, place, file, kind):
    """Its record and its card are no documents."""
    (place / "trained").mkdir()
    (place / "trained" / file).write_text("{}")
    (place / "trained/README.md").write_text("A card. It has sentences.\n")
    ran = raysent_("doctor", "trained")
    assert ran.code == 2
    assert ran.err.startswith("error: trained: must be a table, a text, ")
    assert f"given {kind}; 'raysent evaluate trained --task TABLE' scores it" in ran.err


def test_doctor_counts_every_document(raysent_, place):
    """Those that are kept for validation too."""
    (place / "letters").mkdir()
    for number in range(30):
        text = "A letter begins. It goes on here. It ends now.\n"
        (place / f"letters/{number}.txt").write_text(text)
    first = raysent_("doctor", "letters").out.splitlines()[0]
    assert first == "letters: 90 sentences in 30 documents"
