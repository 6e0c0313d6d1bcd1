"""A command line as it is typed, run in this process; and small files to run it on."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from caches import own_cache
from tiny_run import write_corpus

from raysent.cli import main
from raysent.reproduction.tasks import senteval

SPACE = """
base:
  corpus: {path: text.txt, validation_fraction: 0.2}
  vocabulary: {size: 200}
  encoder: {type: gru, hidden_size: 8, embedding: {dim: 6}}
  objective: {type: context_prediction}
  training: {batch_size: 24, learning_rate: 0.01, epochs: 1.0, num_reports: 2}
  validation: {num_candidates: 20, num_sentences: 40}
search:
  encoder.bidirectional: {choice: [false, true]}
  training.batch_size: {choice: [24, 48]}
limits: {trials: 4}
"""


@dataclass(frozen=True)
class Ran:
    """What a command left behind: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


class CommandLine:
    """Types `raysent ...` and reads what comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object, stdin: bytes = b"") -> Ran:
        """Run one command; only what it says itself is returned."""
        self._capsys.readouterr()
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["raysent", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            with pytest.raises(SystemExit) as exited:
                main()
        said = self._capsys.readouterr()
        return Ran(int(exited.value.code or 0), said.out, said.err)


def write_task(folder: Path, *, num_rows: int = 40) -> None:
    """Write MR in SentEval's layout with so few rows; the published number must be patched to match."""
    generator = np.random.default_rng(0)
    (folder / "MR").mkdir(parents=True)
    for suffix, words in (("pos", "good fine great"), ("neg", "bad dull poor")):
        rows = [
            " ".join(generator.choice([*words.split(), "film", "the"], size=6))
            for _ in range(num_rows)
        ]
        (folder / "MR" / f"rt-polarity.{suffix}").write_text("\n".join(rows) + "\n")


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a search space, its text and a task of forty rows a class the working folder; returns it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAYSENT_CACHE", own_cache(folder / "cache"))
    (folder / "space.yaml").write_text(SPACE)
    write_corpus(folder)
    write_task(folder / "data")
    for name in ("MR/rt-polarity.pos", "MR/rt-polarity.neg"):
        monkeypatch.setitem(senteval.NUM_ROWS, name, 40)
    return folder
