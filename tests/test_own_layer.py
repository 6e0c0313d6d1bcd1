"""A model that was trained end to end predicts the task by its own layer, where validation rows prefer it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from test_contrast import labels_run

import raysent
from raysent.ensembles.ensemble import predictor_of
from raysent.ensembles.task_ensemble import task_ensemble
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.own_layer import own_log_probabilities, own_result
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.protocols import fit_probe
from raysent.evaluation.task_files import OwnTask
from raysent.evaluation.tasks import load_task
from raysent.models import SentenceModel, load
from raysent.training.loop import fit
from raysent.training.targets import _LastKept

_TWO = {
    "type": "concat",
    "members": {"a": {"type": "bag", "embedding": {"dim": 8}}, "b": {"type": "gru"}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with a bag that was trained by the objective `task`."""
    folder = tmp_path_factory.mktemp("own")
    fit(labels_run(folder, objective={"type": "task"}), folder / "run")
    return folder


def restated(model, text):
    """The log-probabilities of one text by sums over its words."""
    words = [model.vocabulary.id(word) for word in text.split()]
    vector = model.f.words.weight.detach().double().numpy()[words].mean(axis=0)
    weight, bias = (one.detach().double().numpy() for one in model.objectives[0].layer.parameters())
    logits = weight @ vector + bias
    return logits - np.log(np.exp(logits).sum())


def test_log_probabilities_equal_their_restatement_and_score_the_model(run):
    """Of validation and test rows; new rows are predicted by them too, alone, in an ensemble and by a teacher."""
    model, data = SentenceModel.load(run / "run"), load_task(str(run / "rows.yaml"), None)
    texts = data.sentences[0]
    expected = np.stack([restated(model, text) for text in texts])
    np.testing.assert_allclose(own_log_probabilities(model, texts), expected, atol=1e-5)
    (records,) = (
        Evaluator(run / "run" / "evaluation")
        .records(expand([run / "run"]), [str(run / "rows.yaml")])
        .values()
    )
    assert records[0].about["own_layer"]
    assert records[0].score.learned
    np.testing.assert_allclose(
        records[0].folds[0].validation_log_probabilities, expected[data.validation], atol=1e-5
    )
    np.testing.assert_allclose(
        records[0].folds[0].test_log_probabilities, expected[data.test], atol=1e-5
    )
    right = expected[data.test].argmax(axis=1) == data.labels[data.test]
    assert records[0].test == pytest.approx(100 * right.mean())
    assert task_ensemble([records[0]], method="uniform").is_learned(records[0].model)
    loaded = load(run / "run")
    predictor = predictor_of(loaded)["rows"]
    np.testing.assert_allclose(predictor.of_members([texts[:9]])[0], expected[:9], atol=1e-5)
    np.testing.assert_allclose(
        own_log_probabilities(_LastKept(loaded), texts[:9]), expected[:9], atol=1e-5
    )


def test_probe_predicts_where_validation_prefers_it(run):
    """A layer of noise, one of other rows, and an export without one."""
    model, data = SentenceModel.load(run / "run"), load_task(str(run / "rows.yaml"), None)
    probed = fit_probe(task_features(model, data), data)
    assert own_result(model, data, probed) is not None
    model.learned_tasks = {"rows": "of another division", **dict.fromkeys(["start"], data.row_hash)}
    assert own_result(model, data, probed) is None
    model.learned_tasks = {"rows": data.row_hash}
    tensors = {
        name: value for name, value in model.tensors().items() if not name.startswith("objectives.")
    }
    assert (
        own_result(
            SentenceModel.from_tensors(model.record, model.vocabulary, tensors), data, probed
        )
        is None
    )
    torch.nn.init.zeros_(model.objectives[0].layer.weight)
    assert own_result(model, data, probed) is None


def test_what_learned_the_labels_is_fitted_to_train_rows_alone(run, tmp_path):
    """Its predictions of rows that it learned from choose nothing; validation rows of others train their probes too."""
    rows = load_task(str(run / "rows.yaml"), None)
    texts = [f"{text} {row}" for row, text in enumerate(rows.sentences[0])]
    task = OwnTask(
        pd.DataFrame({"text": texts, "label": rows.labels.astype(str)}),
        name="rows",
        split={"test": 0.3},
    )
    data = task.load()
    model = SentenceModel.load(run / "run")
    probed = [
        fit_probe(task_features(model, data), rows) for rows in (data, data.cross_validated())
    ]
    model.objectives = torch.nn.ModuleList()  # a probe predicts
    for name, learned, expected in (
        ("learned", {"other": data.row_hash}, 0),
        ("named", {"rows": "-"}, 0),
        ("not", {}, 1),
    ):
        model.learned_tasks = learned
        ((record,),) = Evaluator(tmp_path / name).records(expand([model]), [task]).values()
        assert record.score.learned == bool(learned)
        found, fold = record.folds[0], probed[expected].folds[0]
        np.testing.assert_allclose(
            found.test_log_probabilities, fold.test_log_probabilities, atol=1e-6
        )
        assert len(found.validation_rows) == len(data.validation) + (
            0 if learned else len(data.train)
        )
    assert not np.allclose(probed[0].probe.weights, probed[1].probe.weights)


def test_blocks_with_a_layer_each_have_their_mean_probability(tmp_path):
    """Of a composition whose members are trained apart."""
    fit(
        labels_run(tmp_path, objective={"type": "task"}, encoder=_TWO, training__max_steps=2),
        tmp_path / "run",
    )
    model = raysent.load(tmp_path / "run")
    texts = load_task(str(tmp_path / "rows.yaml"), None).sentences[0][:5]
    ids = model.vocabulary.ids(texts, max_length=50)
    blocks = torch.split(model.vectors(ids)[0], list(model.config.encoder.loss_dims), dim=1)
    parts = [
        one.layer(block).softmax(dim=1) for one, block in zip(model.objectives, blocks, strict=True)
    ]
    expected = torch.stack(parts).mean(dim=0).log().detach()
    np.testing.assert_allclose(own_log_probabilities(model, texts), expected, atol=1e-5)
