"""Models that learned labels as members: three learn two thirds each and predict what they left out, one learns all."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from small_bert import write_bert

import raysent
from raysent.data.batches import LabelStream
from raysent.ensembles.best import choosable
from raysent.errors import ConfigError, DataError
from raysent.evaluation.division import divided
from raysent.evaluation.evaluate import Evaluator, run_in_turn
from raysent.evaluation.members import expand
from raysent.evaluation.own_layer import own_log_probabilities
from raysent.evaluation.parts import NUM_PARTS, part_folders, part_numbers
from raysent.evaluation.records import read_record
from raysent.evaluation.tasks import load_task
from raysent.models import SentenceModel
from raysent.models.encoders import encoders_in
from raysent.storage.layout import EVALUATION_FOLDER, LEARNED_FOLDER, TRIALS_FOLDER
from raysent.sweeps.parts import train_parts
from raysent.sweeps.trial import Trial
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.plan import open_validator
from raysent.training.run import RunConfig

WORDS = 12


def written(folder: Path, *, num_rows: int = 120, is_random: bool = False, seed: int = 0) -> str:
    """Write a table of two classes, each with words of its own, or with labels of no meaning."""
    generator = np.random.default_rng(seed)
    labels = np.arange(num_rows) % 2
    words = [
        generator.integers(0, 2 * WORDS, 6)
        if is_random
        else generator.integers(0, WORDS, 6) + WORDS * label
        for label in labels
    ]
    rows = [
        (" ".join(f"w{word}" for word in some), f"c{label}")
        for some, label in zip(words, labels, strict=True)
    ]
    path = folder / "own.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    return str(path)


def settings(task: str, objective: str) -> RunConfig:
    """A small run on the labels of a task, ranked by the rows that it leaves out."""
    kinds = {"contrast": {"type": "contrast", "positives": "labels"}, "task": {"type": "task"}}
    return RunConfig.model_validate(
        {
            "labels": {"task": task},
            "encoder": {"type": "bag", "pooling": "mean", "embedding": {"dim": 8}},
            "objective": kinds[objective],
            "training": {
                "batch_size": 16,
                "epochs": 6.0,
                "num_reports": 2,
                "learning_rate": 0.05,
            },
            "validation": {"downstream": {"tasks": [task]}},
        }
    )


def completed(folder: Path, task: str, objective: str) -> Path:
    """Train a first trial, then its setting for every part and on all rows; return the folder of the latter."""
    fit(settings(task, objective), folder / TRIALS_FOLDER / "0000")
    return train_parts(folder, Trial("0000", 0, {}, 0), run_in_turn)


def record_of(whole: Path, task: str, output: Path):
    """Return the record of a model on a task that a sweep would divide."""
    evaluator = Evaluator(output, divides=True)
    ((record,),) = evaluator.records(expand([whole]), [task]).values()
    return record


def test_runs_learn_two_thirds_each_and_leave_out_every_row_once(tmp_path):
    """Rows that test are in none of them; `held_out: null` learns all the others."""
    task = written(tmp_path)
    data = divided(load_task(task, None))
    config = settings(task, "contrast")
    learned, left_out = [], []
    for part in (0, 1, 2, None):
        labels = config.labels.model_copy(update={"held_out": part})
        rows = open_training_data(config.model_copy(update={"labels": labels})).labels
        assert not rows.held_out & set(rows.train)
        learned.append(sorted(rows.train))
        left_out.append(rows.held_out)
    texts = [data.sentences[0][row] for row in data.train]
    assert learned[3] == sorted(texts)
    assert frozenset.union(*left_out[:3]) == set(texts)
    assert sum(map(len, left_out[:3])) == len(set(texts))
    assert not left_out[3]


def test_rows_that_are_left_out_rank_a_run(tmp_path):
    """The probe is fitted to what the run learned; a run that learned all rows cannot be ranked by them."""
    task = written(tmp_path)
    config = settings(task, "contrast")
    data = open_training_data(config)
    (judged,) = open_validator(config, data).downstream.tasks
    texts = judged.sentences[0]
    assert {texts[row] for row in judged.validation} == data.labels.held_out
    assert {texts[row] for row in judged.train} == set(data.labels.train)
    labels = config.labels.model_copy(update={"held_out": None})
    whole = config.model_copy(update={"labels": labels})
    with pytest.raises(ConfigError, match=r"labels\.held_out: must leave out a part of own"):
        open_validator(whole, open_training_data(whole))


@pytest.mark.parametrize("objective", ["contrast", "task"])
def test_every_row_is_predicted_by_a_model_that_had_not_learned_it(tmp_path, objective):
    """By a restatement for the layer; for the probe, whoever learned a row is another model."""
    task = written(tmp_path)
    whole = completed(tmp_path, task, objective)
    record, data = record_of(whole, task, tmp_path / "scores"), divided(load_task(task, None))
    (fold,) = record.folds
    assert fold.validation_rows.tolist() == data.train.tolist()
    assert fold.test_rows.tolist() == data.test.tolist()
    assert record.score.learned
    assert record.about["out_of_fold"]
    assert record.validation > 80
    parts, numbers = part_folders(str(whole)), part_numbers(data)
    assert [part.name for part in parts] == ["0000", "without-1", "without-2"]
    for part, folder in enumerate(parts):
        model = SentenceModel.load(folder)
        unseen = [data.sentences[0][row] for row in data.train[numbers == part]]
        assert not set(unseen) & set(open_training_data(_config(folder)).labels.train)
        if record.about["own_layer"]:
            np.testing.assert_allclose(
                fold.validation_log_probabilities[numbers == part],
                own_log_probabilities(model, unseen),
                atol=1e-6,
            )
    assert record.about["own_layer"] is (objective == "task")
    again = record_of(whole, task, tmp_path / "scores")
    assert again.key == record.key
    assert again.validation == record.validation


def _config(folder: Path) -> RunConfig:
    from raysent.training.run import load_run

    return load_run(folder)


@pytest.mark.parametrize("objective", ["contrast", "task"])
def test_labels_of_no_meaning_are_predicted_as_by_chance(tmp_path, objective):
    """Of rows that it learned, each of these models knows nearly all; of the others none."""
    rights = []
    for seed in range(6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        task = written(folder, num_rows=60, is_random=True, seed=seed)
        whole = completed(folder, task, objective)
        record = record_of(whole, task, folder / "scores")
        (fold,) = record.folds
        targets = record.targets.take(fold.validation_rows)
        rights.append(targets.score(fold.validation_log_probabilities))
    # Forty rows each: three standard errors of a coin, and as many of all rows together.
    assert max(abs(right - 0.5) for right in rights) <= 0.24
    assert abs(np.mean(rights) - 0.5) <= 0.1


def test_what_learned_all_rows_and_predicts_none_of_them_is_no_answer(tmp_path, capsys):
    """Nothing is left that could choose it; a line says so."""
    task = written(tmp_path)
    config = settings(task, "contrast")
    labels = config.labels.model_copy(update={"held_out": None})
    none = config.validation.model_copy(update={"downstream": None})
    fit(config.model_copy(update={"labels": labels, "validation": none}), tmp_path / "all")
    records = Evaluator(tmp_path / "scores", divides=True).records(
        expand([tmp_path / "all", "tfidf"]), [task]
    )
    assert [member.name for member in choosable(records)] == ["tfidf"]
    assert "all learned every labelled row of a task" in capsys.readouterr().err
    with pytest.raises(DataError, match="learned every labelled row"):
        choosable({one: found for one, found in records.items() if one.name == "all"})


def test_trial_without_other_trainings_is_judged_by_what_it_left_out(tmp_path):
    """As where the budget ended before them."""
    task = written(tmp_path)
    fit(settings(task, "task"), tmp_path / "run")
    record, data = (
        record_of(tmp_path / "run", task, tmp_path / "scores"),
        divided(load_task(task, None)),
    )
    assert record.folds[0].validation_rows.tolist() == data.train[part_numbers(data) == 0].tolist()
    assert record.about["out_of_fold"]


def test_sweep_of_labels_takes_a_table_without_parts_of_its_own(tmp_path):
    """From the table to an answer whose member learned all rows; a resume trains nothing again."""
    task = written(tmp_path)
    values = {
        "training.epochs": 6.0,
        "training.learning_rate": 0.05,
        "training.batch_size": 16,
        "objective": {"type": "task"},
        "encoder.embedding.dim": 8,
    }
    sweep = raysent.sweep(
        "labels",
        tasks=[task],
        set=values,
        trials=1,
        labels=[],
        run=tmp_path / "run",
        progress=False,
    )
    assert sweep.status == "completed"
    whole = tmp_path / "run" / LEARNED_FOLDER / "0000"
    assert len(part_folders(str(whole))) == NUM_PARTS
    record = read_record(tmp_path / "run" / EVALUATION_FOLDER / "0000", "own")
    assert len(record.folds[0].validation_rows) == 80
    model = raysent.load(tmp_path / "run" / "best")
    assert [*model.predict(["w1 w2 w3", "w13 w14 w15"])] == ["c0", "c1"]
    ended = (whole / "outcome.json").stat().st_mtime_ns
    raysent.resume(tmp_path / "run", progress=False)
    assert (whole / "outcome.json").stat().st_mtime_ns == ended


def test_tokens_are_those_that_the_encoder_reads(tmp_path):
    """Of a pretrained encoder what its folder says, and fifty words of any other; a given number is the last word."""
    task = written(tmp_path)
    folder = write_bert(tmp_path / "bert", max_position_embeddings=120)
    encoder = {"type": "pretrained", "path": str(folder)}
    config = settings(task, "contrast")
    assert config.max_length == open_training_data(config).max_length == 50
    of_bert = RunConfig.model_validate({**config.model_dump(), "encoder": encoder})
    (tower,) = encoders_in(of_bert.encoder)
    assert of_bert.max_length == open_training_data(of_bert).max_length == tower.token_limit == 120
    labels = {"task": task, "max_length": 30}
    assert RunConfig.model_validate({**of_bert.model_dump(), "labels": labels}).max_length == 30


def test_classes_are_as_frequent_in_predictions_as_in_rows():
    """Batches are balanced, so what is trained are logits plus the logarithm of the batches' frequencies over theirs."""
    from raysent.data.vocabulary import Sentences

    labels = np.array([0] * 90 + [2] * 10)
    texts = Sentences(np.ones(100, dtype=np.int32), np.ones(100, dtype=np.int64))
    batch = LabelStream(texts, labels, batch_size=20, seed=0).batch(0)
    np.testing.assert_allclose(batch.more_often, np.log([0.5 / 0.9, 1.0, 0.5 / 0.1]), rtol=1e-6)
