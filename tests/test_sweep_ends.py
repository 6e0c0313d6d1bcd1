"""A sweep ends with what it has, whatever its trials have left: half a model, none, or records that were damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_contrast import write_task
from tiny_run import write_corpus

import raysent as api
from raysent.config import parse_yaml
from raysent.errors import ExitCode
from raysent.evaluation.divided import divide_tasks
from raysent.evaluation.members import expand
from raysent.evaluation.tasks import resolve_tasks
from raysent.storage.layout import MODEL_FILE, OUTCOME_FILE
from raysent.sweeps import SweepController, SweepRecord, prepare_space
from raysent.sweeps.journal import Journal
from raysent.sweeps.record import save_record
from raysent.sweeps.space import parse_space
from raysent.training.loop import fit

SPACE = """
metric: context_accuracy
base:
  corpus: {{path: {corpus}, format: sentences, cache_dir: {cache}, validation_fraction: 0.2}}
  encoder: {{type: gru, hidden_size: 8, embedding: {{dim: 6}}}}
  objective: {{type: context_prediction}}
  training: {{batch_size: 24, learning_rate: 0.01, epochs: 1.0, num_reports: 2}}
  validation: {{num_candidates: 20, num_sentences: 40}}
search: {{training.learning_rate: {{loguniform: [0.01, 0.03]}}}}
limits: {{trials: 3, sampler: random, scheduler: {{type: none}}}}
evaluation: {{members: 2, baselines: false}}
"""
TENSORS = "model.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A run folder whose three trials have ended, the last one stopped; nothing is evaluated yet."""
    folder = tmp_path_factory.mktemp("ends")
    text = SPACE.format(corpus=write_corpus(folder), cache=folder / "cache")
    space = parse_space(parse_yaml(text), name="toy")
    run = folder / "run"
    tasks = [write_task(folder, 120)]
    options = {"tasks": tasks, "names": ["rows"], "data": None}
    save_record(run, SweepRecord(space, 0, evaluation=options, facts=prepare_space(space)))
    divide_tasks(run, [(task, None) for task in resolve_tasks(tasks)])
    journal = Journal(run)
    controller = SweepController(space, seed=0, write=journal.write, one_line=journal.one_line)
    journal.write("session", trials=3, concurrent=1)
    while (trial := controller.suggest()) is not None:
        outcome = fit(space.config(trial.params), run / "trials" / trial.name)
        # The last trial is the best by the journal, so it would be a member.
        metrics = {**outcome.metrics, "context_accuracy": 0.1 + 0.2 * trial.number}
        for index in (1, 2):
            controller.report(trial.name, index=index, num_reports=2, metrics=metrics, seconds=1.0)
        controller.end(trial.name, status="stopped" if trial.number == 2 else "finished")
    journal.close()
    (run / "trials/0002" / OUTCOME_FILE).unlink()
    return run


@pytest.fixture
def run(original, tmp_path) -> Path:
    """A copy of the run, which the test changes."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def cut(file: Path) -> None:
    """Leave half of a file, as a process that is ended while it writes."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def lose_tensors(trial: Path) -> None:
    """Have the next model's tensors beside the last model's record."""
    other = trial.parent / "0000" / TENSORS
    shutil.copy(other, trial / TENSORS)


FAULTS: dict[str, Callable[[Path], object]] = {
    "half_of_its_tensors": lambda trial: cut(trial / TENSORS),
    "tensors_of_the_next_model": lose_tensors,
    "half_of_its_record": lambda trial: cut(trial / MODEL_FILE),
    "no_record": lambda trial: (trial / MODEL_FILE).unlink(),
    "no_tensors": lambda trial: (trial / TENSORS).unlink(),
    "no_folder": shutil.rmtree,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_trial_that_was_stopped_as_it_wrote_its_model_is_left_out(raysent, run, fault):
    """The next best takes its place; one line names it, and the sweep has its answer."""
    FAULTS[fault](run / "trials/0002")
    resumed = raysent("resume", run)
    assert resumed.code == 0, resumed.err
    lines = [line for line in resumed.err.splitlines() if "0002 has no whole model" in line]
    assert len(lines) == 1
    assert "error" not in resumed.err
    assert set(json.loads((run / "ensemble.json").read_text())["members"]) == {"0000", "0001"}
    assert api.load(run / "best").predict(["w1 w2"])


def test_model_of_a_finished_trial_that_is_missed_is_in_the_exit_code(raysent, run):
    """The others are combined all the same."""
    cut(run / "trials/0001" / TENSORS)
    resumed = raysent("resume", run)
    assert resumed.code == ExitCode.INCOMPLETE, resumed.err
    assert set(json.loads((run / "ensemble.json").read_text())["members"]) == {"0000", "0002"}


def test_sweep_without_one_whole_model_ends_in_a_line(raysent, run):
    """Its exit code is that of a sweep that trained nothing; the report stands."""
    for number in range(3):
        (run / f"trials/{number:04}" / MODEL_FILE).unlink()
    resumed = raysent("resume", run)
    assert resumed.code == ExitCode.NOTHING_TRAINED, resumed.err
    lines = resumed.err.splitlines()
    assert "nothing was evaluated: no trial has a model" in lines
    assert "nothing was trained: no trial has left a whole model" in lines
    assert (run / "report.html").is_file()


def test_damaged_records_of_an_evaluation_are_made_again(raysent, run):
    """Those of the run, and what the first evaluation saved."""
    assert raysent("resume", run).code == 0
    before = (run / "ensemble.json").read_bytes()
    records = [file for file in (run / "evaluation").rglob("*") if file.is_file()]
    for file in [*records, run / "ensemble.json"]:
        cut(file)
    resumed = raysent("resume", run)
    assert resumed.code == 0, resumed.err
    assert json.loads((run / "ensemble.json").read_text())["tasks"] == json.loads(before)["tasks"]


def test_half_a_model_of_a_stopped_trial_is_none_for_other_commands(run):
    """As a trial without a model; that of a trial that ended by itself is named."""
    cut(run / "trials/0002" / TENSORS)
    assert [member.name for member in expand([run])] == ["0000", "0001"]
    cut(run / "trials/0001" / TENSORS)
    assert [member.name for member in expand([run])] == ["0000", "0001"]
