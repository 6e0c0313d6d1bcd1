"""Classes that a fold has no row of: fits stay finite, and a model that cannot be fitted does not end the others."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import raysent
from raysent.errors import DataError
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.probes.logistic import LOWEST, MAX_STEPS, Fits, class_targets
from raysent.evaluation.task import Task
from raysent.evaluation.task_files import OwnTask
from raysent.models.schemes.hash import HashEncoder

WORDS = [
    "kettle",
    "lamp",
    "chair",
    "train",
    "hotel",
    "phone",
    "garden",
    "bridge",
    "museum",
    "bakery",
    "river",
    "window",
]
STRENGTHS = (0.0625, 1.0, 16.0, 256.0)


def frame(labels: list[str], *, seed: int = 0) -> pd.DataFrame:
    """Return texts that say whether they are of the first class."""
    generator = np.random.default_rng(seed)
    texts = [
        f"{'bright' if label == labels[0] else 'dull'} {' '.join(generator.choice(WORDS, 7))}"
        for label in labels
    ]
    return pd.DataFrame({"text": texts, "label": labels})


# As of tickets: two large classes and a long tail.
TAIL = ["pos"] * 90 + ["neg"] * 79 + [f"odd{row}" for row in range(31)]


def fits_of(features: np.ndarray, labels: np.ndarray, num_classes: int) -> Fits:
    """Return the fits of rows that may all train."""
    targets = class_targets(labels, num_classes=num_classes)
    return Fits(features, targets, trainable=np.arange(len(labels)), strengths=STRENGTHS)


def test_a_class_without_a_row_has_no_output_and_the_others_are_those_of_scikit_learn():
    """Along the whole grid of C, each in a few steps; the same rows without the class give the same fits."""
    generator = np.random.default_rng(0)
    labels = np.array([0] * 60 + [1] * 50 + [2] * 40 + [3] * 4)
    features = generator.normal(size=(154, 12)).astype(np.float32) + labels[:, None] / 3
    masks = torch.ones(154, 3, dtype=torch.bool)
    masks[150:, 0] = False  # no row of the last class
    masks[110:, 1] = False  # nor of the third
    fits = fits_of(features, labels, 4)
    path = fits.path(masks)
    assert fits.num_unfinished == 0
    assert int(path.num_steps.max()) < MAX_STEPS / 4
    # Fits that choose C stop early; these go on to the optimum.
    everything = torch.tensor(STRENGTHS).repeat_interleave(3)
    path = fits.solve(masks.repeat(1, len(STRENGTHS)), everything, path.start(torch.arange(12)))
    assert fits.num_unfinished == 0
    margins = fits.margins(path)
    assert bool(margins.isfinite().all())
    for place, strength in enumerate(STRENGTHS):
        for mask, present in enumerate((3, 2, 4)):
            problem = place * 3 + mask
            assert bool((margins[:, present:, problem] == LOWEST).all())
            probe = fits.probe(path, problem, strength)
            assert not probe.weights[:, present:].any()
            rows = masks[:, mask].numpy()
            scale = fits._scaled.scale
            scaled = (features - fits._scaled.mean.numpy()) / scale
            # Of two classes each has an output here, and both share the weights that scikit-learn gives one.
            inverse = 2 * strength if present == 2 else strength
            found = LogisticRegression(C=inverse, tol=1e-8, max_iter=9999).fit(
                scaled[rows].astype(np.float64), labels[rows]
            )
            expected = found.predict_proba(scaled.astype(np.float64))
            own = torch.softmax(margins[:, :, problem], dim=1).numpy()
            assert own[:, present:].max(initial=0) < 1e-6
            np.testing.assert_allclose(own[:, :present], expected, atol=2e-3)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_alone_is_surer_the_more_rows_it_has(label):
    """Of two classes; with no row at all, nothing is known."""
    features = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    labels = np.array([label] * 20 + [1 - label] * 20)
    masks = torch.zeros(40, 3, dtype=torch.bool)
    masks[:20, 0] = True
    masks[:5, 1] = True
    fits = fits_of(features, labels, 2)
    margins = fits.margins(fits.path(masks))[:, 0].reshape(40, len(STRENGTHS), 3)
    sign = 2 * label - 1
    np.testing.assert_allclose(margins[:, :, 0], sign * math.log(21), rtol=1e-5)
    np.testing.assert_allclose(margins[:, :, 1], sign * math.log(6), rtol=1e-5)
    assert not margins[:, :, 2].any()


def test_a_fit_goes_on_from_one_without_a_class():
    """The last fit has rows of every class, and starts from one that had none of the rarest."""
    generator = np.random.default_rng(1)
    labels = np.array([0] * 60 + [1] * 50 + [2] * 2)
    features = generator.normal(size=(112, 8)).astype(np.float32) + labels[:, None]
    fits = fits_of(features, labels, 3)
    without = torch.ones(112, 1, dtype=torch.bool)
    without[110:] = False
    start = fits.path(without).start(torch.tensor([1]))
    everything, strength = torch.ones(112, 1, dtype=torch.bool), torch.tensor([STRENGTHS[1]])
    found, fresh = fits.solve(everything, strength, start), fits.solve(everything, strength)
    np.testing.assert_allclose(
        torch.softmax(found.margins, dim=1), torch.softmax(fresh.margins, dim=1), atol=1e-3
    )


@pytest.mark.parametrize("model", ["hash:20", "tfidf"])
def test_a_long_tail_of_rare_classes_is_scored(model, tmp_path):
    """Two large classes and thirty of a row each: finite scores, in which the large ones are told apart."""
    task = OwnTask(frame(TAIL), name="tail")
    evaluator = Evaluator(tmp_path)
    (member,) = expand([model])
    ((record,),) = evaluator.records([member], [task]).values()
    assert record.about["num_unfinished_fits"] == 0
    assert 60 < record.test < 100
    (fold,) = record.folds
    assert np.isfinite(fold.validation_log_probabilities).all()
    assert np.isfinite(fold.test_log_probabilities).all()


def test_an_ensemble_of_rare_classes_is_made_and_predicts(tmp_path):
    """As a user with tickets does."""
    made = raysent.ensemble(
        ["hash:20", "tfidf"],
        tasks=[raysent.Task(frame(TAIL), name="tail")],
        method="pool",
        output=tmp_path / "made",
        progress=False,
    )
    assert made.predict(["bright lamp", "dull river"]) == ["pos", "neg"]


# --- a model that cannot be fitted -------------------------------------------------------------------------------------


class Broken(HashEncoder):
    """An encoder that diverged."""

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> np.ndarray:
        """Return vectors that are no numbers."""
        return super().encode_texts(sentences, batch_size=batch_size) * np.float32("nan")


def test_a_model_that_cannot_be_fitted_is_left_out_with_a_line(tmp_path, capsys):
    """The scores of the others are there; alone it is an error."""
    task = OwnTask(frame(["pos", "neg"] * 40), name="own")
    options = {"tasks": [task], "baselines": False, "progress": False}
    scores = raysent.evaluate(["hash:20", Broken(8), "tfidf"], output=tmp_path / "a", **options)
    assert scores.model.tolist() == ["hash:20", "tfidf"]
    said = " ".join(capsys.readouterr().err.split())
    assert "warning: Broken is left out on own, to which it cannot be fitted: " in said
    with pytest.raises(DataError, match="finite"):
        raysent.evaluate(Broken(8), output=tmp_path / "b", **options)
    with pytest.raises(DataError, match="finite"):
        raysent.evaluate([Broken(8), Broken(16)], output=tmp_path / "c", **options)


def test_models_that_need_each_other_are_an_error_together(tmp_path):
    """Where nothing goes on without a model, its reason is raised."""
    task: Task = OwnTask(frame(["pos", "neg"] * 40), name="own")
    with pytest.raises(DataError, match="finite"):
        Evaluator(tmp_path).records(expand(["hash:8", Broken(8)]), [task])
    kept = Evaluator(tmp_path, goes_on=True).records(expand(["hash:8", Broken(8)]), [task])
    assert [member.name for member in kept] == ["hash:8"]


def test_a_baseline_that_cannot_be_fitted_ends_no_ensemble(tmp_path, monkeypatch, capsys):
    """The members are combined, and a line says which baselines are missing."""

    def refuse(*_: object, **__: object) -> None:
        raise DataError("own: tfidf needs words in the training texts; found none")

    monkeypatch.setattr("raysent.evaluation.task_kinds.fit_lexical", refuse)
    task = OwnTask(frame(["pos", "neg"] * 40), name="own")
    made = raysent.ensemble(
        ["hash:8", "hash:9"], tasks=[task], output=tmp_path / "made", progress=False
    )
    assert made.tasks == ["own"]
    assert "tfidf needs words" in capsys.readouterr().err
