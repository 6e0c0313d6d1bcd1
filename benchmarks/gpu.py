"""Every check that a GPU needs, as one table; without a GPU what a CPU can check of it, and what is left.

| check | on a GPU | on a CPU |
|---|---|---|
| equality | the loss of the same steps on the CPU, to 1e-3 of it | the same weights twice, bit for bit |
| bfloat16 | the loss after the steps, to 5 % of float32's | the same |
| no wait | `torch.cuda.set_sync_debug_mode("error")` | no read of a tensor's value in a step |
| workers | two processes by NCCL, where there are two GPUs, against one | two processes by gloo against one |
| memory | `max_memory_allocated` is at most raysent's own estimate | the same for the peak of a process |
| pretrained | vectors of a transformer's folder on the CPU, to 1e-3; step, evaluation and `encode` | the same |
| repeat | two runs give the same weights, bit for bit | the same |
| step | Quick-Thoughts, two towers of one direction, against plain `nn.GRU` on padded batches: 1.5 | the same |
| kernels | a step of it by `cudnn`, `graph` and `packed` | the same |
| epoch | 74 million sentences by MC-QT with cuDNN's cell: 20 % of the products at the device's peak | the same |
| epoch of the paper's cell | the same with the reset gate before the product: 11 %, a quarter of an hour | the same |
| skip thoughts | a step against plain `nn.GRU` decoders and `nn.Linear` over all words: 2 | the same |
| transformer | a step of 12 layers of 768 against sentence-transformers grouped by length: 1.2 | 2 layers of 64 |
| encode | 6 layers of 384 against sentence-transformers: 4.5 | 2 layers of 64 |
| sharing | steps a second of 1, 2, 4 and 8 trials on one GPU, each in its process | 1 and 2 on the cores |

Beside the trials that share a GPU stands what fusing four of one shape into one process could reach at most: a step of
four times the sentences in place of four steps. An epoch of the paper's text is computed from the time of a step. Only
`--size paper` has the paper's sizes. The numbers are aims for a GPU, not for a CPU. Checks that do not
begin within `--minutes` are named as not measured. Without `--corpus`, a GPU reads sentences that are drawn with the
frequencies and lengths of text, and a CPU the documentation.

    python -m benchmarks.gpu [--device cuda|cpu] [--size paper|M|S|XS] [--corpus PATH] [--steps 8] [--minutes 8]
        [--only NAME,NAME]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import seconds_of
from benchmarks.data_parallel import in_processes, num_waits, write_result
from benchmarks.gpu_peers import (
    HAS_PEER,
    alternately,
    plain_decoding_step,
    plain_step,
    transformer_pair,
    write_text,
)
from benchmarks.padding import write_model
from benchmarks.training_step import (
    DECODING_SIZES,
    PEAK_SIZE,
    SIZES,
    Size,
    step_of,
    triplets,
    useful_flops,
)
from raysent.data.batches import Batch
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig
from raysent.kernels.devices import default_device, set_matmul_precision
from raysent.models import ModelConfig, SentenceModel
from raysent.models.embeddings import EmbeddingConfig
from raysent.models.encoders.gru import Config as Gru
from raysent.models.objectives.sentence_decoding import Config as SentenceDecoding
from raysent.training.data import open_training_data
from raysent.training.loop import _Training
from raysent.training.memory import PROCESS_BYTES, estimate_bytes, show_bytes
from raysent.training.run import RunConfig, TrainingConfig
from raysent.training.workers import Workers

# The sentences of the paper's text, and the size of one member of its model.
PAPER_SENTENCES = 74_000_000
PAPER = Size(50_000, 300, 1200, 400)
_WARM_UP = 3
_LOSS_TOLERANCE = 1e-3
_BFLOAT16_TOLERANCE = 0.05
# Adam divides what rounding leaves of a gradient of zero by itself.
_WEIGHT_TOLERANCE = 1e-4
_VECTOR_TOLERANCE = 1e-3
# Trials that share a device take at least this part of one's steps a second, measured over so many seconds.
_SHARED, _SHARING_S = 0.8, 2.0
# Texts that `encode` reads, and words of the longest.
_TEXTS, _LONGEST = 2048, 60
# Sentences that are drawn where no corpus is named.
_DRAWN = 40_000
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Setting:
    """What is checked, and where.

    Attributes:
        device: Where to compute.
        size: Vocabulary, word vectors, vectors of a tower and sentences of a step.
        corpus: The text.
        steps: Steps of each check.
    """

    device: torch.device
    size: Size
    corpus: str
    steps: int

    @property
    def precision(self) -> str:
        """Type of the products of rows about speed."""
        return "bfloat16" if self.is_gpu else "float32"

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"


class Found(NamedTuple):
    """What a check found.

    Attributes:
        measured: What was measured.
        is_right: Whether it is as it must be, or reaches the aim.
        is_aim: Whether it is an aim of a GPU, not a condition.
    """

    measured: str
    is_right: bool
    is_aim: bool = False

    @property
    def verdict(self) -> str:
        """The last column of the table."""
        if self.is_aim:
            return "aim reached" if self.is_right else "aim missed"
        return "right" if self.is_right else "WRONG"


def run_config(
    setting: Setting,
    *,
    precision: str = "float32",
    channels: bool = False,
    reset: str = "after",
    **sections: dict[str, Any],
) -> RunConfig:
    """Return a run of Quick-Thoughts with one encoder, or with the two channels of MC-QT, or other sections."""
    size = setting.size
    gru = {"type": "gru", "hidden_size": size.dim // 2, "bidirectional": True, "reset": reset}
    words = {"dim": size.word_dim}
    encoder: dict[str, Any] = {**gru, "embedding": words}
    if channels:
        fixed = {**words, "vectors": "ppmi", "trained": False}
        encoder = {
            "type": "concat",
            "members": {"fixed": {**gru, "embedding": fixed}, "trained": encoder},
        }
    return RunConfig.model_validate(
        {
            "corpus": {"path": setting.corpus, "max_length": 30},
            "vocabulary": {"size": size.vocabulary},
            "encoder": encoder,
            "objective": {"type": "context_prediction"},
            "training": {"batch_size": size.batch_size, "precision": precision, "epochs": 100.0},
            "validation": {"num_candidates": 20, "num_sentences": 40},
            **sections,
        }
    )


def trained(
    config: RunConfig, device: torch.device, steps: int, workers: Workers | None = None
) -> _Training:
    """Return a run after some steps."""
    training = _Training(
        config, open_training_data(config), device=device, workers=workers or Workers()
    )
    for _ in range(steps):
        training._step()
    training._optimizer.flush()
    return training


def mean_loss(training: _Training) -> float:
    """Return the mean loss of the steps so far."""
    return float(training._loss_sum) / training._num_losses


def equality(setting: Setting) -> Found:
    """Compare with the CPU, or a CPU with itself."""
    config = run_config(setting)
    one, other = (
        trained(config, setting.device, setting.steps),
        trained(config, _CPU, setting.steps),
    )
    if setting.is_gpu:
        error = abs(mean_loss(one) / mean_loss(other) - 1)
        far = largest_difference(one._model.tensors(), other._model.tensors())
        return Found(
            f"loss differs by {error:.1e} of it, weights by up to {far:.1e}",
            error <= _LOSS_TOLERANCE,
        )
    pairs = zip(one._model.tensors().values(), other._model.tensors().values(), strict=True)
    is_equal = all(torch.equal(*pair) for pair in pairs)
    return Found(f"two runs have {'the same' if is_equal else 'different'} weights", is_equal)


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of two models' weights."""
    return max(float((value.cpu() - other[name].cpu()).abs().max()) for name, value in one.items())


def bfloat16(setting: Setting) -> Found:
    """Compare the losses of both precisions."""
    whole, half = (
        mean_loss(trained(run_config(setting, precision=precision), setting.device, setting.steps))
        for precision in ("float32", "bfloat16")
    )
    is_near = abs(half / whole - 1) <= _BFLOAT16_TOLERANCE
    return Found(f"loss {half:.4f}, in float32 {whole:.4f}", is_near)


def no_wait(setting: Setting) -> Found:
    """Take steps that must not wait for the device."""
    training = trained(run_config(setting), setting.device, _WARM_UP)
    if not setting.is_gpu:
        with profile(activities=[ProfilerActivity.CPU]) as found:
            training._step()
        waits = num_waits(found.events() or [])
        return Found(f"{waits} reads of a value in a step", waits == 0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(setting.steps):
            training._step()
    except RuntimeError as error:
        return Found(f"a step waits: {str(error).splitlines()[0]}", False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Found(f"no wait in {setting.steps} steps", True)


def several_workers(setting: Setting) -> Found:
    """Compare the weights of two processes with those of one."""
    is_nccl = setting.is_gpu and torch.cuda.device_count() > 1
    backend = "nccl" if is_nccl else "gloo"
    far = in_processes(_difference_from_one, 2, setting, is_nccl, backend=backend)["far"]
    note = "; NCCL needs two GPUs" if setting.is_gpu and not is_nccl else ""
    return Found(
        f"by {backend}: weights differ by up to {far:.1e} from one process{note}",
        far <= _WEIGHT_TOLERANCE,
    )


def _difference_from_one(workers: Workers, file: Path, setting: Setting, is_nccl: bool) -> None:
    """Write how far the weights of all workers are from those of one, which the first worker trains too."""
    device = torch.device("cuda", workers.rank) if is_nccl else _CPU
    config = run_config(setting)
    several = trained(config, device, setting.steps, workers)
    workers.check_weights(several._optimizer.parameters, step=setting.steps)
    if workers.is_first:
        one = trained(config, device, setting.steps)
        write_result(
            file, {"far": largest_difference(several._model.tensors(), one._model.tensors())}
        )


def memory(setting: Setting) -> Found:
    """Compare the peak of memory with the estimate that refuses runs and shares GPUs."""
    need = estimate_bytes(run_config(setting))
    if setting.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        trained(run_config(setting), setting.device, setting.steps)._metrics()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        need += PROCESS_BYTES
        peak = in_processes(_peak_of_process, 1, setting)["peak"]
    return Found(f"peak {show_bytes(peak)}, estimate {show_bytes(need)}", peak <= need)


def _peak_of_process(workers: Workers, file: Path, setting: Setting) -> None:
    """Write the peak of memory of a process that trains and validates."""
    trained(run_config(setting), setting.device, setting.steps, workers)._metrics()
    # `getrusage` would include the peak of the process that started this one.
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    write_result(file, {"peak": int(line.split()[1]) * 1024})


def pretrained(setting: Setting) -> Found:
    """Time a transformer of a folder, 6 layers of 384 on a GPU, and compare its vectors with those of a CPU."""
    corpus, precision = run_config(setting), "bfloat16" if setting.is_gpu else "float32"
    words = prepare(corpus.corpus, corpus.vocabulary).vocabulary.words
    sizes = {"layers": 6, "hidden": 384} if setting.is_gpu else {"layers": 2, "hidden": 64}
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, words, **sizes)
        sections = {
            "encoder": {"type": "pretrained", "path": folder},
            "objective": {"type": "contrast", "positives": "context"},
        }
        training = trained(
            run_config(setting, precision=precision, **sections), setting.device, _WARM_UP
        )
    num = sum(
        len(training._stream.batch(step).parts[0].ids)
        for step in range(_WARM_UP, _WARM_UP + setting.steps)
    )
    one_step = seconds_of(training._step, setting.device.type, count=setting.steps)
    evaluation = seconds_of(training._metrics, setting.device.type, count=1)
    random, model = np.random.default_rng(0), training._model.eval()
    text = [" ".join(random.choice(words, size)) for size in random.integers(1, _LONGEST, _TEXTS)]
    encode_s = seconds_of(
        lambda: model.encode(text, device=str(setting.device)), setting.device.type, count=1
    )
    vectors = model.encode(text, device=str(setting.device))
    far = float(np.abs(vectors[:100] - model.encode(text[:100], device="cpu")).max())
    return Found(
        f"step {1000 * one_step:.0f} ms, {num / setting.steps / one_step:,.0f} tokens/s; "
        f"evaluation {1000 * evaluation:.0f} ms, encode {_TEXTS / encode_s:,.0f} texts/s; vectors differ by {far:.1e}",
        far <= _VECTOR_TOLERANCE,
    )


def sharing(setting: Setting) -> Found:
    """Count the steps of several trials on one GPU, each in its process, and of one trial of four times the batch."""
    counts = (1, 2, 4, 8) if setting.is_gpu else (1, 2)
    rates = {count: in_processes(_steps_together, count, setting, 1)["rate"] for count in counts}
    fused = 4 * in_processes(_steps_together, 1, setting, 4)["rate"]
    shown = ", ".join(f"{rate:,.1f} of {count}" for count, rate in rates.items())
    is_right = rates[counts[-1]] >= _SHARED * rates[1]
    return Found(f"steps/s: {shown}; at most {fused:,.1f} of four fused", is_right)


def _steps_together(workers: Workers, file: Path, setting: Setting, times: int) -> None:
    """Write the steps a second of all processes, each of which trains a model of its own on so many times the batch."""
    size = replace(setting.size, batch_size=times * setting.size.batch_size)
    training = trained(run_config(replace(setting, size=size)), setting.device, _WARM_UP)
    once = seconds_of(training._step, setting.device.type, count=setting.steps)
    count = max(setting.steps, int(_SHARING_S / once))
    dist.barrier()
    rate = torch.tensor(1 / seconds_of(training._step, setting.device.type, count=count))
    dist.all_reduce(rate)
    if workers.is_first:
        write_result(file, {"rate": float(rate)})


def repeat(setting: Setting) -> Found:
    """Compare the weights of a run with those of the same run."""
    one, other = (trained(run_config(setting), setting.device, setting.steps) for _ in range(2))
    pairs = zip(one._model.tensors().values(), other._model.tensors().values(), strict=True)
    is_equal = all(torch.equal(*pair) for pair in pairs)
    return Found(f"two runs have {'the same' if is_equal else 'different'} weights", is_equal)


def one_direction(setting: Setting, **encoder: Any) -> RunConfig:
    """Return a run of Quick-Thoughts whose towers read in one direction."""
    words = {"dim": setting.size.word_dim}
    gru = {"type": "gru", "hidden_size": setting.size.dim // 2, "embedding": words, **encoder}
    return run_config(setting, precision=setting.precision, encoder=gru)


def step(setting: Setting) -> Found:
    """Compare a whole step with one that a user of PyTorch writes, on the same batches."""
    training = trained(one_direction(setting), setting.device, 1)
    plain = plain_step(
        setting.size,
        setting.size.dim // 2,
        num_words=len(training._model.vocabulary),
        device=setting.device,
        bfloat16=setting.precision == "bfloat16",
    )
    stream = training._stream
    ways: dict[str, Callable[[int], object]] = {
        "ours": lambda _: training._step(),
        "plain": lambda number: plain(stream.batch(number)),  # type: ignore[arg-type]
    }
    seconds = alternately(ways, setting.device.type, steps=setting.steps)
    training.close()
    return _ratio(setting, seconds["ours"], seconds["plain"], "plain nn.GRU", aim=1.5)


def _ratio(setting: Setting, ours_s: float, peer_s: float, peer: str, *, aim: float) -> Found:
    ratio = peer_s / ours_s
    return Found(
        f"{ratio:.2f} times {peer}: {1000 * ours_s:.2f} ms, peer {1000 * peer_s:.2f} ms",
        ratio >= aim or not setting.is_gpu,
        is_aim=setting.is_gpu,
    )


def kernels(setting: Setting) -> Found:
    """Time a step by each kernel that a GPU may take."""
    found = []
    for name in ("cudnn", "graph", "packed"):
        training = trained(one_direction(setting, implementation=name), setting.device, _WARM_UP)
        seconds = seconds_of(training._step, setting.device.type, count=setting.steps)
        training.close()
        found.append(f"{name} {1000 * seconds:.2f} ms")
    return Found(", ".join(found), is_right=True)


def skip_thoughts(setting: Setting) -> Found:
    """Compare a step of Skip-Thoughts with a plain one, on the same triplets."""
    size = DECODING_SIZES["L"] if setting.is_gpu else replace(setting.size, batch_size=8)
    low = setting.precision == "bfloat16"
    words = {"size": size.vocabulary}
    corpus = prepare(
        CorpusConfig(path=setting.corpus, max_length=30), VocabularyConfig.model_validate(words)
    )
    batches = triplets(corpus, size, count=4)
    encoder = Gru(
        hidden_size=size.dim,
        embedding=EmbeddingConfig(dim=size.word_dim),
        initialization="orthogonal",
    )
    model = SentenceModel.build(
        ModelConfig(encoder=encoder, objective=SentenceDecoding()), corpus.vocabulary, seed=0
    ).to(setting.device)
    settings = TrainingConfig(
        batch_size=size.batch_size, learning_rate=2e-4, clip=10.0, clip_per="global"
    )
    ours = step_of(model, settings, bfloat16=low)
    plain = plain_decoding_step(
        size, num_words=len(corpus.vocabulary), device=setting.device, bfloat16=low
    )
    ways: dict[str, Callable[[int], object]] = {
        "ours": lambda number: ours(batches[number % 4]),
        "plain": lambda number: plain(batches[number % 4]),
    }
    seconds = alternately(ways, setting.device.type, steps=setting.steps)
    return _ratio(setting, seconds["ours"], seconds["plain"], "plain PyTorch", aim=2.0)


def transformer(setting: Setting) -> Found:
    """Compare a step of a transformer with sentence-transformers' on batches grouped by length."""
    if not HAS_PEER:
        return Found("not measured: needs sentence-transformers", is_right=True)
    sizes = {"layers": 12, "hidden": 768} if setting.is_gpu else {"layers": 2, "hidden": 64}
    count = {"batch": 128, "batches": 6} if setting.is_gpu else {"batch": 8, "batches": 2}
    with transformer_pair(setting.device, **sizes, **count) as pair:
        seconds = pair.step_seconds(bfloat16=setting.precision == "bfloat16")
    return _ratio(setting, seconds["ours"], seconds["peer"], "sentence-transformers", aim=1.2)


def encode(setting: Setting) -> Found:
    """Compare `encode` of a small transformer with sentence-transformers'."""
    if not HAS_PEER:
        return Found("not measured: needs sentence-transformers", is_right=True)
    sizes = {"layers": 6, "hidden": 384} if setting.is_gpu else {"layers": 2, "hidden": 64}
    count = {"batch": 128, "batches": 16} if setting.is_gpu else {"batch": 8, "batches": 2}
    with transformer_pair(setting.device, **sizes, **count) as pair:
        seconds = pair.encode_seconds()
    return _ratio(setting, seconds["ours"], seconds["peer"], "sentence-transformers", aim=4.5)


def epoch(setting: Setting) -> Found:
    """Compare a step of MC-QT with its products at the peak of the device."""
    return _epoch(setting, "after", aim_percent=20)


def papers_epoch(setting: Setting) -> Found:
    """Compare a step of MC-QT with the paper's cell, whose reset gate acts before the product."""
    return _epoch(setting, "before", aim_percent=11)


def _epoch(setting: Setting, reset: str, *, aim_percent: float) -> Found:
    config = run_config(setting, precision=setting.precision, channels=True, reset=reset)
    training = trained(config, setting.device, _WARM_UP)
    batches = [training._stream.batch(step) for step in range(_WARM_UP, _WARM_UP + setting.steps)]
    flops = 2 * useful_flops(
        "bigru", setting.size, [batch for batch in batches if isinstance(batch, Batch)]
    )
    seconds = seconds_of(training._step, setting.device.type, count=setting.steps)
    peak = _peak_flops(setting.device, torch.bfloat16 if setting.is_gpu else torch.float32)
    training.close()
    hours, floor = (
        PAPER_SENTENCES / setting.size.batch_size * one / 3600 for one in (seconds, flops / peak)
    )
    percent = 100 * floor / hours
    measured = f"{hours:,.3g} h, floor {floor:,.3g} h ({percent:.1f} % of the peak)"
    if setting.is_gpu:
        return Found(measured, percent >= aim_percent, is_aim=True)
    return Found(measured, floor <= hours)


def _peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations a second of a product of square matrices."""
    side = 8 * PEAK_SIZE if device.type == "cuda" else PEAK_SIZE
    one, other = torch.randn(2, side, side, device=device, dtype=dtype)
    seconds_of(lambda: one @ other, device.type, count=2)
    return float(2 * side**3 / seconds_of(lambda: one @ other, device.type, count=5))


CHECKS: dict[str, Callable[[Setting], Found]] = {
    "equality": equality,
    "bfloat16": bfloat16,
    "no wait": no_wait,
    "workers": several_workers,
    "memory": memory,
    "pretrained": pretrained,
    "repeat": repeat,
    "step": step,
    "kernels": kernels,
    "epoch": epoch,
    "epoch of the paper's cell": papers_epoch,
    "skip thoughts": skip_thoughts,
    "transformer": transformer,
    "encode": encode,
    "sharing": sharing,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the checks, print the table and return the number of failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        help="where to compute; by default a GPU if there is one",
    )
    parser.add_argument(
        "--size", choices=["paper", *SIZES], help="by default paper on a GPU, and XS on a CPU"
    )
    parser.add_argument("--corpus", help="text to draw batches from")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="minutes in which checks may begin"
    )
    parser.add_argument("--steps", type=int, default=8, help="steps of each check")
    parser.add_argument("--only", help="names of checks, separated by commas")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: must be cpu on a machine without a GPU; given cuda")
    device = _CPU if options.device == "cpu" else default_device()
    name = options.size or ("paper" if device.type == "cuda" else "XS")
    size = PAPER if name == "paper" else SIZES[name]
    with tempfile.TemporaryDirectory() as folder:
        corpus = options.corpus or "docs"
        if options.corpus is None and device.type == "cuda":
            text = write_text(Path(folder), num_sentences=_DRAWN, num_words=size.vocabulary)
            corpus = str(text)
        setting = Setting(device, size, corpus, options.steps)
        return take(setting, name, options.only, seconds=60 * options.minutes)


def take(setting: Setting, name: str, only: str | None, *, seconds: float) -> int:
    """Take checks within some seconds, print the table and return the number of failures."""
    device = setting.device
    set_matmul_precision()
    failed = 0
    started = time.perf_counter()
    print(f"| check, size {name} | on | measured | |\n|---|---|---|---|", flush=True)
    for check in CHECKS if only is None else only.split(","):
        if time.perf_counter() - started > seconds:
            print(f"| {check} | {device.type} | not measured: the time is over | |", flush=True)
            continue
        found = CHECKS[check](setting)
        failed += not (found.is_right or found.is_aim)
        print(f"| {check} | {device.type} | {found.measured} | {found.verdict} |", flush=True)
        if not setting.is_gpu:
            print(f"| {check} | cuda | not measured: needs a GPU | |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
