"""What benchmarks share: options with defaults, the processor time of a call, and one way to print."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch


def parsed(about: str | None, **defaults: Any) -> argparse.Namespace:
    """Return the options of a benchmark, and `json`: each takes the type of its default; a type has no default."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {**defaults, "json": False}.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(
                flag, type=type(default), default=default, help=f"{default} by default"
            )
    return parser.parse_args()


def show(found: Any, options: argparse.Namespace) -> None:
    """Print what was found as JSON: on one line with `--json`, else for people."""
    print(
        json.dumps(found) if options.json else json.dumps(found, indent=2, ensure_ascii=False),
        flush=True,
    )


def seconds_of(work: Callable[[], object], device: str = "cpu", *, count: int = 1) -> float:
    """Return the mean seconds of a call: of processor time on a CPU, by the clock on a GPU, which has then done it."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    _wait_for(device)
    started = clock()
    for _ in range(count):
        work()
    _wait_for(device)
    return (clock() - started) / count


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
