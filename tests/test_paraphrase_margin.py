"""CSE and the paraphrase word average: the loss, its negatives, and runs on pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import paraphrase_margin as reference_loss
from tiny_run import check_resumed, tiny_run
from toy_batches import ToyRead, build_context, toy_batch

from raysent.models import SentenceModel, load
from raysent.models.objectives import PairBatches, build_objective
from raysent.models.objectives.paraphrase_margin import Config, choose_negatives, scrambled
from raysent.training.loop import fit
from raysent.training.run import RunConfig

MARGIN = {"type": "paraphrase_margin"}


def write_pairs(folder: Path, count: int = 120) -> Path:
    """Write pairs of which the second has the first's words, shuffled, and a score."""
    generator = np.random.default_rng(0)
    lines = []
    for _ in range(count):
        words = [
            f"w{number}" for number in generator.integers(0, 40, size=generator.integers(2, 6))
        ]
        is_same = generator.random() < 0.8
        other = (
            generator.permutation(words)
            if is_same
            else [f"w{n}" for n in generator.integers(0, 40, size=3)]
        )
        lines.append(f"{' '.join(words)}\t{' '.join(other)}\t{5.0 * is_same}")
    path = folder / "pairs.tsv"
    path.write_text("\n".join(lines))
    return path


def pairs_run(folder: Path, **changes: Any) -> RunConfig:
    """Return a run on pairs, validated on the same file's scores."""
    path = str(write_pairs(folder))
    values = {
        "pairs": {"path": path},
        "objective": MARGIN,
        "validation": {"similarity": {"path": path, "score": 2}},
        "encoder": {"type": "cnn", "num_filters": 4, "embedding": {"dim": 6}},
    }
    return tiny_run(folder, **{**values, **changes})


def test_loss_equals_its_restatement_and_penalties():
    """With the nearest negatives; half the squared distances of words and weights, each with its factor."""
    given, read, batch = build_context(), ToyRead(1), toy_batch(PairBatches, 9)
    weights = (torch.nn.Parameter(torch.full((3, 2), 2.0)),)
    objective = build_objective(
        Config(margin=0.6, lambda_w=0.1, lambda_c=0.01),
        type(given)(**{**vars(given), "parameters": weights}),
    )
    vectors = [read(side)[0].detach().double().numpy() for side in (batch.first, batch.second)]
    expected = reference_loss(*vectors, margin=0.6) + 0.005 * 24.0
    assert (objective(read, batch) + objective.penalty()).item() == pytest.approx(
        expected, rel=1e-5
    )
    given.words.weight.data += 0.5
    moved = expected + 0.05 * 0.25 * given.words.weight.numel()
    assert (objective(read, batch) + objective.penalty()).item() == pytest.approx(moved, rel=1e-5)


@pytest.mark.parametrize("kind", ["max", "mix", "random"])
def test_negative_is_never_the_sentence_nor_its_partner(kind):
    """Not even if all other sentences are as far away as possible."""
    side = torch.zeros(6, 12)
    side[:, :6] = torch.eye(6)
    vectors = torch.cat([side, side]) - 1.0 / 12
    for seed in range(20):
        chosen = choose_negatives(vectors, kind, generator=torch.Generator().manual_seed(seed))
        assert ((chosen - torch.arange(12)) % 6 != 0).all()
        assert ((chosen >= 0) & (chosen < 12)).all()


def negatives_at(done: float, **settings: Any) -> float:
    """Return the loss of one batch after a part of the run."""
    objective = build_objective(Config(**settings), build_context())
    objective.before_step(done)
    loss: float = objective(
        ToyRead(1), toy_batch(PairBatches, 9), generator=torch.Generator().manual_seed(3)
    ).item()
    return loss


@pytest.mark.parametrize("kind", ["max", "mix"])
def test_negatives_are_random_in_the_first_part_of_a_run(kind):
    """Before `random_part` the loss is that of random negatives, from then on that of the chosen kind."""
    random, chosen = (
        negatives_at(0.9, negatives=name, random_part=0.0) for name in ("random", kind)
    )
    assert random != pytest.approx(chosen)
    for done, expected in ((0.0, random), (0.24, random), (0.25, chosen), (0.9, chosen)):
        assert negatives_at(done, negatives=kind, random_part=0.25) == pytest.approx(expected)


def test_random_part_is_half_unless_the_start_is_trained(tmp_path: Path):
    """The default for any start, for the released code's variant, and for a run that continues from a model."""
    assert Config().resolved_random_part == 0.5
    assert Config(variant="authors").resolved_random_part == 0.0
    fit(pairs_run(tmp_path, training__max_steps=1, training__num_reports=1), tmp_path / "run")
    continued = pairs_run(tmp_path, encoder=None, initial=str(tmp_path / "run"))
    assert continued.objective.resolved_random_part == 0.0


def test_warm_up_resumes_where_it_stopped(tmp_path: Path):
    """A run that is stopped in its random part and resumed gives the same vectors."""
    changes = {
        "objective": {**MARGIN, "random_part": 0.6},
        "training__max_steps": 6,
        "training__num_reports": 3,
    }
    fit(pairs_run(tmp_path, **changes), tmp_path / "whole")
    fit(
        pairs_run(tmp_path, **changes), tmp_path / "halves", report=lambda report: report.index != 1
    )
    fit(pairs_run(tmp_path, **changes), tmp_path / "halves")
    one, two = (load(tmp_path / folder).encode(["w1 w2", "w3"]) for folder in ("whole", "halves"))
    np.testing.assert_array_equal(one, two)


def test_scrambled_pairs_keep_their_words():
    """All, no or some pairs are shuffled; a sentence keeps its words."""
    batch, generator = toy_batch(PairBatches, 40), torch.Generator().manual_seed(0)
    for side, before in zip(scrambled(batch, 1.0, generator=generator), batch.parts, strict=True):
        ends = np.cumsum(before.lengths)[:-1]
        rows = list(zip(np.split(side.ids, ends), np.split(before.ids, ends), strict=True))
        assert all(np.array_equal(np.sort(one), np.sort(other)) for one, other in rows)
        assert any(not np.array_equal(one, other) for one, other in rows)
    assert np.array_equal(scrambled(batch, 0.0, generator=generator)[0].ids, batch.first.ids)
    assert (Config(variant="authors").resolved_scramble, Config().resolved_scramble) == (0.5, 0.0)


@pytest.mark.parametrize(
    "encoder", [None, {"type": "bag", "pooling": "mean", "embedding": {"dim": 6}}]
)
def test_paraphrase_margin_learns_from_pairs(tmp_path, encoder):
    """CSE and the word average; the correlation rises, and one tower is encoded."""
    config = pairs_run(tmp_path, training__epochs=8.0, **({"encoder": encoder} if encoder else {}))
    reports: list[float] = []
    outcome = fit(
        config, tmp_path / "run", report=lambda now: reports.append(now.metrics["pearson"]) or True
    )
    assert (outcome.status, config.metrics) == ("finished", ("pearson",))
    assert outcome.metrics["pearson"] > 0.5
    assert load(tmp_path / "run").encode(["w1 w2"]).shape == (1, 6 if encoder else 12)


@pytest.mark.parametrize("exact", [True, False])
def test_pairs_run_killed_and_resumed_gives_the_same_weights(tmp_path, exact):
    """Shuffling, random negatives, penalties and dropout are functions of the seed and the step."""
    objective = {**MARGIN, "negatives": "mix", "scramble": 0.5, "lambda_w": 0.01, "lambda_c": 0.01}
    changes = {"objective": objective, "encoder__dropout": 0.2, "training__row_exact_adam": exact}
    config = pairs_run(tmp_path, training__epochs=2.0, **changes)
    check_resumed(config, tmp_path)


def test_objective_of_pairs_without_pairs_raises_one_clear_error(tmp_path):
    """The error names the missing section."""
    with pytest.raises(
        ValueError, match=r"pairs\.path must be set for objective paraphrase_margin"
    ):
        tiny_run(tmp_path, objective=MARGIN)


def test_run_continues_from_the_model_of_another_run(tmp_path):
    """The cumulative regime: a second run starts with the first run's model, and is penalized for leaving it."""
    words = {"dim": 6, "dropout": 0.1}
    encoder = {"type": "cnn", "num_filters": 4, "embedding": words}
    fit(pairs_run(tmp_path, encoder=encoder, training__max_steps=4), tmp_path / "phrases")
    margin = {**MARGIN, "lambda_w": 1000.0, "lambda_c": 0.0}
    changes = {
        "initial": str(tmp_path / "phrases"),
        "encoder": None,
        "objective": margin,
        "training__learning_rate": 1e-4,
    }
    config = pairs_run(tmp_path, **changes, training__max_steps=6, training__num_reports=3)
    fit(config, tmp_path / "whole")
    fit(config, tmp_path / "halves", report=lambda report: report.index != 1)
    fit(config, tmp_path / "halves")
    phrases, one, two = (
        SentenceModel.load(tmp_path / name) for name in ("phrases", "whole", "halves")
    )
    assert np.array_equal(one.encode(["w1 w2"]), two.encode(["w1 w2"]))
    assert one.config.encoder.embedding.dropout == 0.1
    torch.testing.assert_close(one.f.words.weight, phrases.f.words.weight, atol=1e-3, rtol=0)
