"""A step in parts has the gradient of the whole step, for every objective, and keeps the states of a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from every_part import run_of
from small_bert import write_bert
from tiny_run import check_resumed, tiny_run

from raysent.kernels.packing import Packed
from raysent.models import SentenceModel
from raysent.models.objectives import OBJECTIVES
from raysent.training.data import open_training_data
from raysent.training.loop import _Training
from raysent.training.memory import estimate_bytes
from raysent.training.run import RunConfig
from raysent.training.workers import Workers

_TRAINED = [name for name, module in OBJECTIVES.items() if not module.Config.trains_code]


def gradients(config: RunConfig) -> tuple[dict[str, torch.Tensor], float]:
    """Return the gradients of a run's second step by name, and its loss."""
    training = _Training(
        config, open_training_data(config), device=torch.device("cpu"), workers=Workers()
    )
    training._model.train()
    loss = training._loss.gradients(1)
    named = training._model.named_parameters()
    return {name: value.grad.to_dense() for name, value in named if value.grad is not None}, float(
        loss
    )


def check_equal(
    one: tuple[dict[str, torch.Tensor], float], other: tuple[dict[str, torch.Tensor], float]
) -> None:
    """Assert that two steps have the same loss and gradients, to rounding."""
    (expected, loss), (found, same) = one, other
    assert same == pytest.approx(loss, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("name", _TRAINED)
def test_gradient_of_parts_is_that_of_the_whole_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where parts do not divide the batch; no more than a part of it has states at a time."""
    sizes, encode = list[int](), SentenceModel.vectors

    def vectors(self: SentenceModel, sentences: Any, **options: Any) -> Any:
        count = sentences.batch if isinstance(sentences, Packed) else len(sentences.lengths)
        sizes.append(count * torch.is_grad_enabled())
        return encode(self, sentences, **options)

    monkeypatch.setattr(SentenceModel, "vectors", vectors)
    whole = gradients(run_of(tmp_path, name))
    size = max(sizes)
    sizes.clear()
    check_equal(whole, gradients(run_of(tmp_path, name, training__accumulate=5)))
    assert max(sizes) == -(-size // 5) < size


def test_distillation_is_by_example_where_it_compares_no_sentences(tmp_path: Path) -> None:
    """With and without similarities, which need all vectors of the batch; more parts than sentences."""
    for weight in (0.0, 1.0):
        objective = {"lambda_similarity": weight}
        whole, parts = (
            run_of(tmp_path, "distillation", objective=objective, training__accumulate=n)
            for n in (1, 50)
        )
        assert whole.objective.is_by_example == (not weight)
        check_equal(gradients(whole), gradients(parts))


@pytest.mark.parametrize("name", ["task", "contrast"])
def test_pretrained_encoder_in_parts(name: str, tmp_path: Path) -> None:
    """The same gradient; a run with dropout that was stopped continues to the same bits."""
    pytest.importorskip("transformers", reason="pip install raysent[pretrained]")
    encoder = {"type": "pretrained", "path": str(write_bert(tmp_path / "bert"))}
    source = "labels" if name == "task" else "corpus"
    given: dict[str, Any] = {"encoder": encoder, f"{source}__max_length": 12}
    whole, parts = (run_of(tmp_path, name, training__accumulate=n, **given) for n in (1, 5))
    check_equal(gradients(whole), gradients(parts))
    given["encoder"]["dropout"] = 0.1
    check_resumed(
        run_of(tmp_path, name, training__accumulate=5, training__max_steps=6, **given), tmp_path
    )


@pytest.mark.parametrize("name", ["task", "context_prediction"])
def test_estimate_counts_the_states_of_a_part(name: str, tmp_path: Path) -> None:
    """They are most of a large batch's memory."""
    encoder = {"type": "gru", "hidden_size": 600, "embedding": {"dim": 6}}
    given: dict[str, Any] = {"encoder": encoder, "training__batch_size": 2000}
    whole, parts = (
        estimate_bytes(run_of(tmp_path, name, training__accumulate=n, **given)) for n in (1, 8)
    )
    assert parts < whole / 3


def test_objectives_without_parts_are_refused(tmp_path: Path) -> None:
    """One that has parts of its own, and one that trains a code of fixed vectors; the key of a run stays as it was."""
    with pytest.raises(
        ValueError,
        match="accumulate must be 1 with objective contrast, which has micro_batch; given 2",
    ):
        tiny_run(tmp_path, objective={"type": "contrast", "cached": True}, training__accumulate=2)
    with pytest.raises(
        ValueError, match="must be 1 with objective reconstruction, which trains a code of vectors"
    ):
        run_of(tmp_path, "reconstruction", training__accumulate=2)
    assert tiny_run(tmp_path, training__accumulate=1).key == tiny_run(tmp_path).key
    assert tiny_run(tmp_path, training__accumulate=2).key != tiny_run(tmp_path).key
