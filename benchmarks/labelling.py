"""Labels that `raysent label` saves, and wrong labels that it finds, on public tasks or own tables.

- next: 50 labelled rows are drawn at random, then 50 more at a time up to 300, at random or by `next_rows`, of 3,000;
  2,000 others test. Members are TF-IDF of words, of characters, and the mean of word vectors, each with a logistic
  regression whose C is chosen by three folds of the labelled rows; the model is their geometric mean. Printed are mean
  scores over draws, and the number of labels by `next_rows`, interpolated, that reaches random's mean score of 300.
- suspects: 5 % of the labels of 3,000 rows are replaced by another class at random. Printed is the share of them that
  is among the 5 % most suspected; members as above, evaluated by the protocol `fast`.

    OMP_NUM_THREADS=1 python -m benchmarks.labelling --data DIR --vectors FILE [--tasks MR,TREC] [--draws 20]
        [--step next|suspects]
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from benchmarks.common import parsed, show
from raysent.data.vocabulary import read_word_vectors
from raysent.ensembles import pool
from raysent.ensembles.labelling import next_rows, out_of_fold, suspicion
from raysent.evaluation.baselines import LEXICAL
from raysent.evaluation.division import divided
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.task import ProbeTask, TaskData
from raysent.evaluation.tasks import resolve_tasks
from raysent.models import average_of_words
from raysent.models.schemes.tfidf import LexicalModel
from raysent.models.sentence_encoder import SentenceEncoder

SIZES = (50, 100, 150, 200, 250, 300)
NUM_ROWS, NUM_TEST = 3000, 2000
STRENGTHS = (1.0, 8.0, 64.0)
PLANTED = 0.05


def kernels_of(texts: list[str], encoder: SentenceEncoder, num_rows: int) -> list[np.ndarray]:
    """Return the inner products of all texts by each member, [texts, texts]; weights are those of the first rows."""
    models = [LexicalModel(name).vectorizer().fit(texts[:num_rows]) for name in ("words", "chars")]
    vectors = [one.transform(texts).astype(np.float32) for one in models]
    dense = encoder.encode(texts)
    dense = 3 * (dense - dense[:num_rows].mean(axis=0)) / (dense[:num_rows].std(axis=0) + 1e-6)
    return [*((one @ one.T).toarray() for one in vectors), dense @ dense.T / dense.shape[1]]


def predicted(kernel: np.ndarray, rows: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Return log-probabilities of all texts by a regression on labelled rows, [texts, classes]."""
    values, axes = np.linalg.eigh(kernel[np.ix_(rows, rows)].astype(np.float64))
    kept = values > 1e-6 * values[-1]
    features = kernel[:, rows] @ (axes[:, kept] / np.sqrt(values[kept]))
    model = GridSearchCV(LogisticRegression(max_iter=200, tol=1e-3), {"C": STRENGTHS}, cv=3)
    model.fit(features[rows], labels)
    found = np.full((len(features), num_classes), np.log(1e-9))
    found[:, model.classes_] = np.log(np.maximum(model.predict_proba(features), 1e-9))
    return found


def learn(data: TaskData, kernels: list[np.ndarray], num_rows: int, *, asks: bool, seed: int) -> list[float]:
    """Return the test scores in percent at each of `SIZES`."""
    order, texts = np.random.default_rng(seed).permutation(num_rows), np.array(data.sentences[0], dtype=object)
    labelled, scores, members = order[: SIZES[0]], [], list[np.ndarray]()
    for size in SIZES:
        if members and asks:
            rest, known = np.setdiff1d(order, labelled), texts[labelled].tolist()
            found = next_rows([one[rest] for one in members], texts[rest].tolist(), size - len(labelled), known=known)
            labelled = np.concatenate([labelled, rest[found]])
        elif members:
            labelled = order[:size]
        members = [predicted(one, labelled, data.labels[labelled], len(data.label_names)) for one in kernels]
        best = pool(members, np.full(len(members), 1 / len(members))).argmax(axis=1)
        scores.append(100 * float((best == data.labels)[num_rows:].mean()))
    return scores


def labels_saved(data: TaskData, encoder: SentenceEncoder, draws: int) -> dict[str, Any]:
    """Return mean scores over draws, the standard error of their differences, and the labels that reach random's."""
    kernels = kernels_of(data.sentences[0], encoder, len(data.train))
    random, asked = (
        np.array([learn(data, kernels, len(data.train), asks=asks, seed=seed) for seed in range(draws)])
        for asks in (False, True)
    )
    error, goal, curve = (asked - random).std(axis=0) / np.sqrt(draws), random.mean(axis=0)[-1], asked.mean(axis=0)
    place = max(1, int((curve >= goal).argmax()))
    labels = (
        np.interp(goal, curve[place - 1 : place + 1], SIZES[place - 1 : place + 1]) if curve.max() >= goal else None
    )
    curves = {"random": random.mean(axis=0), "asked": curve, "standard error of the difference": error}
    return {**{name: np.round(one, 2).tolist() for name, one in curves.items()}, "labels for random's 300": labels}


def suspects_found(data: TaskData, encoder: SentenceEncoder, draws: int) -> dict[str, float]:
    """Return the share of planted labels among the most suspected, mean and standard deviation, and the accuracy."""
    shares, right = [], []
    for seed in range(draws):
        generator, labels = np.random.default_rng(seed), data.labels.copy()
        planted = generator.permutation(len(labels))[: round(PLANTED * len(labels))]
        labels[planted] += generator.integers(1, len(data.label_names), len(planted))
        given = divided(replace(data, labels=labels % len(data.label_names), split="nested"))
        task = ProbeTask("planted", reader=lambda *_, given=given: given)
        with tempfile.TemporaryDirectory() as folder:
            records = Evaluator(Path(folder)).records(expand([*LEXICAL, encoder]), [task])
        rows, predictions = out_of_fold([one for (one,) in records.values()])
        order = rows[np.argsort(-suspicion(predictions, given.labels[rows]), kind="stable")]
        shares.append(100 * np.isin(planted, order[: len(planted)]).mean())
        right.append(100 * (predictions.argmax(axis=1) == data.labels[rows]).mean())
    return {"found": np.mean(shares), "deviation": np.std(shares), "accuracy": np.mean(right)}


def part(data: TaskData, num_test: int) -> TaskData:
    """Return rows to ask of, then rows that test."""
    data, generator = divided(data), np.random.default_rng(0)
    rows = [generator.permutation(data.train)[:NUM_ROWS], generator.permutation(data.test)[:num_test]]
    return replace(data.select(np.concatenate(rows)), train=np.arange(len(rows[0])))


def main() -> None:
    """Measure what the options ask for."""
    options = parsed(__doc__, data=Path, vectors=Path, tasks="MR,SUBJ,MPQA,TREC,SST-2", draws=20, step="next")
    warnings.filterwarnings("ignore", "The least populated class")  # has fewer rows than folds
    encoder = average_of_words(read_word_vectors(options.vectors), lowercase=True)
    is_next = options.step == "next"
    for task in resolve_tasks(options.tasks.split(","), options.data):
        rows = task.load(options.data)
        assert isinstance(rows, TaskData)
        measure = labels_saved if is_next else suspects_found
        show({task.name: measure(part(rows, NUM_TEST if is_next else 0), encoder, options.draws)}, options)


if __name__ == "__main__":
    main()
