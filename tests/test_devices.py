"""A training step never waits for the device; float32 products keep their accuracy.

On a machine without a GPU `meta` tensors take the place of its tensors: they have shapes and no values, they cannot be
mixed with CPU tensors, and every operation that needs a value fails. Copies of the CPU's tensors wait for a GPU, unless `to_device` makes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
import torch.distributed as dist
from backbones import KINDS, write_backbone, write_sentence_transformer
from command import stand_in
from every_part import run_of
from small_bert import write_bert
from tiny_run import tiny_run
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import raysent
from raysent import platforms
from raysent.cli.app import _options_first
from raysent.errors import ConfigError
from raysent.kernels.device_choice import chosen_device, on_device
from raysent.kernels.devices import default_device, set_matmul_precision, to_device
from raysent.models.encoders import ENCODERS, EncoderConfig
from raysent.models.objectives import OBJECTIVES
from raysent.models.schemes.hash import HashEncoder
from raysent.models.sentence_encoder import JoinedEncoders, SentenceEncoder
from raysent.storage import read_json, write_json
from raysent.sweeps import machines
from raysent.sweeps.machines import gpu_share, this_machine
from raysent.training.data import open_training_data
from raysent.training.loop import _Training
from raysent.training.ray_session import _run_job, has_gpus, resources_per_worker
from raysent.training.run import RunConfig
from raysent.training.workers import Workers

_META = torch.device("meta")
# Every configuration that encoders give as examples, and every architecture of a folder.
_ENCODERS = [
    pytest.param(example, id=f"{name}-{number}")
    for name, module in ENCODERS.items()
    for number, example in enumerate(module.Config.examples() if name != "pretrained" else KINDS)
]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that trains a run for two steps on a GPU, or on tensors without values; the second never waits.

    What is left out: transformers asks each mask once whether it has padding, which waits.
    """
    has_gpu = torch.cuda.is_available()
    masks = import_module("transformers.masking_utils")
    for name in ("_ignore_bidirectional_mask_sdpa", "_ignore_causal_mask_sdpa"):
        monkeypatch.setattr(masks, name, lambda *_, **__: False)
    if not has_gpu:
        # torch has no autocast for tensors without values.
        monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda *_: torch.float32)
        # As a GPU does, so that an objective still has the parameters of the encoders.
        monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)

    def train(config: RunConfig, workers: Workers = Workers()) -> None:  # noqa: B008 - frozen
        device = torch.device("cuda", 0) if has_gpu else _META
        training = _Training(config, open_training_data(config), device=device, workers=workers)
        training._step()
        with _never_waiting() if has_gpu else _NoCopies():
            training._step()

    return train


class _NoCopies(TorchDispatchMode):
    """Refuses copies of the CPU's tensors that `to_device` does not make."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at who copies."""
        frame = (
            sys._getframe()
            if function is torch.ops.aten._to_copy.default and args[0].is_cpu
            else None
        )
        is_copy = frame is not None and (kwargs or {}).get("device") == _META
        while is_copy and frame is not None and frame.f_code.co_name != "to_device":
            frame = frame.f_back
        assert frame is not None or not is_copy, "a copy of a tensor of the CPU waits for a GPU"
        return function(*args, **(kwargs or {}))


@contextmanager
def _never_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def one_of_three() -> Iterator[Workers]:
    """Return the second of three workers in a group that sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    yield Workers.of_group()
    dist.destroy_process_group()


@pytest.mark.parametrize("encoder", _ENCODERS)
def test_step_of_an_encoder_does_not_synchronize(
    step: Any, tmp_path: Path, encoder: EncoderConfig | str
) -> None:
    """Every encoder, with the objective that supports all encoders; a new one by its examples.

    Folders have adapters and modules after pooling.
    """
    given: Any = encoder
    if isinstance(encoder, str):
        further: dict[str, Any] = {"pooling": "lasttoken", "dense": 8, "normalize": True}
        folder = write_sentence_transformer(
            tmp_path / "own", write_backbone(tmp_path / encoder, encoder), **further
        )
        given = {"type": "pretrained", "path": str(folder), "lora": {"rank": 2}}
    step(tiny_run(tmp_path, encoder=given, corpus__max_length=12))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_step_of_an_objective_does_not_synchronize(step: Any, tmp_path: Path, name: str) -> None:
    """Every objective with its defaults; a new one needs no row here."""
    step(run_of(tmp_path, name, training__encode_once=False))


@pytest.mark.parametrize("positives", ["self", "pairs", "labels"])
def test_step_of_contrast_does_not_synchronize(step: Any, tmp_path: Path, positives: str) -> None:
    """Each kind of positives, of a pretrained encoder with dropout."""
    encoder = {"type": "pretrained", "path": str(write_bert(tmp_path / "bert")), "dropout": 0.1}
    limits = {f"{source}__max_length": 12 for source in ("corpus", positives) if source != "self"}
    step(
        run_of(tmp_path, "contrast", objective={"positives": positives}, encoder=encoder, **limits)
    )


def test_step_of_a_transformer_has_no_attention_of_cudnn(
    step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It plans each new shape, of which every step has some."""
    found, own = [], functional.scaled_dot_product_attention

    def attend(*args: Any, **kwargs: Any) -> Any:
        found.append(torch.backends.cuda.cudnn_sdp_enabled())
        return own(*args, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    encoder = {"type": "pretrained", "path": str(write_bert(tmp_path / "bert"))}
    step(tiny_run(tmp_path, encoder=encoder, corpus__max_length=12))
    assert set(found) == {False}
    assert torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_step_of_several_workers_does_not_synchronize(
    step: Any, tmp_path: Path, one_of_three: Workers, name: str, num_parts: int
) -> None:
    """No rank waits for what another one has, also where the batch does not divide among them, or is in parts."""
    if num_parts > 1 and OBJECTIVES[name].Config.trains_code:
        pytest.skip("has no parts")
    given = {"batch_size": 25, "accumulate": num_parts, "encode_once": False, "num_reports": 1}
    step(run_of(tmp_path, name, training=given), one_of_three)


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
        with on_device("cpu"):
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
    monkeypatch.setattr("raysent.kernels.devices.default_device", lambda: _META)
    loaded, chosen, trained, alone = _Movable(), _Movable(), _Movable(), _Movable()
    loaded.source = chosen.source = alone.source = "model"
    for _ in range(2):
        JoinedEncoders([loaded]).encode(["a"])
        chosen.encode(["a"], device="cpu")
        trained.encode(["a"])
    alone.encode(["a"])
    assert (loaded.devices, alone.devices, trained.devices) == ([_META], [_META], [])
    assert chosen.devices == [torch.device("cpu")] * 2


def test_joined_encoders_are_placed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is named holds for each encoder; without one, those of a loaded whole move as it would."""
    monkeypatch.setattr("raysent.kernels.devices.default_device", lambda: _META)
    chosen, part, trained, fixed = _Movable(), _Movable(), _Movable(), HashEncoder(2)
    chosen.source = "model"
    JoinedEncoders([JoinedEncoders([chosen]), fixed]).encode(["a"], device="cpu")
    loaded = JoinedEncoders([JoinedEncoders([part]), fixed])
    loaded.source = "composition"
    for _ in range(2):
        loaded.encode(["a"])
        JoinedEncoders([trained]).encode(["a"])
    assert (chosen.devices, part.devices, trained.devices) == ([torch.device("cpu")], [_META], [])
    with pytest.raises(ConfigError, match=r"^device: must be cpu for HashEncoder; given meta$"):
        loaded.encode(["a"], device=_META)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_machine_without_a_gpu_refuses_one_that_is_chosen() -> None:
    """A sweep asks for its machine before it reads the text; it read all of it, and trained on the CPU."""
    with on_device("cuda"), pytest.raises(ConfigError, match="finds no GPU; choose cpu"):
        this_machine()


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine, and each of two nodes of a cluster, have two GPUs."""
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}}] * 2
    for name, value in {"is_available": True, "device_count": 2, "current_device": 1}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 4.0})


@pytest.mark.usefixtures("two_gpus")
def test_one_owner_decides_who_uses_gpus() -> None:
    """Models, trainings, trials and jobs use those that are there, and none with `--device cpu`."""

    def found() -> tuple[Any, ...]:
        gpus = resources_per_worker(2, None)[1]
        return (
            default_device().type,
            this_machine().gpus,
            gpus,
            has_gpus(),
            gpu_share(),
            machines.Workers(1, 4, 2).machines().gpus,
        )

    assert found() == ("cuda", 2, 1, True, 0.25, 2)
    with on_device("cpu"):
        assert found() == ("cpu", 0, 0, False, 0, 0)
        with pytest.raises(
            ConfigError, match="gpus_per_worker 1: 2 workers need 2 GPUs; the cluster has 0"
        ):
            resources_per_worker(2, 1)
    assert found()[0] == "cuda"


@pytest.mark.usefixtures("two_gpus")
def test_job_of_a_cluster_computes_on_what_it_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray leaves GPUs visible to jobs without one; evaluations share one where every node has some."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    for reserved, kind in (([0], "cuda"), ([], "cpu")):
        monkeypatch.setattr(ray, "get_gpu_ids", lambda reserved=reserved: reserved)
        with on_device(None):
            assert _run_job(lambda _: default_device().type, tmp_path, None) == kind
    nodes = [
        {"Alive": True, "Resources": resources} for resources in ({"CPU": 4, "GPU": 1}, {"CPU": 64})
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert gpu_share() == 0


def test_unknown_and_missing_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before anything is computed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^device tpu: must be cpu or cuda$"), on_device("tpu"):
        pass
    with (
        on_device("cuda"),
        pytest.raises(ConfigError, match="must be a device of this machine, on which PyTorch"),
    ):
        default_device()
    assert _options_first(["encode", "m", "--device", "cpu", "-q", "--", "--device"])[:3] == [
        "--device",
        "cpu",
        "-q",
    ]
    assert _options_first(["train", "--device=cuda", "s"]) == ["--device=cuda", "train", "s"]


def test_resumed_sweep_computes_where_it_was_started(tmp_path, monkeypatch):
    """And from then on where a later command says; an older record says nothing."""
    seen: list[tuple[str | None, str | None]] = []

    def train(session: Any, _: Any) -> None:
        seen.append((session.record.device, chosen_device()))
        raise KeyboardInterrupt

    stand_in(tmp_path, monkeypatch)
    monkeypatch.setattr("raysent.sweeps.driver._Session.train", train)
    with on_device("cpu"), pytest.raises(KeyboardInterrupt):
        raysent.sweep("space.yaml", run="run", tasks=[], progress=False)
    for device in (None, "cuda", None):
        with on_device(device), pytest.raises(KeyboardInterrupt):
            raysent.resume("run", progress=False)
    path = tmp_path / "run/sweep.json"
    write_json(
        path,
        {name: value for name, value in read_json(path).items() if name != "device"},
        sealed=True,
    )
    with pytest.raises(KeyboardInterrupt):
        raysent.resume("run", progress=False)
    assert seen == [
        ("cpu", "cpu"),
        ("cpu", "cpu"),
        ("cuda", "cuda"),
        ("cuda", "cuda"),
        (None, None),
    ]
    assert chosen_device() is None
