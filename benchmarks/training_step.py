"""The training step against a naive PyTorch step: `ratio_over_naive`, by interleaved medians on one thread.

The naive step is a textbook implementation (`benchmarks/textbook`). raysent's is the step of `raysent train`. Both use
the same batches of the same corpus, alternately in one process, and are measured in processor time, so that other work
on the machine has little effect. In between, the speed of the core is measured with a product of two square matrices:
`share_of_peak` is what raysent's step reaches of it, counting only the products that no reordering of the sums can
avoid, and `ratio_bound` is the ratio of a step that reached all of it. For the GRU, the LSTM and Skip-Thoughts, a step
without compiled cells is measured too. Skip-Thoughts has sizes of its own, and a naive step that pads, scores every
word at every step, padding included, and keeps all scores for the backward pass.

    python -m benchmarks.training_step [--corpus PATH] [--encoder gru|bigru|lstm|cnn|bag|views|skip_thoughts]
        [--sizes S,M,L] [--precision float32|bfloat16] [--steps 7] [--json]
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import textbook
from benchmarks.common import parsed, show
from benchmarks.textbook import skip_thoughts
from raysent.data.batches import AnyBatch, Batch, BatchStream, Triplets, TripletStream
from raysent.data.corpus import Corpus, CorpusConfig, prepare
from raysent.data.vocabulary import Vocabulary, VocabularyConfig
from raysent.kernels.devices import set_matmul_precision
from raysent.models import ModelConfig, SentenceModel
from raysent.models.embeddings import EmbeddingConfig
from raysent.models.encoders import EncoderConfig
from raysent.models.encoders.bag import Config as Bag
from raysent.models.encoders.cnn import Config as Cnn
from raysent.models.encoders.gru import Config as Gru
from raysent.models.encoders.linear import Config as Linear
from raysent.models.encoders.lstm import Config as Lstm
from raysent.models.objectives.context_prediction import Config as ContextPrediction
from raysent.models.objectives.sentence_decoding import Config as SentenceDecoding
from raysent.training.optimization import Optimizer
from raysent.training.run import TrainingConfig

Step = Callable[[AnyBatch], float]

# Longer than any benchmark: the learning rate decays towards the end of a run.
_NUM_STEPS = 1_000_000
# Both sides build what later steps reuse: kernels for their shapes, buffers, moments.
WARM_UP = 3
PEAK_SIZE = 1024


@dataclass(frozen=True)
class Size:
    """One setting of the comparison; `dim` is the size of a tower's vector, over all directions or windows."""

    vocabulary: int
    word_dim: int
    dim: int
    batch_size: int


SIZES = {
    "XS": Size(10_000, 50, 64, 64),
    "S": Size(20_000, 128, 256, 256),
    "M": Size(50_000, 300, 600, 400),
    "L": Size(50_000, 620, 1200, 400),
}
SKIP_THOUGHTS = "skip_thoughts"
DECODING_SIZES = {
    "S": Size(20_000, 300, 300, 64),
    "M": Size(20_000, 300, 300, 128),
    "L": Size(20_000, 620, 600, 128),
}


def encoders(
    name: str, size: Size, *, implementation: str = "auto"
) -> tuple[EncoderConfig, EncoderConfig | None]:
    """Return the configurations of f and, if it differs, of g."""
    words = {"embedding": EmbeddingConfig(dim=size.word_dim)}
    made: dict[str, Callable[[], EncoderConfig]] = {
        "gru": lambda: Gru(hidden_size=size.dim, implementation=implementation, **words),
        "bigru": lambda: Gru(
            hidden_size=size.dim, bidirectional=True, implementation=implementation, **words
        ),
        "lstm": lambda: Lstm(hidden_size=size.dim, implementation=implementation, **words),
        "cnn": lambda: Cnn(num_filters=size.dim // 3, **words),
        "bag": lambda: Bag(pooling="mean", **words),
        "views": lambda: Gru(hidden_size=size.dim, implementation=implementation, **words),
    }
    return made[name](), Linear(hidden_size=size.dim, **words) if name == "views" else None


def our_step(
    configs: tuple[EncoderConfig, EncoderConfig | None],
    size: Size,
    vocabulary: Vocabulary,
    *,
    bfloat16: bool,
) -> Step:
    """Return a function that trains raysent's model on one batch."""
    config = ModelConfig(
        encoder=configs[0], second_encoder=configs[1], objective=ContextPrediction()
    )
    model = SentenceModel.build(config, vocabulary, seed=0)
    return step_of(model, TrainingConfig(batch_size=size.batch_size), bfloat16=bfloat16)


def step_of(model: SentenceModel, config: TrainingConfig, *, bfloat16: bool) -> Step:
    """Return a function that trains a model on one batch and returns its loss."""
    optimizer = Optimizer(model, config, num_steps=_NUM_STEPS)
    number, precision = 0, set_matmul_precision()

    def step(batch: AnyBatch) -> float:
        nonlocal number
        torch.set_float32_matmul_precision(precision)  # naive steps and peers set their own
        packed = model.pack(batch.sentences) if isinstance(batch, Batch) else None
        optimizer.catch_up(_words(batch) if packed is None else packed.words)
        optimizer.zero_grad()
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            reader = model.step_reader()
            if packed is not None:
                reader.add(batch.sentences, model.vectors(packed))
            loss = model.loss(batch, reader=reader)
        loss.backward()
        optimizer.step(number)
        number += 1
        return loss.item()

    return step


def our_decoding_step(
    size: Size, vocabulary: Vocabulary, *, implementation: str, bfloat16: bool
) -> Step:
    """Return a function that trains raysent's Skip-Thoughts on one batch."""
    encoder = Gru(
        hidden_size=size.dim,
        embedding=EmbeddingConfig(dim=size.word_dim),
        initialization="orthogonal",
    )
    config = ModelConfig(encoder=encoder, objective=SentenceDecoding(implementation=implementation))
    training = TrainingConfig(
        batch_size=size.batch_size, learning_rate=2e-4, clip=10.0, clip_per="global"
    )
    return step_of(SentenceModel.build(config, vocabulary, seed=0), training, bfloat16=bfloat16)


def triplets(corpus: Corpus, size: Size, *, count: int) -> list[Triplets]:
    """Return the first full batches of triplets."""
    stream = TripletStream(corpus.train, batch_size=size.batch_size, max_length=30, seed=0)
    drawn = map(stream.batch, range(stream.num_batches))
    whole = list(
        itertools.islice((batch for batch in drawn if len(batch) == size.batch_size), count)
    )
    if len(whole) < count:
        raise SystemExit(
            f"--corpus: must hold {count} batches of {size.batch_size} sentences of one length; add text"
        )
    return whole


def _words(batch: AnyBatch) -> torch.Tensor:
    """Return the distinct words of all sentences of a batch."""
    return torch.from_numpy(np.unique(np.concatenate([part.ids for part in batch.parts]))).long()


def peak_step(*, bfloat16: bool) -> Step:
    """Return a function that multiplies two square matrices in the type of raysent's products."""
    one, other = torch.randn(2, PEAK_SIZE, PEAK_SIZE).to(
        torch.bfloat16 if bfloat16 else torch.float32
    )

    def step(_: Batch) -> float:
        set_matmul_precision()
        return float((one @ other)[0, 0])

    return step


def measure(steps: dict[str, Step], batches: Sequence[Any]) -> dict[str, list[float]]:
    """Return the times of each step in seconds; all use the same batches, alternately, without the first ones."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for batch in batches:
        for name, step in steps.items():
            started = time.process_time()
            step(batch)
            times[name].append(time.process_time() - started)
    return {name: values[WARM_UP:] for name, values in times.items()}


def useful_flops(name: str, size: Size, batches: list[Batch]) -> float:
    """Return the floating-point operations of the necessary products of a GRU's step, averaged over batches.

    Each token except the first of a sentence needs three products (forward, gradient of the state, gradient of the
    weight) with the recurrent weight, each distinct word three with the input weight; the scores of all pairs need
    three more.
    """
    hidden, directions = (size.dim // 2, 2) if name == "bigru" else (size.dim, 1)
    total = 0
    for batch in batches:
        rows, distinct = len(batch.sentences.lengths), len(set(batch.sentences.ids.tolist()))
        recurrent = 18 * hidden**2 * (int(batch.sentences.lengths.sum()) - rows)
        total += (
            2 * directions * (recurrent + 18 * hidden * size.word_dim * distinct)
            + 6 * rows**2 * size.dim
        )
    return total / len(batches)


def compare(
    name: str, size: Size, corpus_path: str, *, num_steps: int, bfloat16: bool
) -> dict[str, float]:
    """Return the sentences per second of both steps, their ratio, and what bounds it."""
    corpus = prepare(
        CorpusConfig(path=corpus_path, max_length=30), VocabularyConfig(size=size.vocabulary)
    )
    words, peak = corpus.vocabulary, peak_step(bfloat16=bfloat16)
    if name == SKIP_THOUGHTS:
        read = triplets(corpus, size, count=num_steps + WARM_UP)
        ways = {"ours": "auto", "pure_torch": "torch"}
        ours = {
            way: our_decoding_step(size, words, implementation=by, bfloat16=bfloat16)
            for way, by in ways.items()
        }
        naive = skip_thoughts.Trainer(num_words=len(words), word_dim=size.word_dim, dim=size.dim)
        times = measure({"naive": naive, **ours, "peak": peak}, read)
        return _figures(times, size, None)
    stream = BatchStream(
        corpus.train, batch_size=size.batch_size, candidates="contiguous", context_size=1, seed=0
    )
    # Spread over the corpus: its first sentences are by one author.
    count = num_steps + WARM_UP
    batches = [stream.batch(step * max(1, stream.num_batches // count)) for step in range(count)]
    is_gru = name in {"gru", "bigru"}
    steps: dict[str, Step] = {
        "naive": textbook.step(name, num_words=len(words), word_dim=size.word_dim, dim=size.dim),
        "ours": our_step(encoders(name, size), size, words, bfloat16=bfloat16),
        "peak": peak,
    }
    if is_gru or name == "lstm":
        pure = encoders(name, size, implementation="packed")
        steps["pure_torch"] = our_step(pure, size, words, bfloat16=bfloat16)
    flops = useful_flops(name, size, batches[WARM_UP:]) if is_gru else None
    return _figures(measure(steps, batches), size, flops)


def _figures(times: dict[str, list[float]], size: Size, flops: float | None) -> dict[str, float]:
    """Return the ratios of measured times, and what bounds them where the necessary operations are known."""
    seconds = {step: median(values) for step, values in times.items()}
    ratios = sorted(naive / ours for naive, ours in zip(times["naive"], times["ours"], strict=True))
    result = {
        "ratio_over_naive": seconds["naive"] / seconds["ours"],
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "naive_sentences_per_s": size.batch_size / seconds["naive"],
        "ours_sentences_per_s": size.batch_size / seconds["ours"],
    }
    if "pure_torch" in seconds:
        result["pure_torch_ratio_over_naive"] = seconds["naive"] / seconds["pure_torch"]
    if flops is not None:
        peak = 2 * PEAK_SIZE**3 / seconds["peak"]
        result |= {
            "peak_gflops": peak / 1e9,
            "useful_gflops": flops / 1e9,
            "share_of_peak": flops / seconds["ours"] / peak,
            "pure_torch_share_of_peak": flops / seconds["pure_torch"] / peak,
            "naive_share_of_peak": flops / seconds["naive"] / peak,
            "ratio_bound": seconds["naive"] * peak / flops,
        }
    return {
        key: [round(v, 2) for v in value] if isinstance(value, list) else round(value, 2)
        for key, value in result.items()
    }


def main() -> None:
    """Measure the requested sizes and print."""
    options = parsed(
        __doc__, corpus="docs", encoder="gru", sizes="S,M", precision="float32", steps=7
    )
    torch.set_num_threads(1)
    bfloat16 = options.precision == "bfloat16"
    sizes = DECODING_SIZES if options.encoder == SKIP_THOUGHTS else SIZES
    results = {
        name: compare(
            options.encoder, sizes[name], options.corpus, num_steps=options.steps, bfloat16=bfloat16
        )
        for name in options.sizes.split(",")
    }
    said = {
        "encoder": options.encoder,
        "precision": options.precision,
        "matmul": set_matmul_precision(),
    }
    show({**said, "sizes": results}, options)


if __name__ == "__main__":
    main()
