"""The protocol `fast` against scikit-learn's `LogisticRegressionCV`: `ratio_over_sklearn`, on the same features.

Nested cross-validation with nine values of C. raysent runs ten outer folds and selects C inside each, as on a task like
MR. scikit-learn runs some of these outer folds (ten inner folds, the same values of C, lbfgs, the same scaled
features), and the time of one is multiplied by ten. Both run on one thread and are measured in processor time. The
scores of both on the outer folds of scikit-learn are printed too.

    python -m benchmarks.probes [--rows 10000] [--dim 2400] [--outer-folds 1] [--json]
    python -m benchmarks.probes --model runs/x/trials/0001 --task MR --data DIR [--rows 2000]
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV
from threadpoolctl import threadpool_limits

from benchmarks.common import parsed, show
from raysent import models as model
from raysent.evaluation.probes.features import task_features
from raysent.evaluation.probes.logistic import ScaledFeatures
from raysent.evaluation.protocols import fast, fit_probe
from raysent.evaluation.protocols.fast import FOLD_SEED, NUM_FOLDS
from raysent.evaluation.task import TaskData
from raysent.evaluation.tasks import load_task
from raysent.evaluation.units import folds_of_units
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
    correct = [
        fold.test_log_probabilities.argmax(axis=1) == data.labels[fold.test_rows]
        for fold in result.folds
    ]
    return seconds, [100 * float(flags.mean()) for flags in correct]


def time_sklearn(
    features: np.ndarray, data: TaskData, *, outer_folds: int
) -> tuple[float, list[float]]:
    """Return the seconds of one outer fold times ten, and the accuracy of the fitted folds in percent."""
    scaled = ScaledFeatures(torch.from_numpy(features), torch.arange(len(features)))
    seen = (features - scaled.mean.numpy()) / scaled.scale
    folds = folds_of_units(data.labels, NUM_FOLDS, seed=FOLD_SEED)
    seconds, scores = 0.0, []
    for outer in range(outer_folds):
        train = folds != outer
        started = time.process_time()
        classifier = LogisticRegressionCV(
            Cs=list(STRENGTHS),
            cv=10,
            max_iter=1000,
            scoring="accuracy",
            use_legacy_attributes=False,
            l1_ratios=(0,),
        )
        classifier.fit(seen[train], data.labels[train])
        seconds += time.process_time() - started
        scores.append(100 * float(classifier.score(seen[~train], data.labels[~train])))
    return seconds / outer_folds * NUM_FOLDS, scores


def main() -> None:
    """Run the comparison and print it."""
    options = parsed(__doc__, rows=10_000, dim=2400, outer_folds=1, model=str, task="MR", data=Path)
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
    }
    show(found, options)


if __name__ == "__main__":
    main()
