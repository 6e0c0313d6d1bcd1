"""Twenty steps have the losses of sentence-transformers' own, with dropout 0.

Its trainer needs the package `datasets`, which is no dependency. What it does is written out: its loss, torch's AdamW
without decay of biases and norms, and the norm of all gradients clipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backbones import KINDS, write_backbone, write_sentence_transformer
from every_part import run_of
from torch import Tensor

from raysent.data.vocabulary import Sentences
from raysent.training.data import open_training_data
from raysent.training.loop import _Training
from raysent.training.workers import Workers

library = pytest.importorskip("sentence_transformers", reason="pip install raysent[pretrained]")
losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

STEPS, CLIP, DECAY, RATE, TEMPERATURE = 20, 1.0, 0.1, 0.002, 0.1
OBJECTIVES: dict[str, dict[str, Any]] = {
    "distillation": {"lambda_similarity": 0.0},
    "entailment": {"hidden_size": None},
    "contrast": {"positives": "pairs", "temperature": TEMPERATURE},
}


def features_of(sentences: Sentences) -> dict[str, Tensor]:
    """Return sentences as their models read them, padded."""
    rows = [torch.as_tensor(one.ids).long() for one in sentences.split(1)]
    lengths = torch.as_tensor(sentences.lengths)[:, None]
    mask = torch.arange(int(lengths.max())) < lengths
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "attention_mask": mask.long(),
    }


def loss_of(name: str, model: Any, training: _Training) -> tuple[torch.nn.Module, float]:
    """Return their loss with the initial weights of ours, and its factor in ours."""
    if name == "contrast":
        return losses.MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE), 1.0
    if name == "distillation":
        # The squared distance of unit vectors is twice what their cosine lacks; theirs is the mean over dimensions.
        return losses.MSELoss(model), model.get_embedding_dimension() / 2
    loss = losses.SoftmaxLoss(model, 16, 3, concatenation_sent_multiplication=True)
    loss.classifier.load_state_dict(training._model.objectives[0].layers[0].state_dict())
    return loss, 1.0


def labels_of(name: str, batch: Any) -> Tensor | None:
    """Return what their loss compares with."""
    if name == "distillation":
        return torch.nn.functional.normalize(torch.as_tensor(batch.vectors), dim=1)
    return torch.as_tensor(batch.labels) if name == "entailment" else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_are_those_of_sentence_transformers(name: str, kind: str, tmp_path: Path) -> None:
    """Step for step, by pooled means of every architecture; it falls."""
    backbone = write_backbone(tmp_path / kind, kind)
    folder = write_sentence_transformer(
        tmp_path / "own", backbone, normalize=name == "distillation"
    )
    optimizer = {
        "optimizer": "adamw",
        "weight_decay": DECAY,
        "learning_rate": RATE,
        "clip": CLIP,
        "clip_per": "global",
    }
    config = run_of(
        tmp_path,
        name,
        encoder={"type": "pretrained", "path": str(folder)},
        objective=OBJECTIVES[name],
        training={"batch_size": 24, "schedule": "constant", "epochs": 9.0, **optimizer},
        **{f"{'corpus' if name == 'distillation' else 'pairs'}__max_length": 20},
    )
    training = _Training(
        config, open_training_data(config), device=torch.device("cpu"), workers=Workers()
    )
    model = library.SentenceTransformer(str(folder), device="cpu").eval()  # without dropout
    loss, factor = loss_of(name, model, training)
    matrices = [one for one in loss.parameters() if one.ndim > 1]
    vectors = [one for one in loss.parameters() if one.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    adam, ours, theirs, total = torch.optim.AdamW(groups, lr=RATE), [], [], 0.0
    for step in range(STEPS):
        training._step()
        ours.append(float(training._loss_sum) - total)
        total = float(training._loss_sum)
        batch = training._stream.batch(step)
        value = factor * loss(list(map(features_of, batch.parts)), labels_of(name, batch))
        adam.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), CLIP)
        adam.step()
        theirs.append(value.item())
    np.testing.assert_allclose(ours, theirs, atol=1e-3, rtol=0)
    assert np.mean(theirs[-4:]) < np.mean(theirs[:4]) - 0.01
