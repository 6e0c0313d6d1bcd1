"""A new encoder or objective is one new file: a copy of the package with two toy files trains them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import raysent

ENCODER = Path(__file__).resolve().parent.parent / "examples" / "own_encoder" / "first_word.py"

OBJECTIVE = '''
"""Labels of pairs from the difference of their vectors; its layer stays within a limit and with the model."""
from typing import ClassVar, Literal
import torch
from torch import nn
from raysent.models.objectives import Objective as BaseObjective, ObjectiveConfig, PairBatches

class Config(ObjectiveConfig):
    num_towers: ClassVar[int] = 1
    in_saved_model: ClassVar[str] = "kept"
    type: Literal["toy_entailment"] = "toy_entailment"

    @property
    def batches(self):
        return PairBatches()

    @property
    def metrics(self):
        return ("accuracy", "nll")

class Objective(BaseObjective):
    def __init__(self, config, build_context):
        super().__init__()
        self.layer = nn.Linear(build_context.dim, build_context.num_classes)
        nn.init.uniform_(self.layer.weight, -0.1, 0.1, generator=build_context.generator)
        nn.init.zeros_(self.layer.bias)

    def _scores(self, read, batch):
        return self.layer((read(batch.first)[0] - read(batch.second)[0]).abs()), torch.from_numpy(batch.labels)

    def forward(self, read, batch, *, generator=None):
        return nn.functional.cross_entropy(*self._scores(read, batch))

    def scores(self, read, batch):
        scores, labels = self._scores(read, batch)
        nll = nn.functional.cross_entropy(scores, labels, reduction="sum")
        return {"accuracy": (float((scores.argmax(1) == labels).sum()), len(labels)), "nll": (float(nll), len(labels))}

    def after_step(self):
        self.layer.weight.data.clamp_(-0.5, 0.5)
'''

SCRIPT = """
import sys
from pathlib import Path
from raysent.models import load
from raysent.training.run import RunConfig
from raysent.training.loop import fit
folder = Path(sys.argv[1])
words = "cat dog king bird fish".split()
rows = [f"{a} x\\t{b} y\\t{'same' if a == b else 'other'}" for a in words for b in words for _ in range(9)]
(folder / "pairs.tsv").write_text("\\n".join(rows))
config = RunConfig.model_validate({
    "pairs": {"path": str(folder / "pairs.tsv"), "label": 2, "validation_path": str(folder / "pairs.tsv")},
    "encoder": {"type": "first_word", "embedding": {"dim": 5}},
    "objective": {"type": "toy_entailment"},
    "training": {"batch_size": 16, "learning_rate": 0.03, "epochs": 12.0, "num_reports": 2},
})
outcome = fit(config, folder / "run")
model = load(folder / "run")
assert outcome.metrics["accuracy"] > 0.9, outcome
assert outcome.metrics["nll"] < 0.4, outcome
assert model.encode(["cat"]).shape == (1, 5)
limit = model.tensors()["objectives.0.layer.weight"].abs().max()
assert limit <= 0.5, limit
from raysent.errors import ConfigError
from raysent.exports import export
for target, place in (
    ("sentence-transformers", "ENCODERS of exports/modeling_raysent.py"),
    ("onnx", "_READERS of exports/formats/onnx.py"),
):
    try:
        export(model, folder / target, to=target)
    except ConfigError as error:
        line = f"encoder first_word: cannot be exported: {place} has no form of it; add one"
        assert str(error) == line or "; install raysent[" in str(error), error
    else:
        raise AssertionError(target)
"""


def test_files_dropped_into_their_folders_train_and_are_saved(tmp_path: Path) -> None:
    """Nothing else is touched, from pairs with labels to the metrics and the saved model; an export says what it needs."""
    package = Path(raysent.__file__).parent
    shutil.copytree(package, tmp_path / "raysent", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ENCODER, tmp_path / "raysent/models/encoders")
    (tmp_path / "raysent/models/objectives/toy_entailment.py").write_text(OBJECTIVE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
