"""A task, a protocol and an ensemble method."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raysent.ensembles.methods import Diagnostics
from raysent.ensembles.pools import LogarithmicPool
from raysent.ensembles.predictions import MemberPredictions
from raysent.evaluation.probes.results import ProbeResult
from raysent.evaluation.protocols.fast import Fast
from raysent.evaluation.targets import Targets
from raysent.evaluation.task import ProbeTask, TaskData

NUM_ROWS = 60


def read_lengths(task: ProbeTask, data_dir: Path | None) -> TaskData:
    """Return short and long sentences, to be told apart."""
    del data_dir
    generator = np.random.default_rng(0)
    labels = np.arange(NUM_ROWS) % 2
    sentences = [
        " ".join(f"w{generator.integers(40)}" for _ in range(3 + 4 * label)) for label in labels
    ]
    return TaskData(task.name, "sentence", "nested", ("short", "long"), (sentences,), labels)


class ToyProtocol:
    """The protocol `fast`, under another name."""

    def settings(self) -> dict[str, object]:
        """Return what scores depend on."""
        return {"toy": 1}

    def fit(self, features: np.ndarray, data: TaskData) -> ProbeResult:
        """Fit and score the probe of a task."""
        return Fast().fit(features, data)


def take_first(
    predictions: MemberPredictions, targets: Targets
) -> tuple[LogarithmicPool, Diagnostics]:
    """All weight on the first member."""
    del targets
    return LogarithmicPool(np.eye(predictions.shape[0])[0]), {"toy": 1.0}


TASKS = {"toy-lengths": ProbeTask("toy-lengths", reader=read_lengths)}
PROTOCOLS = {"toy_protocol": ToyProtocol()}
METHODS = {"toy_first": take_first}
