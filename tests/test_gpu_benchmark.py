"""The table of GPU checks, as far as a CPU can take them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tiny_run import write_corpus

from benchmarks import gpu
from benchmarks.gpu_peers import write_text
from benchmarks.training_step import Size


def test_checks_of_a_cpu_pass_and_name_what_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; those of several processes and of a process's memory are the command's."""
    monkeypatch.setitem(gpu.SIZES, "XS", Size(60, 8, 12, 24))
    monkeypatch.setattr(gpu, "_TEXTS", 200)
    monkeypatch.setenv("RAYSENT_CACHE", str(tmp_path / "cache"))
    names = [name for name in gpu.CHECKS if name not in {"workers", "memory", "sharing"}]
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


def test_checks_that_do_not_begin_in_time_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None stands in the table as if it had been measured."""
    arguments = ["--device", "cpu", "--corpus", str(write_corpus(tmp_path)), "--minutes", "0"]
    assert gpu.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [f"| {name}" for name in gpu.CHECKS]
    assert all("not measured: the time is over" in line for line in lines)


def test_drawn_text_is_like_text(tmp_path: Path) -> None:
    """Frequent words, and lengths of at most 30."""
    path = write_text(tmp_path, num_sentences=500, num_words=2000)
    rows = [line.split() for line in path.read_text().splitlines()]
    assert len(rows) == 500
    assert 1 <= min(map(len, rows)) <= max(map(len, rows)) <= 30
    counts = Counter(word for row in rows for word in row)
    assert counts["w0"] > 20 * counts["w100"] > 0


def test_wrong_device_raises_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine without a GPU says so."""
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cuda"])
    assert "--device: must be cpu on a machine without a GPU" in capsys.readouterr().err
