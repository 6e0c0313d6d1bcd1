"""A new encoder, objective, sampler, scheduler or tracker is one file: a copy of the package uses toy files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import raysent

ENCODER = Path(__file__).resolve().parent.parent / "examples" / "own_encoder" / "first_word.py"

TOYS = Path(__file__).parent / "toy_package" / "toy_components"

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

    def held_out_totals(self, read, batch):
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
place = "ENCODERS of exports/modeling_raysent.py"
for target in ("sentence-transformers", "onnx"):
    try:
        export(model, folder / target, to=target)
    except ConfigError as error:
        line = f"encoder first_word: cannot be exported: {place} has no form of it; add one"
        assert str(error) == line or "; install raysent[" in str(error), error
    else:
        raise AssertionError(target)
"""


SEARCH_SCRIPT = """
import sys
from pathlib import Path
from raysent.config import parse_yaml
from raysent.sweeps import Trial, make_sampler, make_scheduler
from raysent.sweeps.space import parse_space
from raysent.sweeps.trackers import TrackingThread
text = (
    "base: {encoder: {type: gru}, objective: {type: context_prediction}}\\n"
    "search: {encoder.bidirectional: {choice: [false, true]}}\\n"
    "limits: {sampler: {type: toy_corners, first: 1}, scheduler: toy_stop}\\n"
    "trackers: [toy_lines]\\n"
)
space = parse_space(parse_yaml(text), name="toy")
params, _ = make_sampler(space, seed=0).ask(0)
assert params == {"encoder.bidirectional": True}, params
decision = make_scheduler(space, seed=0).on_report(Trial("0001", 1, params, seed=0), score=1.0)
assert decision.reason == "toy", decision
with TrackingThread(space, Path.cwd(), warn=sys.exit) as tracking:
    tracking({"event": "session"})
assert Path("toy_events.txt").read_text() == "session\\n"
"""


def _run_in_copy(
    folder: Path, script: str, files: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a script with a copy of the package that has more files."""
    package = Path(raysent.__file__).parent
    shutil.copytree(package, folder / "raysent", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in files.items():
        (folder / "raysent" / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", script, str(folder)]
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def test_files_dropped_into_their_folders_train_and_are_saved(tmp_path: Path) -> None:
    """Nothing else is touched, from pairs with labels to the metrics and the saved model; an export says what it needs."""
    files = {
        "models/encoders/first_word.py": ENCODER.read_text(),
        "models/objectives/toy_entailment.py": OBJECTIVE,
    }
    _run_in_copy(tmp_path, SCRIPT, files)


def test_a_sampler_a_scheduler_and_a_tracker_dropped_into_their_folders_are_found(
    tmp_path: Path,
) -> None:
    """Nothing else is touched; a space names them."""
    text = (TOYS / "search.py").read_text()
    files = {f"sweeps/{kind}/toy.py": text for kind in ("samplers", "schedulers", "trackers")}
    _run_in_copy(tmp_path, SEARCH_SCRIPT, files)
