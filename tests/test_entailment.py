"""Runs on pairs with labels and with scores, and runs that start with a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from tiny_run import tiny_run
from toy_batches import ToyRead, build_context, toy_batch

from raysent.errors import ConfigError, DataError
from raysent.models import SentenceModel
from raysent.models.objectives import PairBatches, build_objective
from raysent.models.objectives.entailment import Config as Entailment
from raysent.models.objectives.relatedness import Config as Relatedness
from raysent.models.objectives.relatedness import level_targets
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.plan import check_run
from raysent.training.run import RunConfig


def write_labelled(folder: Path) -> Path:
    """Write pairs that share a word or do not, with that as label and a score from 1 to 5."""
    generator, lines = np.random.default_rng(0), []
    for _ in range(160):
        words = generator.permutation(40)[:6]
        is_same = generator.random() < 0.5
        second = [words[0], *words[3:5]] if is_same else words[3:6]
        label, score = ("entailment", 4.5) if is_same else ("neutral", 1.5)
        lines.append(
            f"{' '.join(f'w{n}' for n in words[:3])}\t{' '.join(f'w{n}' for n in second)}\t{label}\t{score}"
        )
    path = folder / "labelled.tsv"
    path.write_text("\n".join(lines))
    return path


def labelled_run(folder: Path, kind: str, **changes: Any) -> RunConfig:
    """Return a run on labelled, scored pairs with a BiLSTM."""
    values = {
        "pairs": {"path": str(write_labelled(folder)), "label": 2, "score": 3},
        "objective": {"type": kind},
        "encoder": {"type": "lstm", "hidden_size": 8, "embedding": {"dim": 6}},
        "training__learning_rate": 0.01,
    }
    return tiny_run(folder, **{**values, **changes})


@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_entailment_equals_its_restatement(activation):
    """Features, layers and cross-entropy, written out."""
    read, batch = ToyRead(1), toy_batch(PairBatches, 9)
    objective = build_objective(Entailment(hidden_size=7, activation=activation), build_context())
    u, v = (read(side)[0].detach().double().numpy() for side in batch.parts)
    layers = [
        (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in objective.layers
    ]
    expected = reference.entailment(u, v, layers, batch.labels, activation=activation)
    assert objective(read, batch).item() == pytest.approx(expected, rel=1e-5)
    assert objective.held_out_totals(read, batch)["nll"][0] == pytest.approx(9 * expected, rel=1e-5)


def test_level_targets_have_the_score_as_their_mean():
    """Two neighbouring levels share the probability; a whole score has one level."""
    scores = torch.tensor([1.0, 2.0, 3.6, 5.0])
    targets = level_targets(scores, num_levels=5)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(4).double())
    torch.testing.assert_close(
        targets @ torch.arange(1, 6).double(), scores.double(), atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(targets[2].numpy(), [0, 0, 0.4, 0.6, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("variant", "factor", "unit_length"),
    [("paper", 1.0, True), ("paper", 1.0, False), ("authors", 0.2, True)],
)
def test_relatedness_equals_its_restatement_and_penalties(variant, factor, unit_length):
    """KL over pairs, of the authors over levels too, and half the squared distances from the initial values."""
    read, batch, given = ToyRead(1), toy_batch(PairBatches, 9), build_context()
    batch = type(batch)(batch.first, batch.second, None, np.linspace(1, 5, 9))
    weight = torch.nn.Parameter(torch.ones(3))
    config = Relatedness(
        variant=variant,
        hidden_size=6,
        lambda_w=0.1,
        lambda_c=0.2,
        lambda_head=0.0,
        unit_length=unit_length,
    )
    objective = build_objective(config, type(given)(**{**vars(given), "parameters": (weight,)}))
    u, v = (read(side)[0].detach().double().numpy() for side in batch.parts)
    hidden, output = (
        (layer.weight.detach().numpy(), layer.bias.detach().numpy())
        for layer in (objective.hidden, objective.output)
    )
    expected, predicted = reference.relatedness(
        u, v, hidden, output, batch.scores, unit_length=unit_length
    )
    assert objective(read, batch).item() == pytest.approx(factor * expected, rel=1e-4)
    np.testing.assert_allclose(objective.predict(read, batch).detach(), predicted, rtol=1e-4)
    weight.data += 1.0
    given.words.weight.data += 0.5
    assert objective.penalty().item() == pytest.approx(
        0.05 * given.words.weight.numel() * 0.25 + 0.1 * 3, rel=1e-4
    )


@pytest.mark.parametrize(
    ("objective", "metrics"),
    [("entailment", {"accuracy", "nll"}), ("relatedness", {"score_pearson", "score_mse"})],
)
def test_labelled_pairs_train_resume_and_learn(tmp_path: Path, objective: str, metrics: set[str]):
    """A run that is stopped and resumed gives the same model; training improves the metrics."""
    config = labelled_run(
        tmp_path, objective, training__max_steps=80, training__num_reports=4, training__epochs=100.0
    )
    whole = fit(config, tmp_path / "whole")
    assert metrics < set(whole.metrics)
    fit(config, tmp_path / "halves", report=lambda report: report.index != 2)
    fit(config, tmp_path / "halves")
    one, two = (SentenceModel.load(tmp_path / folder) for folder in ("whole", "halves"))
    assert np.array_equal(one.encode(["w1 w2", ""]), two.encode(["w1 w2", ""]))
    first = fit(
        labelled_run(tmp_path, objective, training__max_steps=1, training__num_reports=1),
        tmp_path / "first",
    )
    worse = "nll" if objective == "entailment" else "score_mse"
    assert whole.metrics[worse] < first.metrics[worse]


def test_run_starts_with_a_trained_model(tmp_path: Path):
    """Its words and weights, and a penalty of zero; of two towers the first is used."""
    encoder = {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}}
    fit(tiny_run(tmp_path, encoder=encoder, training__max_steps=3), tmp_path / "source")
    changes = {
        "encoder": encoder,
        "initial": str(tmp_path / "source"),
        "training__learning_rate": 1e-9,
    }
    fit(labelled_run(tmp_path, "relatedness", **changes, training__max_steps=1), tmp_path / "next")
    source, after = (SentenceModel.load(tmp_path / folder) for folder in ("source", "next"))
    assert source.vocabulary.words == after.vocabulary.words
    np.testing.assert_allclose(
        source.encode(["w1 w2"], towers="f"), after.encode(["w1 w2"]), atol=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"initial": "nowhere"},
            ConfigError,
            "initial: must be the folder of a trained model; found none in nowhere",
        ),
        (
            {"encoder": {"type": "gru", "hidden_size": 6, "embedding": {"dim": 6}}},
            ConfigError,
            "'f.gru.weight_ih_l0' must be .* given .*; encoder and second_encoder must be as in the model's run.json",
        ),
        (
            {"encoder": {"type": "bag", "embedding": {"dim": 5}}},
            ConfigError,
            "'f.words.weight' must be",
        ),
        (
            {"pairs": {"path": "", "score": 3}, "objective": {"type": "entailment"}},
            DataError,
            "pairs.label: must name",
        ),
        (
            {"pairs": {"path": "", "label": 2}},
            ValueError,
            "pairs.score must name the column of the scores for objective",
        ),
    ],
)
def test_mistakes_of_pair_runs_raise_one_clear_error(
    tmp_path: Path, changes: dict[str, Any], error, message
):
    """What must hold, and what was given."""
    encoder = {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}}
    fit(tiny_run(tmp_path, encoder=encoder, training__max_steps=1), tmp_path / "source")
    if "pairs" in changes:
        changes = {**changes, "pairs": {**changes["pairs"], "path": str(write_labelled(tmp_path))}}
    values = {"encoder": encoder, "initial": str(tmp_path / "source"), **changes}
    with pytest.raises(error, match=message):
        fit(labelled_run(tmp_path, "relatedness", **values), tmp_path / "run")


@pytest.mark.parametrize(("old", "new"), [("1.5", "0"), ("4.5", "5.01")])
def test_scores_beyond_the_levels_are_refused(tmp_path, old, new):
    """Before training: their targets would be no distributions, and the pairs would count less or for nothing."""
    path = write_labelled(tmp_path)
    config = labelled_run(tmp_path, "relatedness")
    assert check_run(config, open_training_data(config))
    path.write_text(path.read_text().replace(f"\t{old}\n", f"\t{new}\n", 1))
    with pytest.raises(
        ConfigError,
        match=r"^pairs.score: must be from 1 to 5 for objective relatedness; given .* to ",
    ):
        check_run(config, open_training_data(config))
