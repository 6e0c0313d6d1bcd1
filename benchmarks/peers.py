"""Training speed against peers on the same sentences: sentence-transformers' trainer and gensim's doc2vec.

The unit is running text: every sentence is trained together with its successor. sentence-transformers uses each
sentence and the next as a pair of MultipleNegativesRankingLoss and encodes 2 x batch sentences with one tower; raysent
uses the batch as it is in the text and encodes it with two towers. The peer's pipelines are its own modules: a word
table, then an LSTM, a CNN or nothing, then pooling. raysent's are a GRU, a linear CNN summed over its windows, and a
mean of words. One thread; processor time of single steps, batches included, as medians of alternating rounds.

    python -m benchmarks.peers --corpus PATH [--kinds recurrent,mean,cnn,doc2vec] [--steps 3] [--rounds 3] [--json]

Differs: sentence-transformers has no GRU, and its LSTM needs 4/3 of the operations. Its convolutions have odd widths
only (1, 3, 5, while raysent's are 1, 2, 3). doc2vec trains a vector for each sentence and no encoder. Needs both peers:
`pip install raysent[bench]`.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from itertools import count
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common import parsed, show
from benchmarks.training_step import SIZES, our_step
from raysent.data.batches import BatchStream
from raysent.data.corpus import Corpus, CorpusConfig, prepare
from raysent.data.vocabulary import VocabularyConfig
from raysent.models.embeddings import EmbeddingConfig
from raysent.models.encoders import WordEncoderConfig
from raysent.models.encoders.bag import Config as Bag
from raysent.models.encoders.cnn import Config as Cnn
from raysent.models.encoders.gru import Config as Gru

NUM_WORDS, WORD_DIM, HIDDEN_SIZE, NUM_FILTERS, BATCH_SIZE = 50_000, 300, 600, 300, 400
PEERS = {"sentence_transformers": "sentence-transformers[train]", "gensim": "gensim"}
KINDS = ("recurrent", "mean", "cnn", "doc2vec")

Run = Callable[[int], list[float]]
"""Number of steps -> seconds of each, without the first one, which warms up."""


def ours(kind: str, corpus: Corpus, *, bfloat16: bool, is_compiled: bool = True) -> Run:
    """Return raysent's training step, batches included."""
    words = EmbeddingConfig(dim=WORD_DIM)
    encoders: dict[str, WordEncoderConfig] = {
        "recurrent": Gru(hidden_size=HIDDEN_SIZE, embedding=words, implementation="auto" if is_compiled else "packed"),
        "mean": Bag(embedding=words, pooling="mean"),
        "cnn": Cnn(embedding=words, num_filters=NUM_FILTERS),
    }
    train = our_step((encoders[kind], None), SIZES["M"], corpus.vocabulary, bfloat16=bfloat16)
    stream = BatchStream(corpus.train, batch_size=BATCH_SIZE, candidates="contiguous", context_size=1, seed=0)
    numbers = count()

    def step() -> float:
        number = next(numbers)
        started = time.process_time()
        train(stream.batch(number))
        return time.process_time() - started

    def run(num_steps: int) -> list[float]:
        return [step() for _ in range(num_steps + 1)][1:]

    return run


def peer(kind: str, corpus: Corpus, text: list[str], *, bfloat16: bool) -> Run:
    """Return sentence-transformers' trainer on pairs of a sentence and the next."""
    library = importlib.import_module("sentence_transformers")
    model = library.SentenceTransformer(modules=_peer_modules(kind, corpus), device="cpu")
    loss = importlib.import_module("sentence_transformers.sentence_transformer.losses").MultipleNegativesRankingLoss
    pairs = importlib.import_module("datasets").Dataset.from_dict({"anchor": text[:-1], "positive": text[1:]})
    callback_type = importlib.import_module("transformers").TrainerCallback

    class Clock(callback_type):  # type: ignore[misc, valid-type]
        """Records the processor time at the end of every step."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.times.append(time.process_time())

    def run(num_steps: int) -> list[float]:
        torch.set_float32_matmul_precision("highest")
        clock = Clock()
        # It prints its figures to standard output.
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            options = library.SentenceTransformerTrainingArguments(
                output_dir=folder,
                max_steps=num_steps + 1,
                per_device_train_batch_size=BATCH_SIZE,
                bf16=bfloat16,
                use_cpu=True,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                logging_strategy="no",
            )
            library.SentenceTransformerTrainer(
                model=model, args=options, train_dataset=pairs, loss=loss(model), callbacks=[clock]
            ).train()
        return np.diff(clock.times).tolist()

    return run


def _peer_modules(kind: str, corpus: Corpus) -> list[Any]:
    """Return sentence-transformers' modules of a kind, newly initialized."""
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    tokenizers = importlib.import_module("sentence_transformers.sentence_transformer.modules.tokenizer")
    names = _names(corpus)
    tokenizer = tokenizers.WhitespaceTokenizer(vocab=names, stop_words=[], do_lower_case=False)
    weights = torch.empty(len(names), WORD_DIM).uniform_(-0.1, 0.1)
    words = modules.WordEmbeddings(tokenizer, weights, update_embeddings=True)
    if kind == "recurrent":
        return [words, modules.LSTM(WORD_DIM, HIDDEN_SIZE, bidirectional=False), _pooling(modules, HIDDEN_SIZE)]
    if kind == "cnn":
        cnn = modules.CNN(WORD_DIM, out_channels=NUM_FILTERS, kernel_sizes=[1, 3, 5])
        return [words, cnn, _pooling(modules, 3 * NUM_FILTERS)]
    return [words, _pooling(modules, WORD_DIM)]


def _pooling(modules: Any, dim: int) -> Any:
    return modules.Pooling(dim, pooling_mode="mean")


def doc2vec(text: list[str]) -> Callable[[], float]:
    """Return the sentences per second of one epoch of gensim's doc2vec (distributed bag of words with words)."""
    library = importlib.import_module("gensim.models.doc2vec")
    documents = [library.TaggedDocument(sentence.split(), [number]) for number, sentence in enumerate(text)]

    def rate() -> float:
        model = library.Doc2Vec(vector_size=WORD_DIM, dm=0, min_count=1, workers=1, epochs=1, seed=0)
        model.build_vocab(documents)
        started = time.process_time()
        model.train(documents, total_examples=len(documents), epochs=1)
        return len(documents) / (time.process_time() - started)

    return rate


def _names(corpus: Corpus) -> list[str]:
    """Return a name of letters for every word, so that every tokenizer sees the same words."""
    return [f"w{number}" for number in range(len(corpus.vocabulary))]


def sentences_of(corpus: Corpus, num_sentences: int) -> list[str]:
    """Return the first training sentences as text of such names."""
    rows, names = corpus.train.sentences(0, min(num_sentences, len(corpus.train))), _names(corpus)
    return [" ".join(names[i] for i in ids) for ids in np.split(rows.ids, np.cumsum(rows.lengths)[:-1])]


def in_turn(runs: dict[str, Run], *, steps: int, rounds: int) -> dict[str, float]:
    """Return the sentences per second of every trainer, by the median of its steps."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name] += run(steps)
    return {name: BATCH_SIZE / median(times) for name, times in seconds.items()}


def ways(kind: str, corpus: Corpus, text: list[str]) -> Iterator[tuple[str, Run]]:
    """Yield the trainers of a kind, peers first."""
    yield "sentence-transformers, float32", peer(kind, corpus, text, bfloat16=False)
    yield "sentence-transformers, bfloat16", peer(kind, corpus, text, bfloat16=True)
    yield "raysent, float32", ours(kind, corpus, bfloat16=False)
    yield "raysent, bfloat16", ours(kind, corpus, bfloat16=True)
    if kind == "recurrent":
        yield "raysent in torch alone, float32", ours(kind, corpus, bfloat16=False, is_compiled=False)
        yield "raysent in torch alone, bfloat16", ours(kind, corpus, bfloat16=True, is_compiled=False)


def measure(corpus: Corpus, kinds: list[str], *, steps: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the sentences per second of every kind."""
    text = sentences_of(corpus, 40 * BATCH_SIZE)
    found = {}
    for kind in kinds:
        if kind == "doc2vec":
            rate = doc2vec(text)
            mean = ours("mean", corpus, bfloat16=False)
            rates = [(rate(), BATCH_SIZE / median(mean(steps))) for _ in range(rounds)]
            theirs, our_mean = (median(column) for column in zip(*rates, strict=True))
            found[kind] = {"gensim doc2vec": theirs, "raysent, mean, float32": our_mean}
        else:
            found[kind] = in_turn(dict(ways(kind, corpus, text)), steps=steps, rounds=rounds)
    return found


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, corpus="docs", kinds=",".join(KINDS), steps=3, rounds=3)
    missing = [name for module, name in PEERS.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(f"peers: {' and '.join(missing)} must be installed; pip install raysent[bench]")
    torch.set_num_threads(1)
    corpus = prepare(CorpusConfig(path=options.corpus, max_length=30), VocabularyConfig(size=NUM_WORDS))
    found = measure(corpus, options.kinds.split(","), steps=options.steps, rounds=options.rounds)
    result = {
        kind: {
            name: {"sentences_per_s": round(rate, 1), "ratio_over_peer": round(rate / next(iter(rates.values())), 2)}
            for name, rate in rates.items()
        }
        for kind, rates in found.items()
    }
    show(result, options)


if __name__ == "__main__":
    main()
