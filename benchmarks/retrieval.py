"""Exact search among a million sentences: codes by Hamming distance and vectors by cosine, raysent against peers.

Random codes and random unit vectors, memory-mapped as in an index. Every method answers the same queries, one at a time
and many at once, on one thread, alternating with the others; the median of the rounds is reported. Times are processor
times, so other work on the machine has little effect; it still shares memory and cache. The bandwidth is that of
reading the same bytes once in the same rounds. FAISS and usearch are included if they are installed (`pip install
raysent[bench]`). raysent searches codes by its compiled kernel, if there is a compiler, else by FAISS as vectors. The
corpora use 2.3 GB of the temporary folder, and FAISS' copies as much memory.

With `--queries` the whole path is timed as well: `SearchIndex` from a folder to ranked places, encoding of the queries
included, for vectors of float32 and of int8, against FAISS' flat index of the same vectors, its search alone.

    python -m benchmarks.retrieval [--rows 1000000] [--bits 2048] [--dim 512] [--rounds 5] [--queries 0] [--json]
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks.common import parsed, seconds_of, show
from raysent.evaluation.members import model_key
from raysent.evaluation.nearest import nearest_codes, nearest_vectors
from raysent.kernels.devices import set_matmul_precision
from raysent.models import load
from raysent.models.encoding import Encoding
from raysent.models.sentence_encoder import normalize_rows
from raysent.models.vector_folder import VectorFolder, VectorFormat
from raysent.passages.index import SearchIndex

K = 10
MANY = 64
# A method that is not faster for many queries at once is timed on few.
FEW = 4
_BLOCK_ROWS = 50_000

Search = Callable[[np.ndarray], np.ndarray]
"""Queries [queries, width] -> distances or cosines of the K nearest, the nearest first [queries, K]."""


@dataclass(frozen=True)
class Method:
    """A search method: its name, how it is prepared, and whether it is faster for many queries at once."""

    name: str
    build: Callable[[np.ndarray], Search]
    is_batched: bool = True


def optional(name: str) -> ModuleType | None:
    """Return a module, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def ours_codes(codes: np.ndarray) -> Search:
    """Return raysent's search of codes."""
    return lambda queries: nearest_codes(codes, queries, k=K).scores


def plain_codes(codes: np.ndarray) -> Search:
    """Return the simplest implementation: all differences, all counts, a partition."""
    words = codes.view(np.uint64)

    def search(queries: np.ndarray) -> np.ndarray:
        found = [np.bitwise_count(words ^ query).sum(axis=1) for query in queries.view(np.uint64)]
        return np.stack([np.sort(np.partition(distances, K)[:K]) for distances in found])

    return search


def faiss_codes(codes: np.ndarray) -> Search:
    """Return FAISS' flat index of bits, which copies them."""
    index = importlib.import_module("faiss").IndexBinaryFlat(codes.shape[1] * 8)
    index.add(codes)
    return lambda queries: index.search(queries, K)[0]


def usearch_codes(codes: np.ndarray) -> Search:
    """Return usearch's exact search of bits."""
    module = importlib.import_module("usearch.index")

    def search(queries: np.ndarray) -> np.ndarray:
        found = module.search(codes, queries, K, module.MetricKind.Hamming, exact=True, threads=1)
        return np.asarray(found.distances).reshape(len(queries), K)

    return search


def ours_vectors(vectors: np.ndarray) -> Search:
    """Return raysent's search of unit vectors."""
    return lambda queries: nearest_vectors(vectors, queries, k=K).scores


def plain_vectors(vectors: np.ndarray) -> Search:
    """Return the simplest implementation: all products, a partition."""

    def search(queries: np.ndarray) -> np.ndarray:
        cosines = queries @ vectors.T
        return -np.sort(-np.partition(cosines, -K, axis=1)[:, -K:], axis=1)

    return search


def faiss_vectors(vectors: np.ndarray) -> Search:
    """Return FAISS' flat index of products, which copies the vectors."""
    index = importlib.import_module("faiss").IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return lambda queries: index.search(queries, K)[0]


def usearch_vectors(vectors: np.ndarray) -> Search:
    """Return usearch's exact search by cosine."""
    module = importlib.import_module("usearch.index")

    def search(queries: np.ndarray) -> np.ndarray:
        found = module.search(vectors, queries, K, module.MetricKind.Cos, exact=True, threads=1)
        return 1 - np.asarray(found.distances).reshape(len(queries), K)

    return search


def methods(*kinds: tuple[str, Callable[[np.ndarray], Search], str, bool]) -> list[Method]:
    """Return the methods whose library is installed, in order; the first is raysent's."""
    return [
        Method(name, build, batched)
        for name, build, needs, batched in kinds
        if not needs or optional(needs)
    ]


CODES = methods(
    ("raysent", ours_codes, "", True),
    ("plain NumPy", plain_codes, "", False),
    ("FAISS IndexBinaryFlat", faiss_codes, "faiss", True),
    ("usearch exact", usearch_codes, "usearch", False),
)
VECTORS = methods(
    ("raysent", ours_vectors, "", True),
    ("plain NumPy", plain_vectors, "", True),
    ("FAISS IndexFlatIP", faiss_vectors, "faiss", True),
    ("usearch exact", usearch_vectors, "usearch", False),
)


def random_codes(path: Path, num_rows: int, num_bits: int) -> np.ndarray:
    """Write random codes and return them memory-mapped, uint8 [rows, bytes]."""
    generator, num_bytes = np.random.default_rng(0), num_bits // 8
    with path.open("wb") as stream:
        for first in range(0, num_rows, _BLOCK_ROWS):
            size = (min(_BLOCK_ROWS, num_rows - first), num_bytes)
            stream.write(generator.integers(0, 256, size, dtype=np.uint8).data)
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="c", shape=(num_rows, num_bytes)))


def random_vectors(path: Path, num_rows: int, dim: int) -> np.ndarray:
    """Write random unit vectors and return them memory-mapped, float32 [rows, dim]."""
    generator = np.random.default_rng(1)
    with path.open("wb") as stream:
        for first in range(0, num_rows, _BLOCK_ROWS):
            block = generator.random(
                (min(_BLOCK_ROWS, num_rows - first), dim), dtype=np.float32
            ) - np.float32(0.5)
            stream.write((block / np.linalg.norm(block, axis=1, keepdims=True)).data)
    return np.asarray(np.memmap(path, dtype=np.float32, mode="c", shape=(num_rows, dim)))


def compared(
    methods: list[Method], rows: np.ndarray, queries: np.ndarray, *, rounds: int
) -> dict[str, object]:
    """Return queries per second and share of the bandwidth of every method on the same rows."""
    searches, answers = {}, {}
    for method in methods:
        searches[method.name] = method.build(rows)
        answers[method.name] = searches[method.name](queries[: MANY if method.is_batched else FEW])[
            :FEW
        ]
    first = answers[methods[0].name]
    for name, found in answers.items():
        if not np.allclose(found, first, atol=1e-5):
            raise AssertionError(f"{name} finds other neighbours than {methods[0].name}")
    whole = torch.from_numpy(rows.reshape(-1).view(np.int64))
    reads, single, many = [], {m.name: [] for m in methods}, {m.name: [] for m in methods}
    for _ in range(rounds):
        reads.append(seconds_of(whole.sum))
        for method in methods:
            search, at_once = searches[method.name], MANY if method.is_batched else FEW
            single[method.name].append(seconds_of(partial(search, queries[:1])))
            many[method.name].append(seconds_of(partial(search, queries[:at_once])) / at_once)
    read_s = float(np.median(reads))
    found = {
        name: {
            "ms_single": round(1000 * float(np.median(single[name])), 2),
            "queries_per_second": round(1 / float(np.median(many[name])), 1),
            "share_of_bandwidth_single": round(read_s / float(np.median(single[name])), 3),
        }
        for name in searches
    }
    return {
        "mib": round(rows.nbytes / 2**20),
        "read_gb_per_s": round(rows.nbytes / read_s / 1e9, 1),
        "methods": found,
    }


def whole_path(folder: Path, vectors: np.ndarray, *, num_queries: int) -> dict[str, object]:
    """Return the seconds of a search of a folder, from opening it to ranked places, and of FAISS' search alone."""
    name = f"hash:{vectors.shape[1]}"
    texts = [f"query {number} of {number * 7919 % 10007}" for number in range(num_queries)]
    found: dict[str, object] = {"queries": num_queries}
    for precision in ("float32", "int8"):
        format = VectorFormat(
            name, model_key(name), "cosine", precision, vectors.shape[1], has_text=False
        )
        place = VectorFolder(folder / precision)
        place.use(format)
        with place.writing("all", format, version="1") as writer:
            for first in range(0, len(vectors), _BLOCK_ROWS):
                writer.write(Encoding(precision).rows(vectors[first : first + _BLOCK_ROWS]), [])
        opened = partial(SearchIndex, folder / precision)
        found[f"{precision}_s"] = round(
            seconds_of(lambda opened=opened: opened().search(texts, k=K)), 1
        )
    if optional("faiss") is not None:
        search, queries = faiss_vectors(vectors), normalize_rows(load(name).encode(texts))
        found["faiss_s"] = round(seconds_of(partial(search, queries)), 1)
    return found


def main() -> None:
    """Run the comparison and print it."""
    options = parsed(__doc__, rows=1_000_000, bits=2048, dim=512, rounds=5, queries=0)
    torch.set_num_threads(1)
    set_matmul_precision()
    faiss = optional("faiss")
    if faiss is not None:
        faiss.omp_set_num_threads(1)
    found: dict[str, object] = {"rows": options.rows, "bits": options.bits, "dim": options.dim}
    generator = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        codes = random_codes(Path(folder) / "codes.bin", options.rows, options.bits)
        queries = generator.integers(0, 256, (MANY, options.bits // 8), dtype=np.uint8)
        found["codes"] = compared(CODES, codes, queries, rounds=options.rounds)
        vectors = random_vectors(Path(folder) / "vectors.bin", options.rows, options.dim)
        queries = generator.standard_normal((MANY, options.dim)).astype(np.float32)
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        found["vectors"] = compared(VECTORS, vectors, queries, rounds=options.rounds)
        if options.queries:
            found["whole_path"] = whole_path(Path(folder), vectors, num_queries=options.queries)
    codes_best = next(iter(found["codes"]["methods"].values()))
    vectors_ours = found["vectors"]["methods"]["raysent"]
    found["ratio_single"] = round(vectors_ours["ms_single"] / codes_best["ms_single"], 1)
    found["ratio_many"] = round(
        codes_best["queries_per_second"] / vectors_ours["queries_per_second"], 1
    )
    show(found, options)


if __name__ == "__main__":
    main()
