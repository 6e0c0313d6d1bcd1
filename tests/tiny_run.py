"""A corpus of a few hundred sentences and runs of a few steps on it, for the tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysent.config import set_dotted
from raysent.models import SentenceModel
from raysent.training.loop import fit
from raysent.training.run import RunConfig


def write_corpus(
    folder: Path, *, num_documents: int = 12, num_sentences: int = 30, seed: int = 0
) -> Path:
    """Write documents in which neighbouring sentences share words, so that there is something to learn."""
    generator = np.random.default_rng(seed)
    documents = []
    for _ in range(num_documents):
        topic = generator.integers(0, 40)
        lines = []
        for _ in range(num_sentences):
            topic = (topic + generator.integers(0, 2)) % 40
            words = [
                f"w{(topic + generator.integers(0, 3)) % 40}"
                for _ in range(generator.integers(3, 9))
            ]
            # No word is in every sentence: its gradient would be rounding error alone, which Adam blows up.
            lines.append(" ".join(words))
        documents.append("\n".join(lines))
    path = folder / "text.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def tiny_run(folder: Path, **changes: Any) -> RunConfig:
    """Return a run of 12 steps; `changes` are dotted names with `__` for the dot."""
    path = folder / "text.txt"
    if not path.exists():
        write_corpus(folder)
    values: dict[str, Any] = {
        "corpus": {
            "path": str(path),
            "format": "sentences",
            "validation_fraction": 0.2,
            "cache_dir": str(folder / "cache"),
        },
        "encoder": {"type": "gru", "hidden_size": 8, "embedding": {"dim": 6}},
        "objective": {"type": "context_prediction"},
        "training": {"batch_size": 24, "epochs": 1.0, "num_reports": 4, "learning_rate": 0.01},
        "validation": {"num_candidates": 20, "num_sentences": 40},
    }
    for name, value in changes.items():
        set_dotted(values, name.replace("__", "."), value)
    return RunConfig.model_validate(values)


class KilledError(Exception):
    """The end of a process in the middle of a run."""


def check_weights(one: Path, other: Path, *, atol: float = 0.0) -> None:
    """Assert that two runs saved the same model, to the last bit by default."""
    values, others = (SentenceModel.load(folder).tensors() for folder in (one, other))
    assert values.keys() == others.keys()
    for name, value in values.items():
        torch.testing.assert_close(others[name], value, atol=atol, rtol=0)


def check_learns(config: RunConfig, folder: Path) -> None:
    """Assert that held-out words, by whose `nll` alone a run is measured, become more probable, and that it resumes."""
    assert config.metrics == ("nll",)
    found: list[float] = []
    fit(config, folder / "run", report=lambda report: found.append(report.metrics["nll"]) or True)
    assert found[-1] < found[0]
    check_resumed(config, folder)


def check_resumed(config: RunConfig, folder: Path) -> None:
    """Assert that a run which is stopped after its first report, and resumed, has the weights of one which is not."""
    fit(config, folder / "whole")
    fit(config, folder / "parts", report=lambda report: report.index < 2)
    fit(config, folder / "parts")
    check_weights(folder / "whole", folder / "parts")
