"""`adapt`: what it compares, what judges, what it writes, where it refuses, and that it goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from command import CommandLine
from scipy.special import log_softmax
from small_bert import write_bert
from test_contrast import write_task
from tiny_run import check_weights, tiny_run, write_corpus

import raysent
from raysent.ensembles import soup
from raysent.errors import ArtifactError, ConfigError, DataError, TrainingError
from raysent.evaluation.bootstrap import BootstrapEstimate, Resamples
from raysent.evaluation.divided import divided_tasks
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.targets import Targets
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
    """Nothing depends on the time of a step; and there are soups only where a test makes them."""
    monkeypatch.setattr(distillation, "seconds_of_steps", lambda *_: (0.0625, 0.0))
    monkeypatch.setattr(adapting, "save_soup", lambda *_, **__: None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two objectives in place of five."""
    monkeypatch.setattr(
        adapting,
        "OBJECTIVES",
        {name: adapting.OBJECTIVES[name] for name in ("readings", "contexts")},
    )


def adapted(place: Path, folder: Path, **options):
    """The result for the small model."""
    given = {
        "corpus": place / "text.txt",
        "set": {"corpus.format": "sentences"},
        "progress": False,
        "time": "5s",
    }
    return raysent.adapt(place / "model", output=folder, **{**given, **options})


def verdict(monkeypatch: pytest.MonkeyPatch, draws) -> None:
    """Every difference on test rows is this one."""
    found = BootstrapEstimate.of(float(np.mean(draws)), np.asarray(draws, dtype=float))
    monkeypatch.setattr(adapting, "mean_estimate", lambda _: found)


def test_tasks_judge_and_all_objectives_have_equal_time(place, tmp_path, monkeypatch):
    """Five objectives at two rates; the model is there only if it helps; a second call trains nothing."""
    task = str(place / "rows.yaml")
    verdict(monkeypatch, [0.5, 1.5])
    found = adapted(place, tmp_path / "out", tasks=[task])
    objectives = ("readings", "neighbours", "words", "deletions", "contexts")
    names = [f"{name}-{rate}" for name in objectives for rate in ("0.0001", "0.001")]
    assert list(found.validation) == ["given", *names]
    assert {load_run(tmp_path / "out" / "trials" / name).training.max_steps for name in names} == {
        8
    }
    assert max(names, key=found.validation.__getitem__) == found.objective
    assert found.helps
    assert found.model == str(tmp_path / "out" / "adapted")
    kept = SentenceModel.load(tmp_path / "out" / "adapted").tensors()
    trained = SentenceModel.load(tmp_path / "out" / "trials" / found.objective).tensors()
    assert all(np.array_equal(kept[name], trained[name]) for name in trained)
    monkeypatch.setattr(
        adapting, "fit", lambda config, folder, report: fit(config, folder, report=pytest.fail)
    )
    verdict(monkeypatch, [-0.1, 1.5])
    again = adapted(place, tmp_path / "out", tasks=[task])
    assert not again.helps
    assert again.model == str(place / "model")
    assert "so it is not shown to help" in again.sentence
    assert not (tmp_path / "out" / "adapted").exists()


@pytest.mark.usefixtures("few")
def test_soup_of_the_trainings_is_compared_with_them(place, tmp_path, monkeypatch):
    """By its validation score, as any of them."""
    monkeypatch.setattr(soup, "_validation", lambda records: len(records[0].model))
    monkeypatch.setattr(adapting, "save_soup", soup.save_soup)
    found = adapted(place, tmp_path / "out", tasks=[str(place / "rows.yaml")])
    name = list(found.validation)[-1]
    assert name.startswith("soup-")
    assert name.count("-0.0") == 2  # of the one that trains one encoder
    (kept,) = (tmp_path / "out" / "soup").glob("*/model.json")
    scores = raysent.evaluate(
        [kept.parent],
        tasks=[str(place / "rows.yaml")],
        baselines=False,
        output=tmp_path / "scores",
        progress=False,
    )
    assert found.validation[name] == pytest.approx(scores.validation.iloc[0])
    assert max(list(found.validation)[1:], key=found.validation.__getitem__) == found.objective


@pytest.mark.usefixtures("few")
def test_difference_is_that_of_the_test_rows(place, tmp_path):
    """As evaluating both models gives it."""
    found = adapted(place, tmp_path / "out", tasks=[str(place / "rows.yaml")])
    scores = raysent.evaluate(
        [place / "model", tmp_path / "out" / "trials" / found.objective],
        tasks=[str(place / "rows.yaml")], baselines=False, output=tmp_path / "scores", progress=False,
    )  # fmt: skip
    assert found.difference.value == pytest.approx(scores.test.iloc[1] - scores.test.iloc[0])
    assert found.validation["given"] == pytest.approx(scores.validation.iloc[0])
    assert (
        json.loads((tmp_path / "out" / "adapted.json").read_text())["objective"] == found.objective
    )


@pytest.mark.usefixtures("few")
def test_without_tasks_held_out_documents_judge(place, tmp_path):
    """Sentences that no training read, of which other ones train the probe, choose and judge; and it says how far."""
    found = adapted(
        place,
        tmp_path / "out",
        set={"corpus.format": "sentences", "corpus.validation_fraction": 0.4},
    )
    rows = [
        line.rsplit(",", 2)
        for line in (tmp_path / "out" / "documents.csv").read_text().splitlines()[1:]
    ]
    parts = Counter(part for _, _, part in rows)
    assert set(parts) == {"train", "validation", "test"}
    assert parts["test"] == pytest.approx(len(rows) / 2, abs=len(rows) / 20)  # half judge
    trainings = [load_run(one) for one in (tmp_path / "out" / "trials").iterdir()]
    assert {one.validation.num_sentences for one in trainings} == {
        1000
    }  # which choose nothing, so few are enough
    assert 2 <= len({label for _, label, _ in rows}) <= 5
    assert "judged by which held-out document a sentence is from" in found.sentence
    (task,) = divided_tasks(tmp_path / "out").values()
    evaluator = Evaluator(
        tmp_path / "out" / "evaluation", divides=True, load=pytest.fail
    )  # what is kept is read
    names = ["given", found.objective]
    members = expand([place / "model", tmp_path / "out" / "trials" / found.objective])
    tests = []
    for name, (record,) in zip(names, evaluator.records(members, [task]).values(), strict=True):
        (fold,) = record.folds
        num_documents = len({label for _, label, _ in rows})
        validation, test = (
            [100 * (1 + of_row[label] / np.log(num_documents)) for of_row, label in zip(logs, record.labels[at], strict=True)]
            for at, logs in (
                (fold.validation_rows, fold.validation_log_probabilities), (fold.test_rows, fold.test_log_probabilities),
            )
        )  # fmt: skip
        assert found.validation[name] == pytest.approx(np.mean(validation), abs=1e-4)
        tests.append(np.mean(test))
    assert found.difference.value == pytest.approx(tests[1] - tests[0], abs=1e-4)


def test_many_documents_show_what_accuracy_does_not():
    """The same document is named as before, from row to row, and with more probability."""
    labels, generator = np.tile(np.arange(50), 40), np.random.default_rng(0)
    logs = generator.normal(size=(2000, 50))
    better = logs.copy()
    better[np.arange(2000), labels] += 0.2
    low, high = (np.asarray(log_softmax(one, axis=1)) for one in (logs, better))
    places = np.arange(2000)
    found = {}
    for metric in ("accuracy", "information"):
        targets = [Targets(labels, metric=metric)] * 2
        one, other = Resamples.of(0, 2000).estimates(
            [(places, targets[0], high), (places, targets[1], low)]
        )
        found[metric] = one.minus(other)
    assert found["information"].value == pytest.approx(
        100 * (high - low)[places, labels].mean() / np.log(50)
    )
    spread = {metric: one.value / (one.value - one.interval[0]) for metric, one in found.items()}
    assert spread["information"] > 4 * spread["accuracy"] > 0
    assert Targets(labels, metric="information").score(
        np.full((2000, 50), -np.log(50))
    ) == pytest.approx(0)
    assert Targets(labels, metric="information").score(
        np.log(np.eye(50)[labels] + 1e-300)
    ) == pytest.approx(1)


def test_refusals_are_one_line(place, tmp_path):
    """A time, a folder without a model, too few documents, a model that no objective trains, a file as the folder."""
    with pytest.raises(ConfigError, match=r"^time: a duration must look like"):
        adapted(place, tmp_path / "out", time="soon")
    with pytest.raises(ArtifactError, match="no training and no pretrained encoder"):
        raysent.adapt(tmp_path, corpus=place / "text.txt", progress=False)
    with pytest.raises(
        DataError, match=r"^corpus: must have two held-out documents of 60 sentences.*name tasks"
    ):
        adapted(
            place,
            tmp_path / "out",
            set={"corpus.format": "sentences", "corpus.validation_fraction": 0.05},
        )
    with pytest.raises(
        ConfigError, match=r"^set training.batchsize=3: unknown name; did you mean 'batch_size'\?$"
    ):
        adapted(place, tmp_path / "out", set={"training.batchsize": 3})
    bits = {
        "code": {"type": "random_projection", "bits": 8},
        "objective": {"type": "reconstruction"},
    }
    start = {"initial": str(place / "model"), "encoder": {}, "second_encoder": None}
    fit(tiny_run(place, **start, **bits, training__max_steps=1), tmp_path / "bits")
    with pytest.raises(
        ConfigError, match=r"^model: must be one that an objective can train; code must be of type"
    ):
        raysent.adapt(
            tmp_path / "bits", corpus=place / "text.txt", output=tmp_path / "out", progress=False
        )
    for text, reason in (
        ("", "must hold sentences; given none"),
        ("w1 w2", "must hold at least 4 sentences"),
    ):
        (tmp_path / "text.txt").write_text(text)
        with pytest.raises(DataError, match=reason):
            adapted(
                place,
                tmp_path / "out",
                corpus=tmp_path / "text.txt",
                tasks=[str(place / "rows.yaml")],
            )
    (tmp_path / "rows.csv").write_text("text,label\nw1,one\nw2,one\n")
    with pytest.raises(DataError, match="rows.csv"):
        adapted(place, tmp_path / "out", tasks=[str(tmp_path / "rows.csv")])
    assert not (tmp_path / "out" / "trials").exists()
    with pytest.raises(
        ArtifactError, match=r"documents.csv: a file exists where a folder is needed"
    ):
        adapted(
            place,
            tmp_path / "rows.csv",
            set={"corpus.format": "sentences", "corpus.validation_fraction": 0.4},
        )


def test_objective_that_cannot_train_the_model_is_left_out(place, tmp_path):
    """A bag of words has no state of a word."""
    fit(
        tiny_run(place, encoder={"type": "bag", "embedding": {"dim": 8}}, training__max_steps=1),
        tmp_path / "bag",
    )
    runs, left_out = adapting._runs(
        tmp_path / "bag", str(place / "text.txt"), 0, None, has_tasks=True
    )
    assert [*left_out] == ["words"]
    assert "must have a state for each word" in left_out["words"]
    assert len(runs) == 8  # of two encoders, so context prediction too
    runs, _ = adapting._runs(
        tmp_path / "bag", "text", 0, {"training.learning_rate": 0.5}, has_tasks=True
    )
    assert [*runs] == ["readings-0.5", "neighbours-0.5", "deletions-0.5", "contexts-0.5"]


def test_folder_of_a_transformer_is_adapted(place, tmp_path):
    """Its encoder is trained further; the given model is the folder as it stands."""
    bert = write_bert(tmp_path / "bert", max_position_embeddings=60)
    settings = {"corpus.format": "sentences", "training.batch_size": 16}
    found = raysent.adapt(
        bert, corpus=place / "text.txt", tasks=[str(place / "rows.yaml")], set=settings, time="1s",
        output=tmp_path / "out", progress=False,
    )  # fmt: skip
    objectives = ("readings", "neighbours", "words", "deletions")
    names = [f"{name}-{rate}" for name in objectives for rate in ("3e-05", "0.0003")]
    assert list(found.validation) == ["given", *names]
    assert found.left_out == {}
    scores = raysent.evaluate(
        [f"st:{bert}", tmp_path / "out" / "trials" / found.objective],
        tasks=[str(place / "rows.yaml")], baselines=False, output=tmp_path / "scores", progress=False,
    )  # fmt: skip
    assert found.validation["given"] == pytest.approx(scores.validation.iloc[0])
    assert found.difference.value == pytest.approx(scores.test.iloc[1] - scores.test.iloc[0])


def test_training_without_a_finite_loss_is_left_out(place, tmp_path, monkeypatch):
    """One that has no model; the others are compared, and if all are so, the error says why."""
    task, broken = str(place / "rows.yaml"), {"type": "contrast", "temperature": 1e-44}
    monkeypatch.setitem(adapting.OBJECTIVES, "words", broken)
    found = adapted(place, tmp_path / "out", tasks=[task])
    assert [*found.left_out] == ["words-0.0001", "words-0.001"]
    assert "no longer finite" in found.left_out["words-0.001"]
    assert list(found.validation)[-1] == "contexts-0.001"
    monkeypatch.setattr(adapting, "OBJECTIVES", {"words": broken})
    with pytest.raises(
        TrainingError, match=r"^.*never: the loss or the weights are no longer finite"
    ):
        adapted(place, tmp_path / "never", tasks=[task])


@pytest.mark.usefixtures("few")
def test_objective_whose_steps_are_too_slow_is_left_out(place, tmp_path, monkeypatch):
    """One step is no training, and a model after it is no rival."""
    slow = {"readings": 1.2, "contexts": 0.1}
    monkeypatch.setattr(
        distillation, "seconds_of_steps",
        lambda config, _: (slow["readings" if config.objective.type == "contrast" else "contexts"], 0.0),
    )  # fmt: skip
    found = adapted(place, tmp_path / "out", tasks=[str(place / "rows.yaml")], time="4s")
    assert [*found.validation] == ["given", "contexts-0.0001", "contexts-0.001"]
    assert (
        found.left_out["readings-0.001"]
        == "must have time for two steps; given 1 s, in which it has one"
    )
    assert not (tmp_path / "out" / "trials" / "readings-0.001").exists()


PROGRAM = """
import json, os, signal, sys
import raysent
from raysent.pipeline import adapting, distillation
from raysent.training import loop

place, kill_at = sys.argv[1], int(sys.argv[2])
step, timed = loop._Training._step, []

def counted(self):
    global kill_at
    kill_at -= 1
    if kill_at == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    step(self)

loop._Training._step = counted
distillation.seconds_of_steps = lambda *_: timed.append(1) or (0.0625, 0.0)
adapting.OBJECTIVES = {name: adapting.OBJECTIVES[name] for name in ("readings", "contexts")}
raysent.adapt(
    f"{place}/model", corpus=f"{place}/text.txt", tasks=[f"{place}/rows.yaml"], time="2s", output="out", progress=False,
    set={"corpus.format": "sentences"},
)
print(len(timed))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_within_a_training_it_ends_with_the_same_answer(place, tmp_path):
    """In the third of four, between its reports: the first three keep their steps, which are not measured again."""

    def run(kill_at):
        command = [sys.executable, "-c", PROGRAM, str(place), str(kill_at)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    whole = run(0)
    assert (whole.returncode, whole.stdout) == (0, "4\n"), whole.stderr
    (tmp_path / "out").rename(tmp_path / "whole")
    assert run(22).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "out" / "trials").glob("*/outcome.json"))) == 2
    again = run(0)
    assert (again.returncode, again.stdout) == (0, "1\n"), again.stderr
    answers = [
        json.loads((tmp_path / name / "adapted.json").read_text()) for name in ("whole", "out")
    ]
    assert answers[0] == answers[1]
    for trial in (tmp_path / "whole" / "trials").iterdir():
        check_weights(trial, tmp_path / "out" / "trials" / trial.name)


@pytest.mark.usefixtures("few")
def test_command_prints_the_verdict(place, tmp_path, monkeypatch, capsys):
    """One table and one sentence; as JSON one object; the second time a line says what another time changes."""
    run = CommandLine(monkeypatch, capsys)
    words = [
        "adapt",
        place / "model",
        "--corpus",
        place / "text.txt",
        "--set",
        "corpus.format=sentences",
    ]
    words += ["--tasks", place / "rows.yaml", "--time", "5s", "-o", tmp_path / "out"]
    ran = run(*words)
    assert ran.code == 0
    assert "points from the given model on test rows of rows" in ran.out
    assert "keep their steps" not in " ".join(ran.err.split())
    assert "trainings that have begun keep their steps" in " ".join(
        run(*words, "--time", "9s").err.split()
    )
    assert json.loads(run(*words, "--json").out)["folder"] == str(tmp_path / "out")
