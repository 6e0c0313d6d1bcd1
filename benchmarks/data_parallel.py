"""One training step by one process and by several on one machine: the same batch, the same result.

Every process has one thread. In alternate rounds of the same processes, the first one trains alone on whole batches,
and then all share the batches. `ratio_sentences_per_s` is by the clock, and other work on the machine lowers it.
`ratio_processor_time` is by the processor time of the busiest process, which other work hardly changes: what an idle
machine reaches where sending costs no waiting. `all_reduce_s` is the time to sum as many bytes as a step's gradients
have, alone.

`--trace` profiles one shared step of the first process: `waits` counts reads of a tensor's value (`item`, `tolist`,
`int(tensor)`, `nonzero`), for which a GPU has to wait, without those of Adam's kernel for CPUs, which reads its number
of steps there; `in_backward` counts the sums that start before backward ends.

    python -m benchmarks.data_parallel [--corpus PATH] [--encoder gru|bag] [--sizes S,M] [--workers 2] [--rounds 3]
        [--steps 3] [--batch-size N] [--precision float32|bfloat16] [--trace] [--json]
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import parsed, show
from benchmarks.training_step import SIZES, Size
from raysent.kernels.devices import set_matmul_precision
from raysent.training.data import open_training_data
from raysent.training.loop import _Training
from raysent.training.run import RunConfig
from raysent.training.workers import Workers

WAITS = {"aten::_local_scalar_dense", "aten::nonzero"}
_WARM_UP = 2


def run_config(size: Size, options: dict[str, Any]) -> RunConfig:
    """Return a run of Quick-Thoughts of a size on a corpus."""
    encoder = {"type": options["encoder"], "embedding": {"dim": size.word_dim}}
    if options["encoder"] == "gru":
        encoder["hidden_size"] = size.dim
    return RunConfig.model_validate(
        {
            "corpus": {"path": options["corpus"], "max_length": 30},
            "vocabulary": {"size": size.vocabulary},
            "encoder": encoder,
            "objective": {"type": "context_prediction"},
            "training": {
                "batch_size": options["batch_size"] or size.batch_size,
                "precision": options["precision"],
                "epochs": 100.0,
            },
        }
    )


def in_processes(
    function: Callable[..., None], world_size: int, *arguments: Any, backend: str = "gloo"
) -> Any:
    """Call `function(workers, file, *arguments)` in new processes of a group; returns what it wrote to the file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        group = {
            "backend": backend,
            "init_method": f"tcp://127.0.0.1:{port}",
            "world_size": world_size,
        }
        torch.multiprocessing.spawn(
            _in_group, args=(group, function, file, arguments), nprocs=world_size
        )
        return json.loads(file.read_text())


def write_result(file: Path, result: dict[str, Any]) -> None:
    """Write what `in_processes` returns."""
    file.write_text(json.dumps(result))


def _in_group(
    rank: int,
    group: dict[str, Any],
    function: Callable[..., None],
    file: Path,
    arguments: tuple[Any, ...],
) -> None:
    """Join the group, call the function and leave."""
    torch.set_num_threads(1)
    if group["backend"] == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(rank=rank, **group)
    function(Workers.of_group(), file, *arguments)
    dist.destroy_process_group()


def compare(workers: Workers, file: Path, size: Size, options: dict[str, Any]) -> None:
    """Measure both ways in alternate rounds; the first process writes the result."""
    set_matmul_precision()
    config = run_config(size, options)
    shared = _training(config, workers)
    alone = _training(config, Workers()) if workers.is_first else None
    for _ in range(_WARM_UP):
        shared._step()
        if alone is not None:
            alone._step()
    times = {"alone": [[0.0, 0.0]], "shared": [[0.0, 0.0]]}
    for _ in range(options["rounds"]):
        times["alone"].append(_timed(alone, options["steps"]))
        times["shared"].append(_timed(shared, options["steps"]))
    num_bytes = _bytes_sent(shared)
    sent = _seconds_to_send(num_bytes)
    traced = trace(shared) if options["trace"] else {}
    if workers.is_first:
        one, several = (
            [median(column) for column in zip(*times[way][1:], strict=True)] for way in times
        )
        batch = config.training.batch_size
        result = {
            "workers": workers.world_size,
            "batch_size": batch,
            "alone_sentences_per_s": round(batch / one[0], 1),
            "shared_sentences_per_s": round(batch / several[0], 1),
            "ratio_sentences_per_s": round(one[0] / several[0], 2),
            "ratio_processor_time": round(one[1] / several[1], 2),
            "step_s": round(several[0], 4),
            "gradient_mib": round(num_bytes / 2**20, 1),
            "all_reduce_s": round(sent, 4),
            **traced,
        }
        write_result(file, result)


def _training(config: RunConfig, workers: Workers) -> _Training:
    """Return a run before its first step."""
    return _Training(
        config, open_training_data(config), device=torch.device("cpu"), workers=workers
    )


def _timed(training: _Training | None, num_steps: int) -> list[float]:
    """Return the seconds of a step by the clock, and of processor time of the busiest process; None only waits."""
    dist.barrier()
    clock, processor = time.perf_counter(), time.process_time()
    if training is not None:
        for _ in range(num_steps):
            training._step()
    own = torch.tensor([time.process_time() - processor])
    dist.barrier()
    seconds = time.perf_counter() - clock
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return [seconds / num_steps, float(own) / num_steps]


def _bytes_sent(training: _Training) -> int:
    """Return the bytes of a step's gradients, of word tables those of the rows in use."""
    gradients = [
        parameter.grad for parameter in training._optimizer.parameters if parameter.grad is not None
    ]
    values = [one._values() if one.is_sparse else one for one in gradients]
    return sum(one.numel() * one.element_size() for one in values)


def _seconds_to_send(num_bytes: int) -> float:
    """Return the median seconds to sum that many bytes over the processes."""
    values, times = torch.zeros(num_bytes // 4), []
    for _ in range(5):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(values)
        times.append(time.perf_counter() - started)
    return median(times)


def trace(training: _Training) -> dict[str, int]:
    """Return what one step waits for, and how many sums it starts before backward ends."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        training._step()
    events = found.events() or []
    backward = [
        event for event in events if event.name.startswith("autograd::engine::evaluate_function")
    ]
    sums = [event for event in events if event.name == "c10d::allreduce_"]
    end = max(event.time_range.end for event in backward)
    return {
        "waits": num_waits(events),
        "sums": len(sums),
        "in_backward": sum(event.time_range.start < end for event in sums),
    }


def num_waits(events: Iterable[Any]) -> int:
    """Return how many of the profiled operations read a tensor's value, outside of Adam's kernel for CPUs."""
    return sum(
        event.name in WAITS and not _is_within(event, "aten::_fused_adam") for event in events
    )


def _is_within(event: Any, prefix: str) -> bool:
    """Return whether an operation was called by one whose name begins so, directly or not."""
    parent = event.cpu_parent
    return parent is not None and (parent.name.startswith(prefix) or _is_within(parent, prefix))


def main() -> None:
    """Measure the requested sizes and print."""
    chosen = parsed(
        __doc__, corpus="docs", encoder="gru", sizes="S,M", workers=2, rounds=3, steps=3, batch_size=int,
        precision="float32", trace=False,
    )  # fmt: skip
    options = vars(chosen)
    results = {
        name: in_processes(compare, options["workers"], SIZES[name], options)
        for name in options["sizes"].split(",")
    }
    show(
        {"encoder": options["encoder"], "precision": options["precision"], "sizes": results}, chosen
    )


if __name__ == "__main__":
    main()
