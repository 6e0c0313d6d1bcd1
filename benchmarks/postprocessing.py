"""What whitening and removing the first component do to similarity, to probes and to binary codes.

    OMP_NUM_THREADS=1 python -m benchmarks.postprocessing DATA [--corpus PATH] [--steps 220] [--folder DIR]

DATA is the data folder with `senteval`. A uni-directional Quick-Thoughts model (hidden size 300, two towers) is trained
on the corpus; beside it are the mean of its own word vectors and that of random ones (`hash:300`). Each transform is
computed from the same 15,000 sentences of the corpus. Similarity is Pearson's correlation times 100, the mean of each
of six sets; probes are test accuracies by the protocol `fast`; a code is one bit for each number, 1 above its mean in
the sample, compared as -1 and 1. Nothing is chosen by these scores.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from raysent.data.vocabulary import Sentences
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.protocols import fit_probe
from raysent.evaluation.tasks import find_task, load_task
from raysent.models import bag_of_words, load
from raysent.models.model import SentenceModel
from raysent.models.postprocessing import first_singular_vector, whitening_directions, without
from raysent.models.sentence_encoder import Float32, SentenceEncoder
from raysent.training.data import open_training_data
from raysent.training.loop import fit
from raysent.training.run import RunConfig

SETS = ("STS12", "STS13", "STS14", "STS15", "STS-B-similarity", "SICK-R-similarity")
TASKS = ("MR", "SUBJ", "TREC")
SENTENCES = 15_000
Transform = Callable[[Float32], Float32]


def train(folder: Path, corpus: str, *, steps: int) -> RunConfig:
    """Train the model, unless the folder holds it."""
    config = RunConfig.model_validate(
        {
            "corpus": {"path": corpus},
            "vocabulary": {"size": 30_000},
            "encoder": {"type": "gru", "hidden_size": 300, "embedding": {"dim": 300, "vectors": "ppmi"}},
            "objective": {"type": "context_prediction"},
            "training": {
                "learning_rate": 2.5e-3,
                "schedule": "linear",
                "precision": "bfloat16",
                "max_steps": steps,
                "num_reports": 1,
            },
            "validation": {"num_sentences": 2000},
        }
    )
    started = time.perf_counter()
    outcome = fit(config, folder)
    print(f"trained {outcome.step} steps, {time.perf_counter() - started:.0f} s: {outcome.metrics}", flush=True)
    return config


class Cached(SentenceEncoder):
    """An encoder that encodes a sentence once, and transforms the vectors that it returns.

    Attributes:
        transform: The vectors of the encoder [sentences, dim] -> those to evaluate.
    """

    def __init__(self, encoder: SentenceEncoder) -> None:
        """Transform nothing yet."""
        self._encoder, self._known = encoder, dict[str, Float32]()
        self.transform: Transform = lambda vectors: vectors

    def get_sentence_embedding_dimension(self) -> int:
        """Return the size of a transformed vector."""
        return int(self.encode_texts([""]).shape[1])

    def encode_texts(self, sentences: list[str], *, batch_size: int = 512) -> Float32:
        """Return transformed vectors, float32 [sentences, dim]."""
        new = list(dict.fromkeys(text for text in sentences if text not in self._known))
        if new:
            self._known |= dict(zip(new, self._encoder.encode_texts(new, batch_size=batch_size), strict=True))
        return self.transform(np.stack([self._known[text] for text in sentences]))


def transforms(sample: Float32) -> dict[str, Transform]:
    """Return every transform by name; vectors keep their size where the name does not say another one."""
    tensor = torch.from_numpy(sample)
    center, directions = (found.numpy() for found in whitening_directions(tensor))
    start = torch.nn.functional.normalize(tensor.double().mean(dim=0), dim=0)
    component = first_singular_vector(tensor.double(), start, num_iterations=100).float()

    def whiten(kept: int) -> Transform:
        return lambda vectors: unit((vectors - center) @ directions[:, :kept])

    sizes = [size for size in (64, 128, 256, 300) if size < directions.shape[1]]
    return {
        "as it is": unit,
        "first component removed": lambda vectors: unit(without(torch.from_numpy(vectors), component).numpy()),
        "centred": lambda vectors: unit(vectors - center),
        **{f"whitened, {size}": whiten(size) for size in [*sizes, directions.shape[1]]},
    }


def unit(vectors: np.ndarray) -> Float32:
    """Return rows of length 1 [rows, dim], float32."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)


def similarity(encoder: Cached, data: Path, *, bits_above: Float32 | None = None) -> list[float]:
    """Return each task's mean Pearson correlation over its sets, of cosines or of bits above these thresholds."""
    scores = []
    for task in SETS:
        found = []
        for one in find_task(task).load(data / "senteval").sets:
            first, second = encoder.encode_texts(one.first), encoder.encode_texts(one.second)
            if bits_above is not None:
                first, second = (np.where(side > bits_above, 1.0, -1.0) for side in (first, second))
            found.append(np.corrcoef((unit(first) * unit(second)).sum(axis=1), one.scores)[0, 1])
        scores.append(100 * float(np.mean(found)))
    return scores


def probes(encoder: Cached, data: Path) -> list[float]:
    """Return the test accuracy of each task, in percent."""
    loaded = [load_task(name, data / "senteval") for name in TASKS]
    return [fit_probe(task_features(encoder, task), task).test for task in loaded]


def texts(sentences: Sentences, model: SentenceModel) -> list[str]:
    """Return sentences as their known words."""
    rows = np.split(sentences.ids, np.cumsum(sentences.lengths)[:-1])
    return [" ".join(model.vocabulary.words[word] for word in row) for row in rows]


def table(headings: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Return a Markdown table; the last column is the mean of a row."""
    lines = [["", *headings, "mean"], ["---"] * (len(headings) + 2)]
    lines += [[name, *(f"{value:.1f}" for value in (*values, float(np.mean(values))))] for name, values in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print three tables for each encoder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpus", default="docs")
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--folder", type=Path, help="folder of the model, which is kept; a new one by default")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    sample = open_training_data(train(folder, options.corpus, steps=options.steps)).sample(SENTENCES)
    model = SentenceModel.load(folder)
    encoders = {"Quick-Thoughts": model, "mean of its words": bag_of_words(model), "hash:300": load("hash:300")}
    for name, encoder in encoders.items():
        cached = Cached(encoder)
        vectors = cached.encode_texts(texts(sample, model))
        print(f"\n## {name}, {vectors.shape[1]} dimensions\n", flush=True)
        found, bits, accuracies = [], [], []
        for label, transform in transforms(vectors).items():
            cached.transform = transform
            found.append((label, similarity(cached, options.data)))
            bits.append((label, similarity(cached, options.data, bits_above=transform(vectors).mean(axis=0))))
            if name == "Quick-Thoughts":
                accuracies.append((label, probes(cached, options.data)))
        print(f"{table(SETS, found)}\n\nA bit for each number:\n\n{table(SETS, bits)}", flush=True)
        if accuracies:
            print(f"\nProbes:\n\n{table(TASKS, accuracies)}", flush=True)


if __name__ == "__main__":
    main()
