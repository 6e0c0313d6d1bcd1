"""What is measured of a model at each report: every metric, and log-probabilities.

In: a model in training. Out: metric -> value, and arrays of log-probabilities. Texts and rows are the same for all
trials of a corpus.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from raysent.data.corpus import Corpus, CorpusConfig
from raysent.data.corpus.preparation import sentence_texts
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.probes.results import spearman
from raysent.evaluation.protocols import fit_probe
from raysent.evaluation.similarity import pair_similarities
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import load_task
from raysent.models import SentenceModel
from raysent.training.validation.pool import neighbours, similarity_scores

TASKS = ("MR", "SUBJ", "TREC", "MPQA", "SST2")
# Rows that train a probe, that validate it, and that test it.
TRAIN, VALIDATION, TEST = 2000, 800, 1200
SAMPLES = (200, 500, 2000)
# Candidates of a pool -> its blocks; every sentence of a block with a neighbour is a source.
POOLS = {200: 10, 1000: 4}
NUM_DOCUMENTS = 10
CHUNK = 512


@dataclass
class Found:
    """What one report shows.

    Attributes:
        metrics: Name -> value.
        arrays: Name -> log-probabilities, float16 [rows, classes].
    """

    metrics: dict[str, float]
    arrays: dict[str, np.ndarray]


def task_rows(data: TaskData, *, seed: int = 0) -> TaskData:
    """Return a task with fixed rows that train, validate and test, in random order in each part.

    A task without given splits is divided at random. Where the test split is small, held-out training rows join it.
    """
    random = np.random.default_rng(seed)
    train = random.permutation(np.arange(len(data)) if data.split == "nested" else data.train)
    validation, test = random.permutation(data.validation), random.permutation(data.test)
    if not len(validation):
        train, validation = train[VALIDATION:], train[:VALIDATION]
    missing = TEST - len(test)
    if missing > 200:
        train, test = train[missing:], np.concatenate([test, train[:missing]])
    parts = [train[:TRAIN], validation[:VALIDATION], test[:TEST]]
    ends = np.cumsum([0, *map(len, parts)])
    places = [np.arange(start, stop) for start, stop in pairwise(ends)]
    small = data.select(np.concatenate(parts))
    return replace(small, split="train-validation-test", train=places[0], validation=places[1], test=places[2])


def sample_of(data: TaskData, num_rows: int) -> TaskData:
    """Return a task without its test rows and with so many training and validation rows at most."""
    train, validation = data.train[:num_rows], data.validation[:num_rows]
    small = data.select(np.concatenate([train, validation]))
    places = np.arange(len(small))
    # A probe needs test rows; predictions for these are not read.
    held_out = places[len(train) :]
    return replace(small, split="train-validation-test", train=places[: len(train)], validation=held_out, test=held_out)


def document_task(corpus: Corpus, config: CorpusConfig) -> TaskData:
    """Return a task that needs no labels: from which of the largest training documents is a sentence?"""
    documents = corpus.train.documents(0, len(corpus.train))
    largest = [document for document, _ in Counter(documents.tolist()).most_common(NUM_DOCUMENTS)]
    random = np.random.default_rng(0)
    each = 2 * SAMPLES[1] // NUM_DOCUMENTS
    found = [np.flatnonzero(documents == document) for document in largest]
    rows = [random.permutation(one)[:each] for one in found]
    places = random.permutation(np.concatenate(rows))
    number = {document: label for label, document in enumerate(largest)}
    texts = sentence_texts(config).texts(corpus.train.first + places)
    num_train = len(places) // 2
    rows_of = np.arange(len(places))
    return TaskData(
        task="document",
        kind="sentence",
        split="train-validation-test",
        label_names=tuple(map(str, largest)),
        sentences=(texts,),
        labels=np.array([number[document] for document in documents[places].tolist()], dtype=np.int64),
        train=rows_of[:num_train],
        validation=rows_of[num_train:],
    )


def similarity_pairs(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Return the sentences and the scores of a split of the STS benchmark."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row[5] for row in rows], [row[6] for row in rows], np.array([float(row[4]) for row in rows])


@dataclass(frozen=True)
class Reading:
    """How much of the texts and rows a report is measured on.

    Attributes:
        num_sentences: Held-out sentences of the pools.
        samples: Numbers of rows that train the probes; a single one leaves out the other metrics.
        has_test: Whether the test rows are predicted.
    """

    num_sentences: int
    samples: tuple[int, ...]
    has_test: bool = False


class Measurement:
    """Everything that a corpus' trials are measured on."""

    def __init__(self, corpus: Corpus, config: CorpusConfig, *, data: Path) -> None:
        """Read tasks and texts.

        Args:
            corpus: The prepared corpus.
            config: How it was read.
            data: Folder in SentEval's layout.
        """
        self.tasks = {task: task_rows(load_task(task, data)) for task in TASKS}
        self.own = {"document": document_task(corpus, config)}
        self._pairs = similarity_pairs(data / "STS" / "STSBenchmark" / "sts-dev.csv")

    def __call__(self, model: SentenceModel, corpus: Corpus, reading: Reading) -> Found:
        """Measure a model that is not in training mode; its words are those of the corpus."""
        found = Found({}, {})
        with torch.no_grad():
            self._contexts(model, corpus, found, num_sentences=reading.num_sentences)
        self._probes(model, found, self.tasks, reading.samples, has_test=reading.has_test)
        if len(reading.samples) > 1:
            self._similarity(model, found)
            self._probes(model, found, self.own, (SAMPLES[1],), has_test=False)
        return found

    def _contexts(self, model: SentenceModel, corpus: Corpus, found: Found, *, num_sentences: int) -> None:
        """Pick neighbours among the candidates of pools of several sizes; all pools share the encoded sentences."""
        parts = []
        num_sentences = min(num_sentences, len(corpus.validation))
        for start in range(0, num_sentences, CHUNK):
            sentences = corpus.validation.sentences(start, min(start + CHUNK, num_sentences))
            towers = model.comparable_vectors(sentences)
            if len(towers) == 1:  # trained for other things than inner products
                towers = (functional.normalize(towers[0].float(), dim=1),)
            parts.append((towers[0], towers[-1]))
        f, g = (torch.cat(part).float() for part in zip(*parts, strict=True))
        documents = corpus.validation.documents(0, len(f))
        for size, num_blocks in POOLS.items():
            starts = range(0, size * min(num_blocks, len(f) // size), size)
            blocks = [slice(start, start + size) for start in starts]
            near = [torch.from_numpy(neighbours(documents[block], context_size=1)) for block in blocks]
            sums = [
                similarity_scores(f[block] @ g[block].T, target) for block, target in zip(blocks, near, strict=True)
            ]
            sources = sum(int(target.any(dim=1).sum()) for target in near)
            for name, place in (("accuracy", 0), ("nll", 1)):
                if sources:
                    found.metrics[f"context_{name}_{size}"] = float(sum(one[place] for one in sums)) / sources

    def _similarity(self, model: SentenceModel, found: Found) -> None:
        """Correlate cosines with the human ratings of the STS benchmark's development pairs."""
        first, second, scores = self._pairs
        found.metrics["sts"] = 100 * spearman(pair_similarities(model, first, second), scores)

    def _probes(
        self, model: SentenceModel, found: Found, tasks: dict[str, TaskData], sizes: tuple[int, ...], *, has_test: bool
    ) -> None:
        """Fit the probe `fast` on samples of each task; the features are computed once."""
        scores: dict[str, list[float]] = {}
        for task, data in tasks.items():
            is_read = data if has_test else sample_of(data, sizes[-1])
            features = task_features(model, is_read)
            for size in sizes:
                sample = is_read if size == sizes[-1] else sample_of(data, size)
                rows = np.concatenate([is_read.train[:size], is_read.validation[:size]])
                result = fit_probe(features if sample is is_read else features[rows], sample)
                name = f"probe_{size}" if tasks is self.tasks else f"{task}_{size}"
                scores.setdefault(name, []).append(result.validation)
                if tasks is self.tasks:
                    found.metrics[f"valid_{task}_{size}"] = result.validation
                if sample is is_read and tasks is self.tasks:
                    (fold,) = result.folds
                    found.arrays[f"valid_{task}"] = fold.validation_log_probabilities.astype(np.float16)
                    if has_test:
                        found.metrics[f"test_{task}"] = result.test
                        found.arrays[f"test_{task}"] = fold.test_log_probabilities.astype(np.float16)
        found.metrics |= {name: float(np.mean(values)) for name, values in scores.items()}
