"""Encoding against sentence-transformers' `encode` with the same GRU: `ratio_over_peer`, by interleaved medians.

Both have the same word vectors and weights and return the same vectors, which is checked. They differ in batching,
padding and products. The peer is a `SentenceTransformer` of a word table and `nn.GRU`, with its default batch of 32 and
with 400. Its tokenizer splits at white space; the text for both consists of such words. One thread, processor time, on
real sentences in the order of the text.

    python -m benchmarks.encoding --corpus PATH [--sentences 8192] [--rounds 5] [--json]

Needs sentence-transformers: `pip install raysent[bench]`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.common import parsed, seconds_of, show
from raysent.data.corpus import CorpusConfig, prepare
from raysent.data.vocabulary import PAD_WORD, UNK_WORD, Vocabulary, VocabularyConfig
from raysent.kernels.devices import set_matmul_precision
from raysent.models import ModelConfig, SentenceModel
from raysent.models.embeddings import EmbeddingConfig
from raysent.models.encoders.gru import Config as Gru
from raysent.models.objectives.context_prediction import Config as ContextPrediction

NUM_WORDS, WORD_DIM, HIDDEN_SIZE = 50_000, 300, 600
Encode = Callable[[list[str]], np.ndarray]


def text_and_model(corpus_path: str, num_sentences: int) -> tuple[list[str], SentenceModel]:
    """Return sentences without punctuation and an untrained model of one GRU."""
    corpus = prepare(
        CorpusConfig(path=corpus_path, max_length=30), VocabularyConfig(size=NUM_WORDS)
    )
    # Words of letters and digits only: both tokenizers agree on them.
    vocabulary = Vocabulary(
        [PAD_WORD, UNK_WORD, *(f"w{number}" for number in range(2, len(corpus.vocabulary)))]
    )
    rows = corpus.train.sentences(0, min(num_sentences, len(corpus.train)))
    ids = np.split(rows.ids, np.cumsum(rows.lengths)[:-1])
    text = [" ".join(vocabulary.words[i] for i in row if i > 1) or "w2" for row in ids]
    encoder = Gru(hidden_size=HIDDEN_SIZE, embedding=EmbeddingConfig(dim=WORD_DIM))
    model = SentenceModel.build(
        ModelConfig(encoder=encoder, objective=ContextPrediction()), vocabulary, seed=0
    )
    return text, model.eval()


def peer_encoder(model: SentenceModel) -> Any:
    """Return sentence-transformers' model with the weights of the first tower."""
    library = importlib.import_module("sentence_transformers")
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    tokenizers = importlib.import_module(
        "sentence_transformers.sentence_transformer.modules.tokenizer"
    )

    class PeerGru(modules.LSTM):  # type: ignore[name-defined, misc]
        """Its recurrent module, with a GRU instead of an LSTM."""

        def __init__(self) -> None:
            super().__init__(WORD_DIM, HIDDEN_SIZE, bidirectional=False)
            self.encoder = nn.GRU(WORD_DIM, HIDDEN_SIZE, batch_first=True)

    gru = PeerGru()
    gru.encoder.load_state_dict(model.f.gru.state_dict())
    words = model.vocabulary.words
    tokenizer = tokenizers.WhitespaceTokenizer(vocab=words, stop_words=[], do_lower_case=False)
    table = modules.WordEmbeddings(
        tokenizer, model.f.words.weight.detach().clone(), update_embeddings=False
    )
    pooling = modules.Pooling(HIDDEN_SIZE, pooling_mode="lasttoken")
    return library.SentenceTransformer(modules=[table, gru, pooling], device="cpu")


def ways(model: SentenceModel, peer: Any) -> dict[str, Encode]:
    """Return the encoders, raysent's first."""

    def by_peer(batch_size: int, precision: str) -> Encode:
        def encode(text: list[str]) -> np.ndarray:
            torch.set_float32_matmul_precision(precision)
            vectors: np.ndarray = peer.encode(
                text, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
            )
            set_matmul_precision()
            return vectors

        return encode

    return {
        "raysent, float32": lambda text: model.encode(text, towers="f"),
        "raysent, bfloat16": lambda text: model.encode(text, towers="f", bfloat16=True),
        "sentence-transformers": by_peer(32, "highest"),
        "sentence-transformers, batch 400": by_peer(400, "highest"),
        "sentence-transformers, batch 400, raysent's products": by_peer(400, "medium"),
    }


def measure(
    text: list[str], encoders: dict[str, Encode], *, rounds: int
) -> dict[str, dict[str, float]]:
    """Return sentences per second and the smallest cosine to the exact vectors, for every encoder."""
    exact = encoders["sentence-transformers"](text)
    cosines = {
        name: float((encode(text) * exact).sum(axis=1).min()) for name, encode in encoders.items()
    }
    times: dict[str, list[float]] = {name: [] for name in encoders}
    for _ in range(rounds):
        for name, encode in encoders.items():
            times[name].append(seconds_of(lambda encode=encode: encode(text)))
    rates = {name: len(text) / median(values) for name, values in times.items()}
    return {
        name: {
            "sentences_per_s": round(rate),
            "ratio_over_peer": round(rate / rates["sentence-transformers"], 2),
            "least_cosine": round(cosines[name], 6),
            "spread": round((max(times[name]) - min(times[name])) / median(times[name]), 2),
        }
        for name, rate in rates.items()
    }


def main() -> None:
    """Measure and print."""
    options = parsed(__doc__, corpus="docs", sentences=8192, rounds=5)
    if importlib.util.find_spec("sentence_transformers") is None:
        sys.exit(
            "encoding: sentence-transformers must be installed; run pip install raysent[bench]"
        )
    torch.set_num_threads(1)
    precision = set_matmul_precision()
    text, model = text_and_model(options.corpus, options.sentences)
    found = measure(text, ways(model, peer_encoder(model)), rounds=options.rounds)
    show({"sentences": len(text), "products": precision, "ways": found}, options)


if __name__ == "__main__":
    main()
