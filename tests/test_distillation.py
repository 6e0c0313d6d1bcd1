"""Distillation: the loss against its restatement, the teacher's targets, and a student from command to saved model."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from command import CommandLine
from reference import distillation as reference_loss
from tiny_run import check_resumed, tiny_run
from toy_batches import TARGETS, ToyRead, build_context, toy_batch

import raysent
from raysent.config import Document
from raysent.data.batches import SentenceTargets
from raysent.data.corpus import sentence_texts
from raysent.errors import ArtifactError, ConfigError
from raysent.evaluation.evaluate import Evaluator
from raysent.models import SentenceModel, load
from raysent.models.objectives import TargetBatches, build_objective
from raysent.models.objectives.distillation import Config
from raysent.pipeline.distillation import _within, within_time
from raysent.storage import read_json
from raysent.storage.layout import FRONT_FILE
from raysent.sweeps.space import parse_space
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.plan import open_stream
from raysent.training.targets import _directions, find_teacher
from raysent.training.validation.metrics import held_out_sentences
from raysent.training.workers import Workers

OBJECTIVE = {"type": "distillation", "dim": 16}


def _train_here(config, folder, *, on_report=None, **options):
    """Train in this process instead of a Ray worker."""
    del options
    return fit(
        config, folder, report=lambda report: on_report(report) is not False if on_report else True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two trained members, a task in a table, and their ensemble on it."""
    place = tmp_path_factory.mktemp("distillation")
    fit(tiny_run(place), place / "gru")
    fit(tiny_run(place, encoder={"type": "bag", "embedding": {"dim": 12}}), place / "bag")
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 80)
    words = [
        " ".join(f"w{word + 20 * label}" for word in generator.integers(0, 18, 6))
        for label in labels
    ]
    names, parts = (
        np.where(labels, "high", "low"),
        np.repeat(["train", "validation", "test"], [40, 20, 20]),
    )
    table = pd.DataFrame({"text": words, "label": names, "split": parts})
    table.to_csv(place / "halves.csv", index=False)
    raysent.ensemble(
        [str(place / "gru"), str(place / "bag")],
        tasks=[str(place / "halves.csv")],
        output=place / "both",
        baselines=False,
        progress=False,
    )
    return place


def student(folder, **changes):
    """A student of the ensemble that reads the members' text."""
    objective = {**OBJECTIVE, "teacher": str(folder / "both"), "max_loss": 100}
    return tiny_run(
        folder,
        **{"objective": objective, "encoder": {"type": "bag", "embedding": {"dim": 16}}, **changes},
    )


# -- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lambda_similarity", "lambda_tasks"), [(0.0, 0.0), (2.0, 0.0), (0.5, 3.0)]
)
def test_loss_equals_its_restatement(lambda_similarity, lambda_tasks):
    """Cosines with the targets, cosines of pairs and divergences, each with its weight."""
    settings = {"lambda_similarity": lambda_similarity, "lambda_tasks": lambda_tasks}
    objective = build_objective(Config(**settings), build_context(dim=TARGETS.dim))
    read, batch = ToyRead(1, dim=TARGETS.dim), toy_batch(TargetBatches)
    vectors = read(batch.sentences)[0].detach().double().numpy()
    weights = [(one.weight.detach().numpy(), one.bias.detach().numpy()) for one in objective.probes]
    probabilities = [np.exp(values) for values in batch.log_probabilities.values()]
    expected = reference_loss(vectors, batch.vectors, probabilities, weights=weights, **settings)
    assert objective(read, batch).item() == pytest.approx(expected, rel=1e-5)


def test_loss_maps_the_student_to_a_target_of_another_size():
    """The cosine is that of the mapped vector; those of pairs are the student's own."""
    objective = build_objective(Config(lambda_tasks=0.0), build_context(dim=8))
    read, batch = ToyRead(1, dim=8), toy_batch(TargetBatches)
    vectors = read(batch.sentences)[0].detach()
    mapped, own = objective.map(vectors).detach().double().numpy(), vectors.double().numpy()
    expected = reference_loss(mapped, batch.vectors, lambda_similarity=0.0)
    gaps = np.square(_cosines(own) - _cosines(batch.vectors)).sum() / (len(own) * (len(own) - 1))
    assert objective(read, batch).item() == pytest.approx(expected + gaps, rel=1e-5)


def _cosines(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def test_loss_of_the_target_itself_is_zero():
    """A student that returns the target has cosine 1 and nothing to learn."""
    objective = build_objective(Config(lambda_tasks=0.0), build_context(dim=TARGETS.dim))
    batch = toy_batch(TargetBatches)

    def read(sentences, *, is_training=True):
        return (3 * torch.from_numpy(batch.vectors),)

    assert objective(read, batch).item() == pytest.approx(0, abs=1e-6)
    assert objective.held_out_totals(read, batch)["target_cosine"] == (
        pytest.approx(len(batch)),
        len(batch),
    )


def test_configuration_needs_a_teacher(tmp_path):
    """The error names the setting."""
    with pytest.raises(
        ValueError, match=r"objective\.teacher must be set for objective distillation"
    ):
        tiny_run(tmp_path, objective={"type": "distillation"})


# -- the targets ----------------------------------------------------------------------------------------------------


def test_sentence_texts_are_those_of_the_corpus(tmp_path):
    """Their ids are the corpus' own, in its order: training documents first."""
    config = tiny_run(tmp_path)
    corpus = open_training_data(config).text
    texts = sentence_texts(config.corpus)
    positions = np.array([0, 5, len(corpus.train), corpus.num_sentences - 1])
    assert len(texts) == corpus.num_sentences
    for position, text in zip(positions, texts.texts(positions), strict=True):
        start, stop = corpus.offsets[position], corpus.offsets[position + 1]
        assert (
            corpus.vocabulary.ids([text], max_length=50).ids.tolist()
            == corpus.ids[start:stop].tolist()
        )


def test_targets_are_the_members_joined_unit_vectors(folder):
    """Without a projection: centred, in the order of the corpus, of both splits."""
    config = student(folder, objective__dim=100)
    data = open_training_data(config)
    texts = sentence_texts(config.corpus).texts(np.arange(data.text.num_sentences))
    joined = load(folder / "both").encode(texts)
    mean = joined[: len(data.text.train)].mean(axis=0)
    np.testing.assert_allclose(data.targets.vectors, joined - mean, atol=2e-3)
    batch = open_stream(config, data, Workers()).batch(3)
    np.testing.assert_array_equal(
        batch.vectors, data.targets.vectors[batch.positions].astype(np.float32)
    )


def test_held_out_sentences_have_their_own_targets(folder):
    """Those of the validation split, which follows the training split."""
    data = open_training_data(student(folder))
    text, targets, batches = data.text.validation, data.targets, []
    held_out_sentences(text, targets, num_sentences=50).objective_metrics(
        lambda batch: batches.append(batch) or {}
    )
    found = np.concatenate([batch.vectors for batch in batches])
    np.testing.assert_array_equal(found, targets.vectors[text.first : text.first + 50])


def test_targets_are_computed_once(folder, monkeypatch):
    """Another student of the same teacher and text reads the cache, and does not load the teacher."""
    first = open_training_data(student(folder)).targets
    monkeypatch.setattr(
        "raysent.training.targets.load_model", lambda name: pytest.fail("loaded again")
    )
    again = open_training_data(student(folder, encoder={"type": "gru", "hidden_size": 4})).targets
    assert again.key == first.key
    assert isinstance(again, SentenceTargets)


def test_targets_have_the_ensembles_log_probabilities(folder):
    """On the tasks that are named and that the ensemble was made on."""
    config = student(folder, objective__tasks=[str(folder / "halves.csv")])
    data = open_training_data(config)
    texts = sentence_texts(config.corpus).texts(np.arange(5))
    expected = load(folder / "both").predictors["halves"].combined([texts])  # not calibrated
    np.testing.assert_allclose(data.targets.log_probabilities["halves"][:5], expected, atol=5e-3)


def test_targets_leave_out_a_lexical_member(folder):
    """It has no vectors; what it predicts is part of the ensemble's log-probabilities."""
    task = str(folder / "halves.csv")
    models = [str(folder / "bag"), "tfidf"]
    raysent.ensemble(
        models, tasks=[task], output=folder / "lexical", baselines=False, progress=False
    )
    objective = {**OBJECTIVE, "teacher": str(folder / "lexical"), "tasks": [task], "max_loss": 100}
    config = student(folder, objective=objective)
    targets = open_training_data(config).targets
    texts = sentence_texts(config.corpus).texts(np.arange(4))
    assert targets.vectors.shape[1] == min(
        16, load(folder / "bag").get_sentence_embedding_dimension()
    )
    expected = load(folder / "lexical").predictors["halves"].combined([texts])  # not calibrated
    np.testing.assert_allclose(targets.log_probabilities["halves"][:4], expected, atol=5e-3)


def test_pca_keeps_the_most_variance_and_random_directions_less():
    """The part that is kept is that of the largest eigenvalues, and columns are orthonormal."""
    rows = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32) * np.arange(1, 7)
    rows -= rows.mean(axis=0)
    values = np.linalg.eigvalsh(rows.T @ rows)
    matrix, kept = _directions(rows, 2, kind="pca")
    assert kept == pytest.approx(values[-2:].sum() / values.sum(), rel=1e-5)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(2), atol=1e-6)
    drawn, less = _directions(rows, 2, kind="random")
    np.testing.assert_allclose(drawn.T @ drawn, np.eye(2), atol=1e-6)
    assert 0 < less < kept


@pytest.mark.parametrize(("num_rows", "dim"), [(40, 8), (5, 8)])
def test_directions_of_few_rows_need_no_matrix_of_all_numbers(num_rows, dim, monkeypatch):
    """Those of the covariance, of which few sentences of a wide teacher have no more than rows; all are orthonormal."""
    rows = np.random.default_rng(0).normal(size=(num_rows, 90)).astype(np.float32)
    rows -= rows.mean(axis=0)
    values, vectors = np.linalg.eigh(rows.astype(np.float64).T @ rows)
    decompose, sizes = torch.linalg.eigh, []
    monkeypatch.setattr(
        torch.linalg, "eigh", lambda matrix: sizes.append(len(matrix)) or decompose(matrix)
    )
    matrix, kept = _directions(rows, dim, kind="pca")
    assert sizes == [num_rows]
    assert kept == pytest.approx(values[-dim:].sum() / values.sum(), rel=1e-6)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(dim), atol=1e-6)
    same = min(dim, num_rows - 1)
    np.testing.assert_allclose(
        np.abs(np.sum(matrix[:, :same] * vectors[:, ::-1][:, :same], axis=0)), 1, atol=1e-5
    )


def test_target_that_loses_variance_is_refused(folder):
    """The error names both settings and what is lost."""
    with pytest.raises(
        ConfigError, match=r"^objective\.dim: .*all but 1 % of the variance.*objective\.max_loss"
    ):
        open_training_data(student(folder, objective__dim=1, objective__max_loss=1.0))


def test_target_that_loses_score_is_refused(folder, monkeypatch):
    """With tasks, the loss is that of the probes' validation score."""
    scores = iter([{"downstream": 90.0}, {"downstream": 88.5}])
    monkeypatch.setattr(
        "raysent.training.validation.metrics.Downstream.downstream_metrics",
        lambda self, model: next(scores),
    )
    config = student(
        folder,
        objective__dim=3,
        objective__tasks=[str(folder / "halves.csv")],
        objective__max_loss=1.0,
    )
    with pytest.raises(ConfigError, match=r"all but 1 points of the teacher's score .* lose 1\.50"):
        open_training_data(config)


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "no such folder"), ("cache", "holds no model")]
)
def test_teacher_that_is_no_model_is_refused(folder, name, message):
    """The error names the setting."""
    settings = TargetBatches(teacher=str(folder / name), dim=4)
    with pytest.raises(ArtifactError, match=rf"^objective\.teacher: .*{message}"):
        find_teacher(settings)


# -- the student ----------------------------------------------------------------------------------------------------


def test_student_learns_and_needs_no_teacher(folder, tmp_path):
    """Training raises the cosine with the target; the saved model encodes after the teacher is gone."""
    shutil.copytree(folder / "gru", tmp_path / "teacher")
    config = student(folder, objective__teacher=str(tmp_path / "teacher"), training__epochs=12.0)
    fit(config, tmp_path / "student")
    shutil.rmtree(tmp_path / "teacher")
    model = load(tmp_path / "student")
    assert isinstance(model, SentenceModel)
    assert model.encode(["w1 w2 w3"]).shape == (1, 16)
    reports = (tmp_path / "student" / "reports.jsonl").read_text().splitlines()
    cosines = [
        float(line.split('"target_cosine": ')[1].split(",")[0].rstrip("}")) for line in reports
    ]
    assert cosines[-1] > cosines[0] + 0.05
    assert cosines[-1] > 0.3


def test_student_that_was_stopped_is_resumed_bit_for_bit(folder, tmp_path):
    """The weights are those of a run that was not stopped."""
    config = student(folder, encoder={"type": "gru", "hidden_size": 6, "embedding": {"dim": 5}})
    check_resumed(config, tmp_path)


def test_student_is_part_of_a_search_space(folder):
    """Objective and encoder are searched like any other."""
    values = {
        "base": student(folder).model_dump(mode="json"),
        "search": {"objective.dim": {"choice": [8, 16]}},
    }
    space = parse_space(Document(values={**values, "limits": {"trials": 2}}), name="students")
    assert space.config({"objective.dim": 8}).objective.batches.dim == 8


def test_distill_compares_the_student_with_its_teacher(folder, monkeypatch):
    """The front has the student, both members and their ensemble; text and words are those of the members."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    made = raysent.distill(
        raysent.load(folder / "both"),
        into={"type": "bag", "embedding": {"dim": 16}},
        tasks=[str(folder / "halves.csv")],
        set={"training.batch_size": 24, "training.num_reports": 2, "objective.max_loss": 100},
        output=folder / "distilled",
        progress=False,
    )
    assert made.run.outcome.status == "finished"
    assert sorted(made.table["kind"]) == ["ensemble", "member", "member", "student"]
    members = made.table[made.table["kind"] == "member"]
    assert made.table.loc["ensemble", "encode_ms"] == pytest.approx(members["encode_ms"].sum())
    assert (members["difference"] == 0).any()
    assert made.table.iloc[0]["is_on_front"]
    assert [row["name"] for row in read_json(folder / "distilled" / FRONT_FILE)] == list(
        made.table.index
    )
    assert made.model.vocabulary.words == SentenceModel.load(folder / "gru").vocabulary.words
    taught = raysent.load(folder / "both").result.tasks["halves"].row_hash
    assert dict(made.model.learned_tasks) == {"halves": taught}, (
        "labels, by the teacher's predictions"
    )
    (score,) = Evaluator(folder / "scores", divides=True).evaluate(
        [made.model], [str(folder / "halves.csv")]
    )
    assert score.learned


def test_distill_without_tasks_trains_alone(folder, monkeypatch):
    """There is no front; a single model can be a teacher too."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    made = raysent.distill(
        folder / "gru",
        into={"type": "cnn", "num_filters": 4, "embedding": {"dim": 6}},
        set={"training.batch_size": 24},
        output=folder / "cnn",
        progress=False,
    )
    assert made.front == ()
    assert made.table.empty


def test_time_becomes_steps_that_a_resumed_run_keeps(folder, tmp_path, monkeypatch, capsys):
    """The steps are what fits beside the reports; in a folder with the run they are not measured again, as a line says."""
    config = student(folder)
    data = open_training_data(config)
    monkeypatch.setattr(
        "raysent.pipeline.distillation.seconds_of_steps", lambda config, data: (0.5, 1.0)
    )
    timed = within_time(config, data, 24.0, folder=tmp_path)
    assert timed.training.max_steps == (24 - 4 * 1.0) / 0.5
    few = config.model_copy(
        update={"training": config.training.model_copy(update={"max_steps": 7})}
    )
    assert within_time(few, data, 24.0, folder=tmp_path).training.max_steps == 7
    steps = open_stream(config, data, Workers()).num_batches
    assert timed.training.epochs * steps >= timed.training.max_steps
    fit(timed, tmp_path)
    monkeypatch.setattr(
        "raysent.pipeline.distillation.seconds_of_steps",
        lambda config, data: pytest.fail("measured"),
    )
    assert within_time(config, data, 999.0, folder=tmp_path).key == timed.key
    assert _within(config, "1h", tmp_path, progress=True).key == timed.key
    assert (
        capsys.readouterr().err
        == f"{tmp_path} has begun and keeps its steps, whatever the time; -o NEW begins again\n"
    )


def test_members_of_another_kind_have_no_text(monkeypatch):
    """A teacher that was not trained here needs a corpus to be named."""
    with pytest.raises(ConfigError, match=r"^corpus\.path: must be set; no member of hash:8"):
        raysent.distill("hash:8", into="bag", progress=False)


def test_command_prints_the_front(folder, monkeypatch, capsys):
    """One line for each model; a wrong value is one line that names its option."""
    monkeypatch.setattr("raysent.pipeline.training.train_run", _train_here)
    command = CommandLine(monkeypatch, capsys)
    task = folder / "halves.csv"
    typed = ["distill", folder / "both", "--into", "bag", "--tasks", task, "-o", folder / "typed"]
    few = [
        "--set",
        "training.batch_size=24",
        "--set",
        "training.max_steps=3",
        "--set",
        "encoder.embedding.dim=8",
    ]
    ran = command(*typed, *few)
    assert ran.code == 0, ran.err
    assert re.search(
        r"^finished: .*typed  cosine with the target -?0\.\d{4}$", ran.out, re.MULTILINE
    )
    assert [line.split()[0] for line in ran.out.splitlines()[2:]].count("ensemble") == 1
    assert len(ran.out.splitlines()) == 2 + 4
    refused = command(*typed, *few, "--set", "objective.max_loss=-100")
    assert refused.code == 2
    assert refused.err.startswith("error: --set objective.max_loss=-100: ")


def test_a_teacher_that_is_not_there_is_named(tmp_path):
    """The teacher is the mistake, not the text that it does not record."""
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "empty"):
        with pytest.raises(ArtifactError, match=f"{name}: no such run or model"):
            raysent.distill(tmp_path / name, into="bag", progress=False)
