"""Codes of one bit a number: how much of the vectors' neighbours and of human ratings they keep.

A model encodes sentences of a text and the pairs of STS12 to STS14. Each method is learned from most of the sentences.
`recall` is how many of the ten nearest sentences by the vectors' cosine are among the ten nearest by the code, for 500
sentences that no method has learned from, in percent; `spearman` is the mean over the sets of pairs. `whitened` methods
read vectors whose variance is evened out as `whiten` of a random projection does. `rabitq` and `product quantization`
are FAISS's, whose queries keep their numbers, and which return no codes of bits: the second has as many bytes a vector
as a code of a bit a number, or the most below that of which each stands for equally many numbers.

    python -m benchmarks.codes --model FOLDER --text FILE --data DIR [--sentences 120000] [--json]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

import raysent
from benchmarks.common import parsed, show
from raysent.evaluation.probes.results import spearman
from raysent.evaluation.tasks import resolve_tasks
from raysent.models.vector_codes import VectorCodeConfig, make_code

QUERIES, NEAREST = 500, 10
PROJECTION = {"type": "random_projection"}
AUTOENCODER = {"type": "autoencoder"}
# Name -> the code, and the power by which the variance of its input is evened out beforehand.
METHODS: dict[str, tuple[dict[str, Any], float]] = {
    "threshold": ({"type": "threshold", "threshold": "mean"}, 0),
    "random projection": (PROJECTION, 0),
    "principal components": ({"type": "principal_components"}, 0),
    "autoencoder": (AUTOENCODER, 0),
    "autoencoder, whitened 0.5": (AUTOENCODER, 0.5),
    **{f"rotation, whiten {power}": ({**PROJECTION, "distribution": "rotation", "whiten": power}, 0)
       for power in (0.0, 0.25, 0.5, 1.0)},
}  # fmt: skip


def whitener(sample: np.ndarray, power: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return what centres vectors and divides each direction by a power of its standard deviation in a sample."""
    center, (variances, directions) = sample.mean(0), np.linalg.eigh(np.cov(sample.T))
    matrix = (directions * np.maximum(variances, 1e-5 * variances[-1]) ** (-power / 2)) @ directions.T
    return lambda vectors: ((vectors - center) @ matrix).astype(np.float32)


def nearest(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rows of largest product with each query, the first of equals first [queries, NEAREST]."""
    return np.argsort(-(queries @ rows.T), axis=1, kind="stable")[:, :NEAREST]


def main() -> None:
    """Compare all methods on one model."""
    options = parsed(__doc__, model=str, text=str, data=str, sentences=120_000)
    lines = [line for line in Path(options.text).read_text(encoding="utf-8").split("\n") if line.strip()]
    chosen = np.random.default_rng(0).permutation(len(lines))[: options.sentences]
    model = raysent.load(options.model)

    def unit(texts: list[str]) -> np.ndarray:
        found = model.encode(texts)
        return found / np.linalg.norm(found, axis=1, keepdims=True).clip(1e-12)

    vectors = unit([lines[row] for row in chosen])
    queries, rows = vectors[:QUERIES], vectors[QUERIES:]
    data = Path(options.data)
    tasks = resolve_tasks(["STS12", "STS13", "STS14"], data)
    sets = [one for task in tasks for one in task.load(data).sets]
    pairs = [(unit(one.first), unit(one.second), one.scores) for one in sets]
    truth = nearest(queries, rows)

    def recall(found: np.ndarray) -> float:
        same = [len(set(own) & set(right)) for own, right in zip(found.tolist(), truth.tolist(), strict=True)]
        return round(100 * float(np.mean(same)) / NEAREST, 1)

    def agreement(read: Callable[[np.ndarray], np.ndarray]) -> float:
        found = [spearman((read(first) * read(second)).sum(1), scores) for first, second, scores in pairs]
        return round(100 * float(np.mean(found)), 1)

    table = {"float32": {"recall": 100.0, "spearman": agreement(lambda vectors: vectors)}}
    for name, (config, power) in METHODS.items():
        settings = {"code": config, "objective": {"lambda_sp": 0.0}}
        before = whitener(rows, power) if power else lambda vectors: vectors
        code, _ = make_code(before(rows), VectorCodeConfig.model_validate(settings))

        def signs(vectors: np.ndarray, code: Any = code, before: Any = before) -> np.ndarray:
            return 2.0 * np.unpackbits(code.encode_packed(before(vectors)), axis=1, count=code.num_bits) - 1

        found = nearest(signs(queries).astype(np.float32), signs(rows).astype(np.float32))
        table[name] = {"recall": recall(found), "spearman": agreement(signs)}
    dim = vectors.shape[1]
    num_bytes = max(number for number in range(1, max(2, dim // 8 + 1)) if dim % number == 0)
    for name, factory in (("rabitq", "RaBitQ"), (f"product quantization, {num_bytes} bytes", f"PQ{num_bytes}x8")):
        index = faiss.index_factory(dim, factory, faiss.METRIC_L2)
        index.train(rows)
        index.add(rows)
        table[name] = {"recall": recall(index.search(queries, NEAREST)[1])}
    show(table, options)


if __name__ == "__main__":
    main()
