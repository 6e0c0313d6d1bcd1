"""Which rows to label next, and which labels are suspected to be wrong.

The next rows are of the highest indecision x density, and unlike each other. Indecision is one minus the margin between
the two most probable classes by the mean of the members' probabilities: members that disagree have a small margin, and
so have members that are unsure alike. The density of a text is its mean cosine with all texts, by TF-IDF of words: a
text that is like no other teaches little about them. The candidates of the highest products, ten for each row that is
wanted, are divided into clusters by k-means, weighted by their products; of each cluster the best one is asked for.

A label is suspected by the probability that it gets from models that were fitted without its row, against the mean
probability that rows of the same label get. So a class that the models know badly is not suspected as a whole.

Sources: Seung et al., 1992 (query by committee); Scheffer et al., 2001 (margins); McCallum and Nigam, 1998, and Settles
and Craven, 2008 (density); Zhdanov, 2019 (clusters); Northcutt et al., 2021 (confident learning).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raysent.data.same_text import is_blank
from raysent.ensembles.cross_fitting import cross_fit
from raysent.ensembles.methods import ANSWER
from raysent.ensembles.predictions import PredictionsLike, as_predictions
from raysent.ensembles.task_ensemble import compatible, fold_predictions
from raysent.evaluation.records import Record
from raysent.evaluation.targets import Float64, Int64
from raysent.evaluation.units import near_copies
from raysent.models.schemes.tfidf import LexicalModel

# Candidates for each row that is wanted, and dimensions in which they are clustered.
_NUM_CANDIDATES = 10
_NUM_DIMENSIONS = 100


def next_rows(
    log_probabilities: PredictionsLike,
    texts: Sequence[str],
    num_rows: int,
    *,
    known: Sequence[str] = (),
) -> Int64:
    """Return the rows to label next, int64 [at most num_rows], the most useful first.

    Of near-copies one is returned, none of a text that is known, and none without a text.

    Args:
        log_probabilities: Of the members for rows without a label, [members, rows, classes].
        texts: The rows' texts [rows].
        num_rows: The number of rows that are wanted.
        known: Texts that have a label.
    """
    readable = np.flatnonzero([not is_blank(text) for text in texts])
    if not len(readable):
        return readable
    scores = np.zeros(len(texts))
    densities = density([texts[row] for row in readable.tolist()])
    scores[readable] = indecision(log_probabilities)[readable] * densities
    order = readable[np.argsort(-scores[readable], kind="stable")]
    num_compared = 0
    # More and more of the best rows are compared, until enough of them are no copies.
    while True:
        num_compared = max(_NUM_CANDIDATES * num_rows, 2 * num_compared)
        compared = order[:num_compared]
        sets = near_copies([*known, *(texts[row] for row in compared)])
        known_sets = sets[: len(known)]
        compared_sets = sets[len(known) :]
        is_new = ~np.isin(compared_sets, known_sets)
        first_of_sets = np.unique(compared_sets[is_new], return_index=True)[1]
        candidates = compared[is_new][np.sort(first_of_sets)]
        if len(candidates) >= num_rows or num_compared >= len(order):
            break
    if len(candidates) <= num_rows:
        return candidates
    # A weight of 0 would leave a cluster empty.
    weights = scores[candidates] + np.finfo(np.float64).tiny
    clusters = _clusters([texts[row] for row in candidates], num_rows, weights=weights)
    # The first row of a cluster is its best, as candidates are in the order of their scores.
    is_best = np.zeros(len(candidates), dtype=bool)
    is_best[np.unique(clusters, return_index=True)[1]] = True
    best_first = np.argsort(~is_best, kind="stable")[:num_rows]
    next_of_all: Int64 = candidates[np.sort(best_first)]
    return next_of_all


def _clusters(texts: Sequence[str], num_clusters: int, *, weights: Float64) -> Int64:
    """Return the cluster of each text by its parts of words, int64 [texts]."""
    from sklearn.cluster import KMeans  # noqa: PLC0415 - it takes seconds to import, and most commands do without
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415 - as above
    from sklearn.preprocessing import normalize  # noqa: PLC0415 - as above

    vectors = LexicalModel("chars").vectorizer().fit_transform(texts)
    num_dimensions = min(_NUM_DIMENSIONS, *(size - 1 for size in vectors.shape))
    reduced = normalize(TruncatedSVD(max(1, num_dimensions), random_state=0).fit_transform(vectors))
    k_means = KMeans(num_clusters, n_init=1, random_state=0)
    return np.asarray(k_means.fit_predict(reduced, sample_weight=weights), dtype=np.int64)


def indecision(log_probabilities: PredictionsLike) -> Float64:
    """Return one minus the margin of the mean of members' probabilities [members, rows, classes], float64 [rows]."""
    predictions = as_predictions(log_probabilities)
    mean = sum(np.exp(of_member) for of_member in predictions.members()) / predictions.shape[0]
    second, first = np.sort(mean, axis=1)[:, -2:].T
    return np.asarray(1 - (first - second), dtype=np.float64)


def density(texts: Sequence[str]) -> Float64:
    """Return the mean cosine of each text with all texts, float64 [rows], by TF-IDF of words."""
    vectors = LexicalModel("words").vectorizer().fit_transform(texts)
    cosines: Float64 = vectors @ np.asarray(vectors.mean(axis=0)).ravel()
    return cosines


def out_of_fold(records: Sequence[Record]) -> tuple[Int64, Float64]:
    """Return rows that models and their combination were not fitted on, int64 [rows], and their log-probabilities.

    They are the rows of a task with given train and test rows, each of which is in one of the two.

    Args:
        records: The members' records of the task.

    Returns:
        The rows, and float64 [rows, classes].
    """
    records = compatible(records)
    predictions, targets = fold_predictions(records, 0)
    fitted = cross_fit(predictions, targets, method=ANSWER)
    folds = [record.folds[0] for record in records]
    tested = fitted.predict([fold.test_log_probabilities for fold in folds])
    return (
        np.concatenate([folds[0].validation_rows, folds[0].test_rows]),
        np.concatenate([fitted.held_out, tested]),
    )


def suspicion(log_probabilities: Float64, labels: Int64) -> Float64:
    """Return how much each label is suspected to be wrong, float64 [rows]: above 0 where it is less likely than usual.

    Args:
        log_probabilities: By models that were fitted without the row, [rows, classes].
        labels: The labels, int64 [rows].
    """
    probabilities = np.exp(log_probabilities[np.arange(len(labels)), labels])
    counts = np.maximum(np.bincount(labels), 1)
    usual_of_class = np.bincount(labels, weights=probabilities) / counts
    suspicions: Float64 = usual_of_class[labels] - probabilities
    return suspicions
