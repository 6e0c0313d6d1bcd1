"""The table of GPU checks, as far as a CPU can take them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import write_corpus

from benchmarks import gpu
from benchmarks.training_step import Size


def test_checks_of_a_cpu_pass_and_name_what_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; those of several processes and of a process's memory are the command's."""
    monkeypatch.setitem(gpu.SIZES, "XS", Size(60, 8, 12, 24))
    monkeypatch.setattr(gpu, "_TEXTS", 200)
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    names = ["equality", "bfloat16", "no wait", "pretrained", "epoch"]
    arguments = [
        "--device",
        "cpu",
        "--corpus",
        str(write_corpus(tmp_path)),
        "--steps",
        "3",
        "--only",
        ",".join(names),
    ]
    assert gpu.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [
        f"| {name}" for name in names for _ in range(2)
    ]
    assert all(line.endswith("| right |") for line in lines[::2])
    assert all(line.endswith("needs a GPU | |") for line in lines[1::2])


def test_wrong_device_raises_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine without a GPU says so."""
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cuda"])
    assert "--device: must be cpu on a machine without a GPU" in capsys.readouterr().err
