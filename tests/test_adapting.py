"""`adapt`: what it compares, what judges, what it writes, where it refuses, and that it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import CommandLine
from test_contrast import write_task
from tiny_run import tiny_run, write_corpus

import raysent
from raysent.errors import ArtifactError, ConfigError, DataError
from raysent.evaluation.bootstrap import BootstrapEstimate
from raysent.models import SentenceModel
from raysent.pipeline import adapting, distillation
from raysent.training.loop import fit
from raysent.training.run import load_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, a text of twelve documents, and a task on its words."""
    folder = tmp_path_factory.mktemp("adapt")
    write_corpus(folder, num_documents=12, num_sentences=80)
    fit(tiny_run(folder, training__max_steps=2), folder / "model")
    write_task(folder)
    return folder


@pytest.fixture(autouse=True)
def fixed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing depends on the time of a step."""
    monkeypatch.setattr(distillation, "seconds_of_steps", lambda *_: (0.0625, 0.0))


def adapted(place: Path, folder: Path, **options):
    """The result for the small model."""
    given = {"corpus": place / "text.txt", "set": {"corpus.format": "sentences"}, "progress": False, "time": "3.75s"}
    return raysent.adapt(place / "model", output=folder, **{**given, **options})


def verdict(monkeypatch: pytest.MonkeyPatch, draws) -> None:
    """Every difference on test rows is this one."""
    found = BootstrapEstimate.of(float(np.mean(draws)), np.asarray(draws, dtype=float))
    monkeypatch.setattr(adapting, "mean_estimate", lambda _: found)


def test_tasks_judge_and_all_objectives_have_equal_time(place, tmp_path, monkeypatch):
    """Three objectives at two rates; the model is there only if it helps; a second call trains nothing."""
    task = str(place / "rows.yaml")
    verdict(monkeypatch, [0.5, 1.5])
    found = adapted(place, tmp_path / "out", tasks=[task])
    names = [f"{name}-{rate}" for name in ("readings", "neighbours", "words") for rate in ("0.0001", "0.001")]
    assert list(found.validation) == ["given", *names]
    assert {load_run(tmp_path / "out" / "trials" / name).training.max_steps for name in names} == {10}
    assert max(names, key=found.validation.__getitem__) == found.objective
    assert found.helps
    assert found.model == str(tmp_path / "out" / "adapted")
    kept = SentenceModel.load(tmp_path / "out" / "adapted").tensors()
    trained = SentenceModel.load(tmp_path / "out" / "trials" / found.objective).tensors()
    assert all(np.array_equal(kept[name], trained[name]) for name in trained)
    monkeypatch.setattr(adapting, "fit", lambda config, folder, report: fit(config, folder, report=pytest.fail))
    verdict(monkeypatch, [-0.1, 1.5])
    again = adapted(place, tmp_path / "out", tasks=[task])
    assert not again.helps
    assert again.model == str(place / "model")
    assert "so it is not shown to help" in again.sentence
    assert not (tmp_path / "out" / "adapted").exists()


def test_difference_is_that_of_the_test_rows(place, tmp_path):
    """As evaluating both models gives it."""
    found = adapted(place, tmp_path / "out", tasks=[str(place / "rows.yaml")])
    scores = raysent.evaluate(
        [place / "model", tmp_path / "out" / "trials" / found.objective],
        tasks=[str(place / "rows.yaml")], baselines=False, output=tmp_path / "scores", progress=False,
    )  # fmt: skip
    assert found.difference.value == pytest.approx(scores.test.iloc[1] - scores.test.iloc[0])
    assert found.validation["given"] == pytest.approx(scores.validation.iloc[0])
    assert json.loads((tmp_path / "out" / "adapted.json").read_text())["objective"] == found.objective


def test_without_tasks_held_out_documents_judge(place, tmp_path):
    """Sentences that no training read, of which other ones train the probe, choose and judge; and it says how far."""
    found = adapted(place, tmp_path / "out", set={"corpus.format": "sentences", "corpus.validation_fraction": 0.4})
    rows = [line.rsplit(",", 2) for line in (tmp_path / "out" / "documents.csv").read_text().splitlines()[1:]]
    assert {part for _, _, part in rows} == {"train", "validation", "test"}
    assert 2 <= len({label for _, label, _ in rows}) <= 5
    assert "judged by which held-out document a sentence is from" in found.sentence


def test_refusals_are_one_line(place, tmp_path):
    """A time, a folder without a model, too few documents, and a model that no objective trains."""
    with pytest.raises(ConfigError, match=r"^time: a duration must look like"):
        adapted(place, tmp_path / "out", time="soon")
    with pytest.raises(ArtifactError, match="no folder of a training or of a transformer"):
        raysent.adapt(tmp_path, corpus=place / "text.txt", progress=False)
    with pytest.raises(DataError, match=r"^corpus: must have two held-out documents of 60 sentences.*name tasks"):
        adapted(place, tmp_path / "out", set={"corpus.format": "sentences", "corpus.validation_fraction": 0.05})
    with pytest.raises(ConfigError, match=r"^model: must be one that an objective can train"):
        adapted(place, tmp_path / "out", set={"second_encoder": {"type": "bag"}})


def test_objective_that_cannot_train_the_model_is_left_out(place, tmp_path):
    """A bag of words has no state of a word."""
    fit(tiny_run(place, encoder={"type": "bag", "embedding": {"dim": 8}}, training__max_steps=1), tmp_path / "bag")
    runs, left_out = adapting._runs(tmp_path / "bag", str(place / "text.txt"), 0, None, has_tasks=True)
    assert [*left_out] == ["words"]
    assert "must have a state for each word" in left_out["words"]
    assert len(runs) == 4


def test_command_prints_the_verdict(place, tmp_path, monkeypatch, capsys):
    """One table and one sentence; as JSON one object."""
    run = CommandLine(monkeypatch, capsys)
    words = ["adapt", place / "model", "--corpus", place / "text.txt", "--set", "corpus.format=sentences"]
    words += ["--tasks", place / "rows.yaml", "--time", "3.75s", "-o", tmp_path / "out"]
    ran = run(*words)
    assert ran.code == 0
    assert "points from the given model on test rows of rows" in ran.out
    assert json.loads(run(*words, "--json").out)["folder"] == str(tmp_path / "out")
