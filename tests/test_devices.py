"""A training step never waits for the device; float32 products keep their accuracy.

`meta` tensors take the place of GPU tensors: they have shapes and no values, they cannot be mixed with CPU tensors, and
every operation that needs a value fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tiny_run import tiny_run
from torch.testing._internal.distributed.fake_pg import FakeStore

from raysent import platforms
from raysent.kernels.devices import set_matmul_precision, to_device
from raysent.models.sentence_encoder import JoinedEncoders, SentenceEncoder
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
    "masked_words": {},
}


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that trains a run for two steps on tensors without values."""
    # torch has no autocast for such tensors.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)

    def train(workers: Workers = Workers(), **changes: Any) -> None:  # noqa: B008 - frozen
        config = tiny_run(tmp_path, **changes)
        training = _Training(config, open_training_data(config), device=_META, workers=workers)
        for _ in range(2):
            training._step()

    return train


@pytest.fixture
def one_of_three() -> Iterator[Workers]:
    """Return the second of three workers in a group that sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    yield Workers.of_group()
    dist.destroy_process_group()


@pytest.mark.parametrize("name", _ENCODERS)
def test_step_of_an_encoder_does_not_synchronize(step: Any, name: str) -> None:
    """Every encoder, with the objective that supports all encoders."""
    step(encoder=_ENCODERS[name])


@pytest.mark.parametrize("name", _OBJECTIVES)
def test_step_of_an_objective_does_not_synchronize(step: Any, name: str) -> None:
    """Every objective over text, with its default configuration."""
    step(objective={"type": name}, **_OBJECTIVES[name])


@pytest.mark.parametrize("name", ["context_prediction", *_OBJECTIVES])
def test_step_of_several_workers_does_not_synchronize(step: Any, one_of_three: Workers, name: str) -> None:
    """No rank waits for what another one has, also where the batch does not divide among them."""
    step(one_of_three, objective={"type": name}, training__batch_size=25, **_OBJECTIVES.get(name, {}))


def test_to_device_keeps_shape_and_values() -> None:
    """Arrays of any integer type and any memory layout become int64 tensors."""
    values = np.arange(12, dtype=np.int32).reshape(3, 4).T
    tensor = to_device(values, None)
    assert tensor.dtype == torch.int64
    assert np.array_equal(tensor.numpy(), values)
    assert to_device(values, _META).shape == (4, 3)


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("fpu avx512_bf16", "medium"),
        ("fpu avx512_bf16 amx_tile", "highest"),
        ("fpu avx2", "highest"),
        (None, "highest"),
    ],
)
def test_matmul_precision_is_exact_on_any_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str | None, precision: str
) -> None:
    """OneDNN is used where it keeps float32, not with AMX, nor on a system without /proc/cpuinfo."""
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr(platforms, "CPU_INFO", tmp_path / "cpuinfo")
    before = torch.get_float32_matmul_precision()
    try:
        assert set_matmul_precision() == precision == torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision(before)


class _Movable(SentenceEncoder):
    """An encoder that says where it was moved."""

    def __init__(self) -> None:
        self.devices: list[torch.device] = []

    def use_device(self, device: torch.device) -> None:
        """Remember the device."""
        self.devices.append(device)

    def get_sentence_embedding_dimension(self) -> int:
        """One number."""
        return 1

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Any:
        """Zeros."""
        return np.zeros((len(sentences), 1), dtype=np.float32)


def test_loaded_model_encodes_on_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first call, wherever it is called from, unless a device was chosen; a model in training stays."""
    monkeypatch.setattr("raysent.models.sentence_encoder.default_device", lambda: _META)
    loaded, chosen, trained, alone = _Movable(), _Movable(), _Movable(), _Movable()
    loaded.source = chosen.source = alone.source = "model"
    for _ in range(2):
        JoinedEncoders([loaded]).encode(["a"])
        chosen.encode(["a"], device="cpu")
        trained.encode(["a"])
    alone.encode(["a"])
    assert (loaded.devices, alone.devices, trained.devices) == ([_META], [_META], [])
    assert chosen.devices == [torch.device("cpu")] * 2
