"""The share of a training that saving takes: its checkpoints, the models before its reports, and the model at its end.

    python -m benchmarks.save_share [--corpus BOOKS] [--cases docs-bag books-bag books-gru]

Trains each case in three ways, one after another: `every report` saves a checkpoint and the model before each report;
`budget` is a trial of a sweep with a budget or a deadline, `free` one without. Prints saves, seconds by the clock, and
the share of the training's own thread, by the clock and in processor time. `docs` is the embedded corpus.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from raysent.data.corpus import prepare
from raysent.models import SentenceModel
from raysent.training import fit, loop
from raysent.training.interruptions import Interruptions, SaveTimer
from raysent.training.run import RunConfig

BAG = {"type": "bag", "pooling": "sum", "embedding": {"dim": 300}}
GRU = {"type": "gru", "hidden_size": 600, "embedding": {"dim": 300}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "docs-bag": (BAG, {"batch_size": 1500, "epochs": 1.0}),
    "books-bag": (BAG, {"batch_size": 1500, "max_steps": 700}),
    "books-gru": (GRU, {"batch_size": 400, "max_steps": 150}),
}
NUM_REPORTS = 9


class Timed:
    """Counts the calls of a function and sums their seconds."""

    def __init__(self) -> None:
        self.num_calls, self.clock_s, self.cpu_s = 0, 0.0, 0.0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""

        def timed(*arguments: Any, **options: Any) -> Any:
            before = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self.num_calls += 1
                self.clock_s += time.perf_counter() - before[0]
                self.cpu_s += time.thread_time() - before[1]

        return timed


def measure(case: str, way: str, corpus: str) -> str:
    """Train once; return a row of the table."""
    encoder, training = CASES[case]
    config = RunConfig.model_validate(
        {
            "corpus": {"path": "docs" if case.startswith("docs") else corpus},
            "vocabulary": {"size": 50_000},
            "encoder": encoder,
            "objective": {"type": "context_prediction"},
            "training": {**training, "num_reports": NUM_REPORTS},
        }
    )
    prepare(config.corpus, config.vocabulary)
    checkpoints, models = Timed(), Timed()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(mock.patch.object(loop, "save_checkpoint", checkpoints(loop.save_checkpoint)))
        stack.enter_context(mock.patch.object(SentenceModel, "save", models(SentenceModel.save)))
        if way == "every report":
            stack.enter_context(mock.patch.object(SaveTimer, "is_due_at_report", return_value=True))
        before = time.perf_counter(), time.thread_time()
        fit(config, folder, interruptions=Interruptions(models=WAYS[way]))
        clock_s, cpu_s = time.perf_counter() - before[0], time.thread_time() - before[1]
    by_clock = (checkpoints.clock_s + models.clock_s) / clock_s
    by_cpu = (checkpoints.cpu_s + models.cpu_s) / cpu_s
    saves = f"{checkpoints.num_calls} + {models.num_calls}"
    return f"| {case} | {way} | {saves} | {clock_s:.1f} | {by_clock:.1%} | {by_cpu:.1%} |"


WAYS: dict[str, Any] = {"every report": "all", "budget": "some", "free": "none"}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="docs", help="text of the cases named books")
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=["docs-bag"])
    arguments = parser.parse_args()
    print(platform.processor() or platform.machine())
    print("| case | way | checkpoints + models | seconds | share by the clock | in processor time |")
    print("|---|---|---|---|---|---|")
    for case in arguments.cases:
        for way in WAYS:
            print(measure(case, way, arguments.corpus), flush=True)


if __name__ == "__main__":
    main()
