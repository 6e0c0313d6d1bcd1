"""A training step gives its work to a device and waits for nothing.

`meta` tensors stand in for a GPU's: they have shapes and no values, refuse to mix with those of the CPU, and whatever
would ask for a value fails.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import tiny_run

from raysent.kernels.devices import to_device
from raysent.training.data import open_training_data
from raysent.training.loop import _Training
from raysent.training.workers import Workers

_META = torch.device("meta")
_WORDS = {"embedding": {"dim": 6}}
_GRU = {"type": "gru", "hidden_size": 8, **_WORDS}
_ENCODERS: dict[str, dict[str, Any]] = {
    "gru": _GRU,
    "bi": {**_GRU, "bidirectional": True, "pooling": "mean"},
    "packed": {**_GRU, "implementation": "packed"},
    "before": {**_GRU, "reset": "before"},
    "lstm": {"type": "lstm", "hidden_size": 8, **_WORDS},
    "packed lstm": {"type": "lstm", "hidden_size": 8, "implementation": "packed", **_WORDS},
    "bag": {"type": "bag", "pooling": "mean", **_WORDS},
    "linear": {"type": "linear", "hidden_size": 8, **_WORDS},
    "cnn": {"type": "cnn", "num_filters": 4, **_WORDS},
    "tanh": {"type": "cnn", "num_filters": 4, "activation": "tanh", "pooling": "max", **_WORDS},
    "concat": {"type": "concat", "members": {"uni": _GRU, "bag": {"type": "bag", **_WORDS}}},
}
_OBJECTIVES = {
    "sentence_decoding": {},
    "view_agreement": {"second_encoder": {"type": "linear", "hidden_size": 8, **_WORDS}},
    "window_classifier": {},
    "context_margin": {},
    "self_agreement": {},
}


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Train a run for two steps on tensors without values."""
    # What torch lacks for such tensors.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)

    def train(**changes: Any) -> None:
        config = tiny_run(tmp_path, **changes)
        training = _Training(config, open_training_data(config), device=_META, workers=Workers())
        for _ in range(2):
            training._step()

    return train


@pytest.mark.parametrize("name", _ENCODERS)
def test_step_of_an_encoder_waits_for_nothing(step: Any, name: str) -> None:
    """Every encoder, under the objective that all take."""
    step(encoder=_ENCODERS[name])


@pytest.mark.parametrize("name", _OBJECTIVES)
def test_step_of_an_objective_waits_for_nothing(step: Any, name: str) -> None:
    """Every objective over text, with its defaults."""
    step(objective={"type": name}, **_OBJECTIVES[name])


def test_arrays_come_to_a_device_as_they_are() -> None:
    """Of any kind of integer, laid out in any way."""
    values = np.arange(12, dtype=np.int32).reshape(3, 4).T
    found = to_device(values, None)
    assert found.dtype == torch.int64
    assert np.array_equal(found.numpy(), values)
    assert to_device(values, _META).shape == (4, 3)
