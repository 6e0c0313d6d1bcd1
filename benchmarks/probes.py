"""The protocol `fast` against scikit-learn's `LogisticRegressionCV`: `ratio_over_sklearn`, on the same features.

Nested cross-validation with nine values of C. raysent runs ten outer folds and selects C inside each, as on a task like
MR. scikit-learn runs some of these outer folds (ten inner folds, the same values of C, lbfgs, the same scaled
features), and the time of one is multiplied by ten. Both run on one thread and are measured in processor time. The
scores of both on the outer folds of scikit-learn are printed too. `--senteval` also runs the protocol `senteval`
(default configuration) on the same features, and some of its fits one by one as SentEval does, with modules and
autograd: `ratio_over_senteval`, `ratio_over_one_by_one`. `--distances` prints the relative distance of the objectives
of a path of fits to the optimum at each C. `--kiros` runs the protocol `kiros` too, and the fits of one inner fold,
nine values of C, by scikit-learn's LIBLINEAR: `ratio_over_liblinear`, with the time of these fits times their number in
the protocol, and the accuracy of both on that inner fold at each C.

    python benchmarks/probes.py [--rows 10000] [--dim 2400] [--outer-folds 1] [--json]
    python benchmarks/probes.py --model runs/x/trials/0001 --task MR --data DIR [--rows 2000] [--senteval]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from threadpoolctl import threadpool_limits
from torch import Tensor

from raysent import models as model
from raysent.evaluation.probes.early_stopping import Rows, train_together
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.probes.logistic import Fits, ScaledFeatures
from raysent.evaluation.protocols import fast, fit_probe, kiros
from raysent.evaluation.protocols.fast import FOLD_SEED, NUM_FOLDS, stratified_folds
from raysent.evaluation.protocols.senteval import DEFAULT, PENALTIES
from raysent.evaluation.tasks import TaskData, load_task
from raysent.kernels.devices import set_matmul_precision

STRENGTHS = tuple(2.0**exponent for exponent in range(9))


def random_task(num_rows: int, dim: int) -> tuple[np.ndarray, TaskData]:
    """Return features of unit length with a decaying spectrum, like those of real encoders, and a binary task."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((num_rows, dim)) * np.arange(1, dim + 1) ** -0.5
    features += generator.standard_normal(dim) / 4
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    margins = 8 * (features - features.mean(axis=0)) @ generator.standard_normal(dim)
    labels = (margins + generator.logistic(size=num_rows) > 0).astype(np.int64)
    sentences = ([str(row) for row in range(num_rows)],)
    data = TaskData("random", "sentence", "nested", ("no", "yes"), sentences, labels)
    return features.astype(np.float32), data


def some_rows(data: TaskData, num_rows: int) -> TaskData:
    """Return `num_rows` random rows of a task without given splits."""
    kept = np.sort(np.random.default_rng(0).permutation(len(data.labels))[:num_rows])
    sentences = tuple([column[row] for row in kept] for column in data.sentences)
    return replace(data, sentences=sentences, labels=data.labels[kept])


def time_ours(features: np.ndarray, data: TaskData) -> tuple[float, list[float]]:
    """Return the seconds of the whole nested protocol, and the accuracy of every outer fold in percent."""
    started = time.process_time()
    with mock.patch.object(fast, "STRENGTHS", STRENGTHS):
        result = fit_probe(features, data)
    seconds = time.process_time() - started
    correct = [fold.test_log_probabilities.argmax(axis=1) == data.labels[fold.test_rows] for fold in result.folds]
    return seconds, [100 * float(flags.mean()) for flags in correct]


def time_sklearn(features: np.ndarray, data: TaskData, *, outer_folds: int) -> tuple[float, list[float]]:
    """Return the seconds of one outer fold times ten, and the accuracy of the fitted folds in percent."""
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(len(features)))
    seen = (features - scaled.mean.numpy()) / scaled.scale
    folds = stratified_folds(data.labels, NUM_FOLDS, seed=FOLD_SEED)
    seconds, scores = 0.0, []
    for outer in range(outer_folds):
        train = folds != outer
        started = time.process_time()
        classifier = LogisticRegressionCV(
            Cs=list(STRENGTHS), cv=10, max_iter=1000, scoring="accuracy", use_legacy_attributes=False, l1_ratios=(0,)
        )
        classifier.fit(seen[train], data.labels[train])
        seconds += time.process_time() - started
        scores.append(100 * float(classifier.score(seen[~train], data.labels[~train])))
    return seconds / outer_folds * NUM_FOLDS, scores


def distances(features: np.ndarray, data: TaskData) -> dict[str, list[float]]:
    """Return the relative distance of both to the optimum at each C, in a path of fits on nine folds."""
    train = stratified_folds(data.labels, NUM_FOLDS, seed=FOLD_SEED) > 0
    targets = torch.from_numpy(data.labels).to(torch.float32)[:, None]
    fits = Fits(features, targets, trainable=np.arange(len(features)), strengths=STRENGTHS)
    masks = torch.from_numpy(train)[:, None]
    ours = fits.path(masks.repeat(1, 10))
    every = torch.arange(len(STRENGTHS)) * 10
    best = fits.solve(masks.repeat(1, len(STRENGTHS)), torch.tensor(STRENGTHS), ours.start(every)).objective
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(len(features)))
    seen = (features[train] - scaled.mean.numpy()) / scaled.scale
    theirs, classifier = [], LogisticRegression(max_iter=1000, warm_start=True)
    for strength in STRENGTHS:
        classifier.set_params(C=strength).fit(seen, data.labels[train])
        margins = seen @ classifier.coef_[0] + classifier.intercept_
        losses = np.logaddexp(0, margins) - data.labels[train] * margins
        theirs.append(float((classifier.coef_**2).sum()) / 2 + strength * float(losses.sum()))
    found = {"distance_ours": ours.objective[every], "distance_sklearn": torch.tensor(theirs)}
    return {name: [float(f"{value:.1e}") for value in (values / best - 1).tolist()] for name, values in found.items()}


def time_kiros(features: np.ndarray, data: TaskData) -> dict[str, object]:
    """Return the seconds of the protocol `kiros` and of LIBLINEAR's fits, and the accuracy of both on an inner fold."""
    started = time.process_time()
    result = fit_probe(features, data, protocol="kiros")
    seconds = time.process_time() - started
    first = result.folds[0]
    held_out = first.validation_rows[: -(-len(first.validation_rows) // NUM_FOLDS)]
    train = np.setdiff1d(first.validation_rows, held_out)
    wide = features.astype(np.float64)
    started = time.process_time()
    theirs = [
        LogisticRegression(solver="liblinear", C=strength).fit(wide[train], data.labels[train])
        for strength in kiros.STRENGTHS
    ]
    one_fold_s = time.process_time() - started
    mask = torch.zeros(len(features), 1, dtype=torch.bool)
    mask[torch.from_numpy(train)] = True
    targets = torch.from_numpy(data.labels).to(torch.float32)[:, None]
    rows = np.arange(len(features))
    fits = Fits(features, targets, trainable=rows, strengths=kiros.STRENGTHS, has_free_intercept=False)
    margins = fits.path(mask).margins[held_out, 0].numpy()
    return {
        "kiros_s": round(seconds, 2),
        "liblinear_s": round(one_fold_s * NUM_FOLDS * (NUM_FOLDS + 1), 2),
        "ratio_over_liblinear": round(one_fold_s * NUM_FOLDS * (NUM_FOLDS + 1) / seconds, 1),
        "mean_accuracy_kiros": round(result.test, 2),
        "accuracy_kiros": [
            round(100 * float(np.mean((margins[:, place] > 0) == data.labels[held_out])), 2)
            for place in range(len(kiros.STRENGTHS))
        ],
        "accuracy_liblinear": [round(100 * one.score(wide[held_out], data.labels[held_out]), 2) for one in theirs],
    }


def time_senteval(features: np.ndarray, data: TaskData) -> dict[str, float]:
    """Return the seconds of the protocol `senteval`, its score, and the slowdown of its fits one by one."""
    started = time.process_time()
    result = fit_probe(features, data, protocol="senteval")
    seconds = time.process_time() - started
    return {
        "senteval_s": seconds,
        "accuracy_senteval": result.test,
        "ratio_over_one_by_one": one_by_one(features, data),
    }


def one_by_one(features: np.ndarray, data: TaskData, *, rounds: int = 3) -> float:
    """Return the median time of ten folds' fits of two epochs one by one, divided by their time together."""
    inputs, labels = torch.from_numpy(features), torch.from_numpy(data.labels)
    taken: dict[Callable[[Tensor, Tensor], None], list[float]] = {_side_by_side: [], _in_turn: []}
    # The first round imports what torch's optimizers need; it is not measured.
    for _ in range(1 + rounds):
        for train, seconds in taken.items():
            started = time.process_time()
            train(inputs, labels)
            seconds.append(time.process_time() - started)
    together, in_turn = (median(seconds[1:]) for seconds in taken.values())
    return 10 * in_turn / together


def _side_by_side(inputs: Tensor, labels: Tensor) -> None:
    """Train the fits of ten folds for two epochs together."""
    recipe = replace(DEFAULT, epoch_size=1, max_epochs=1, tenacity=0)
    folds = np.arange(len(inputs)) % 10
    groups = [Rows.given(np.flatnonzero(folds != fold), np.flatnonzero(folds == fold), seed=0) for fold in range(10)]
    train_together(inputs, labels, groups, [PENALTIES] * 10, recipe=recipe)


def _in_turn(inputs: Tensor, labels: Tensor) -> None:
    """Train the fits of one fold for two epochs as SentEval does, with torch's default matmul precision."""
    torch.set_float32_matmul_precision("highest")
    train = np.flatnonzero(np.arange(len(inputs)) % 10)
    for penalty in PENALTIES:
        layer = torch.nn.Linear(inputs.shape[1], 2)
        optimizer = torch.optim.Adam(layer.parameters(), weight_decay=penalty)
        for _ in range(2):
            order = torch.from_numpy(train[np.random.default_rng(0).permutation(len(train))])
            for batch in torch.split(order, DEFAULT.batch_size):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(layer(inputs[batch]), labels[batch]).backward()
                optimizer.step()
    set_matmul_precision()


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=2400)
    parser.add_argument("--outer-folds", type=int, default=1)
    parser.add_argument("--model")
    parser.add_argument("--task", default="MR")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--senteval", action="store_true")
    parser.add_argument("--kiros", action="store_true", help="for two classes, without given splits")
    parser.add_argument(
        "--distances", action="store_true", help="print the distance of both to the optimum, for two classes"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    precision = set_matmul_precision()
    if options.model:
        data = some_rows(load_task(options.task, options.data), options.rows)
        features = task_features(model.load(options.model), data)
    else:
        features, data = random_task(options.rows, options.dim)
    with threadpool_limits(1):
        ours_s, ours = time_ours(features, data)
        sklearn_s, theirs = time_sklearn(features, data, outer_folds=options.outer_folds)
        other = time_senteval(features, data) if options.senteval else {}
        published = time_kiros(features, data) if options.kiros else {}
        far = distances(features, data) if options.distances and len(data.label_names) == 2 else {}
    found = {
        "task": data.task,
        "rows": len(features),
        "dim": features.shape[1],
        "precision": precision,
        "ours_s": round(ours_s, 2),
        "sklearn_s": round(sklearn_s, 2),
        "ratio_over_sklearn": round(sklearn_s / ours_s, 1),
        "accuracy_ours": [round(score, 2) for score in ours[: options.outer_folds]],
        "accuracy_sklearn": [round(score, 2) for score in theirs],
        "mean_accuracy_ours": round(float(np.mean(ours)), 2),
        **{name: round(value, 2) for name, value in other.items()},
        **published,
        **far,
    }
    if other:
        found["ratio_over_senteval"] = round(other["senteval_s"] / ours_s, 1)
    print(json.dumps(found) if options.json else "\n".join(f"{name:20} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
