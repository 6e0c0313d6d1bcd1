"""The share of validation in a trial of a sweep: processor time of a step and of a report, by parts of the report.

Each family of `everything.yaml`, and each other shipped space that reads running text, is trained unchanged for a few
steps with two reports. The second report counts, as the first one also reads tasks and fills caches. The share is that
of all validation in a trial of the length in the space; reports also save a checkpoint and the model.

    python -m benchmarks.validation_share [--corpus PATH] [--only NAME,NAME] [--steps 10] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

from raysent.sweeps.space import read_space
from raysent.training import loop, plan
from raysent.training.loop import fit
from raysent.training.run import RunConfig, TrainingConfig
from raysent.training.validation import metrics as downstream
from raysent.training.validation.metrics import HeldOut
from raysent.training.validation.pool import ValidationPool

SPACES = Path(__file__).parents[1] / "search_spaces"
OTHERS = ("quick_thoughts", "quick_thoughts_bow", "binary", "multichannel", "multiview_discriminative")
NEEDS_PAIRS = ("cse", "paragram_phrase", "infersent")
# The timed parts: owner and attribute.
PARTS = {
    "step": (loop._Training, "_step"),
    "report": (loop._Training, "_report"),
    "validation": (loop._Training, "_metrics"),
    "contexts": (ValidationPool, "scores"),
    "held out": (HeldOut, "scores"),
    "encoding tasks": (downstream, "task_features"),
    "probes": (downstream, "fit_probe"),
    "checkpoint": (loop._Training, "_save_checkpoint"),
}


@contextmanager
def timed() -> Iterator[dict[str, list[float]]]:
    """Collect the processor time of every call of the parts."""
    found: dict[str, list[float]] = defaultdict(list)

    def wrapped(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                found[part].append(time.process_time() - started)

        return call

    with ExitStack() as stack:
        for part, (owner, name) in PARTS.items():
            stack.enter_context(mock.patch.object(owner, name, wrapped(part, getattr(owner, name))))
        yield found


def trials(names: Sequence[str]) -> Iterator[tuple[str, RunConfig]]:
    """Return the measured runs by name: families of `everything.yaml`, then base runs of other spaces."""
    everything = read_space(SPACES / "everything.yaml")
    for family in map(str, everything.domains["family"].edges()):
        if family in names or (not names and family not in NEEDS_PAIRS):
            yield family, everything.config({"family": family, "training.batch_size": 128})
    for name in OTHERS:
        if f"{name}.yaml" in names or not names:
            yield f"{name}.yaml", read_space(SPACES / f"{name}.yaml").config({})


def measure(config: RunConfig, *, steps: int) -> dict[str, Any]:
    """Return the processor seconds of a step, of a report and its parts, and the share of reports in a trial."""
    whole: list[int] = []

    def short(training: TrainingConfig, *, steps_per_epoch: int) -> int:
        whole.append(plan.count_steps(training, steps_per_epoch=steps_per_epoch))
        return steps

    training = config.training
    config = config.model_copy(update={"training": training.model_copy(update={"num_reports": 2})})
    with mock.patch.object(loop, "count_steps", short), timed() as found, tempfile.TemporaryDirectory() as folder:
        fit(config, Path(folder))
    # The first step and report do work that happens once per process.
    step_s = median(found.pop("step")[1:])
    parts = {part: values[len(values) // 2 :] for part, values in found.items()}
    taken = {part: sum(values) for part, values in parts.items()}
    trained_s, num_reports = whole[0] * step_s, min(training.num_reports, whole[0])
    everything_s = trained_s + num_reports * taken["report"]
    return {
        "step_s": step_s,
        **{f"{part.replace(' ', '_')}_s": value for part, value in taken.items()},
        "num_steps": whole[0],
        "share": num_reports * taken["validation"] / everything_s,
        "share_of_reports": num_reports * taken["report"] / everything_s,
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="docs", help="text to train on")
    parser.add_argument("--only", default="", help="families of everything.yaml, or files such as binary.yaml")
    parser.add_argument("--steps", type=int, default=10, help="steps that are taken of each")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name, config in trials([name for name in options.only.split(",") if name]):
        corpus = config.corpus.model_copy(update={"path": options.corpus})
        rows[name] = measure(config.model_copy(update={"corpus": corpus}), steps=options.steps)
        if not options.json:
            print(f"{name:26}", *(f"{key} {value:.3g}" for key, value in rows[name].items()), flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
