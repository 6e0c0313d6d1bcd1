"""Skip-Thoughts' training step against a naive PyTorch step, like `training_step` for Quick-Thoughts.

The naive step is `benchmarks/textbook/skip_thoughts`: it pads, scores every word at every step, padding included, and
keeps all scores for the backward pass. `plain` is raysent's step with the decoders' `implementation: torch`: without
padding, by automatic differentiation. All use the same batches of the same corpus, alternately in one process, and are
measured in processor time.

    python -m benchmarks.decoding_step [--corpus PATH] [--sizes S,M] [--precision float32|bfloat16] [--steps 5] [--json]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from benchmarks.common import parsed, show
from benchmarks.textbook import skip_thoughts
from benchmarks.training_step import PEAK_SIZE, WARM_UP, Size, measure, peak_step, step_of
from raysent.data.batches import Triplets, TripletStream
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import Vocabulary, VocabularyConfig
from raysent.kernels.devices import set_matmul_precision
from raysent.models import ModelConfig, SentenceModel
from raysent.models.embeddings import EmbeddingConfig
from raysent.models.encoders.gru import Config as Gru
from raysent.models.objectives.sentence_decoding import Config as SentenceDecoding
from raysent.training.run import TrainingConfig

SIZES = {
    "S": Size(20_000, 300, 300, 64),
    "M": Size(20_000, 300, 300, 128),
    "L": Size(20_000, 620, 600, 128),
}
WAYS = ("naive", "plain", "ours")


def our_model(size: Size, vocabulary: Vocabulary, *, implementation: str = "auto") -> SentenceModel:
    """Return raysent's model."""
    encoder = Gru(hidden_size=size.dim, embedding=EmbeddingConfig(dim=size.word_dim), initialization="orthogonal")
    config = ModelConfig(encoder=encoder, objective=SentenceDecoding(implementation=implementation))
    return SentenceModel.build(config, vocabulary, seed=0)


def step_by(way: str, size: Size, vocabulary: Vocabulary, *, bfloat16: bool) -> Callable[[Triplets], float]:
    """Return one of the compared steps."""
    if way == "naive":
        return skip_thoughts.Trainer(num_words=len(vocabulary), word_dim=size.word_dim, dim=size.dim)
    model = our_model(size, vocabulary, implementation="torch" if way == "plain" else "auto")
    config = TrainingConfig(batch_size=size.batch_size, learning_rate=2e-4, clip=10.0, clip_per="global")
    return step_of(model, config, bfloat16=bfloat16)


def open_batches(size: Size, corpus_path: str, *, count: int) -> tuple[Vocabulary, list[Triplets]]:
    """Return a corpus' vocabulary and its first full batches."""
    corpus = prepare(CorpusConfig(path=corpus_path, max_length=30), VocabularyConfig(size=size.vocabulary))
    stream = TripletStream(corpus.train, batch_size=size.batch_size, max_length=30, seed=0)
    drawn = map(stream.batch, range(stream.num_batches))
    whole = list(itertools.islice((batch for batch in drawn if len(batch) == size.batch_size), count))
    if len(whole) < count:
        raise SystemExit(f"--corpus: must hold {count} batches of {size.batch_size} sentences of one length; add text")
    return corpus.vocabulary, whole


def useful_flops(size: Size, num_words: int, batches: list[Triplets]) -> float:
    """Return the floating-point operations of the necessary products of a step, averaged over batches.

    Three products (forward, and two gradients) for: each step of a decoder with the output layer; each token except the
    first of a sentence with a recurrent weight; each distinct word of a side with an input weight; each sentence vector
    with each decoder's weight.
    """
    total = 0
    for batch in batches:
        rows, encoded = len(batch), int(batch.sentences.lengths.sum())
        steps = sum(int(side.lengths.sum()) + rows for side in (batch.before, batch.after))
        distinct = sum(len(np.unique(part.ids)) for part in batch.parts)
        recurrent = (encoded - rows) + (steps - 2 * rows) + 2 * rows  # the last one for the sentence vector
        total += 6 * steps * num_words * size.dim + 18 * size.dim * (recurrent * size.dim + distinct * size.word_dim)
    return total / len(batches)


def compare(size: Size, corpus_path: str, *, num_steps: int, bfloat16: bool) -> dict[str, float | list[float]]:
    """Return the steps' sentences per second, their ratios, and what bounds them."""
    vocabulary, batches = open_batches(size, corpus_path, count=num_steps + WARM_UP)
    steps = {way: step_by(way, size, vocabulary, bfloat16=bfloat16) for way in WAYS}
    times = measure({**steps, "peak": peak_step(bfloat16=bfloat16)}, batches)
    seconds = {name: median(values) for name, values in times.items()}
    ratios = sorted(naive / ours for naive, ours in zip(times["naive"], times["ours"], strict=True))
    flops = useful_flops(size, len(vocabulary), batches[WARM_UP:])
    peak = 2 * PEAK_SIZE**3 / seconds["peak"]
    return {
        "ratio_over_naive": round(seconds["naive"] / seconds["ours"], 2),
        "ratio_quartiles": [round(ratios[len(ratios) // 4], 2), round(ratios[-1 - len(ratios) // 4], 2)],
        "ratio_over_plain": round(seconds["plain"] / seconds["ours"], 2),
        "ratio_bound": round(seconds["naive"] * peak / flops, 2),
        **{f"{name}_s": round(seconds[name], 2) for name in WAYS},
        "sentences_per_s": round(size.batch_size / seconds["ours"], 1),
        "peak_gflops": round(peak / 1e9, 1),
        "useful_gflops": round(flops / 1e9, 1),
        **{f"{name}_share_of_peak": round(flops / seconds[name] / peak, 2) for name in WAYS},
    }


def main() -> None:
    """Measure the requested sizes and print."""
    options = parsed(__doc__, corpus="docs", sizes="S,M", precision="float32", steps=5)
    torch.set_num_threads(1)
    bfloat16 = options.precision == "bfloat16"
    results = {
        name: compare(SIZES[name], options.corpus, num_steps=options.steps, bfloat16=bfloat16)
        for name in options.sizes.split(",")
    }
    show({"precision": options.precision, "matmul": set_matmul_precision(), "sizes": results}, options)


if __name__ == "__main__":
    main()
