"""Codes of one bit a number: how much of the vectors' neighbours and of human ratings they keep.

A model encodes all sentences of a text and the pairs of five similarity sets. Each method is learned from the sentences but
500, which ask. `recall` is how many of the ten nearest sentences by the vectors' cosine are among the ten nearest by the
code, in percent; `spearman` is the mean over STS12 to STS15 and STS-B. `whitened` methods read vectors whose variance is
evened out as `whiten` of a random projection does. `rescored`: the 500 nearest by the code are ranked again by the product of
the query's numbers with the code's bits, +1 or -1. `rabitq` and `product quantization` are FAISS's, whose queries keep their
numbers, and which return no codes of bits: the second has the most bytes up to a code's of which each stands for equally
many numbers.

    python -m benchmarks.codes --model FOLDER --text FILE --data DIR [--sentences N] [--json]
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch

import raysent
from benchmarks.common import parsed
from raysent.evaluation.nearest import nearest_codes
from raysent.evaluation.probes.results import spearman
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.vector_codes import VectorCodeConfig, make_code

QUERIES, NEAREST, RESCORED = 500, 10, 500
PROJECTION = {"type": "random_projection"}
AUTOENCODER = {"type": "autoencoder"}
METHODS: dict[str, tuple[dict[str, Any], float]] = {
    "threshold": ({"type": "threshold", "threshold": "mean"}, 0),
    "threshold, whitened 0.5": ({"type": "threshold", "threshold": "mean"}, 0.5),
    "random projection": (PROJECTION, 0),
    "principal components": ({"type": "principal_components"}, 0),
    "autoencoder": (AUTOENCODER, 0),
    "autoencoder, whitened 0.5": (AUTOENCODER, 0.5),
    "autoencoder, whitened 1": (AUTOENCODER, 1.0),
    **{
        f"rotation, whiten {power}": ({**PROJECTION, "distribution": "rotation", "whiten": power}, 0)
        for power in (0.0, 0.25, 0.5, 1.0)
    },
}


def whitener(sample, power):
    center, (variances, directions) = sample.mean(0), np.linalg.eigh(np.cov(sample.T))
    matrix = ((directions * np.maximum(variances, 1e-5 * variances[-1]) ** (-power / 2)) @ directions.T).astype(
        np.float32
    )
    return lambda vectors: np.concatenate(
        [(part - center) @ matrix for part in np.array_split(vectors, max(1, len(vectors) // 50000))]
    ).astype(np.float32)


from raysent.models import vector_codes

_train = vector_codes._train
# The decoder of a method without steps is not needed here.
vector_codes._train = lambda objective, made, *given, **named: (
    _train(objective, made, *given, **named) if made.config.code.is_trained else None
)


def main() -> None:
    options = parsed(__doc__, model=str, text=str, data=str, sentences=10_000_000)
    lines = [line for line in Path(options.text).read_text(encoding="utf-8").split("\n") if line.strip()]
    chosen = np.random.default_rng(0).permutation(len(lines))[: options.sentences]
    model = raysent.load(options.model)

    def unit(texts):
        found = np.concatenate([model.encode(texts[i : i + 100_000]) for i in range(0, len(texts), 100_000)]).astype(
            np.float32
        )
        return found / np.linalg.norm(found, axis=1, keepdims=True).clip(1e-12)

    begun = time.time()
    vectors = unit([lines[row] for row in chosen])
    print(f"{len(vectors)} sentences, {vectors.shape[1]} numbers, encoded in {time.time() - begun:.0f} s", flush=True)
    queries, rows = vectors[:QUERIES], vectors[QUERIES:]
    data = Path(options.data)
    tasks = resolve_tasks(["STS12", "STS13", "STS14", "STS15", "STS-B-similarity"], data)
    pairs = [[(unit(one.first), unit(one.second), one.scores) for one in task.load(data).sets] for task in tasks]
    sample = rows[np.sort(np.random.default_rng(1).permutation(len(rows))[:200_000])]
    variances = np.linalg.eigvalsh(np.cov(sample.T))[::-1]
    share = variances.sum() ** 2 / (variances**2).sum() / len(variances)
    print(
        f"effective share of directions {share:.3f}; first {variances[0] / variances.sum():.3f}, ten {variances[:10].sum() / variances.sum():.3f}; mean {np.linalg.norm(sample.mean(0)):.3f}",
        flush=True,
    )
    truth = faiss.knn(queries, rows, NEAREST, metric=faiss.METRIC_INNER_PRODUCT)[1]

    def recall(found):
        same = [len(set(own) & set(right)) for own, right in zip(found.tolist(), truth.tolist(), strict=True)]
        return f"{100 * float(np.mean(same)) / NEAREST:.1f}"

    def agreement(read):
        found = [
            np.mean([spearman((read(a) * read(b)).sum(1), scores) for a, b, scores in of_task]) for of_task in pairs
        ]
        return f"{100 * float(np.mean(found)):.1f}"

    print("| float32 | 100 |", agreement(lambda v: v), "| |", flush=True)
    for name, (config, power) in METHODS.items():
        begun = time.time()
        before = whitener(sample, power) if power else lambda v: v
        own = before(rows)
        code, _ = make_code(own, VectorCodeConfig.model_validate({"code": config, "objective": {"lambda_sp": 0.0}}))
        packed, asked = code.encode_packed(own), code.encode_packed(before(queries))
        del own

        def signs(v, code=code, before=before):
            return 2.0 * np.unpackbits(code.encode_packed(before(v)), axis=1, count=code.num_bits) - 1

        near = nearest_codes(packed, asked, k=RESCORED).rows
        # The numbers of a query whose signs are its bits.

        with torch.no_grad():
            numbers = code.code.logits(torch.from_numpy(before(queries))).numpy()
        bits = 2.0 * np.unpackbits(packed[near], axis=2, count=code.num_bits) - 1
        again = np.take_along_axis(
            near, np.argsort(-(bits * numbers[:, None]).sum(2), axis=1, kind="stable")[:, :NEAREST], 1
        )
        print(
            f"| {name} | {recall(near[:, :NEAREST])} | {agreement(signs)} | {recall(again)} | {packed.shape[1]} bytes, {time.time() - begun:.0f} s",
            flush=True,
        )
    dim = vectors.shape[1]
    num_bytes = max(number for number in range(1, max(2, dim // 8 + 1)) if dim % number == 0)
    for name, factory in (("rabitq", "RaBitQ"), (f"product quantization, {num_bytes} bytes", f"PQ{num_bytes}x8")):
        begun = time.time()
        index = faiss.index_factory(dim, factory, faiss.METRIC_L2)
        index.train(sample)
        index.add(rows)
        size = index.sa_code_size() if hasattr(index, "sa_code_size") else 0
        print(
            f"| {name} | {recall(index.search(queries, NEAREST)[1])} | | | {size} bytes, {time.time() - begun:.0f} s",
            flush=True,
        )
        del index


if __name__ == "__main__":
    main()
